"""Whoever puts while the hub closes gets an answer (T4, M12)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import penstock
from penstock.errors import HubClosed
from tests.crash.mailbox_world import new_mail
from tests.factories import hub_on

PATIENCE_SECONDS = 30.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


def put_on(hub: penstock.Hub, ends: list[str]) -> None:
    try:
        while True:
            hub.mailboxes.put("ada", "another", timeout=PATIENCE_SECONDS)
    except HubClosed as error:
        ends.append(error.code)


def test_it_is_a_receipt_or_an_error_and_never_silence(file: Path) -> None:
    for _ in range(10):
        ends: list[str] = []
        with hub_on(file, mailbox_messages_max=100_000, mailbox_file_messages_max=100_001) as hub:
            hub.mailboxes.put("ada", "first")
            threads = [threading.Thread(target=put_on, args=(hub, ends)) for _ in range(4)]
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert ends == [HubClosed.code] * len(threads)


@pytest.mark.parametrize("was_used", [True, False])
def test_one_who_comes_through_the_closing_door_is_sent_away(file: Path, was_used: bool) -> None:
    with hub_on(file) as hub:
        if was_used:
            hub.mailboxes.put("ada", "first")
        postman = hub._open().mail.postman
        postman.stop()
        postman._is_closed = False  # As somebody saw it who looked just before.
        with pytest.raises(HubClosed):
            postman.put("ada", [new_mail("m1")]).wait(PATIENCE_SECONDS)
        assert postman.waiting == 0


@pytest.mark.parametrize("was_used", [True, False])
def test_so_is_one_who_publishes(file: Path, was_used: bool) -> None:
    with hub_on(file) as hub:
        if was_used:
            hub.topics.publish("orders", 1)
        committer = hub._open().committer
        committer.stop()
        committer._is_closed = False
        with pytest.raises(HubClosed):
            committer.run(lambda transaction: None).wait(PATIENCE_SECONDS)
        assert committer.waiting == 0
