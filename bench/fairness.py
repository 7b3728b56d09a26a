"""A light writer beside a saturated one: penstock's turnstile, and SQLite's busy handler."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from bench.figures import Figure, percentile, show
from bench.process import Link, Meter, Worker
from bench.publish import publish_for, publish_while
from bench.workload import PAYLOAD, TYPE, url

if TYPE_CHECKING:
    from bench.arena import Arena
    from bench.workload import Sizes

IN_FLIGHT = 128
EVERY_MS = 10.0
WARM_UP_SECONDS = 0.3
SETTLE_SECONDS = 0.5
# A writer that starves has fewer samples, instead of taking minutes over them.
SECONDS_PER_SAMPLE_MAX = 0.025


def light_writer(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    # Once is enough for what only stands beside: it starves for as long as it is let.
    for key, place, count in (
        ("light_writer_p99_ms", "bench.fairness", sizes.runs),
        ("light_writer_p99_ms_without_turnstile", "bench.peers.sqlite", 1),
    ):
        if key not in wanted:
            continue
        runs = [_measure(arena, place, sizes.light_samples) for _ in range(count)]
        taken = [run["taken_ms"] for run in runs]
        p50 = statistics.median(percentile(values, 50) for values in taken)
        worst = max(max(values) for values in taken)
        rate = statistics.median(run["saturated_per_second"] for run in runs)
        samples = min(len(values) for values in taken)
        yield Figure.of(
            key,
            [percentile(values, 99) for values in taken],
            f"{show(samples)} samples a run, p50 {show(p50)} ms, worst "
            f"{show(worst)} ms; the other process wrote {show(rate)}/s meanwhile",
        )


def _measure(arena: Arena, place: str, samples: int) -> dict[str, Any]:
    with arena.fresh() as folder, Worker(f"{place}:saturated", folder) as saturated:
        saturated.wait_ready()
        timing = {"every_ms": EVERY_MS, "seconds_max": samples * SECONDS_PER_SAMPLE_MAX}
        with Worker(f"{place}:light", folder, samples=samples, **timing) as light:
            light.wait_ready()
            saturated.go()
            time.sleep(SETTLE_SECONDS)
            light.go()
            found = light.result()
        saturated.stop()
        return found | {"saturated_per_second": saturated.result()["per_second"]}


# In processes of their own


def saturated(link: Link) -> dict[str, Any]:
    """Many tasks in flight, until told to stop."""
    with penstock.connect(url(Path.cwd())) as hub:

        async def run() -> dict[str, Any]:
            await publish_for(hub, IN_FLIGHT, WARM_UP_SECONDS, "saturated")
            link.ready()
            link.wait_go()
            link.watch()
            with Meter() as meter:
                published = await publish_while(
                    hub, IN_FLIGHT, lambda: not link.stopping.is_set(), "saturated"
                )
            return {"per_second": published / meter.seconds, "cores": meter.cores}

        return asyncio.run(run())


def light(link: Link, *, samples: int, every_ms: float, seconds_max: float) -> dict[str, Any]:
    """One publish now and then, and how long each took."""
    taken_ms: list[float] = []
    with penstock.connect(url(Path.cwd())) as hub:
        hub.topics.publish("light", PAYLOAD, type=TYPE)
        link.ready()
        link.wait_go()
        deadline = time.monotonic() + seconds_max
        while len(taken_ms) < samples and (not taken_ms or time.monotonic() < deadline):
            time.sleep(every_ms / 1000)
            started = time.monotonic_ns()
            hub.topics.publish("light", PAYLOAD, type=TYPE)
            taken_ms.append((time.monotonic_ns() - started) / 1e6)
    return {"taken_ms": taken_ms}
