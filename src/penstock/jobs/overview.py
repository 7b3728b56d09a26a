"""All queues at a glance: counts, sums, how fast, and who works (J7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from penstock.clock import Micros, micros, seconds
from penstock.job import QueueStats, Ran
from penstock.ports import Store

PACE_SECONDS = 60.0
EVENTS_MAX = 5_000
"""How many of the last events are looked at: a few milliseconds, whatever the history."""


class Pace(msgspec.Struct, frozen=True):
    """How fast jobs go through, over the last minute, or as much of it as the last events tell."""

    completed: int = 0
    completed_per_second: float = 0.0
    wait_p50_seconds: float | None = None
    """From being ready to being started."""
    wait_p95_seconds: float | None = None
    run_p50_seconds: float | None = None
    """From being started to being done."""
    run_p95_seconds: float | None = None


class Overview(msgspec.Struct, frozen=True):
    overall: QueueStats = QueueStats("")
    """The sums of all queues; the age is that of the oldest."""
    queues: list[QueueStats] = []
    pace: Pace = Pace()
    paces: dict[str, Pace] = {}
    """By queue, where anything was completed."""
    workers: int = 0
    """Processes that take jobs."""
    unattended: tuple[str, ...] = ()
    """Queues with ready jobs that are not paused and that no live worker serves."""


def look_over(store: Store, now: Micros) -> Overview:
    """Reads only, in a few milliseconds."""
    queues = store.jobs.stats(now=now)
    if not queues:
        return Overview(workers=len(store.jobs.workers()))
    workers = store.jobs.workers()
    runs, since = store.jobs.recent_runs(since=now - micros(PACE_SECONDS), limit=EVENTS_MAX)
    by_queue: defaultdict[str, list[Ran]] = defaultdict(list)
    for run in runs:
        by_queue[run.queue].append(run)
    length = seconds(max(1, now - since))
    served = {queue for worker in workers for queue in worker.queues}
    return Overview(
        total(queues),
        queues,
        pace_of(runs, length),
        {queue: pace_of(found, length) for queue, found in by_queue.items()},
        len(workers),
        tuple(
            found.queue
            for found in queues
            if found.pending and not found.limits.is_paused and found.queue not in served
        ),
    )


def total(queues: Sequence[QueueStats]) -> QueueStats:
    ages = [found.oldest_pending_seconds for found in queues]
    return QueueStats(
        "",
        pending=sum(found.pending for found in queues),
        scheduled=sum(found.scheduled for found in queues),
        waiting=sum(found.waiting for found in queues),
        processing=sum(found.processing for found in queues),
        completed=sum(found.completed for found in queues),
        failed=sum(found.failed for found in queues),
        cancelled=sum(found.cancelled for found in queues),
        oldest_pending_seconds=max((age for age in ages if age is not None), default=None),
    )


def pace_of(runs: Sequence[Ran], length_seconds: float) -> Pace:
    if not runs:
        return Pace()
    waits = sorted(max(0, run.started_at - run.ready_at) for run in runs)
    times = sorted(max(0, run.at - run.started_at) for run in runs)
    return Pace(
        len(runs),
        len(runs) / length_seconds,
        _quantile(waits, 0.5),
        _quantile(waits, 0.95),
        _quantile(times, 0.5),
        _quantile(times, 0.95),
    )


def _quantile(ordered: Sequence[Micros], share: float) -> float:
    return seconds(ordered[min(len(ordered) - 1, int(share * len(ordered)))])
