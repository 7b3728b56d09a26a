"""hub.aio: the same names as coroutines, over the same code."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable

import pytest

import penstock
from penstock import Delivery, Publication, Retention
from penstock.errors import (
    ConsumerBusy,
    InsideTransaction,
    InvalidPayload,
    LogTrimmed,
    StoreBusy,
    TransactionTimeout,
    WriteTimeout,
)
from penstock.mailboxes import coroutines, mailboxes
from penstock.testing import FakeClock, memory_hub
from penstock.topics import followers, subscription
from tests.factories import payloads
from tests.waiting import SOON, wait_until

OpenHub = Callable[..., penstock.Hub]
NOTHING = 0.02


@pytest.fixture
async def aio(memory: penstock.Hub) -> AsyncIterator[object]:
    yield memory.aio
    await memory.aio.close()


# Signatures


def _names(cls: type) -> set[str]:
    return {
        name
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and inspect.isfunction(value)
    }


def _plain(annotation: object) -> str:
    """An annotation with what differs between threads and coroutines taken out."""
    text = re.sub(r"\bbus\.", "", str(annotation))
    text = re.sub(r"\bAsync", "", text)
    # A callback may be a coroutine function where there is a loop to run it.
    text = re.sub(r"^Callback$", "Callable[[Message], object]", text)
    return re.sub(r"^(Coroutine|Awaitable)\[Any, Any, (.*)\]$", r"\2", text)


@pytest.mark.parametrize("room", ["topics", "consumers", "jobs", "schedules"])
def test_a_room_has_the_same_names_and_signatures_in_both_worlds(
    memory: penstock.Hub, room: str
) -> None:
    sync, other = type(getattr(memory, room)), type(getattr(memory.aio, room))

    assert _names(sync) == _names(other)
    for name in _names(sync):
        assert_alike(getattr(sync, name), getattr(other, name))


def test_the_hub_and_its_transaction_have_the_same_signatures(memory: penstock.Hub) -> None:
    hub, aio = penstock.Hub, type(memory.aio)
    common = _names(hub) & _names(aio)
    assert {"transaction", "health", "metrics", "close", "lock", "start_workers"} <= common
    for name in common:
        assert_alike(getattr(hub, name), getattr(aio, name))
    transaction = type(memory.transaction())
    other = type(memory.aio.transaction())
    for name in ("execute", "publish", "publish_many", "enqueue", "ack"):
        assert_alike(getattr(transaction, name), getattr(other, name))


@pytest.mark.parametrize(
    ("sync", "other"),
    [
        (followers.Follower, followers.AsyncFollower),
        (subscription.Live, subscription.AsyncLive),
        (mailboxes.Mailbox, coroutines.AsyncMailbox),
    ],
)
def test_readers_have_the_same_names_and_signatures(sync: type, other: type) -> None:
    assert _names(sync) == _names(other)
    for method in _names(sync):
        assert_alike(getattr(sync, method), getattr(other, method))


def assert_alike(sync: Callable[..., object], other: Callable[..., object]) -> None:
    ours, theirs = inspect.signature(sync), inspect.signature(other)
    assert [
        (p.name, p.kind, _default(p), _plain(p.annotation)) for p in ours.parameters.values()
    ] == [(p.name, p.kind, _default(p), _plain(p.annotation)) for p in theirs.parameters.values()]
    assert _plain(ours.return_annotation) == _plain(theirs.return_annotation), sync


def _default(parameter: inspect.Parameter) -> str:
    return repr(parameter.default)


# Publishing and reading


async def test_a_message_is_published_and_read(aio: object) -> None:
    receipt = await aio.topics.publish("t", {"id": 1}, type="x", key="k", headers={"a": "b"})
    (message,) = await aio.topics.read("t")

    assert (message.payload, message.type, message.key) == ({"id": 1}, "x", "k")
    assert message.position == receipt.position


async def test_tasks_in_flight_share_transactions(memory: penstock.Hub) -> None:
    commits: list[int] = []
    memory.telemetry.attach(
        lambda event, m: commits.append(m["operations"]) if event == "commit" else None
    )
    receipts = await asyncio.gather(*(memory.aio.topics.publish("t", n) for n in range(200)))

    assert sorted(receipt.id for receipt in receipts) == list(range(1, 201))
    assert len(commits) < 200
    assert max(commits) > 1


async def test_many_are_published_in_order(aio: object) -> None:
    receipts = await aio.topics.publish_many("t", [*range(2_500), Publication("last")])

    assert [receipt.id for receipt in receipts] == list(range(1, 2_502))
    with pytest.raises(InvalidPayload):
        await aio.topics.publish_many("t", [1, object()])
    assert (await aio.topics.position()).offset == 2_501


async def test_topics_are_looked_after(aio: object) -> None:
    await aio.topics.create("t", Retention(messages_max=9))
    await aio.topics.publish_many("t", range(5))
    await aio.topics.configure("t", Retention(messages_max=8))
    await aio.topics.configure("t", delivery=Delivery(batch_max=7))

    assert (await aio.topics.get("t")).retention.messages_max == 8
    assert (await aio.topics.get("t")).delivery == Delivery(batch_max=7)
    assert [topic.name for topic in await aio.topics.list()] == ["t"]
    assert await aio.topics.trim("t", keep=2) == 3
    assert (await aio.topics.stats("t")).messages == 2
    assert await aio.topics.delete("t") == 2


async def test_a_wait_can_be_bounded_while_the_write_goes_on(open_hub: OpenHub) -> None:
    hub = open_hub()
    writer = hub._open().store.open_writer()
    writer.begin()
    with pytest.raises(WriteTimeout) as caught:
        await hub.aio.topics.publish("t", 1, timeout=NOTHING)
    assert caught.value.retryable
    writer.close()

    assert (await hub.aio.topics.publish("t", 2)).id == 2
    assert payloads(await hub.aio.topics.read("t")) == [1, 2]


# Subscribing


async def test_a_subscriber_gets_what_comes(aio: object) -> None:
    await aio.topics.publish("t", "before")
    async with aio.topics.subscribe("t") as live:
        assert await live.get(NOTHING) is None
        await aio.topics.publish("t", 1)
        await aio.topics.publish("other", 2)
        await aio.topics.publish("t", 3)

        assert [(await live.get(SOON)).payload for _ in range(2)] == [1, 3]


async def test_a_subscriber_starts_after_a_position_or_with_the_last(aio: object) -> None:
    receipts = await aio.topics.publish_many("t", range(5))
    async with aio.topics.subscribe("t", after=receipts[1].position) as live:
        assert payloads(await live.take(timeout=SOON)) == [2, 3, 4]
    async with aio.topics.subscribe("t", last=2) as live:
        assert payloads(await live.take(timeout=SOON)) == [3, 4]
        assert live.position == receipts[-1].position


async def test_impatient_takes_miss_and_repeat_nothing(memory: penstock.Hub) -> None:
    """A thread that was still reading when the caller gave up answers the next call."""
    receipts = memory.topics.publish_many("t", range(3_000))
    seen: list[object] = []
    async with memory.aio.topics.subscribe(
        "t", after=penstock.Position(receipts[0].position.epoch, 0)
    ) as live:
        while len(seen) < 3_000:
            seen += payloads(await live.take(37, timeout=0))
            await asyncio.sleep(0)
        assert await live.take(timeout=NOTHING) == []

    assert seen == list(range(3_000))


async def test_batches_come_whole(aio: object) -> None:
    await aio.topics.publish_many("t", range(5))
    async with aio.topics.subscribe("t", last=5) as live:
        async for batch in live.batches(2):
            assert payloads(batch) == [0, 1]
            break


# Following


async def test_a_follower_resumes_where_it_was(memory: penstock.Hub) -> None:
    aio = memory.aio
    await aio.topics.publish_many("t", range(4))
    async with aio.topics.follow("t", consumer="c", start="earliest") as follower:
        assert payloads(await follower.take(2)) == [0, 1]
        assert payloads(await follower.take(1)) == [2]
    async with aio.topics.follow("t", consumer="c") as follower:
        assert (await follower.get(SOON)).payload == 2
        await follower.commit()
    assert (await aio.consumers.get("c", "t")).position.offset == 3
    async with aio.topics.follow("t", consumer="c") as follower:
        async for message in follower:
            assert message.payload == 3
            break
    assert (await aio.consumers.lag("c", "t")).messages == 1


async def test_a_second_follower_is_refused_and_a_standby_takes_over(memory: penstock.Hub) -> None:
    aio = memory.aio
    await aio.topics.publish("t", 1)
    first = aio.topics.follow("t", consumer="c", start="earliest")
    assert (await first.get(SOON)).payload == 1
    with pytest.raises(ConsumerBusy):
        await aio.topics.follow("t", consumer="c").get(SOON)
    standby = asyncio.ensure_future(aio.topics.follow("t", consumer="c", standby=True).get(SOON))
    await asyncio.sleep(0)
    await first.close()

    assert (await standby).payload == 1


async def test_a_follower_cancelled_at_any_moment_skips_nothing(open_hub: OpenHub) -> None:
    hub = open_hub(follow_batch_max=1)
    await hub.aio.topics.publish_many("t", range(60))
    seen: list[object] = []
    async with hub.aio.topics.follow("t", consumer="c", start="earliest") as follower:
        for attempt in range(4_000):
            task = asyncio.ensure_future(follower.get())
            for _ in range(attempt % 6):
                await asyncio.sleep(0)
            if attempt % 3:
                task.cancel()
            try:
                seen.append((await task).payload)
            except asyncio.CancelledError:
                pass
            if seen[-1:] == [59]:
                break

    assert seen == list(range(60))


async def test_a_follower_goes_on_after_its_watermark_could_not_be_written(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(lock_timeout_seconds=0.1, follow_batch_max=1)
    await hub.aio.topics.publish_many("t", range(3))
    async with hub.aio.topics.follow("t", consumer="c", start="earliest") as follower:
        assert payloads(await follower.take()) == [0]
        writer = hub._open().store.open_writer()
        writer.begin()
        with pytest.raises(StoreBusy):
            await follower.take()
        writer.close()
        assert [payloads(await follower.take()) for _ in range(2)] == [[1], [2]]


async def test_a_follower_learns_of_a_loss_or_skips_it(aio: object) -> None:
    await aio.topics.publish_many("t", range(5))
    async with aio.topics.follow("t", consumer="c", start="earliest"):
        pass
    await aio.topics.trim("t", keep=1)
    async with aio.topics.follow("t", consumer="c") as follower:
        with pytest.raises(LogTrimmed):
            await follower.get(SOON)
    async with aio.topics.follow("t", consumer="c", on_trimmed="skip") as follower:
        assert (await follower.get(SOON)).payload == 4


async def test_consumers_are_looked_after(aio: object) -> None:
    receipts = await aio.topics.publish_many("t", range(5))
    async with aio.topics.follow("t", consumer="c", start="earliest"):
        pass
    await aio.consumers.seek("c", "t", receipts[2].position)

    assert [c.position.offset for c in await aio.consumers.list()] == [3]
    assert await aio.consumers.delete("c") == 1


# Transactions and the hub itself


async def test_a_transaction_is_one(memory: penstock.Hub) -> None:
    class Undone(Exception):
        pass

    async with memory.aio.transaction() as tx:
        await tx.execute("CREATE TABLE mine (id INTEGER)")
        await tx.publish("t", 1)
        await tx.publish_many("t", [2, 3])
        with pytest.raises(InsideTransaction):
            await memory.aio.topics.publish("t", 4)
        with pytest.raises(InsideTransaction):
            await memory.aio.topics.create("u")
    assert payloads(await memory.aio.topics.read("t")) == [1, 2, 3]

    async def fail() -> None:
        async with memory.aio.transaction() as tx:
            await tx.execute("INSERT INTO mine VALUES (1)")
            await tx.publish("t", 4)
            raise Undone

    with pytest.raises(Undone):
        await fail()
    with memory.connection() as connection:
        assert connection.execute("SELECT * FROM mine") == []
    assert len(await memory.aio.topics.read("t")) == 3


async def test_a_transaction_that_stays_too_long_is_rolled_back(memory: penstock.Hub) -> None:
    async def stay() -> None:
        async with memory.aio.transaction(limit_seconds=0.05) as tx:
            await tx.publish("t", 1)
            await asyncio.to_thread(wait_until, lambda: tx._transaction._state == "expired")

    with pytest.raises(TransactionTimeout):
        await stay()
    assert await memory.aio.topics.read("t") == []


async def test_a_task_started_inside_a_transaction_publishes_after_it(
    memory: penstock.Hub,
) -> None:
    ended = asyncio.Event()

    async def later() -> penstock.Receipt:
        await ended.wait()
        return await memory.aio.topics.publish("t", "later")

    async with memory.aio.transaction() as tx:
        task = asyncio.create_task(later())
        await tx.publish("t", "inside")
    ended.set()

    assert (await task).id == 2


async def test_health_and_metrics(clock: FakeClock) -> None:
    hub = memory_hub(clock=clock)
    await hub.aio.topics.publish("t", 1)

    assert (await hub.aio.health()).status == "ok"
    assert (await hub.aio.metrics()).queue_size == 1
    await hub.aio.close()
    with pytest.raises(penstock.HubClosed):
        await hub.aio.topics.publish("t", 2)
