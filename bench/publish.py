"""Publishing: many tasks in flight, in bulk, and for long beside retention.

What the measured processes import is kept small: it is part of what they measure.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from bench.figures import Figure, show
from bench.process import Link, Meter, call
from bench.workload import PAYLOAD, TYPE, url

if TYPE_CHECKING:
    from bench.arena import Arena
    from bench.workload import Sizes

IN_FLIGHT = 100
# A topic may run so far beyond what it retains, times its size, before the figure is void.
RETAINED_SLACK = 2.0
LOOK_SECONDS = 0.02
BULK_BATCH = 100


def bulk(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    rows = max(1, sizes.bulk_rows // BULK_BATCH) * BULK_BATCH
    amount = {"rows": rows, "batch": BULK_BATCH}
    rates: dict[str, list[float]] = {"mine": [], "ours": [], "bare": []}
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            rates["mine"].append(call("bench.publish:in_bulk", folder, **amount)["per_second"])
        for table in ("ours", "bare"):
            with arena.fresh() as folder:
                found = call("bench.peers.sqlite:in_bulk", folder, **amount, table=table)
                rates[table].append(found["per_second"])
    for key, table in (
        ("ratio_bulk_vs_raw_sqlite", "ours"),
        ("ratio_bulk_vs_minimal_table", "bare"),
    ):
        yield Figure.of(
            key,
            [mine / raw for mine, raw in zip(rates["mine"], rates[table], strict=True)],
            f"{show(statistics.median(rates['mine']))}/s against "
            f"{show(statistics.median(rates[table]))}/s, both with encoding",
        )


def beside_retention(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    steady: list[dict[str, Any]] = []
    burst: list[dict[str, Any]] = []
    for _ in range(sizes.runs):
        for runs, messages_max in ((burst, None), (steady, sizes.retained)):
            with arena.fresh() as folder:
                runs.append(
                    call(
                        "bench.publish:for_long",
                        folder,
                        tasks=IN_FLIGHT,
                        warm_up=sizes.retained,
                        messages=10 * sizes.retained,
                        messages_max=messages_max,
                    )
                )
    most = max(run["retained_most"] for run in steady) / sizes.retained
    last = max(run["retained_last"] for run in steady) / sizes.retained
    is_valid = most <= RETAINED_SLACK
    rate = statistics.median(run["per_second"] for run in steady)
    note = (
        f"{show(rate)}/s while the topic kept {show(sizes.retained)} messages; at most "
        f"{most:.2f} times that were there, {last:.2f} at the end"
    )
    if not is_valid:
        note = "void, retention fell behind: " + note
    yield Figure.of(
        "publish_steady_vs_burst",
        [s["per_second"] / b["per_second"] for s, b in zip(steady, burst, strict=True)],
        note,
        is_valid=is_valid,
    )


# In processes of their own


def in_flight(link: Link, *, tasks: int, seconds: float, warm_up_seconds: float) -> dict[str, Any]:
    """`tasks` tasks, each awaiting its own publish in a loop, for some seconds."""
    with penstock.connect(url(Path.cwd())) as hub:

        async def run() -> dict[str, Any]:
            await publish_for(hub, tasks, warm_up_seconds)
            link.ready()
            link.wait_go()
            before = hub.telemetry.counters()
            with Meter() as meter:
                published = await publish_for(hub, tasks, seconds)
            commits = hub.telemetry.counters()["commit"] - before["commit"]
            return {
                "per_second": published / meter.seconds,
                "seconds": meter.seconds,
                "cores": meter.cores,
                "messages_per_commit": published / commits,
            }

        return asyncio.run(run())


def in_bulk(link: Link, *, rows: int, batch: int) -> dict[str, Any]:
    """`publish_many` in batches of one transaction each, every one on disk before the next."""
    payloads = [PAYLOAD] * batch
    with penstock.connect(url(Path.cwd())) as hub:
        hub.topics.publish_many("bench", payloads, type=TYPE)
        link.ready()
        link.wait_go()
        with Meter() as meter:
            for _ in range(rows // batch):
                hub.topics.publish_many("bench", payloads, type=TYPE)
    return {"per_second": rows / meter.seconds, "cores": meter.cores}


def for_long(
    link: Link, *, tasks: int, warm_up: int, messages: int, messages_max: int | None
) -> dict[str, Any]:
    """So many messages into one topic; with `messages_max`, while retention keeps it that size."""
    with penstock.connect(url(Path.cwd())) as hub:
        if messages_max is not None:
            hub.topics.create("bench", penstock.Retention(messages_max=messages_max))
        retained: list[int] = []
        done = threading.Event()

        def look() -> None:
            while not done.wait(LOOK_SECONDS):
                retained.append(hub.topics.get("bench").messages)

        async def run() -> dict[str, Any]:
            await publish_so_many(hub, tasks, warm_up)
            link.ready()
            link.wait_go()
            looking = threading.Thread(target=look)
            looking.start()
            try:
                with Meter() as meter:
                    await publish_so_many(hub, tasks, messages)
            finally:
                done.set()
                looking.join()
            last = hub.topics.get("bench").messages
            return {
                "per_second": messages / meter.seconds,
                "retained_most": max([*retained, last]),
                "retained_last": last,
            }

        return asyncio.run(run())


# The publishing tasks, also used elsewhere


async def publish_for(hub: penstock.Hub, tasks: int, seconds: float, topic: str = "bench") -> int:
    """Publish for so long. Returns how many messages were acknowledged."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    return await publish_while(hub, tasks, lambda: loop.time() < deadline, topic)


async def publish_while(
    hub: penstock.Hub, tasks: int, goes_on: Callable[[], bool], topic: str = "bench"
) -> int:
    publish = hub.aio.topics.publish

    async def publisher() -> int:
        published = 0
        while not published or goes_on():
            await publish(topic, PAYLOAD, type=TYPE)
            published += 1
        return published

    return sum(await asyncio.gather(*(publisher() for _ in range(tasks))))


async def publish_so_many(
    hub: penstock.Hub, tasks: int, messages: int, topics: tuple[str, ...] = ("bench",)
) -> None:
    """Publish so many messages, spread evenly over tasks and topics."""
    publish = hub.aio.topics.publish

    async def publisher(numbers: range) -> None:
        for number in numbers:
            await publish(topics[number % len(topics)], PAYLOAD, type=TYPE)

    await asyncio.gather(*(publisher(range(n, messages, tasks)) for n in range(tasks)))
