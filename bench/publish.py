"""Publishing: many tasks in flight, in bulk, and for long beside retention."""

from __future__ import annotations

import asyncio
import statistics
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock
from bench.figures import Figure, show
from bench.peers.redis import RedisServer
from bench.process import Link, Meter, call
from bench.workload import PAYLOAD, TYPE, Arena, Sizes, url
from penstock.settings import Settings

IN_FLIGHT = 100
REDIS_IN_FLIGHT = 50
# A topic may run so far beyond what it retains, times its size, before the figure is void.
RETAINED_SLACK = 2.0
LOOK_SECONDS = 0.02


def against_redis(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    needs_ratio = "ratio_publish_vs_redis_always" in wanted
    needs_ours = needs_ratio or "publish_inflight100_per_s" in wanted
    needs_theirs = needs_ratio or "redis_always_per_s" in wanted
    timing = {"seconds": sizes.seconds, "warm_up_seconds": sizes.warm_up_seconds}
    for _ in range(sizes.runs):
        if needs_ours:
            with arena.fresh() as folder:
                ours.append(call("bench.publish:in_flight", folder, tasks=IN_FLIGHT, **timing))
        if needs_theirs:
            with arena.fresh() as folder, RedisServer(folder, fsync="always") as server:
                found = call(
                    "bench.peers.redis:in_flight",
                    folder,
                    socket=str(server.socket),
                    tasks=REDIS_IN_FLIGHT,
                    **timing,
                )
                theirs.append(found | {"server_cores": server.cores_used(found["seconds"])})
    if ours:
        group = statistics.median(run["messages_per_commit"] for run in ours)
        cores = statistics.median(run["cores"] for run in ours)
        yield Figure.of(
            "publish_inflight100_per_s",
            [run["per_second"] for run in ours],
            f"{show(group)} messages per commit; tasks and committer share one process, "
            f"{cores:.2f} cores busy, so the tasks' own cost is in the figure",
        )
    if theirs:
        client = statistics.median(run["cores"] for run in theirs)
        server_cores = statistics.median(run["server_cores"] for run in theirs)
        yield Figure.of(
            "redis_always_per_s",
            [run["per_second"] for run in theirs],
            f"Unix socket, {REDIS_IN_FLIGHT} connections; client {client:.2f} cores, server "
            f"{server_cores:.2f}: the client is part of the comparison, as its users have it",
        )
    if ours and theirs:
        pairs = zip(ours, theirs, strict=True)
        yield Figure.of(
            "ratio_publish_vs_redis_always",
            [mine["per_second"] / other["per_second"] for mine, other in pairs],
            "run by run, in turns",
        )


def bulk(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    batch = Settings().commit_group_max
    rows = max(1, sizes.bulk_rows // batch) * batch
    rates: dict[str, list[float]] = {"ours": [], "document": [], "bare": []}
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            found = call("bench.publish:in_bulk", folder, rows=rows, batch=batch)
            rates["ours"].append(found["per_second"])
        for table in ("document", "bare"):
            with arena.fresh() as folder:
                found = call(
                    "bench.peers.sqlite:in_bulk", folder, rows=rows, batch=batch, table=table
                )
                rates[table].append(found["per_second"])
    medians = {name: statistics.median(values) for name, values in rates.items()}
    yield Figure.of(
        "ratio_bulk_vs_raw_sqlite",
        [mine / raw for mine, raw in zip(rates["ours"], rates["document"], strict=True)],
        f"{show(medians['ours'])}/s against {show(medians['document'])}/s into the source "
        f"document's table with its indexes, text encoded beforehand; against a table of ours' "
        f"one index and no more columns than it needs, {show(medians['bare'])}/s: "
        f"{medians['ours'] / medians['bare']:.2f}",
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
        while goes_on():
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
