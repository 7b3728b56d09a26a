"""A message's effect and the consumer's watermark in one transaction: both, or neither (T3, T9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidInput, LeaseLost
from penstock.testing import FakeClock
from penstock.topics.followers import Follower
from penstock.transaction import HubTransaction
from tests.factories import file_url, payloads
from tests.processes import Child
from tests.waiting import SOON

OpenHub = Callable[..., penstock.Hub]


@pytest.fixture
def shop(open_hub: OpenHub) -> penstock.Hub:
    """A table for effects, five messages, and batches of two."""
    return prepare(open_hub(follow_batch_max=2))


def prepare(hub: penstock.Hub) -> penstock.Hub:
    with hub.transaction() as tx:
        tx.execute("CREATE TABLE effects (message INTEGER)")
    hub.topics.publish_many("t", range(5))
    return hub


def follow(hub: penstock.Hub) -> Follower:
    return hub.topics.follow("t", consumer="c", start="earliest")


def effects(hub: penstock.Hub) -> list[int]:
    with hub.connection() as connection:
        return [row[0] for row in connection.execute("SELECT message FROM effects ORDER BY rowid")]


def watermark(hub: penstock.Hub) -> int:
    return hub.consumers.get("c", "t").position.offset


def handle(tx: HubTransaction, message: penstock.Message) -> None:
    tx.execute("INSERT INTO effects VALUES (?)", (message.payload,))


@contextmanager
def undone(hub: penstock.Hub) -> Iterator[HubTransaction]:
    """A transaction that fails at its end."""

    def fail() -> None:
        raise ZeroDivisionError

    try:
        with hub.transaction() as tx:
            yield tx
            fail()
    except ZeroDivisionError:
        pass


def test_effect_and_watermark_are_written_together(shop: penstock.Hub) -> None:
    with follow(shop) as follower:
        message = follower.get(SOON)
        with shop.transaction() as tx:
            handle(tx, message)
            tx.ack(follower)
            assert (effects(shop), watermark(shop)) == ([], 0)

        assert (effects(shop), watermark(shop)) == ([0], 1)


def test_a_message_passed_on_is_published_with_the_watermark(shop: penstock.Hub) -> None:
    with follow(shop) as follower:
        message = follower.get(SOON)
        with shop.transaction() as tx:
            tx.publish("out", message.payload)
            tx.ack(follower)

    assert (payloads(shop.topics.read("out")), watermark(shop)) == ([0], 1)


def test_a_rollback_leaves_both_undone_and_the_message_comes_again(shop: penstock.Hub) -> None:
    with follow(shop) as follower:
        message = follower.get(SOON)
        with undone(shop) as tx:
            handle(tx, message)
            tx.ack(follower)
    assert (effects(shop), watermark(shop)) == ([], 0)

    with follow(shop) as follower:
        assert follower.get(SOON).payload == 0


def test_after_a_rollback_the_same_follower_may_try_again(shop: penstock.Hub) -> None:
    with follow(shop) as follower:
        message = follower.get(SOON)
        with undone(shop) as tx:
            tx.ack(follower)
        with shop.transaction() as tx:
            handle(tx, message)
            tx.ack(follower)

    assert (effects(shop), watermark(shop)) == ([0], 1)


def test_a_loop_of_transactions_has_each_effect_once(shop: penstock.Hub) -> None:
    with follow(shop) as follower:
        for _ in range(5):
            message = follower.get(SOON)
            with shop.transaction() as tx:
                handle(tx, message)
                tx.ack(follower)

    assert (effects(shop), watermark(shop)) == ([0, 1, 2, 3, 4], 5)


def test_what_was_acknowledged_is_not_committed_once_more(
    shop: penstock.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower goes on without a transaction of its own."""
    written_by: list[int] = []
    committer = shop._open().committer
    submit = committer._submit

    def watched(operation: Any) -> Any:
        written_by.append(threading.get_ident())
        return submit(operation)

    with follow(shop) as follower:
        batch = follower.take()
        with shop.transaction() as tx:
            tx.ack(follower)
        monkeypatch.setattr(committer, "_submit", watched)
        assert payloads(batch) == [0, 1]
        assert payloads(follower.take()) == [2, 3]
        assert threading.get_ident() not in written_by
        follower.commit()
        assert threading.get_ident() in written_by

    assert watermark(shop) == 4


def test_acknowledging_covers_what_was_handed_out_and_no_more(shop: penstock.Hub) -> None:
    with follow(shop) as follower:
        assert follower.get(SOON).payload == 0  # the first of a batch of two
        with shop.transaction() as tx:
            tx.ack(follower)
    with follow(shop) as follower:
        assert follower.get(SOON).payload == 1


def test_acknowledging_nothing_new_changes_nothing(shop: penstock.Hub) -> None:
    with follow(shop) as follower:
        with shop.transaction() as tx:
            tx.ack(follower)
        assert watermark(shop) == 0
        follower.take()
        follower.commit()
        before = shop.consumers.get("c", "t")
        for _ in range(2):
            with shop.transaction() as tx:
                tx.ack(follower)
                tx.ack(follower)

        assert shop.consumers.get("c", "t") == before


