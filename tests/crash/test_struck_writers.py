"""A thread that writes is struck anywhere: by Ctrl-C, or at the end of a job's time (T4, M12)."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InsideTransaction
from tests.crash import strikes
from tests.processes import Child
from tests.waiting import SOON, wait_until

STRIKES = 300
ROOMY = {"mailbox_messages_max": 100_000, "mailbox_file_messages_max": 200_000}

CTRL_C = """
import json, signal, sys
import penstock
from tests.crash import strikes

acknowledged = {}
with penstock.connect(sys.argv[1]) as hub:
    hub.topics.publish("first", 0)

    def publish(number):
        acknowledged[hub.topics.publish("t", number).id] = number

    strikes.here(publish, int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(json.dumps(acknowledged), flush=True)
    sys.stdin.readline()
"""

HANDLER = """
import os, signal, sys, threading
import penstock

handled = []
with penstock.connect(sys.argv[1]) as hub:
    hub.topics.publish("first", 0)

    def handle(*_):
        handled.append(hub.topics.publish("handler", 1).id)

    signal.signal(signal.SIGUSR1, handle)
    is_over = threading.Event()

    def send():
        while not is_over.wait(0.001):
            os.kill(os.getpid(), signal.SIGUSR1)

    sending = threading.Thread(target=send)
    sending.start()
    while len(handled) < 100:
        hub.topics.publish("main", 1)
    is_over.set()
    sending.join()
    print(*handled, flush=True)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'hub.db'}"


def check(hub: penstock.Hub, acknowledged: Mapping[int, int]) -> None:
    stored = {message.id: message.payload for message in hub.topics.read("t", limit=10**6)}
    assert len(acknowledged) > 0
    assert acknowledged.items() <= stored.items()


def test_whoever_is_struck_loses_nothing_and_stands_in_nobodys_way(url: str) -> None:
    acknowledged: dict[int, int] = {}
    with penstock.connect(url) as hub, penstock.connect(url) as other:
        hub.topics.publish("first", 0)

        def publish(number: int) -> None:
            acknowledged[hub.topics.publish("t", number).id] = number

        seen: list[int] = []
        with hub.topics.subscribe("t") as live:
            strikes.on_a_thread(publish, STRIKES)
            last = hub.topics.publish("t", -1, timeout=SOON)
            for message in live:
                seen.append(message.id)
                if message.id == last.id:
                    break

        check(hub, acknowledged)
        ids = [message.id for message in hub.topics.read("t", limit=10**6)]
        assert seen == ids, "a live subscriber has all of them, in order"
        assert other.topics.publish("t", "other", timeout=SOON).id == last.id + 1
        assert hub.topics.publish("t", "again", timeout=SOON).id == last.id + 2


def test_ctrl_c_loses_nothing_and_stands_in_nobodys_way(url: str) -> None:
    with Child(CTRL_C, url, STRIKES) as child, penstock.connect(url) as other:
        acknowledged = json.loads(child.first_word())
        other.topics.publish("t", "other", timeout=SOON)
        check(other, {int(id): number for id, number in acknowledged.items()})


def test_a_handler_of_a_signal_writes_in_the_middle_of_another_write(url: str) -> None:
    with Child(HANDLER, url) as child:
        handled = sorted(map(int, child.first_word().split()))
    with penstock.connect(url) as hub:
        assert [message.id for message in hub.topics.read("handler")] == handled


def on_a_thread(work: Any) -> None:
    """Where no signal is handled: the main thread of a test run handles some."""
    thread = threading.Thread(target=work, name="mine")
    thread.start()
    thread.join()


def test_a_thread_that_comes_alone_writes_by_itself(url: str) -> None:
    with penstock.connect(url) as hub:
        hub.topics.publish("t", "the first starts the committer")
        wrote: list[str] = []

        def note(event: str, _: object) -> None:
            if event == "commit":
                wrote.append(threading.current_thread().name)

        hub.telemetry.attach(note)
        wait_until(lambda: hub._open().committer.is_idle)
        on_a_thread(lambda: hub.topics.publish("t", 1))
        on_a_thread(lambda: hub.topics.publish_many("t", [2, 3]))
        assert wrote == ["mine", "mine"]
        on_a_thread(lambda: hub.topics.publish("t", 4, timeout=SOON))
        assert wrote[2:] == ["penstock-committer"], "who wants to stop waiting lets it write"


@pytest.mark.parametrize("timeout", [None, SOON])
def test_who_writes_in_the_middle_of_his_own_write_is_told(url: str, timeout: float | None) -> None:
    """Not left waiting for himself: from a telemetry handler, or a finalizer."""
    with penstock.connect(url) as hub:
        hub.topics.publish("t", "the first starts the committer")
        errors: list[str] = []

        def publish_again(event: str, _: object) -> None:
            if event == "commit":
                with pytest.raises(InsideTransaction, match="in the middle of another") as raised:
                    hub.topics.publish("t", "again")
                errors.append(str(raised.value))

        detach = hub.telemetry.attach(publish_again)
        on_a_thread(lambda: hub.topics.publish("t", 1, timeout=timeout))
        detach()
        assert len(errors) == 1
        assert [m.payload for m in hub.topics.read("t")][1:] == [1]


@pytest.mark.parametrize("durability", ["durable", "os"])
def test_a_mailbox_whose_users_are_struck_is_whole(tmp_path: Path, durability: str) -> None:
    """M12: what was acknowledged is there, in order, also for another process."""
    url = f"sqlite:///{tmp_path / 'hub.db'}"
    with (
        penstock.connect(url, mailbox_durability=durability, **ROOMY) as hub,
        penstock.connect(url, **ROOMY) as other,
    ):
        box, theirs = hub.mailboxes.open("box"), other.mailboxes.open("box")
        box.put("first")
        theirs.peek()
        accepted: list[str] = []
        taken: list[str] = []
        sizes = random.Random(durability)

        def use(number: int) -> None:
            if number % 3:
                accepted.append(box.put(bytes(sizes.randrange(300))).id)
            elif (mail := theirs.peek() if number % 2 else box.peek()) is not None:
                taken.append(mail.id)
                box.ack(mail.id)

        strikes.on_a_thread(use, STRIKES)
        assert hub.mailboxes.verify().findings == []
        while mail := theirs.peek():
            taken.append(mail.id)
            theirs.ack(mail.id)
    seen = list(dict.fromkeys(taken))
    known = set(accepted)
    assert [id for id in seen if id in known] == accepted


@pytest.mark.parametrize("durability", ["durable", "os"])
def test_who_uses_a_mailbox_in_the_middle_of_using_one_is_told(url: str, durability: str) -> None:
    with penstock.connect(url, mailbox_durability=durability) as hub:
        box = hub.mailboxes.open("box")
        box.put("first")
        folder = hub._open().mail.folder
        for use in (box.peek, lambda: box.ack("?"), lambda: box.put(1), lambda: box.put_many([1])):
            with folder.locked("box"), pytest.raises(InsideTransaction, match="using a mailbox"):
                use()  # type: ignore[no-untyped-call]
        assert box.put("second").seq == 2
