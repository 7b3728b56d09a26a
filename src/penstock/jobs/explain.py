"""Why is a job not running? One answer in a line, and all there is to say behind it.

Reads only, from what the store knows at this moment; it changes nothing and promises nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.clock import SECOND, Micros, as_datetime, seconds
from penstock.errors import JobNotFound
from penstock.job import Job, JobEvent, JobFilter, Kind, QueueLimits, State, Worker
from penstock.jobs.runtime import Runtime
from penstock.ports import Store

AHEAD_MAX = 100_000
"""Jobs in front of one are counted up to here."""
HOLDERS_MAX = 20
PARENTS_MAX = 20
HISTORY_PAGE = 10_000

Code = Literal[
    "ready",
    "behind",
    "paused",
    "concurrency",
    "rate",
    "no_worker",
    "no_handler",
    "deadline",
    "scheduled",
    "backing_off",
    "waiting",
    "claimed",
    "running",
    "cancelling",
    "completed",
    "failed",
    "cancelled",
]


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that stands in a job's way, or tells where it is."""

    code: Code
    text: str
    hint: str = ""
    at: Micros | None = None
    """When it began, or when it is over; by the code."""
    jobs: tuple[int, ...] = ()
    """Who holds the slots, or is waited for."""


class Explanation(msgspec.Struct, frozen=True):
    """Why a job is where it is."""

    id: int
    queue: str
    type: str
    state: State
    answer: str
    """The most important of the reasons, in one line."""
    reasons: tuple[Reason, ...]


def events_of(store: Store, id: int) -> list[JobEvent]:
    """All of a job's history, however often it has told of its progress."""
    found: list[JobEvent] = []
    while True:
        after = found[-1].id if found else 0
        part = store.jobs.events(after=after, limit=HISTORY_PAGE, job_id=id)
        found += part
        if len(part) < HISTORY_PAGE:
            return found


def explain(runtime: Runtime, id: int) -> Explanation:
    job = runtime.store.jobs.get(id)
    if job is None:
        raise JobNotFound(f"There is no job {id}.")
    found = _REASONS[job.state](runtime, job)
    return Explanation(id, job.queue, job.type, job.state, found[0].text, tuple(found))


def _pending(runtime: Runtime, job: Job) -> list[Reason]:
    """What keeps any job of the queue from running comes before what is ahead of this one."""
    jobs, now = runtime.store.jobs, runtime.clock.now()
    limits = jobs.limits(job.queue)
    workers = [worker for worker in jobs.workers() if job.queue in worker.queues]
    found: list[Reason] = []
    if job.deadline is not None and job.deadline <= now:
        text = f"Its deadline passed at {_time(job.deadline)}: the next worker fails it."
        found.append(Reason("deadline", text, at=job.deadline))
    if limits.is_paused:
        hint = f"penstock jobs resume {job.queue}"
        found.append(Reason("paused", f"The queue {job.queue!r} is paused.", hint))
    found += _without_worker(job, workers)
    found += _at_limit(runtime, job, limits)
    ahead = jobs.ahead(job.id, limit=AHEAD_MAX)
    if ahead:
        count = f"{AHEAD_MAX:,} or more" if ahead >= AHEAD_MAX else f"{ahead:,}"
        text = f"{count} jobs of the queue {job.queue!r} are before it."
        hint = "More workers, or a lower priority number, would bring it forward."
        found.append(Reason("behind", text if ahead > 1 else text.replace("jobs", "job"), hint))
    if found:
        return found
    return [Reason("ready", "It is ready: the next free slot takes it.", at=_ready_at(job))]


def _without_worker(job: Job, workers: list[Worker]) -> list[Reason]:
    if not workers:
        text = f"No live worker takes jobs of the queue {job.queue!r}."
        return [Reason("no_worker", text, f"penstock work MODULE:hub --queues {job.queue}")]
    if not any(job.type in worker.types for worker in workers):
        names = ", ".join(worker.name for worker in workers)
        text = f"No live worker of {job.queue!r} has a handler for {job.type!r} ({names})."
        hint = "Was the module with its @hub.job imported, and the worker started since?"
        return [Reason("no_handler", text, hint)]
    return []


def _at_limit(runtime: Runtime, job: Job, limits: QueueLimits) -> list[Reason]:
    jobs, found = runtime.store.jobs, []
    if limits.concurrency_max is not None:
        held = jobs.find(
            JobFilter(queue=job.queue, states=(State.PROCESSING,)),
            before=None,
            limit=max(HOLDERS_MAX, limits.concurrency_max),
        )
        if len(held) >= limits.concurrency_max:
            who = ", ".join(f"{one.id} on {one.worker or 'a lost worker'}" for one in held[:5])
            more = f" and {len(held) - 5} more" if len(held) > 5 else ""
            text = f"The queue's {limits.concurrency_max} slots are taken: job {who}{more}."
            ids = tuple(one.id for one in held[:HOLDERS_MAX])
            found.append(Reason("concurrency", text, jobs=ids))
    wait = jobs.rate_wait(job.queue)
    if wait > 0:
        rate = f"{limits.rate_max} in {limits.rate_seconds:g} s"
        text = f"The queue's rate, {rate}, is used up for {seconds(wait):.1f} s more."
        found.append(Reason("rate", text, at=runtime.clock.now() + wait))
    return found


