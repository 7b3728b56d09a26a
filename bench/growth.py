"""Publishing into a long log against publishing into a short one."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from bench.figures import Figure, percentile, show
from bench.process import Link, Meter, call
from bench.publish import IN_FLIGHT, publish_so_many
from bench.workload import PAYLOAD, TYPE, url

if TYPE_CHECKING:
    from bench.arena import Arena
    from bench.workload import Sizes

# Several, so that the index by topic grows in several places.
TOPICS = tuple(f"topic-{number}" for number in range(10))
CHUNK = 1_000
WARM_UP = 300
BURSTS = 7


def by_length_of_log(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    work = {"burst": sizes.growth_burst, "single": sizes.growth_single}
    short: list[dict[str, Any]] = []
    long: list[dict[str, Any]] = []
    with arena.fresh() as long_log:
        call("bench.growth:fill", long_log, messages=sizes.growth_large)
        for _ in range(sizes.runs):
            with arena.fresh() as short_log:
                call("bench.growth:fill", short_log, messages=sizes.growth_small)
                short.append(call("bench.growth:publish", short_log, **work))
            long.append(call("bench.growth:publish", long_log, **work))
    ratios = {
        kind: [b[kind] / a[kind] for a, b in zip(short, long, strict=True)]
        for kind in ("in_flight_us", "single_us")
    }
    in_flight, single = (statistics.median(ratios[kind]) for kind in ("in_flight_us", "single_us"))
    worse = "in_flight_us" if in_flight >= single else "single_us"

    def median(runs: list[dict[str, Any]], kind: str) -> str:
        return show(statistics.median(run[kind] for run in runs))

    yield Figure.of(
        "growth_publish_1m_vs_1k",
        ratios[worse],
        f"{show(sizes.growth_large)} messages against {show(sizes.growth_small)}, in "
        f"{len(TOPICS)} topics; {IN_FLIGHT} in flight {in_flight:.2f} "
        f"({median(long, 'in_flight_us')} against {median(short, 'in_flight_us')} µs each), one "
        f"by one {single:.2f} ({median(long, 'single_us')} against "
        f"{median(short, 'single_us')} µs); the worse counts",
    )


# In processes of their own


def fill(link: Link, *, messages: int) -> dict[str, Any]:
    """A log of so many messages, the topics taking turns, closed and written back at the end."""
    link.ready()
    link.wait_go()
    turns = itertools.cycle(TOPICS)
    chunk = max(1, min(CHUNK, messages // len(TOPICS)))
    with penstock.connect(url(Path.cwd())) as hub:
        for start in range(0, messages, chunk):
            count = min(chunk, messages - start)
            hub.topics.publish_many(next(turns), [PAYLOAD] * count, type=TYPE)
    return {}


def publish(link: Link, *, burst: int, single: int) -> dict[str, Any]:
    """Microseconds per publish in short bursts, which leave a short log short, and one by one."""
    with penstock.connect(url(Path.cwd())) as hub:

        async def bursts() -> list[float]:
            await publish_so_many(hub, IN_FLIGHT, WARM_UP, TOPICS)
            found = []
            for _ in range(BURSTS):
                with Meter() as meter:
                    await publish_so_many(hub, IN_FLIGHT, burst, TOPICS)
                found.append(meter.seconds * 1e6 / burst)
            return found

        link.ready()
        link.wait_go()
        in_flight = asyncio.run(bursts())
        one_by_one = []
        for number in range(single):
            started = time.monotonic_ns()
            hub.topics.publish(TOPICS[number % len(TOPICS)], PAYLOAD, type=TYPE)
            one_by_one.append((time.monotonic_ns() - started) / 1e3)
    return {
        "in_flight_us": statistics.median(in_flight),
        "single_us": percentile(one_by_one, 50),
    }
