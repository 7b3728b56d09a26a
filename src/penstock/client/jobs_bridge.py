"""`hub.jobs` of a remote hub, for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from penstock.client.jobs import AsyncRemoteJobs
from penstock.client.portal import Portal
from penstock.job import Enqueued, Job, OnConflict, OnParentFailure, QueueLimits, State
from penstock.jobs.explain import Explanation
from penstock.jobs.overview import Overview
from penstock.jobs.producer import (
    LIST_LIMIT,
    MANY_MAX,
    PRUNE_SECONDS,
    Events,
    Ids,
    Jobs_,
    Many,
    Stats,
    Workers,
)
from penstock.jobs.prune import Pruned


class RemoteJobs:
    """The same as `hub.aio.jobs`, for callers without an event loop."""

    def __init__(
        self, bridge: Callable[[], tuple[Portal, Any]], coroutines: AsyncRemoteJobs
    ) -> None:
        self._bridge = bridge
        self._aio = coroutines

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
        """Add a job; returns when it is on disk."""
        portal, _ = self._bridge()
        return portal.run(
            self._aio.enqueue(
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
        )

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
        portal, _ = self._bridge()
        return portal.run(
            self._aio.enqueue_many(
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

    def get(self, id: int) -> Job:
        portal, _ = self._bridge()
        return portal.run(self._aio.get(id))

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
        portal, _ = self._bridge()
        return portal.run(
            self._aio.list(
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
        portal, _ = self._bridge()
        return portal.run(
            self._aio.ids(
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
        """Dead letters: jobs that were given up, with everything that is known of them."""
        portal, _ = self._bridge()
        return portal.run(
            self._aio.dead(
                queue, type=type, error=error, since=since, until=until, before=before, limit=limit
            )
        )

    def explain(self, id: int | Enqueued) -> Explanation:
        """Why it is not running, or how it ended: an answer in one line, and the reasons."""
        portal, _ = self._bridge()
        return portal.run(self._aio.explain(id))

    def history(self, id: int) -> Events:
        """Everything that happened to a job, oldest first."""
        portal, _ = self._bridge()
        return portal.run(self._aio.history(id))

    def stats(self, queue: str | None = None) -> Stats:
        """Each queue's counts by state."""
        portal, _ = self._bridge()
        return portal.run(self._aio.stats(queue))

    def overview(self) -> Overview:
        """All queues and their sums, how fast jobs went through in the last minute, who works."""
        portal, _ = self._bridge()
        return portal.run(self._aio.overview())

    def workers(self) -> Workers:
        """The processes that take jobs."""
        portal, _ = self._bridge()
        return portal.run(self._aio.workers())

    def wait(self, id: int | Enqueued, *, timeout: float | None = None) -> Any:
        """The result of a job, once it has completed."""
        portal, _ = self._bridge()
        return portal.run(self._aio.wait(id, timeout=timeout))

    def wait_all(self, ids: Iterable[int | Enqueued], *, timeout: float | None = None) -> Jobs_:
        """The jobs, in this order, once all of them have finished, however they did."""
        portal, _ = self._bridge()
        return portal.run(self._aio.wait_all(ids, timeout=timeout))

    def cancel(
        self,
        *ids: int,
        reason: str = "",
        state: State | str | Iterable[State | str] | None = None,
    ) -> Ids:
        """Those not started are cancelled; those that run are asked to stop. Returns the ids.

        With `state`, only those that are in this state, or in one of these.
        """
        portal, _ = self._bridge()
        return portal.run(self._aio.cancel(*ids, reason=reason, state=state))

    def retry(self, *ids: int, state: State | str | Iterable[State | str] | None = None) -> Ids:
        """Make them ready, with fresh attempts; their history stays. Returns the ids.

        With `state`, only those that are in this state, or in one of these.
        """
        portal, _ = self._bridge()
        return portal.run(self._aio.retry(*ids, state=state))

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
        portal, _ = self._bridge()
        return portal.run(
            self._aio.retry_all(
                queue,
                type=type,
                state=state,
                error=error,
                since=since,
                until=until,
                progress=progress,
            )
        )

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
        portal, _ = self._bridge()
        return portal.run(
            self._aio.cancel_all(
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

    def prune(
        self,
        *,
        state: State | str | Iterable[State | str] | None = None,
        older_than_seconds: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove finished jobs now, with their history. Returns how many."""
        portal, _ = self._bridge()
        return portal.run(
            self._aio.prune(state=state, older_than_seconds=older_than_seconds, progress=progress)
        )

    def prune_some(
        self,
        *,
        state: State | str | Iterable[State | str] | None = None,
        older_than_seconds: float | None = None,
        after: int = 0,
        seconds_max: float = PRUNE_SECONDS,
    ) -> Pruned:
        """A part of `prune`: what is done in `seconds_max`, and at least one small step."""
        portal, _ = self._bridge()
        return portal.run(
            self._aio.prune_some(
                state=state,
                older_than_seconds=older_than_seconds,
                after=after,
                seconds_max=seconds_max,
            )
        )

    def set_priority(self, id: int, priority: int) -> bool:
        """False if it is not waiting for a worker any more."""
        portal, _ = self._bridge()
        return portal.run(self._aio.set_priority(id, priority))

    def pause(self, queue: str) -> None:
        """No worker takes jobs of this queue until `resume`."""
        portal, _ = self._bridge()
        portal.run(self._aio.pause(queue))

    def resume(self, queue: str) -> None:
        portal, _ = self._bridge()
        portal.run(self._aio.resume(queue))

    def limit(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        rate: int | None = None,
        per_seconds: float = 1.0,
    ) -> QueueLimits:
        """What holds for a queue over all processes. None: no limit."""
        portal, _ = self._bridge()
        return portal.run(
            self._aio.limit(queue, concurrency=concurrency, rate=rate, per_seconds=per_seconds)
        )