def _scheduled(runtime: Runtime, job: Job) -> list[Reason]:
    at, now = job.run_at or 0, runtime.clock.now()
    if at <= now:
        found = _pending(runtime, job)
        # Whoever claims next makes it ready first: only then is it behind others.
        found = [reason for reason in found if reason.code not in ("ready", "behind")]
        due = Reason("ready", f"It is due since {_time(at)}: the next claim takes it.", at=at)
        return found or [due]
    when = f"{_time(at)}, in {_duration(at - now)}"
    hint = f"penstock jobs retry {job.id} runs it now."
    if job.failure is None:
        return [Reason("scheduled", f"It is scheduled for {when}.", hint, at)]
    failed = f"Attempt {job.attempts} of {job.max_attempts} failed ({_failure(job)})"
    return [Reason("backing_off", f"{failed}; the next is at {when}.", hint, at)]


def _waiting(runtime: Runtime, job: Job) -> list[Reason]:
    ids = runtime.store.jobs.parents(job.id)
    found = [(id, runtime.store.jobs.get(id)) for id in ids[:PARENTS_MAX]]
    named = ", ".join(
        f"{id} ({'gone' if parent is None else parent.state.name.lower()})"
        for id, parent in found[:5]
    )
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    text = f"It waits for job {named}{more}."
    first = next((parent for _, parent in found if parent is not None), None)
    hint = "" if first is None else f"penstock jobs explain {first.id}"
    return [Reason("waiting", text, hint, jobs=tuple(ids[:PARENTS_MAX]))]


def _processing(runtime: Runtime, job: Job) -> list[Reason]:
    worker, now = job.worker or "a worker that is gone", runtime.clock.now()
    if job.started_at is None:
        since = job.claimed_at or now
        return [
            Reason("claimed", f"{worker} has it since {_ago(since, now)}, not started.", at=since)
        ]
    progress = ""
    if job.progress is not None:
        percent = job.progress.percent
        far = f"{job.progress.done:g}" if percent is None else f"{percent:.0f} %"
        progress = f", {far}{f' ({job.progress.note})' if job.progress.note else ''}"
    text = f"It runs on {worker} since {_ago(job.started_at, now)}{progress}."
    running = Reason("running", text, at=job.started_at)
    if not job.is_cancelling:
        return [running]
    asked = "It was asked to stop, and its handler has not ended."
    return [Reason("cancelling", asked, "A handler sees it as job.is_cancelled."), running]


def _finished(runtime: Runtime, job: Job) -> list[Reason]:
    at = job.finished_at or 0
    if job.state == State.COMPLETED:
        took = "" if job.started_at is None else f" after {_duration(at - job.started_at)}"
        return [Reason("completed", f"It completed at {_time(at)}{took}.", at=at)]
    retry = f"penstock jobs retry {job.id}"
    if job.state == State.CANCELLED:
        reason = _last(runtime, job, Kind.CANCELLED)
        why = "" if not reason else f": {reason}"
        return [Reason("cancelled", f"It was cancelled at {_time(at)}{why}.", retry, at)]
    tries = f"{job.attempts} of {job.max_attempts} attempts"
    text = f"It failed at {_time(at)} after {tries}: {_failure(job)}."
    return [Reason("failed", text, retry, at)]


def _last(runtime: Runtime, job: Job, kind: Kind) -> str:
    told = [event for event in events_of(runtime.store, job.id) if event.kind == kind]
    return str(told[-1].data.get("reason", "")) if told else ""


_REASONS = {
    State.PENDING: _pending,
    State.SCHEDULED: _scheduled,
    State.WAITING: _waiting,
    State.PROCESSING: _processing,
    State.COMPLETED: _finished,
    State.FAILED: _finished,
    State.CANCELLED: _finished,
}


def _failure(job: Job) -> str:
    if job.failure is None:
        return "no reason was kept"
    lines = job.failure.message.strip().splitlines()
    message = lines[0][:200] if lines else ""
    return f"{job.failure.error}: {message}" if message else job.failure.error


def _ready_at(job: Job) -> Micros:
    return max(job.created_at, job.run_at or 0)


def _time(at: Micros) -> str:
    return as_datetime(at).strftime("%Y-%m-%d %H:%M:%S UTC")


def _ago(at: Micros, now: Micros) -> str:
    return f"{_time(at)} ({_duration(now - at)})"


def _duration(length: Micros) -> str:
    length = max(0, length)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if length >= size * SECOND:
            return f"{length / size / SECOND:.1f} {unit}"
    return f"{seconds(length):.3g} s"
