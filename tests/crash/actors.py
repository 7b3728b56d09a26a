"""Programs that crash tests start, kill and start again. Run as a script: ROLE URL OPTIONS(JSON).

Each report is one line on standard output, written at once and short enough to be whole or absent
when the process is killed. An acknowledgement is reported after the call has returned.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apsw

import penstock
from penstock.stores.sqlite.turnstile import Turnstile

LINE_ITEMS = 100
IN_FLIGHT = 100
MANY_MAX = 300


def report(*words: object) -> None:
    line = " ".join(str(word) for word in words) + "\n"
    assert len(line) <= 4096, "a longer line could be torn by a kill"
    os.write(1, line.encode())


def report_acks(acks: Iterable[tuple[int, int]]) -> None:
    acks = list(acks)
    for start in range(0, len(acks), LINE_ITEMS):
        report("acked", *(f"{n}:{number}" for n, number in acks[start : start + LINE_ITEMS]))


def obey() -> str:
    """Wait for the parent's next word; end when the parent has gone."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return line.strip()


def topic_of(n: int) -> str:
    return "load-odd" if n % 2 else "load-even"


def publish_one_by_one(hub: penstock.Hub, *, name: str, run: int, count: int | None = None) -> None:
    for n in itertools.count() if count is None else range(count):
        receipt = hub.topics.publish(topic_of(n), [name, run, n])
        report_acks([(n, receipt.id)])


def publish_in_flight(hub: penstock.Hub, *, name: str, run: int, count: int | None = None) -> None:
    numbers = itertools.count() if count is None else iter(range(count))

    async def task() -> None:
        for n in numbers:
            receipt = await hub.aio.topics.publish(topic_of(n), [name, run, n])
            report_acks([(n, receipt.id)])

    async def main() -> None:
        await asyncio.gather(*(task() for _ in range(IN_FLIGHT)))

    asyncio.run(main())


def publish_many(hub: penstock.Hub, *, name: str, run: int) -> None:
    chance = random.Random(f"{name}{run}")
    n = 0
    while True:
        numbers = range(n, n + chance.randint(1, MANY_MAX))
        payloads = [[name, run, m] for m in numbers]
        receipts = hub.topics.publish_many("load-many", payloads)
        report_acks((m, receipt.id) for m, receipt in zip(numbers, receipts, strict=True))
        n = numbers.stop


def publish_quickly(hub: penstock.Hub, *, name: str, count: int) -> None:
    """Many in flight, one report at the end: for tests of order, not of kills."""
    numbers = iter(range(count))
    report("ready")
    obey()

    async def task() -> None:
        for n in numbers:
            await hub.aio.topics.publish(f"load-{name}", [name, 0, n])

    async def main() -> None:
        await asyncio.gather(*(task() for _ in range(IN_FLIGHT)))

    asyncio.run(main())
    report("done")


def follow(hub: penstock.Hub, *, pattern: str, consumer: str, until: int | None = None) -> None:
    """Reports each batch before asking for the next one, which is what commits it."""
    follower = hub.topics.follow(pattern, consumer=consumer, start="earliest")
    report("ready")
    _receive(iter(follower.batches(LINE_ITEMS)), until)


def subscribe(hub: penstock.Hub, *, pattern: str, until: int) -> None:
    live = hub.topics.subscribe(pattern)
    report("ready")
    _receive(iter(live.batches(LINE_ITEMS)), until)


def subscribe_async(hub: penstock.Hub, *, pattern: str, until: int) -> None:
    async def main() -> None:
        count = 0
        async with hub.aio.topics.subscribe(pattern) as live:
            report("ready")
            async for batch in live.batches(LINE_ITEMS):
                report("batch", *(message.id for message in batch))
                count += len(batch)
                if count >= until:
                    return

    asyncio.run(main())


def _receive(batches: Iterable[list[penstock.Message]], until: int | None) -> None:
    count = 0
    for batch in batches:
        report("batch", *(message.id for message in batch))
        count += len(batch)
        if until is not None and count >= until:
            return


def transact(hub: penstock.Hub, *, name: str, run: int) -> None:
    with hub.transaction(limit_seconds=30) as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS own (name TEXT, run INTEGER, n INTEGER)")
    for n in itertools.count():
        with hub.transaction(limit_seconds=30) as tx:
            tx.publish("group", [name, run, n])
            tx.execute("INSERT INTO own VALUES (?, ?, ?)", (name, run, n))
            receipts = tx.publish_many("group", [[name, run, n]] * 2)
            report("inside", n)
        report_acks([(n, receipts[-1].id)])


def hold_transaction(hub: penstock.Hub) -> None:
    """Has written and not committed, and stays there."""
    with hub.transaction(limit_seconds=600) as tx:
        tx.execute("CREATE TABLE unseen (x)")
        tx.publish("held", "never to be seen")
        report("inside")
        obey()


def hold_turnstile(hub: penstock.Hub, *, path: str, which: str) -> None:
    """Has the turn, or stands next to it, and stays there."""
    turnstile = Turnstile(Path(path))
    if which == "turn":
        turnstile.enter(60)
    else:
        import fcntl

        fcntl.flock(turnstile._next, fcntl.LOCK_EX)
    report("inside")
    obey()


def sweep(hub: penstock.Hub, *, pairs: int) -> None:
    """Odd ids are of one topic and even ids of the other, so that the checker knows them all."""
    while True:
        with hub.transaction(limit_seconds=30) as tx:
            for _ in range(pairs):
                tx.publish("odd", "x")
                receipt = tx.publish("even", "y")
        report("published", receipt.id)
        hub._open().sweeper.sweep()
        report("swept")
        hub.topics.trim("odd", through=penstock.Position(_epoch(hub), receipt.id - 2 * pairs // 3))
        report("trimmed")


def _epoch(hub: penstock.Hub) -> str:
    return hub.topics.position().epoch


def die_before_ringing(hub: penstock.Hub, *, topic: str) -> None:
    """Killed between the commit and the bell."""
    hub.topics.position()

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    hub._open().store.ring = die  # type: ignore[method-assign]
    report("ready")
    obey()
    hub.topics.publish(topic, "unheard")
    report("survived")


def hold_reader(hub: penstock.Hub, *, path: str) -> None:
    """A stranger with a read transaction that it does not end."""
    connection = apsw.Connection(path)
    connection.execute("BEGIN; SELECT count(*) FROM penstock_messages").fetchall()
    report("inside")
    obey()
    connection.execute("ROLLBACK")
    connection.close()
    report("ended")
    obey()


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role
    for role in (
        publish_one_by_one,
        publish_in_flight,
        publish_many,
        publish_quickly,
        follow,
        subscribe,
        subscribe_async,
        transact,
        hold_transaction,
        hold_turnstile,
        sweep,
        die_before_ringing,
        hold_reader,
    )
}


def main() -> None:
    role, url, options = sys.argv[1:]
    arguments: dict[str, Any] = json.loads(options)
    settings = arguments.pop("settings", {})
    with penstock.connect(url, **settings) as hub:
        ROLES[role](hub, **arguments)


if __name__ == "__main__":
    main()