def test_a_lost_lease_undoes_the_effect(open_hub: OpenHub, clock: FakeClock) -> None:
    """Another follower has the message now; its effect is that one's to make."""
    slow = prepare(open_hub(clock=clock, consumer_lease_seconds=30, follow_batch_max=1))
    slow._open().keeper.stop()  # as if the whole process stood still
    stalled = follow(slow)
    message = stalled.get(SOON)

    def handle_late() -> None:
        with slow.transaction() as tx:
            handle(tx, message)
            tx.ack(stalled)

    clock.advance(30)
    other = open_hub(clock=clock, follow_batch_max=1)
    with follow(other) as second:
        assert second.get(SOON).payload == message.payload
        with pytest.raises(LeaseLost):
            handle_late()
        assert (effects(slow), watermark(slow)) == ([], 0)
        with other.transaction() as tx:
            handle(tx, message)
            tx.ack(second)

    assert (effects(slow), watermark(slow)) == ([0], 1)


def test_a_follower_of_another_hub_is_refused(shop: penstock.Hub, memory: penstock.Hub) -> None:
    """Its watermark would be written into the wrong file, to a consumer of the same name."""
    memory.topics.publish_many("t", range(5))
    with follow(shop), follow(memory) as stranger:
        stranger.take()
        with shop.transaction() as tx, pytest.raises(InvalidInput):
            tx.ack(stranger)

    assert (watermark(shop), watermark(memory)) == (0, 0)


def test_a_skipped_loss_is_noted_after_a_rollback_too(open_hub: OpenHub) -> None:
    hub = open_hub(follow_batch_max=1)
    hub.topics.follow("*", consumer="c", start="earliest").close()
    for topic in ("lost", "kept", "lost"):
        hub.topics.publish(topic, topic)
    hub.topics.trim("lost", keep=0)
    with hub.topics.follow("*", consumer="c", on_trimmed="skip") as follower:
        assert follower.get(SOON).payload == "kept"
        with undone(hub) as tx:
            tx.ack(follower)
        with hub.transaction() as tx:
            tx.ack(follower)

    assert not hub.consumers.lag("c", "*").lost


KILLED = """
    import sys, penstock
    hub = penstock.connect(sys.argv[1], follow_batch_max=1)
    follower = hub.topics.follow("t", consumer="c", start="earliest")
    for message in follower:
        with hub.transaction(limit_seconds=60) as tx:
            tx.execute("INSERT INTO effects VALUES (?)", (message.payload,))
            tx.ack(follower)
            if message.payload == 2:
                print("between", flush=True)
                sys.stdin.readline()
"""


def test_kill_9_before_the_commit_leaves_both_undone(shop: penstock.Hub, path: Path) -> None:
    with Child(KILLED, file_url(path)) as child:
        assert child.hear() == "between"
        child.kill()
    assert (effects(shop), watermark(shop)) == ([0, 1], 2)

    with follow(shop) as follower:
        for _ in range(3):
            message = follower.get(SOON)
            with shop.transaction() as tx:
                handle(tx, message)
                tx.ack(follower)
    assert effects(shop) == [0, 1, 2, 3, 4]


# On an event loop


async def test_coroutines_write_effect_and_watermark_together(shop: penstock.Hub) -> None:
    aio = shop.aio
    async with aio.topics.follow("t", consumer="c", start="earliest") as follower:
        for _ in range(3):
            message = await follower.get(SOON)
            async with aio.transaction() as tx:
                await tx.execute("INSERT INTO effects VALUES (?)", (message.payload,))
                await tx.ack(follower)

    assert (effects(shop), watermark(shop)) == ([0, 1, 2], 3)


async def test_a_rollback_of_a_coroutine_leaves_both_undone(shop: penstock.Hub) -> None:
    aio = shop.aio
    async with aio.topics.follow("t", consumer="c", start="earliest") as follower:
        message = await follower.get(SOON)

        async def fail() -> None:
            async with aio.transaction() as tx:
                await tx.execute("INSERT INTO effects VALUES (?)", (message.payload,))
                await tx.ack(follower)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()

    assert (effects(shop), watermark(shop)) == ([], 0)


async def test_a_follower_nobody_asked_yet_has_nothing_to_acknowledge(shop: penstock.Hub) -> None:
    follower = shop.aio.topics.follow("t", consumer="c", start="earliest")
    async with shop.aio.transaction() as tx:
        await tx.ack(follower)

    assert (await follower.get(SOON)).payload == 0
    await follower.close()


def test_effects_do_not_stay_when_a_lost_lease_is_caught(
    open_hub: OpenHub, clock: FakeClock
) -> None:
    """Whoever has the consumer now does the work again."""
    slow = prepare(open_hub(clock=clock, consumer_lease_seconds=30, follow_batch_max=1))
    slow._open().keeper.stop()  # as if the whole process stood still
    stalled = follow(slow)
    message = stalled.get(SOON)

    def go_on_all_the_same() -> None:
        with slow.transaction() as tx:
            handle(tx, message)
            with suppress(LeaseLost):
                tx.ack(stalled)

    clock.advance(30)
    with follow(open_hub(clock=clock, follow_batch_max=1)):
        with pytest.raises(penstock.TransactionClosed):
            go_on_all_the_same()
        assert effects(slow) == []
    stalled.close()
