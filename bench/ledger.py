"""`python -m bench.ledger`: what the ledger costs, held against its budgets."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import penstock
from bench import report
from bench.arena import Arena
from bench.figures import Budget, Figure, Key, percentile, show
from bench.process import Link, Meter, call
from bench.topics import add_arguments, context
from bench.workload import SIZES, url

SCOPE = "bench"
IN_FLIGHT = 100
WARM_UP = 300
BURSTS = 7
FILL_BATCH = 1_000


@dataclass(frozen=True)
class Sizes:
    """How much each measurement does."""

    runs: int
    seconds: float
    """Of one run with 100 in flight."""
    warm_up_seconds: float
    alone: int
    growth_small: int
    growth_large: int
    burst: int


LEDGER_SIZES = {
    "full": Sizes(3, 3.0, 0.5, 2_000, 1_000, 1_000_000, 1_000),
    "quick": Sizes(1, 1.0, 0.2, 500, 1_000, 100_000, 1_000),
    "tiny": Sizes(1, 0.05, 0.01, 10, 10, 200, 100),
}

KEYS = (
    Key(
        "mark_inflight100_per_s",
        None,
        "100 tasks of one event loop, each awaiting its own `hub.aio.ledger.mark_processed` of a "
        "new key in a loop; answered means fsynced.",
    ),
    Key(
        "mark_alone_p95_ms",
        Budget(at_most=1),
        "One thread, one `hub.ledger.mark_processed` of a new key after the other, nothing else on "
        "the file; from the call to the answer, fsync included.",
    ),
    Key(
        "growth_mark_1m_vs_1k",
        Budget(at_most=1.5),
        "Time per mark into a scope of 1,000,000 keys over that into one of 1,000, in short bursts "
        "with 100 in flight, and one by one; the worse of the two. Keys come in the order of time, "
        "as ids of messages, ULIDs and UUIDs of version 7 do.",
    ),
    Key(
        "growth_mark_random_1m_vs_1k",
        None,
        "The same with keys in no order, such as UUIDs of version 4: each of them is written into "
        "a page of its own once there are many.",
    ),
    Key(
        "mark_random_inflight100_per_s",
        None,
        "As the first with keys in no order, beside 1,000,000 others.",
    ),
)


def run(
    arena: Arena, sizes: Sizes, begin: Callable[[str], object] = lambda what: None
) -> dict[str, Figure]:
    figures = []
    for measure in (in_flight, alone, growth):
        begin(measure.__name__)
        figures += list(measure(arena, sizes))
    found = {figure.key: figure for figure in figures}
    return {key.name: found[key.name] for key in KEYS}


def in_flight(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    runs = []
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            timing = {"seconds": sizes.seconds, "warm_up_seconds": sizes.warm_up_seconds}
            runs.append(call("bench.ledger:mark_for", folder, tasks=IN_FLIGHT, **timing))
    cpu = statistics.median(run["cpu_us"] for run in runs)
    group = statistics.median(run["marks_per_commit"] for run in runs)
    yield Figure.of(
        "mark_inflight100_per_s",
        [run["per_second"] for run in runs],
        f"{show(group)} marks per commit; {show(cpu)} µs of processor time a mark, tasks included",
    )


def alone(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    runs = []
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            runs.append(call("bench.ledger:one_by_one", folder, marks=sizes.alone)["taken_ms"])
    half = statistics.median(percentile(run, 50) for run in runs)
    worst = statistics.median(percentile(run, 99) for run in runs)
    yield Figure.of(
        "mark_alone_p95_ms",
        [percentile(run, 95) for run in runs],
        f"{show(sizes.alone)} marks a run; p50 {show(half)} ms, p99 {show(worst)} ms",
    )


def growth(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    for key, is_random in (
        ("growth_mark_1m_vs_1k", False),
        ("growth_mark_random_1m_vs_1k", True),
    ):
        short: list[dict[str, Any]] = []
        long: list[dict[str, Any]] = []
        work = {"burst": sizes.burst, "is_random": is_random}
        with arena.fresh() as full:
            call("bench.ledger:fill", full, marks=sizes.growth_large, is_random=is_random)
            for _ in range(sizes.runs):
                with arena.fresh() as folder:
                    call("bench.ledger:fill", folder, marks=sizes.growth_small, is_random=is_random)
                    short.append(call("bench.ledger:bursts", folder, **work))
                long.append(call("bench.ledger:bursts", full, **work))
        yield _growth(key, sizes, short, long)
        if is_random:
            yield Figure.of(
                "mark_random_inflight100_per_s",
                [1e6 / run["in_flight_us"] for run in long],
                f"beside {show(sizes.growth_large)} keys, in bursts of {show(sizes.burst)}",
            )


def _growth(
    key: str, sizes: Sizes, short: list[dict[str, Any]], long: list[dict[str, Any]]
) -> Figure:
    kinds = ("in_flight_us", "single_us")
    ratios = {kind: [b[kind] / a[kind] for a, b in zip(short, long, strict=True)] for kind in kinds}
    medians = {kind: statistics.median(ratios[kind]) for kind in kinds}
    worse = max(kinds, key=lambda kind: medians[kind])

    def median(runs: list[dict[str, Any]], kind: str) -> str:
        return show(statistics.median(run[kind] for run in runs))

    told = ", ".join(
        f"{name} {medians[kind]:.2f} ({median(long, kind)} against {median(short, kind)} µs each)"
        for name, kind in zip((f"{IN_FLIGHT} in flight", "one by one"), kinds, strict=True)
    )
    return Figure.of(
        key,
        ratios[worse],
        f"{show(sizes.growth_large)} keys against {show(sizes.growth_small)}; {told}; the worse "
        "counts",
    )


# In processes of their own


def mark_for(link: Link, *, tasks: int, seconds: float, warm_up_seconds: float) -> dict[str, Any]:
    with penstock.connect(url(Path.cwd())) as hub:
        mark, keys = hub.aio.ledger.mark_processed, new_keys(is_random=False)

        async def for_seconds(duration: float) -> int:
            loop = asyncio.get_running_loop()
            until = loop.time() + duration

            async def consumer() -> int:
                marked = 0
                while not marked or loop.time() < until:
                    marked += await mark(SCOPE, next(keys))
                return marked

            return sum(await asyncio.gather(*(consumer() for _ in range(tasks))))

        async def measure() -> dict[str, Any]:
            await for_seconds(warm_up_seconds)
            link.ready()
            link.wait_go()
            before = hub.telemetry.counters()["commit"]
            with Meter() as meter:
                marked = await for_seconds(seconds)
            commits = hub.telemetry.counters()["commit"] - before
            return {
                "per_second": marked / meter.seconds,
                "cpu_us": meter.cores * meter.seconds * 1e6 / marked,
                "marks_per_commit": marked / commits,
            }

        return asyncio.run(measure())


def one_by_one(link: Link, *, marks: int) -> dict[str, Any]:
    with penstock.connect(url(Path.cwd())) as hub:
        keys = new_keys(is_random=False)
        for _ in range(min(marks, WARM_UP)):
            hub.ledger.mark_processed(SCOPE, next(keys))
        link.ready()
        link.wait_go()
        return {"taken_ms": [us / 1000 for us in time_marks(hub, keys, marks)]}


def fill(link: Link, *, marks: int, is_random: bool) -> dict[str, Any]:
    """So many keys in one scope, closed and written back at the end."""
    link.ready()
    link.wait_go()
    keys = new_keys(is_random=is_random)
    with penstock.connect(url(Path.cwd())) as hub:
        for start in range(0, marks, FILL_BATCH):
            count = min(FILL_BATCH, marks - start)
            hub.ledger.mark_many(SCOPE, list(itertools.islice(keys, count)))
    return {}


def bursts(link: Link, *, burst: int, is_random: bool) -> dict[str, Any]:
    """Microseconds per mark in short bursts, which leave a short ledger short, and one by one."""
    keys = new_keys(is_random=is_random)
    with penstock.connect(url(Path.cwd())) as hub:
        mark = hub.aio.ledger.mark_processed

        async def so_many(count: int) -> None:
            async def consumer(share: int) -> None:
                for _ in range(share):
                    await mark(SCOPE, next(keys))

            shares = [len(range(n, count, IN_FLIGHT)) for n in range(IN_FLIGHT)]
            await asyncio.gather(*(consumer(share) for share in shares))

        async def together() -> list[float]:
            await so_many(WARM_UP)
            found = []
            for _ in range(BURSTS):
                with Meter() as meter:
                    await so_many(burst)
                found.append(meter.seconds * 1e6 / burst)
            return found

        link.ready()
        link.wait_go()
        return {
            "in_flight_us": statistics.median(asyncio.run(together())),
            "single_us": percentile(time_marks(hub, keys, burst // 2), 50),
        }


def time_marks(hub: penstock.Hub, keys: Iterator[str], count: int) -> list[float]:
    """How many microseconds each took, one after the other."""
    taken = []
    for key in itertools.islice(keys, count):
        started = time.monotonic_ns()
        hub.ledger.mark_processed(SCOPE, key)
        taken.append((time.monotonic_ns() - started) / 1e3)
    return taken


def new_keys(*, is_random: bool) -> Iterator[str]:
    """Keys as ids of messages are, 32 hexadecimal digits: in the order of time (ULID, UUID 7), or
    in none (UUID 4)."""
    start = time.time_ns()
    for number in itertools.count(start):
        # Multiplying by an odd number visits every number of 64 bits once, in no visible order.
        mixed = (number * 0x9E3779B97F4A7C15) & (2**64 - 1)
        yield f"{mixed:016x}{start:016x}" if is_random else f"{number:016x}{mixed:016x}"


def settings(size: str) -> dict[str, Any]:
    """What the figures were made with."""
    return {"ledger": asdict(LEDGER_SIZES[size])}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ledger", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    size = "quick" if options.quick else options.size
    arena = Arena(options.dir, needs_disk=size != "tiny")
    about = context(arena, size, SIZES[size])
    about["settings"] |= settings(size)
    with Console(stderr=True).status("Measuring …") as status:
        figures = run(arena, LEDGER_SIZES[size], lambda what: status.update(f"Measuring {what} …"))
    if options.json:
        print(report.as_json(KEYS, figures, about))
    else:
        report.print_table(Console(), KEYS, figures)
    return 1 if options.check and report.missed(KEYS, figures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
