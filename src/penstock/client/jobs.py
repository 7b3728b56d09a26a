"""`hub.aio.jobs` of a remote hub: a local hub's names over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.client.exchange import Exchange
from penstock.client.job_values import (
    RemoteChanged,
    RemoteChangedMany,
    RemoteEnqueued,
    RemoteEnqueuedMany,
    RemoteExplanation,
    RemoteHistory,
    RemoteIds,
    RemoteJob,
    RemoteJobList,
    RemoteWorkers,
    given,
    load_of,
    names_of,
    seconds_of,
)
from penstock.client.rest import path
from penstock.errors import WaitTimeout
from penstock.job import Enqueued, Job, OnConflict, OnParentFailure, QueueLimits, State, check_queue
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
from penstock.jobs.waiting import number_of, numbers_of, result_of
from penstock.model import check_count

LIST_MAX = 1_000
"""What one request lists."""
GROUP_MAX = 500
GROUP_BYTES_MAX = 512 * 1024
"""Of one request that enqueues. A server takes 1,000 jobs and 2 MiB by default."""
WAIT_SECONDS = 5.0
"""How long one request waits for a job; below the time after which a server seems gone."""

Parameters_ = list[tuple[str, str | int | float]]


class AsyncRemoteJobs:
    def __init__(self, open_exchange: Callable[[], Exchange]) -> None:
        self._open = open_exchange

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
        """Add a job; returns when it is on disk."""
        exchange = self._open()
        body = given(
            queue=queue,
            type=type,
            delay=delay,
            at=seconds_of(at),
            priority=priority,
            max_attempts=max_attempts,
            deadline=seconds_of(deadline),
            timeout=timeout,
            unique_key=unique_key,
            unique_seconds=unique_seconds,
            on_conflict=on_conflict,
            after=numbers_of(after),
            on_parent_failure=on_parent_failure,
        )
        load = load_of(payload, exchange.settings)
        answer = await exchange.rest.call("POST", path("jobs"), body=body | load)
        return msgspec.json.decode(answer, type=RemoteEnqueued).as_enqueued()

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
        exchange = self._open()
        body = given(
            queue=queue,
            type=type,
            delay=delay,
            at=seconds_of(at),
            priority=priority,
            max_attempts=max_attempts,
            timeout=timeout,
        )
        added: Many = []
        for jobs in _groups(load_of(payload, exchange.settings) for payload in payloads):
            answer = await exchange.rest.call("POST", path("jobs"), body=body | {"jobs": jobs})
            found = msgspec.json.decode(answer, type=RemoteEnqueuedMany).jobs
            added += [one.as_enqueued() for one in found]
        return added

    async def get(self, id: int) -> Job:
        answer = await self._open().rest.call("GET", path("jobs", str(id)))
        return msgspec.json.decode(answer, type=RemoteJob).as_job()

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
        check_count(limit, "limit")
        found: Jobs_ = []
        while len(found) < limit:
            parameters = _filter(queue, type, state, error, since, until)
            if before is not None:
                parameters.append(("before", before))
            parameters.append(("limit", min(LIST_MAX, limit - len(found))))
            answer = await self._open().rest.call("GET", path("jobs"), parameters=parameters)
            page = msgspec.json.decode(answer, type=RemoteJobList)
            found += [one.as_job() for one in page.jobs]
            if page.is_complete or not page.jobs:
                break
            before = page.jobs[-1].id
        return found

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
        check_count(limit, "limit")
        found: Ids = []
        while len(found) < limit:
            count = min(LIST_MAX, limit - len(found))
            parameters = _filter(queue, type, state, error, since, until)
            parameters += [("after", after), ("limit", count)]
            answer = await self._open().rest.call("GET", path("jobs", "ids"), parameters=parameters)
            page = msgspec.json.decode(answer, type=RemoteIds).ids
            found += page
            if len(page) < count:
                break
            after = page[-1]
        return found

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
        return await self.list(
            queue,
            type=type,
            state=State.FAILED,
            error=error,
            since=since,
            until=until,
            before=before,
            limit=limit,
        )

    async def explain(self, id: int | Enqueued) -> Explanation:
        """Why it is not running, or how it ended: an answer in one line, and the reasons."""
        number = str(number_of(id))
        answer = await self._open().rest.call("GET", path("jobs", number, "explanation"))
        return msgspec.json.decode(answer, type=RemoteExplanation).as_explanation()

    async def history(self, id: int) -> Events:
        """Everything that happened to a job, oldest first."""
        answer = await self._open().rest.call("GET", path("jobs", str(id), "history"))
        return msgspec.json.decode(answer, type=RemoteHistory).as_events()

    async def stats(self, queue: str | None = None) -> Stats:
        """Each queue's counts by state."""
        found = (await self.overview()).queues
        return [stats for stats in found if queue is None or stats.queue == queue]

    async def overview(self) -> Overview:
        """All queues and their sums, how fast jobs went through in the last minute, who works."""
        answer = await self._open().rest.call("GET", path("queues"))
        return msgspec.json.decode(answer, type=Overview)

    async def workers(self) -> Workers:
        """The processes that take jobs."""
        answer = await self._open().rest.call("GET", path("workers"))
        return msgspec.json.decode(answer, type=RemoteWorkers).workers

    async def wait(self, id: int | Enqueued, *, timeout: float | None = None) -> Any:
        """The result of a job, once it has completed."""
        return result_of((await self.wait_all([id], timeout=timeout))[0])

    async def wait_all(
        self, ids: Iterable[int | Enqueued], *, timeout: float | None = None
    ) -> Jobs_:
        """The jobs, in this order, once all of them have finished, however they did."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        found: Jobs_ = []
        for number in numbers_of(ids):
            while True:
                job = await self._outcome(number, deadline)
                if job.state.is_final:
                    break
                if deadline is not None and loop.time() >= deadline:
                    raise WaitTimeout(f"The job {number} is {job.state.name.lower()}.")
            found.append(job)
        return found

    async def cancel(
        self,
        *ids: int,
        reason: str = "",
        state: State | str | Iterable[State | str] | None = None,
    ) -> Ids:
        """Those not started are cancelled; those that run are asked to stop. Returns the ids.

        With `state`, only those that are in this state, or in one of these.
        """
        return await self._change("cancel", ids, given(reason=reason, state=names_of(state)))

    async def retry(
        self, *ids: int, state: State | str | Iterable[State | str] | None = None
    ) -> Ids:
        """Make them ready, with fresh attempts; their history stays. Returns the ids.

        With `state`, only those that are in this state, or in one of these.
        """
        return await self._change("retry", ids, given(state=names_of(state)))

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
        body = given(
            queue=queue,
            type=type,
            state=names_of(state),
            error=error,
            since=seconds_of(since),
            until=seconds_of(until),
        )
        return await self._change_all("retry", body, progress)

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
        body = given(
            queue=queue,
            type=type,
            state=names_of(state),
            error=error,
            since=seconds_of(since),
            until=seconds_of(until),
            reason=reason,
        )
        return await self._change_all("cancel", body, progress)

    async def prune(
        self,
        *,
        state: State | str | Iterable[State | str] | None = None,
        older_than_seconds: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove finished jobs now, with their history. Returns how many."""
        removed, after = 0, 0
        while True:
            step = await self.prune_some(
                state=state, older_than_seconds=older_than_seconds, after=after
            )
            removed += step.removed
            if progress is not None:
                progress(removed)
            if step.after is None:
                return removed
            after = step.after

    async def prune_some(
        self,
        *,
        state: State | str | Iterable[State | str] | None = None,
        older_than_seconds: float | None = None,
        after: int = 0,
        seconds_max: float = PRUNE_SECONDS,
    ) -> Pruned:
        """A part of `prune`: what is done in `seconds_max`, and at least one small step."""
        body = given(
            state=names_of(state),
            older_than_seconds=older_than_seconds,
            after=after,
            seconds_max=seconds_max,
        )
        answer = await self._open().rest.call("POST", path("jobs", "prune"), body=body)
        return msgspec.json.decode(answer, type=Pruned)

    async def set_priority(self, id: int, priority: int) -> bool:
        """False if it is not waiting for a worker any more."""
        where = path("jobs", str(id), "priority")
        answer = await self._open().rest.call("PUT", where, body={"priority": priority})
        return msgspec.json.decode(answer, type=RemoteChanged).changed

    async def pause(self, queue: str) -> None:
        """No worker takes jobs of this queue until `resume`."""
        await self._limit(queue, {"is_paused": True})

    async def resume(self, queue: str) -> None:
        await self._limit(queue, {"is_paused": False})

    async def limit(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        rate: int | None = None,
        per_seconds: float = 1.0,
    ) -> QueueLimits:
        """What holds for a queue over all processes. None: no limit."""
        changes = {"concurrency_max": concurrency, "rate_max": rate, "rate_seconds": per_seconds}
        return await self._limit(queue, changes)

    async def _outcome(self, id: int, deadline: float | None) -> Job:
        exchange = self._open()
        seconds = min(WAIT_SECONDS, exchange.settings.client_timeout_seconds / 2)
        if deadline is not None:
            left = deadline - asyncio.get_running_loop().time()
            seconds = max(0.0, min(seconds, left))
        where = path("jobs", str(id), "outcome")
        answer = await exchange.rest.call("GET", where, parameters={"seconds": seconds})
        return msgspec.json.decode(answer, type=RemoteJob).as_job()

    async def _change(self, verb: str, ids: Sequence[int], body: dict[str, Any]) -> Ids:
        changed: Ids = []
        for start in range(0, len(ids), MANY_MAX):
            part = body | {"ids": ids[start : start + MANY_MAX]}
            answer = await self._open().rest.call("POST", path("jobs", verb), body=part)
            changed += msgspec.json.decode(answer, type=RemoteChangedMany).jobs
        return changed

    async def _change_all(
        self, verb: str, body: dict[str, Any], progress: Callable[[int], None] | None
    ) -> int:
        changed = 0
        after: int | None = 0
        while after is not None:
            part = body | {"after": after}
            answer = await self._open().rest.call("POST", path("jobs", verb), body=part)
            found = msgspec.json.decode(answer, type=RemoteChangedMany)
            changed, after = changed + len(found.jobs), found.after
            if progress is not None:
                progress(changed)
        return changed

    async def _limit(self, queue: str, changes: dict[str, Any]) -> QueueLimits:
        where = path("queues", check_queue(queue))
        answer = await self._open().rest.call("PUT", where, body=changes)
        return msgspec.json.decode(answer, type=QueueLimits)


def _filter(
    queue: str | None,
    type: str | None,
    state: State | str | Iterable[State | str] | None,
    error: str | None,
    since: datetime | float | None,
    until: datetime | float | None,
) -> Parameters_:
    values = given(
        queue=queue, type=type, error=error, since=seconds_of(since), until=seconds_of(until)
    )
    return [*values.items(), *(("state", name) for name in names_of(state))]


def _groups(loads: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """In requests that a server takes."""
    group: list[dict[str, Any]] = []
    size = 0
    for load in loads:
        length = len(load["base64"]) if "base64" in load else len(bytes(load["payload"]))
        if group and (len(group) == GROUP_MAX or size + length > GROUP_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(load)
        size += length
    if group:
        yield group
