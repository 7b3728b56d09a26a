"""Penstock's side of the race: fill a queue, drain it, enqueue, start when idle, grow."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from bench.figures import Figure, percentile, show
from bench.process import Link, Meter, Worker, call
from bench.workload import PAYLOAD, url

if TYPE_CHECKING:
    from bench.arena import Arena
    from bench.jobs import Sizes

QUEUE = "bench"
TYPE = "nothing"
CONCURRENCY = 100
FILL_BATCH = 1_000
BULK_BATCH = 1_000
WARM_UP = 2_000
IDLE_PAUSE_MS = (20.0, 40.0)
LOOK_SECONDS = 0.001
LEASE_SECONDS = 900.0


def bulk(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    runs = []
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            runs.append(call("bench.drain:in_bulk", folder, jobs=sizes.bulk_jobs))
    cpu = statistics.median(run["cpu_us"] for run in runs)
    yield Figure.of(
        "enqueue_many_per_s",
        [run["per_second"] for run in runs],
        f"{show(sizes.bulk_jobs)} jobs; {show(cpu)} µs of processor time each",
    )


def when_idle(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    halves, tails, own = [], [], []
    for seed in range(sizes.runs):
        with arena.fresh() as folder, ExitStack() as stack:
            worker = stack.enter_context(
                Worker("bench.drain:note_starts", folder, jobs=sizes.idle_jobs)
            )
            worker.wait_ready()
            worker.go()
            producer = call("bench.drain:now_and_then", folder, jobs=sizes.idle_jobs, seed=seed)
            started = worker.result()["started"]
        taken = [(started[str(n)] - at) / 1e6 for n, at in enumerate(producer["asked"])]
        own.append(percentile(producer["taken_ms"], 50))
        halves.append(percentile(taken, 50))
        tails.append(percentile(taken, 99))
    yield Figure.of(
        "idle_start_p50_ms",
        halves,
        f"{show(sizes.idle_jobs)} jobs a run; p99 {show(statistics.median(tails))} ms; enqueue() "
        f"itself returns after {show(statistics.median(own))} ms",
    )


def two_workers(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    ratios, rates = [], []
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            call("bench.drain:fill", folder, jobs=sizes.drain_jobs)
            alone = _together(folder, sizes.drain_jobs, 1)
        with arena.fresh() as folder:
            call("bench.drain:fill", folder, jobs=sizes.drain_jobs)
            both = _together(folder, sizes.drain_jobs, 2)
        ratios.append(both / alone)
        rates.append(both)
    yield Figure.of(
        "two_workers_speedup", ratios, f"{show(statistics.median(rates))}/s with two on two cores"
    )


def growth(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    small: list[float] = []
    large: dict[str, list[float]] = {"ready": [], "finished": [], "scheduled": []}
    with ExitStack() as stack:
        long = {kind: stack.enter_context(arena.fresh()) for kind in large}
        for kind, folder in long.items():
            call("bench.drain:fill", folder, jobs=sizes.growth_large, kind=kind)
        for _ in range(sizes.runs):
            with arena.fresh() as folder:
                call("bench.drain:fill", folder, jobs=sizes.growth_small)
                small.append(call("bench.drain:turns", folder, bursts=sizes.bursts)["us"])
            for kind, folder in long.items():
                large[kind].append(call("bench.drain:turns", folder, bursts=sizes.bursts)["us"])
    ratios = {
        kind: [b / a for a, b in zip(small, found, strict=True)] for kind, found in large.items()
    }
    medians = {kind: statistics.median(found) for kind, found in ratios.items()}
    worse = max(medians, key=lambda kind: medians[kind])
    told = ", ".join(f"{kind} {value:.2f}" for kind, value in medians.items())
    yield Figure.of(
        "growth_claim_1m_vs_1k",
        ratios[worse],
        f"{show(sizes.growth_large)} jobs that are {told}, against {show(sizes.growth_small)} "
        f"ready ones ({show(statistics.median(small))} µs a job); the worst counts",
    )


def _together(folder: Path, jobs: int, workers: int) -> float:
    """Jobs a second, from the start of the first worker to the end of the last."""
    with ExitStack() as stack:
        crews = [
            stack.enter_context(Worker("bench.drain:drain", folder, jobs=jobs, durability="full"))
            for _ in range(workers)
        ]
        for crew in crews:
            crew.wait_ready()
        for crew in crews:
            crew.go()
        found = [crew.result() for crew in crews]
    return jobs / (max(run["ended"] for run in found) - min(run["began"] for run in found))


# In processes of their own


def fill(link: Link, *, jobs: int, kind: str = "ready") -> dict[str, Any]:
    """So many jobs, closed and written back at the end."""
    link.ready()
    link.wait_go()
    delay = 1e6 if kind == "scheduled" else None
    with penstock.connect(url(Path.cwd())) as hub:
        for start in range(0, jobs, FILL_BATCH):
            count = min(FILL_BATCH, jobs - start)
            hub.jobs.enqueue_many(QUEUE, TYPE, [PAYLOAD] * count, delay=delay)
        if kind == "finished":
            asyncio.run(work_off(hub, jobs))
    return {}


def drain(link: Link, *, jobs: int, durability: str) -> dict[str, Any]:
    """Until all jobs of the queue are completed, by this process or by others."""
    with penstock.connect(url(Path.cwd()), durability=durability) as hub:

        async def run() -> dict[str, Any]:
            await hub.aio.jobs.enqueue_many("warm", TYPE, [PAYLOAD] * min(jobs, WARM_UP))
            await work_off(hub, min(jobs, WARM_UP), "warm")
            link.ready()
            link.wait_go()
            before = hub.telemetry.counters()["commit"]
            began = time.monotonic()
            with Meter() as meter:
                done = await work_off(hub, jobs)
            ended = time.monotonic()
            commits = hub.telemetry.counters()["commit"] - before
            return {
                "per_second": jobs / meter.seconds,
                "cores": meter.cores,
                "cpu_us": meter.cores * meter.seconds * 1e6 / max(1, done),
                "jobs_per_commit": done / max(1, commits),
                "began": began,
                "ended": ended,
            }

        return asyncio.run(run())


def in_flight(link: Link, *, tasks: int, seconds: float, warm_up_seconds: float) -> dict[str, Any]:
    """`tasks` tasks, each awaiting its own enqueue in a loop, for some seconds."""
    with penstock.connect(url(Path.cwd())) as hub:
        enqueue = hub.aio.jobs.enqueue

        async def enqueue_for(duration: float) -> int:
            loop = asyncio.get_running_loop()
            until = loop.time() + duration

            async def producer() -> int:
                added = 0
                while not added or loop.time() < until:
                    await enqueue(QUEUE, TYPE, PAYLOAD)
                    added += 1
                return added

            return sum(await asyncio.gather(*(producer() for _ in range(tasks))))

        async def run() -> dict[str, Any]:
            await enqueue_for(warm_up_seconds)
            link.ready()
            link.wait_go()
            before = hub.telemetry.counters()["commit"]
            with Meter() as meter:
                added = await enqueue_for(seconds)
            commits = hub.telemetry.counters()["commit"] - before
            return {
                "per_second": added / meter.seconds,
                "cpu_us": meter.cores * meter.seconds * 1e6 / added,
                "jobs_per_commit": added / commits,
            }

        return asyncio.run(run())


def in_bulk(link: Link, *, jobs: int) -> dict[str, Any]:
    payloads = [PAYLOAD] * BULK_BATCH
    with penstock.connect(url(Path.cwd())) as hub:
        hub.jobs.enqueue_many(QUEUE, TYPE, payloads)
        link.ready()
        link.wait_go()
        with Meter() as meter:
            for _ in range(max(1, jobs // BULK_BATCH)):
                hub.jobs.enqueue_many(QUEUE, TYPE, payloads)
    done = max(1, jobs // BULK_BATCH) * BULK_BATCH
    return {
        "per_second": done / meter.seconds,
        "cpu_us": meter.cores * meter.seconds * 1e6 / done,
    }


def note_starts(link: Link, *, jobs: int) -> dict[str, Any]:
    """When the handler of each job began."""
    with penstock.connect(url(Path.cwd())) as hub:
        started: dict[str, int] = {}

        async def run() -> None:
            over = asyncio.Event()

            @hub.job(queue=QUEUE, name=TYPE)
            async def nothing(payload: int) -> None:
                started[str(payload)] = time.monotonic_ns()
                if len(started) == jobs:
                    over.set()

            async with hub.aio.start_workers({QUEUE: CONCURRENCY}):
                link.ready()
                link.wait_go()
                await over.wait()

        asyncio.run(run())
    return {"started": started}


def now_and_then(link: Link, *, jobs: int, seed: int) -> dict[str, Any]:
    """One job after the other, with pauses; when each was asked for, and how long that took."""
    pauses = random.Random(seed)
    asked: list[int] = []
    taken: list[float] = []
    with penstock.connect(url(Path.cwd())) as hub:
        hub.jobs.stats()
        link.ready()
        link.wait_go()
        for number in range(jobs):
            time.sleep(pauses.uniform(*IDLE_PAUSE_MS) / 1000)
            asked.append(time.monotonic_ns())
            hub.jobs.enqueue(QUEUE, TYPE, number)
            taken.append((time.monotonic_ns() - asked[-1]) / 1e6)
    return {"asked": asked, "taken_ms": taken}


def turns(link: Link, *, bursts: int) -> dict[str, Any]:
    """Microseconds a job, in short bursts of jobs that come before all that are there."""
    from penstock import job

    size, found = 1_000, []
    with penstock.connect(url(Path.cwd())) as hub:
        runtime = hub._open()
        runtime.start_reading()
        instance, now = runtime.instance, runtime.clock.now()
        assert instance is not None
        # As a worker does, before it claims.
        worker = job.Worker(instance.id, "bench", {QUEUE: CONCURRENCY}, now)
        runtime.committer.run(
            lambda tx: tx.jobs.enter(worker, lease_seconds=LEASE_SECONDS, now=now)
        ).wait()
        link.ready()
        link.wait_go()
        for _ in range(bursts):
            hub.jobs.enqueue_many(QUEUE, TYPE, [PAYLOAD] * size, priority=-1)
            answers: list[job.Answer] = []
            began = time.perf_counter()
            for _ in range(size // CONCURRENCY + 1):

                def turn(tx: Any, answers: list[job.Answer] = answers) -> list[job.Answer]:
                    now = runtime.clock.now()
                    if answers:
                        tx.jobs.complete(answers, now=now, result_until=now)
                    claims = tx.jobs.claim(instance, {QUEUE: CONCURRENCY}, now=now)
                    tx.jobs.start(claims, now=now)
                    return [job.Answer(claim.id, claim.token) for claim in claims]

                answers = runtime.committer.run(turn).wait()
            found.append((time.perf_counter() - began) * 1e6 / size)
            if answers:
                runtime.committer.run(
                    lambda tx, rest=tuple(answers): tx.jobs.release(rest, now=runtime.clock.now())
                ).wait()
    return {"us": statistics.median(found)}


async def work_off(hub: penstock.Hub, jobs: int, queue: str = QUEUE) -> int:
    """With one crew of 100, until `jobs` jobs of the queue are completed on disk.

    Returns how many of them this process has done.
    """
    done = 0

    async def nothing(payload: dict[str, Any]) -> None:
        nonlocal done
        done += 1

    hub.handlers._handlers.clear()
    hub.job(queue=queue, name=TYPE)(nothing)
    async with hub.aio.start_workers({queue: CONCURRENCY}):
        while True:
            stats = hub.jobs.stats(queue)
            if stats and stats[0].completed >= jobs:
                return done
            # Seldom while there is much to do: looking costs the worker time.
            left = jobs - (stats[0].completed if stats else 0)
            await asyncio.sleep(max(LOOK_SECONDS, min(0.05, left / 200_000)))
