"""`hub.aio.jobs` and `hub.aio.schedules`: the same names as coroutines, over the same code.

Enqueueing awaits the committer directly; all else runs on the hub's few reader threads. A test
holds the signatures equal.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from penstock.job import (
    Enqueued,
    Job,
    Missed,
    OnConflict,
    OnParentFailure,
    QueueLimits,
    Schedule,
    State,
)
from penstock.jobs.enqueueing import encode_job
from penstock.jobs.explain import Explanation
from penstock.jobs.overview import Overview
from penstock.jobs.producer import (
    LIST_LIMIT,
    MANY_MAX,
    PRUNE_SECONDS,
    Events,
    Ids,
    Jobs,
    Jobs_,
    Many,
    Stats,
    Workers,
)
from penstock.jobs.prune import Pruned
from penstock.jobs.runtime import Runtime
from penstock.jobs.schedule import Schedules
from penstock.jobs.waiting import number_of, numbers_of, result_of, wait_for_async

T = TypeVar("T")


class AsyncJobs:
    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        self._open = open_runtime
        self._jobs = Jobs(open_runtime)

    async def enqueue(
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
        """Add a job; returns when it is on disk. As `Jobs.enqueue`."""
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
        return await runtime.committer.enqueue_one_async(job)

    async def enqueue_many(
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
        return await self._call(
            partial(
                self._jobs.enqueue_many,
                queue,
                type,
                payloads,
                delay=delay,
                at=at,
                priority=priority,
                max_attempts=max_attempts,
                timeout=timeout,
            )
        )

    async def get(self, id: int) -> Job:
        return await self._call(partial(self._jobs.get, id))

    async def list(
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
        return await self._call(
            partial(
                self._jobs.list,
                queue,
                type=type,
                state=state,
                error=error,
                since=since,
                until=until,
                before=before,
                limit=limit,
            )
        )

    async def ids(
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
        return await self._call(
            partial(
                self._jobs.ids,
                queue,
                type=type,
                state=state,
                error=error,
                since=since,
                until=until,
                after=after,
                limit=limit,
            )
        )

    async def dead(
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
        """Dead letters: jobs that were given up, with everything that is known of them."""
        return await self._call(
            partial(
                self._jobs.dead,
                queue,
                type=type,
                error=error,
                since=since,
                until=until,
                before=before,
                limit=limit,
            )
        )

    async def explain(self, id: int | Enqueued) -> Explanation:
        """Why it is not running, or how it ended: an answer in one line, and the reasons."""
        return await self._call(partial(self._jobs.explain, id))

    async def history(self, id: int) -> Events:
        """Everything that happened to a job, oldest first."""
        return await self._call(partial(self._jobs.history, id))

    async def stats(self, queue: str | None = None) -> Stats:
        """Each queue's counts by state."""
        return await self._call(partial(self._jobs.stats, queue))

    async def overview(self) -> Overview:
        """All queues and their sums, how fast jobs went through in the last minute, who works."""
        return await self._call(self._jobs.overview)

    async def workers(self) -> Workers:
        """The processes that take jobs."""
        return await self._call(self._jobs.workers)

    async def wait(self, id: int | Enqueued, *, timeout: float | None = None) -> Any:
        """The result of a job, once it has completed. As `Jobs.wait`."""
        return result_of((await wait_for_async(self._open(), [number_of(id)], timeout))[0])

    async def wait_all(
        self, ids: Iterable[int | Enqueued], *, timeout: float | None = None
    ) -> Jobs_:
        """The jobs, in this order, once all of them have finished, however they did."""
        return await wait_for_async(self._open(), numbers_of(ids), timeout)

    async def cancel(
        self,
        *ids: int,
        reason: str = "",
        state: State | str | Iterable[State | str] | None = None,
    ) -> Ids:
        """Those not started are cancelled; those that run are asked to stop. Returns the ids.

        With `state`, only those that are in this state, or in one of these.
        """
        return await self._call(lambda: self._jobs.cancel(*ids, reason=reason, state=state))

    async def retry(
        self, *ids: int, state: State | str | Iterable[State | str] | None = None
    ) -> Ids:
        """Make them ready, with fresh attempts; their history stays. Returns the ids.

        With `state`, only those that are in this state, or in one of these.
        """
        return await self._call(lambda: self._jobs.retry(*ids, state=state))

    async def retry_all(
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
        return await self._call(
            partial(
                self._jobs.retry_all,
                queue,
                type=type,
                state=state,
                error=error,
                since=since,
                until=until,
                progress=progress,
            )
        )

    async def cancel_all(
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
        return await self._call(
            partial(
                self._jobs.cancel_all,
                queue,
                type=type,
                state=state,
                error=error,
                since=since,
                until=until,
                reason=reason,
                progress=progress,
            )
        )

    async def prune(
        self,
        *,
        state: State | str | Iterable[State | str] | None = None,
        older_than_seconds: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove finished jobs now, with their history. As `Jobs.prune`."""
        return await self._call(
            partial(
                self._jobs.prune,
                state=state,
                older_than_seconds=older_than_seconds,
                progress=progress,
            )
        )

    async def prune_some(
        self,
        *,
        state: State | str | Iterable[State | str] | None = None,
        older_than_seconds: float | None = None,
        after: int = 0,
        seconds_max: float = PRUNE_SECONDS,
    ) -> Pruned:
        """A part of `prune`: what is done in `seconds_max`, and at least one small step."""
        return await self._call(
            partial(
                self._jobs.prune_some,
                state=state,
                older_than_seconds=older_than_seconds,
                after=after,
                seconds_max=seconds_max,
            )
        )

    async def set_priority(self, id: int, priority: int) -> bool:
        """False if it is not waiting for a worker any more."""
        return await self._call(partial(self._jobs.set_priority, id, priority))

    async def pause(self, queue: str) -> None:
        """No worker takes jobs of this queue until `resume`."""
        await self._call(partial(self._jobs.pause, queue))

    async def resume(self, queue: str) -> None:
        await self._call(partial(self._jobs.resume, queue))

    async def limit(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        rate: int | None = None,
        per_seconds: float = 1.0,
    ) -> QueueLimits:
        """What holds for a queue over all processes. None: no limit."""
        return await self._call(
            partial(
                self._jobs.limit,
                queue,
                concurrency=concurrency,
                rate=rate,
                per_seconds=per_seconds,
            )
        )

    async def _call(self, call: Callable[[], T]) -> T:
        return await aside(self._open, call)


class AsyncSchedules:
    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        self._open = open_runtime
        self._schedules = Schedules(open_runtime)

    async def put(
        self,
        name: str,
        cron: str,
        queue: str,
        type: str,
        payload: Any = None,
        *,
        timezone: str = "UTC",
        missed: Missed = "latest",
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: float | None = None,
    ) -> Schedule:
        """Make a schedule, or change it. As `Schedules.put`."""
        return await self._call(
            partial(
                self._schedules.put,
                name,
                cron,
                queue,
                type,
                payload,
                timezone=timezone,
                missed=missed,
                priority=priority,
                max_attempts=max_attempts,
                timeout=timeout,
            )
        )

    async def get(self, name: str) -> Schedule:
        return await self._call(partial(self._schedules.get, name))

    async def list(self) -> list[Schedule]:
        return await self._call(self._schedules.list)

    async def pause(self, name: str) -> None:
        """No ticks until `resume`; those in between are not made up for."""
        await self._call(partial(self._schedules.pause, name))

    async def resume(self, name: str) -> None:
        await self._call(partial(self._schedules.resume, name))

    async def remove(self, name: str) -> None:
        await self._call(partial(self._schedules.remove, name))

    async def run_now(self, name: str) -> Enqueued:
        """Enqueue its job once, beside its ticks; also while it is paused."""
        return await self._call(partial(self._schedules.run_now, name))

    async def _call(self, call: Callable[[], T]) -> T:
        return await aside(self._open, call)


async def aside(open_runtime: Callable[[], Runtime], call: Callable[[], T]) -> T:
    """On a reader thread, with the caller's context: inside a transaction stays inside."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    return await loop.run_in_executor(open_runtime().executor, partial(context.run, call))
