"""`hub.jobs`: enqueue, look, and take things into one's own hands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from datetime import datetime
from typing import Any

import msgspec

from penstock.clock import micros
from penstock.errors import InvalidInput, JobNotFound
from penstock.job import (
    Enqueued,
    Job,
    JobEvent,
    JobFilter,
    OnConflict,
    OnParentFailure,
    QueueLimits,
    QueueStats,
    State,
    Worker,
    check_queue,
    check_type,
)
from penstock.jobs.enqueueing import check_priority, encode_job
from penstock.jobs.explain import Explanation, events_of, explain
from penstock.jobs.overview import Overview, look_over
from penstock.jobs.prune import Pruned, limits_of, prune_by_hand
from penstock.jobs.runtime import Runtime
from penstock.jobs.waiting import number_of, numbers_of, result_of, wait_for
from penstock.model import as_micros, check_count
from penstock.ports import Transaction

LIST_LIMIT = 100
MANY_MAX = 1_000
"""Jobs changed in one transaction."""
PRUNE_SECONDS = 1.0
"""How long a part of `prune` takes."""


_changing = threading.Lock()
"""What changes limits in this process: a group of writes would not see each other."""

# `list` is a method below.
Jobs_ = list[Job]
Ids = list[int]
Many = list[Enqueued]
Events = list[JobEvent]
Stats = list[QueueStats]
Workers = list[Worker]


class Jobs:
    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        self._open = open_runtime

    # In

    def enqueue(
        self,
        queue: str,
        type: str,
        payload: Any = None,
        *,
        delay: float | None = None,
        at: datetime | float | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        deadline: datetime | float | None = None,
        timeout: float | None = None,
        unique_key: str | None = None,
        unique_seconds: float | None = None,
        on_conflict: OnConflict = "reject",
        after: Iterable[int | Enqueued] = (),
        on_parent_failure: OnParentFailure = "cancel",
    ) -> Enqueued:
        """Add a job; returns when it is on disk.

        It runs after `delay` seconds or `at` a time, lower `priority` first, at most
        `max_attempts` times, each for at most `timeout` seconds, and not at all after `deadline`.
        Jobs in `after` must have completed before. While a job with the same `unique_key` has
        not finished (or for `unique_seconds`), `on_conflict` decides.
        """
        runtime = self._open()
        job = encode_job(
            runtime.settings,
            runtime.clock,
            queue,
            type,
            payload,
            delay=delay,
            at=at,
            priority=priority,
            max_attempts=max_attempts,
            deadline=deadline,
            timeout=timeout,
            unique_key=unique_key,
            unique_seconds=unique_seconds,
            on_conflict=on_conflict,
            after=after,
            on_parent_failure=on_parent_failure,
        )
        return runtime.committer.enqueue_now([job])[0]

    def enqueue_many(
        self,
        queue: str,
        type: str,
        payloads: Iterable[Any],
        *,
        delay: float | None = None,
        at: datetime | float | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: float | None = None,
    ) -> Many:
        """Add many jobs, in transactions of up to `commit_group_max`."""
        runtime = self._open()
        jobs = [
            encode_job(
                runtime.settings,
                runtime.clock,
                queue,
                type,
                payload,
                delay=delay,
                at=at,
                priority=priority,
                max_attempts=max_attempts,
                timeout=timeout,
            )
            for payload in payloads
        ]
        size = runtime.settings.commit_group_max
        waiting = [
            runtime.committer.enqueue(jobs[start : start + size])
            for start in range(0, len(jobs), size)
        ]
        return [added for operation in waiting for added in operation.wait()]

    # Looking

    def get(self, id: int) -> Job:
        found = self._open().store.jobs.get(id)
        if found is None:
            raise JobNotFound(f"There is no job {id}.")
        return found

    def list(
        self,
        queue: str | None = None,
        *,
        type: str | None = None,
        state: State | str | Iterable[State | str] | None = None,
        error: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        before: int | None = None,
        limit: int = LIST_LIMIT,
    ) -> Jobs_:
        """Newest first. `before` an id, to read on."""
        check_count(limit, "limit")
        filter = make_filter(queue, type, state, error, since, until)
        return self._open().store.jobs.find(filter, before=before, limit=limit)

    def ids(
        self,
        queue: str | None = None,
        *,
        type: str | None = None,
        state: State | str | Iterable[State | str] | None = None,
        error: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        after: int = 0,
        limit: int = MANY_MAX,
    ) -> Ids:
        """The ids alone, oldest first; `after` an id, to read on. For operations on many."""
        check_count(limit, "limit")
        filter = make_filter(queue, type, state, error, since, until)
        return self._open().store.jobs.find_ids(filter, after=after, limit=limit)

    def dead(
        self,
        queue: str | None = None,
        *,
        type: str | None = None,
        error: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        before: int | None = None,
        limit: int = LIST_LIMIT,
    ) -> Jobs_:
        """Dead letters: jobs that were given up, with everything that is known of them.

        `retry` and `retry_all` bring them back.
        """
        return self.list(
            queue,
            type=type,
            state=State.FAILED,
            error=error,
            since=since,
            until=until,
            before=before,
            limit=limit,
        )

    def explain(self, id: int | Enqueued) -> Explanation:
        """Why it is not running, or how it ended: an answer in one line, and the reasons."""
        return explain(self._open(), number_of(id))

    def history(self, id: int) -> Events:
        """Everything that happened to a job, oldest first."""
        self.get(id)
        return events_of(self._open().store, id)

    def stats(self, queue: str | None = None) -> Stats:
        """Each queue's counts by state."""
        runtime = self._open()
        found = runtime.store.jobs.stats(now=runtime.clock.now())
        return [stats for stats in found if queue is None or stats.queue == queue]

    def overview(self) -> Overview:
        """All queues and their sums, how fast jobs went through in the last minute, who works."""
        runtime = self._open()
        return look_over(runtime.store, runtime.clock.now())

    def workers(self) -> Workers:
        """The processes that take jobs."""
        return self._open().store.jobs.workers()

    def wait(self, id: int | Enqueued, *, timeout: float | None = None) -> Any:
        """The result of a job, once it has completed.

        Raises `JobFailed` if it failed or was cancelled, `WaitTimeout` after `timeout` seconds.
        """
        return result_of(wait_for(self._open(), [number_of(id)], timeout)[0])

    def wait_all(self, ids: Iterable[int | Enqueued], *, timeout: float | None = None) -> Jobs_:
        """The jobs, in this order, once all of them have finished, however they did."""
        return wait_for(self._open(), numbers_of(ids), timeout)

    # By hand

    def cancel(
        self,
        *ids: int,
        reason: str = "",
        state: State | str | Iterable[State | str] | None = None,
    ) -> Ids:
        """Those not started are cancelled; those that run are asked to stop. Returns the ids.

        With `state`, only those that are in this state, or in one of these.
        """
        runtime = self._open()
        states = states_of(state)
        return runtime.committer.run_now(
            lambda tx: tx.jobs.cancel(ids, reason=reason, now=runtime.clock.now(), states=states)
        )

    def retry(self, *ids: int, state: State | str | Iterable[State | str] | None = None) -> Ids:
        """Make them ready, with fresh attempts; their history stays. Returns the ids.

        With `state`, only those that are in this state, or in one of these.
        """
        runtime = self._open()
        states = states_of(state)
        return runtime.committer.run_now(
            lambda tx: tx.jobs.retry(ids, now=runtime.clock.now(), states=states)
        )

    def retry_all(
        self,
        queue: str | None = None,
        *,
        type: str | None = None,
        state: State | str | Iterable[State | str] = State.FAILED,
        error: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Retry all that match. Returns how many."""
        filter = make_filter(queue, type, state, error, since, until)
        return self._for_all(filter, lambda ids: self.retry(*ids, state=filter.states), progress)

    def cancel_all(
        self,
        queue: str | None = None,
        *,
        type: str | None = None,
        state: State | str | Iterable[State | str] | None = None,
        error: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        reason: str = "",
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Cancel all that match and have not finished. Returns how many."""
        open_states = [found for found in State if not found.is_final]
        filter = make_filter(queue, type, state or open_states, error, since, until)
        return self._for_all(
            filter, lambda ids: self.cancel(*ids, reason=reason, state=filter.states), progress
        )

    def prune(
        self,
        *,
        state: State | str | Iterable[State | str] | None = None,
        older_than_seconds: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove finished jobs now, with their history. Returns how many.

        By default those that the settings `job_keep_…_seconds` would remove by and by; with
        `older_than_seconds` those that finished longer ago, of all final states or of `state`.
        """
        step = Pruned(0, None)
        for step in self._prune(state, older_than_seconds, 0):
            if progress is not None:
                progress(step.removed)
        return step.removed

    def prune_some(
        self,
        *,
        state: State | str | Iterable[State | str] | None = None,
        older_than_seconds: float | None = None,
        after: int = 0,
        seconds_max: float = PRUNE_SECONDS,
    ) -> Pruned:
        """A part of `prune`: what is done in `seconds_max`, and at least one small step.

        What it returns says how many were removed, and `after` which id to go on.
        """
        if not isinstance(after, int) or not 0 <= after < 2**63:
            raise InvalidInput(f"after is the id of a job, not {after!r}.")
        ends_at = time.monotonic() + seconds_max
        with closing(self._prune(state, older_than_seconds, after)) as steps:
            step = next(steps)
            while step.after is not None and time.monotonic() < ends_at:
                step = next(steps)
        return step

    def _prune(
        self,
        state: State | str | Iterable[State | str] | None,
        older_than_seconds: float | None,
        after: int,
    ) -> Generator[Pruned, None, None]:
        runtime = self._open()
        now = runtime.clock.now()
        states = states_of(state)
        if any(not found.is_final for found in states):
            raise InvalidInput("Only finished jobs can be pruned.", hint="Cancel them first.")
        before = limits_of(runtime.settings, now)
        if older_than_seconds is not None:
            if not 0 <= older_than_seconds < 1e10:
                raise InvalidInput("older_than_seconds is a number from 0 up.")
            final = [found for found in State if found.is_final]
            before = dict.fromkeys(final, now - micros(older_than_seconds))
        before = {found: at for found, at in before.items() if not states or found in states}
        return prune_by_hand(runtime.store, before, now, after)

    def set_priority(self, id: int, priority: int) -> bool:
        """False if it is not waiting for a worker any more."""
        check_priority(priority)
        return self._open().committer.run_now(lambda tx: tx.jobs.set_priority(id, priority))

    def pause(self, queue: str) -> None:
        """No worker takes jobs of this queue until `resume`."""
        self._change_limits(queue, is_paused=True)

    def resume(self, queue: str) -> None:
        self._change_limits(queue, is_paused=False)

    def limit(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        rate: int | None = None,
        per_seconds: float = 1.0,
    ) -> QueueLimits:
        """What holds for a queue over all processes. None: no limit."""
        return self._change_limits(
            queue, concurrency_max=concurrency, rate_max=rate, rate_seconds=per_seconds
        )

    def _change_limits(self, queue: str, **changes: Any) -> QueueLimits:
        runtime = self._open()
        check_queue(queue)
        QueueLimits(**changes)

        def change(tx: Transaction) -> QueueLimits:
            # Here, where no other process can write: two that change different things at once
            # must not undo each other.
            limits = msgspec.structs.replace(runtime.store.jobs.limits(queue), **changes)
            tx.jobs.set_limits(queue, limits, now=runtime.clock.now())
            return limits

        with _changing:
            return runtime.committer.run_now(change)

    def _for_all(
        self,
        filter: JobFilter,
        change: Callable[[Ids], Ids],
        progress: Callable[[int], None] | None,
    ) -> int:
        """A transaction at a time, each job once: one that matches again is not met again.

        Between the finding and the change a job may go on; `change` looks at its state again.
        """
        changed, after = 0, 0
        while ids := self._open().store.jobs.find_ids(filter, after=after, limit=MANY_MAX):
            changed += len(change(ids))
            after = ids[-1]
            if progress is not None:
                progress(changed)
        return changed


def make_filter(
    queue: str | None,
    type: str | None,
    state: State | str | Iterable[State | str] | None,
    error: str | None,
    since: datetime | float | None,
    until: datetime | float | None,
) -> JobFilter:
    return JobFilter(
        queue=None if queue is None else check_queue(queue),
        type=None if type is None else check_type(type),
        states=states_of(state),
        error=error,
        created_after=None if since is None else as_micros(since),
        created_before=None if until is None else as_micros(until),
    )


def states_of(state: State | str | Iterable[State | str] | None) -> tuple[State, ...]:
    """The states that a caller names; none of them stands for all."""
    states = [state] if isinstance(state, (State, str)) else state or ()
    return tuple(_state(found) for found in states)


def _state(found: State | str) -> State:
    if isinstance(found, State):
        return found
    try:
        return State[found.upper()]
    except KeyError:
        names = ", ".join(state.name.lower() for state in State)
        raise InvalidInput(f"{found!r} is not a state.", hint=f"States are {names}.") from None
