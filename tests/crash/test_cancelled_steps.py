"""A task that is cancelled at any of its steps stands in nobody's way (T4, J11, M12).

Each operation is begun over and over, and cancelled one turn of the event loop later each time,
until it is done before that. What it was doing is done or not; the next one can do the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.factories import hub_on
from tests.waiting import SOON, wait_until

QUICK = 3
"""Done so often before it was cancelled, it is cancelled at no step any more."""

Operation = Callable[[penstock.Hub, int], Coroutine[Any, Any, object]]


@pytest.fixture
async def hubs(tmp_path: Path) -> AsyncIterator[tuple[penstock.Hub, penstock.Hub]]:
    with hub_on(tmp_path / "hub.db") as hub, hub_on(tmp_path / "hub.db") as other:
        for one in (hub, other):
            one.topics.publish("first", 0)
            one.mailboxes.put("first", 0)
        yield hub, other


async def cancel_at_each(
    begin: Callable[[int], Coroutine[Any, Any, object]], check: Callable[[int], Awaitable[object]]
) -> tuple[int, list[int]]:
    """How often it was cancelled, and which were done before."""
    done: list[int] = []
    number = turns = 0
    while len(done) < QUICK:
        task = asyncio.create_task(begin(number))
        for _ in range(turns):
            if task.done():
                break
            await asyncio.sleep(0)
        turns += 1 + turns // 8
        task.cancel()
        try:
            await task
            done.append(number)
        except asyncio.CancelledError:
            pass
        async with asyncio.timeout(SOON):
            await check(number)
        number += 1
    return number - len(done), done


async def test_publishing(hubs: tuple[penstock.Hub, penstock.Hub]) -> None:
    hub, other = hubs

    async def check(number: int) -> None:
        ours = await hub.aio.topics.publish("t", -1)
        theirs = await other.aio.topics.publish("t", -1)
        assert ours.id < theirs.id

    cancelled, done = await cancel_at_each(lambda n: hub.aio.topics.publish("t", n), check)
    assert cancelled > 1
    found = [message.payload for message in other.topics.read("t", limit=100_000)]
    assert set(done) <= set(found)
    assert len(found) == len(set(found) - {-1}) + found.count(-1), "each is there once"


async def test_a_mailbox(hubs: tuple[penstock.Hub, penstock.Hub]) -> None:
    hub, other = hubs
    ours, theirs = hub.aio.mailboxes.open("box"), other.aio.mailboxes.open("box")

    async def put(number: int) -> None:
        await ours.put(number, id=f"m-{number}")

    async def check(number: int) -> None:
        """Put again, it is there once."""
        assert (await theirs.put(number, id=f"m-{number}")).id == f"m-{number}"
        # What is on its way to the disk here is shown when it is there.
        await asyncio.to_thread(wait_until, lambda: hub.mailboxes.open("box").size() > number)
        assert await theirs.size() == number + 1

    cancelled, _ = await cancel_at_each(put, check)
    assert cancelled > 1
    assert other.mailboxes.verify().findings == []
    count = await ours.size()
    assert [m.id for m in await theirs.peek_many(1000)] == [f"m-{n}" for n in range(count)]

    async def take(number: int) -> None:
        mail = await ours.peek()
        assert mail is not None
        await ours.ack(mail.id)

    async def check_taken(number: int) -> None:
        assert await ours.size() == await theirs.size()
        await theirs.put("more")

    await cancel_at_each(take, check_taken)
    assert other.mailboxes.verify().findings == []


async def test_waiting_for_mail(hubs: tuple[penstock.Hub, penstock.Hub]) -> None:
    hub, other = hubs
    box = hub.aio.mailboxes.open("empty")
    for turns in range(20):
        waiting = asyncio.create_task(box.wait())
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    later = asyncio.create_task(box.wait(SOON))
    await other.aio.mailboxes.put("empty", "here")
    mail = await later
    assert mail is not None
    assert mail.payload == "here"


async def test_a_lock(hubs: tuple[penstock.Hub, penstock.Hub]) -> None:
    hub, other = hubs

    async def hold(number: int) -> None:
        async with hub.aio.lock("l") as lock:
            lock.check()

    async def check(number: int) -> None:
        async with other.aio.lock("l") as lock:
            lock.check()

    cancelled, _ = await cancel_at_each(hold, check)
    assert cancelled > 1


async def test_a_transaction(hubs: tuple[penstock.Hub, penstock.Hub]) -> None:
    hub, other = hubs
    with hub.transaction() as tx:
        tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")

    async def write(number: int) -> None:
        async with hub.aio.transaction(limit_seconds=SOON) as tx:
            await tx.execute("INSERT INTO orders (id) VALUES (?)", (number,))
            await tx.publish("orders", number)

    async def check(number: int) -> None:
        await other.aio.topics.publish("t", number)

    cancelled, done = await cancel_at_each(write, check)
    assert cancelled > 1
    with other.transaction() as tx:
        rows = [row[0] for row in tx.execute("SELECT id FROM orders ORDER BY id")]
    assert rows == [message.payload for message in other.topics.read("orders", limit=100_000)]
    assert set(done) <= set(rows)
