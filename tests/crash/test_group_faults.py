"""One operation of a group goes wrong: its neighbours are written once, under rising ids."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import IdempotencyConflict
from penstock.topics.publishing import encode_message
from tests.crash.processes import company, until

pytestmark = pytest.mark.crash


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'hub.db'}"


@pytest.fixture
def hub(url: str) -> Iterator[penstock.Hub]:
    with penstock.connect(url) as hub:
        yield hub


def in_one_group(url: str, hub: penstock.Hub, writes: list[Callable[[], Any]]) -> list[Any]:
    """The results of writes that waited together for another process, in this order.

    The first write of the committer waits alone; the others make up the next group.
    """
    results: list[Any] = [None] * len(writes)

    def call(n: int, write: Callable[[], Any]) -> None:
        try:
            results[n] = write()
        except penstock.PenstockError as error:
            results[n] = error

    committer = hub._open().committer
    with company() as start:
        holder = start("hold_transaction", url)
        holder.expect("inside")
        first = committer.append([encode_message(hub.settings, "first", "alone")])
        until(lambda: not committer.waiting, "the committer has taken it up")
        threads = [threading.Thread(target=call, args=item) for item in enumerate(writes)]
        for n, thread in enumerate(threads):
            thread.start()
            until(lambda n=n: committer.waiting == n + 1, "it waits in line")
        holder.kill()
        first.wait()
        for thread in threads:
            thread.join()
    return results


def test_ids_do_not_go_back_after_a_refused_write_over_an_empty_log(
    url: str, hub: penstock.Hub
) -> None:
    """T1: everything was trimmed, and the group begins with an operation that is undone."""
    hub.topics.publish("load", "one", idempotency_key="key")
    hub.topics.trim("load", keep=0)
    end = hub.topics.position().offset
    refused, receipt = in_one_group(
        url,
        hub,
        [
            lambda: hub.topics.publish("load", "two", idempotency_key="key"),
            lambda: hub.topics.publish("load", "three"),
        ],
    )
    assert isinstance(refused, IdempotencyConflict)
    assert receipt.id == end + 2
    assert hub.topics.position().offset == end + 2
    assert [m.payload for m in hub.topics.read("load")] == ["three"]


def test_a_failing_listener_does_not_repeat_a_commit(
    url: str, hub: penstock.Hub, caplog: pytest.LogCaptureFixture
) -> None:
    """T4: what is on disk is acknowledged once, whatever a telemetry handler does."""

    def fail(event: str, measurements: object) -> None:
        raise RuntimeError(event)

    detach = hub.telemetry.attach(fail)
    with caplog.at_level(logging.CRITICAL, logger="penstock"):
        receipts = in_one_group(
            url, hub, [lambda n=n: hub.topics.publish("load", n) for n in range(4)]
        )
    detach()
    assert [m.payload for m in hub.topics.read("load")] == [0, 1, 2, 3]
    assert [receipt.id for receipt in receipts] == [2, 3, 4, 5]


def test_a_trim_between_two_messages_of_a_topic_is_no_loss_to_who_has_the_first(
    hub: penstock.Hub,
) -> None:
    """T7: the position given belongs to another topic."""
    first = hub.topics.publish("a", 1)
    other = hub.topics.publish("b", 2)
    hub.topics.publish("a", 3)
    hub.topics.trim("a", through=other.position)
    assert hub.topics.get("a").deleted_through == first.id
    assert [m.payload for m in hub.topics.read("a", after=first.position)] == [3]
