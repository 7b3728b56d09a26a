"""`/v1/jobs`, `/v1/queues`, `/v1/workers`: enqueue, look, and take things into one's own hands.

Rights go by queue: `jobs` to enqueue and read, `jobs_admin` to change. A job of a queue that the
token may not see is answered for as one that does not exist.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request
from msgspec import UNSET
from starlette.responses import Response

from penstock.delivery.access import EVERYTHING, Access, covers
from penstock.errors import (
    BadRequest,
    Forbidden,
    InvalidInput,
    JobExists,
    JobNotFound,
    WaitTimeout,
)
from penstock.job import Job, QueueLimits, QueueStats, check_queue
from penstock.jobs.overview import Overview, total
from penstock.server.routes.context import Context, body_as, context_of, reply
from penstock.server.routes.job_shapes import (
    CancelRequest,
    ChangedManyReply,
    ChangedReply,
    ChangeRequest,
    EnqueuedManyReply,
    EnqueuedReply,
    EnqueueRequest,
    EventReply,
    ExplanationReply,
    HistoryReply,
    IdsReply,
    JobReply,
    JobsReply,
    LimitsRequest,
    PriorityRequest,
    PruneRequest,
    ReasonRequest,
    StateName,
    WorkersReply,
    payload_of,
)
from penstock.server.routes.schema import describe
from penstock.server.routes.shapes import RemovedReply

LIST_MAX = 1_000
PAGE = 50
REPLY_BYTES_MAX = 4 * 1024 * 1024
"""A reply gets no further job beyond this."""
MANY_MAX = 1_000
"""Jobs that one request changes."""
WAIT_SECONDS_MAX = 20.0
ID_MAX = 2**63 - 1

router = APIRouter(tags=["jobs"])

_enqueue_body = msgspec.json.Decoder(EnqueueRequest)
_retry_body = msgspec.json.Decoder(ChangeRequest)
_cancel_body = msgspec.json.Decoder(CancelRequest)
_reason_body = msgspec.json.Decoder(ReasonRequest)
_priority_body = msgspec.json.Decoder(PriorityRequest)
_prune_body = msgspec.json.Decoder(PruneRequest)
_limits_body = msgspec.json.Decoder(LimitsRequest)

JobId = Annotated[int, Path(ge=1, le=ID_MAX)]
Moment = Annotated[float | None, Query(ge=0, lt=1e11, description="In seconds since 1970.")]

_ONE_ONLY = (
    *("deadline", "unique_key", "unique_seconds", "on_conflict", "after", "on_parent_failure"),
    *("payload", "base64"),
)


@router.post(
    "/v1/jobs",
    **describe(
        "Enqueue a job, or many of one kind in one transaction",
        body=EnqueueRequest,
        ok={201: (EnqueuedReply, EnqueuedManyReply)},
        errors=(400, 403, 404, 409, 413, 429),
    ),
)
async def enqueue(request: Request) -> Response:
    context = context_of(request)
    access = context.access(request)
    wanted = await body_as(request, _enqueue_body)
    access.check_jobs(wanted.queue)
    if wanted.jobs is not UNSET:
        return await _enqueue_many(context, request, access, wanted)
    context.rates.check(context.address(request), access, 1)
    for parent in dict.fromkeys(wanted.after):
        await visible(context, access, parent)
    try:
        added = await context.hub.aio.jobs.enqueue(
            wanted.queue,
            wanted.type,
            payload_of(wanted),
            delay=wanted.delay,
            at=wanted.at,
            priority=wanted.priority,
            max_attempts=wanted.max_attempts,
            deadline=wanted.deadline,
            timeout=wanted.timeout,
            unique_key=wanted.unique_key,
            unique_seconds=wanted.unique_seconds,
            on_conflict=wanted.on_conflict,
            after=wanted.after,
            on_parent_failure=wanted.on_parent_failure,
        )
    except JobExists as error:
        await _check_holder(context, access, wanted, error.job_id)
        raise
    if added.duplicate:
        await _check_holder(context, access, wanted, added.id)
    return reply(EnqueuedReply.of(added), 201)


async def _check_holder(
    context: Context, access: Access, wanted: EnqueueRequest, id: int | None
) -> None:
    """Keys are one namespace for all queues; who has one is told only to those who may know."""
    try:
        await visible(context, access, id or 0)
    except JobNotFound:
        raise JobExists(f"The unique key {wanted.unique_key!r} is taken.") from None


async def _enqueue_many(
    context: Context, request: Request, access: Access, wanted: EnqueueRequest
) -> Response:
    jobs = wanted.jobs
    assert isinstance(jobs, list)
    plain = EnqueueRequest(queue=wanted.queue, type=wanted.type)
    if said := [name for name in _ONE_ONLY if getattr(wanted, name) != getattr(plain, name)]:
        raise BadRequest(f"Many jobs have no {said[0]}.", hint="Enqueue them one by one.")
    limit = context.settings.commit_group_max
    if not 1 <= len(jobs) <= limit:
        raise InvalidInput(f"jobs has 1 to {limit:,} of them, not {len(jobs):,}.")
    context.rates.check(context.address(request), access, len(jobs))
    added = await context.hub.aio.jobs.enqueue_many(
        wanted.queue,
        wanted.type,
        [payload_of(load) for load in jobs],
        delay=wanted.delay,
        at=wanted.at,
        priority=wanted.priority,
        max_attempts=wanted.max_attempts,
        timeout=wanted.timeout,
    )
    return reply(EnqueuedManyReply([EnqueuedReply.of(one) for one in added]), 201)


@router.get(
    "/v1/jobs",
    **describe("List the jobs of queues the token may use, newest first", ok={200: JobsReply}),
)
async def list_jobs(
    request: Request,
    queue: Annotated[str | None, Query()] = None,
    type: Annotated[str | None, Query()] = None,
    state: Annotated[list[StateName] | None, Query(description="Repeatable.")] = None,
    error: Annotated[str | None, Query(description="Part of the last failure.")] = None,
    since: Moment = None,
    until: Moment = None,
    before: Annotated[int | None, Query(ge=0, le=ID_MAX, description="Ids below this.")] = None,
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 100,
) -> Response:
    context = context_of(request)
    wanted: dict[str, Any] = {
        "type": type,
        "state": state,
        "error": error,
        "since": since,
        "until": until,
    }
    merged: list[Job] = []
    floor = 0
    for name in await _queues(context, context.access(request), queue):
        found, is_all = await _read(context, name, wanted, before, limit)
        merged += found
        if not is_all:
            # There are more below it, so what the other queues have there comes later, too.
            floor = max(floor, found[-1].id)
    merged = sorted((job for job in merged if job.id >= floor), key=lambda job: -job.id)
    shown: list[JobReply] = []
    size = 0
    for job in merged[:limit]:
        if shown and size + len(job.body) > REPLY_BYTES_MAX:
            break
        size += len(job.body) + len(job.raw_result or b"")
        shown.append(JobReply.of(job))
    return reply(JobsReply(shown, not floor and len(shown) == len(merged)))


@router.get(
    "/v1/jobs/ids",
    **describe("The ids alone, oldest first", ok={200: IdsReply}),
)
async def list_ids(
    request: Request,
    queue: Annotated[str | None, Query()] = None,
    type: Annotated[str | None, Query()] = None,
    state: Annotated[list[StateName] | None, Query(description="Repeatable.")] = None,
    error: Annotated[str | None, Query(description="Part of the last failure.")] = None,
    since: Moment = None,
    until: Moment = None,
    after: Annotated[int, Query(ge=0, le=ID_MAX, description="Ids above this.")] = 0,
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = LIST_MAX,
) -> Response:
    context = context_of(request)
    wanted: dict[str, Any] = {
        "type": type,
        "state": state,
        "error": error,
        "since": since,
        "until": until,
    }
    found: list[int] = []
    for name in await _queues(context, context.access(request), queue):
        found += await context.hub.aio.jobs.ids(name, after=after, limit=limit, **wanted)
    return reply(IdsReply(sorted(found)[:limit]))


async def _queues(context: Context, access: Access, queue: str | None) -> list[str | None]:
    """Those to look through: the one that was named, or all that the token may use. None: all."""
    if queue is not None:
        access.check_jobs(queue)
        return [queue]
    if _may_all((*access.jobs, *access.jobs_admin)):
        return [None]
    known = await context.hub.aio.jobs.stats()
    return [found.queue for found in known if may_use(access, found.queue)]


async def _read(
    context: Context, queue: str | None, wanted: dict[str, Any], before: int | None, limit: int
) -> tuple[list[Job], bool]:
    """Up to `limit`, and whether that is all. In pages, which large payloads do not let pile up."""
    found: list[Job] = []
    size = 0
    while len(found) < limit and size < REPLY_BYTES_MAX:
        count = min(PAGE, limit - len(found))
        part = await context.hub.aio.jobs.list(queue, before=before, limit=count, **wanted)
        found += part
        size += sum(len(job.body) + len(job.raw_result or b"") for job in part)
        if len(part) < count:
            return found, True
        before = part[-1].id
    more = await context.hub.aio.jobs.list(queue, before=before, limit=1, **wanted)
    return found, not more


@router.get("/v1/jobs/{id:int}", **describe("One job", ok={200: JobReply}, errors=(400, 404)))
async def get_job(request: Request, id: JobId) -> Response:
    context = context_of(request)
    return reply(JobReply.of(await visible(context, context.access(request), id)))


@router.get(
    "/v1/jobs/{id:int}/outcome",
    **describe(
        "One job, once it has finished or the time is over", ok={200: JobReply}, errors=(400, 404)
    ),
)
async def wait_for_job(
    request: Request,
    id: JobId,
    seconds: Annotated[float, Query(ge=0, le=WAIT_SECONDS_MAX)] = WAIT_SECONDS_MAX,
) -> Response:
    context = context_of(request)
    job = await visible(context, context.access(request), id)
    if not job.state.is_final:
        try:
            [job] = await context.hub.aio.jobs.wait_all([id], timeout=seconds)
        except WaitTimeout:
            job = await context.hub.aio.jobs.get(id)
    return reply(JobReply.of(job))


@router.get(
    "/v1/jobs/{id:int}/history",
    **describe("Everything that happened to it", ok={200: HistoryReply}, errors=(400, 404)),
)
async def get_history(request: Request, id: JobId) -> Response:
    context = context_of(request)
    await visible(context, context.access(request), id)
    events = await context.hub.aio.jobs.history(id)
    return reply(HistoryReply(id, [EventReply.of(event) for event in events]))


@router.get(
    "/v1/jobs/{id:int}/explanation",
    **describe("Why it is not running", ok={200: ExplanationReply}, errors=(400, 404)),
)
async def explain_job(request: Request, id: JobId) -> Response:
    context = context_of(request)
    await visible(context, context.access(request), id)
    return reply(ExplanationReply.of(await context.hub.aio.jobs.explain(id)))


@router.post(
    "/v1/jobs/{id:int}/retry",
    **describe(
        "Make a finished or scheduled job ready, with fresh attempts",
        ok={200: ChangedReply},
        errors=(400, 403, 404),
    ),
)
async def retry_job(request: Request, id: JobId) -> Response:
    context = context_of(request)
    await _changeable(context, context.access(request), id)
    return await _changed(context, id, bool(await context.hub.aio.jobs.retry(id)))


@router.post(
    "/v1/jobs/{id:int}/cancel",
    **describe(
        "Cancel a job; one that runs is asked to stop",
        body=ReasonRequest,
        ok={200: ChangedReply},
        errors=(400, 403, 404, 413),
    ),
)
async def cancel_job(request: Request, id: JobId) -> Response:
    context = context_of(request)
    access = context.access(request)
    wanted = await body_as(request, _reason_body)
    await _changeable(context, access, id)
    changed = await context.hub.aio.jobs.cancel(id, reason=wanted.reason)
    return await _changed(context, id, bool(changed))


@router.put(
    "/v1/jobs/{id:int}/priority",
    **describe(
        "Bring a job forward, or put it behind; lower is first",
        body=PriorityRequest,
        ok={200: ChangedReply},
        errors=(400, 403, 404, 413),
    ),
)
async def set_priority(request: Request, id: JobId) -> Response:
    context = context_of(request)
    access = context.access(request)
    wanted = await body_as(request, _priority_body)
    await _changeable(context, access, id)
    changed = await context.hub.aio.jobs.set_priority(id, wanted.priority)
    return await _changed(context, id, changed)


@router.post(
    "/v1/jobs/retry",
    **describe(
        "Retry many, by ids or by what they have in common; by default those that failed",
        body=ChangeRequest,
        ok={200: ChangedManyReply},
        errors=(400, 403, 413),
    ),
)
async def retry_jobs(request: Request) -> Response:
    context = context_of(request)
    access = context.access(request)
    wanted = await body_as(request, _retry_body)
    ids, after = await _choose(context, access, wanted, wanted.state or ["failed"])
    return reply(ChangedManyReply(await context.hub.aio.jobs.retry(*ids), after))


@router.post(
    "/v1/jobs/cancel",
    **describe(
        "Cancel many, by ids or by what they have in common",
        body=CancelRequest,
        ok={200: ChangedManyReply},
        errors=(400, 403, 413),
    ),
)
async def cancel_jobs(request: Request) -> Response:
    context = context_of(request)
    access = context.access(request)
    wanted = await body_as(request, _cancel_body)
    states = wanted.state or ["pending", "scheduled", "waiting", "processing"]
    ids, after = await _choose(context, access, wanted, states)
    changed = await context.hub.aio.jobs.cancel(*ids, reason=wanted.reason)
    return reply(ChangedManyReply(changed, after))


@router.post(
    "/v1/jobs/prune",
    **describe(
        "Remove finished jobs of all queues now",
        body=PruneRequest,
        ok={200: RemovedReply},
        errors=(400, 403, 413),
    ),
)
async def prune_jobs(request: Request) -> Response:
    context = context_of(request)
    context.access(request).check_jobs_admin("*")
    wanted = await body_as(request, _prune_body)
    removed = await context.hub.aio.jobs.prune(
        state=wanted.state, older_than_seconds=wanted.older_than_seconds
    )
    return reply(RemovedReply(removed))


@router.get(
    "/v1/queues",
    **describe("The queues the token may use: counts, sums, pace", ok={200: Overview}),
)
async def list_queues(request: Request) -> Response:
    context = context_of(request)
    access = context.access(request)
    found = await context.hub.aio.jobs.overview()
    if _may_all((*access.jobs, *access.jobs_admin)):
        return reply(found)
    queues = [queue for queue in found.queues if may_use(access, queue.queue)]
    workers = [w for w in await context.hub.aio.jobs.workers() if _serves(access, w.queues)]
    shown = Overview(
        total(queues),
        queues,
        # How busy the others are is none of the caller's business, not even in a sum.
        paces={name: pace for name, pace in found.paces.items() if may_use(access, name)},
        workers=len(workers),
        unattended=tuple(name for name in found.unattended if may_use(access, name)),
    )
    return reply(shown)


@router.get(
    "/v1/queues/{queue:name}",
    **describe("One queue", ok={200: QueueStats}, errors=(400, 403)),
)
async def get_queue(request: Request, queue: str) -> Response:
    context = context_of(request)
    context.access(request).check_jobs(queue)
    found = await context.hub.aio.jobs.stats(check_queue(queue))
    return reply(found[0] if found else QueueStats(queue))


@router.put(
    "/v1/queues/{queue:name}",
    **describe(
        "Limit, pause or resume a queue",
        body=LimitsRequest,
        ok={200: QueueLimits},
        errors=(400, 403, 413),
    ),
)
async def put_queue(request: Request, queue: str) -> Response:
    context = context_of(request)
    context.access(request).check_jobs_admin(queue)
    wanted = await body_as(request, _limits_body)
    jobs = context.hub.aio.jobs
    known = await jobs.stats(check_queue(queue))
    limits = known[0].limits if known else QueueLimits()
    given = {
        name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not UNSET
    }
    QueueLimits(**given)
    if set(given) - {"is_paused"}:
        limits = msgspec.structs.replace(limits, **given)
        limits = await jobs.limit(
            queue,
            concurrency=limits.concurrency_max,
            rate=limits.rate_max,
            per_seconds=limits.rate_seconds,
        )
    if "is_paused" in given:
        await (jobs.pause(queue) if given["is_paused"] else jobs.resume(queue))
        limits = msgspec.structs.replace(limits, is_paused=given["is_paused"])
    return reply(limits)


@router.get(
    "/v1/workers",
    **describe("The processes that take jobs of queues the token may use", ok={200: WorkersReply}),
)
async def list_workers(request: Request) -> Response:
    context = context_of(request)
    access = context.access(request)
    workers = await context.hub.aio.jobs.workers()
    if not _may_all((*access.jobs, *access.jobs_admin)):
        workers = [
            msgspec.structs.replace(
                one,
                queues={name: n for name, n in one.queues.items() if may_use(access, name)},
                types=(),
            )
            for one in workers
            if _serves(access, one.queues)
        ]
    return reply(WorkersReply(workers))


def may_use(access: Access, queue: str) -> bool:
    """Whether a queue exists for this caller at all."""
    return any(covers(grant, queue) for grant in (*access.jobs, *access.jobs_admin))


async def visible(context: Context, access: Access, id: int) -> Job:
    """A job. Raises `JobNotFound`, in the same words for one that is none of the caller's."""
    missing = JobNotFound(f"There is no job {id}.")
    if not 0 < id <= ID_MAX:
        raise missing
    job = await context.hub.aio.jobs.get(id)
    if not may_use(access, job.queue):
        raise missing
    return job


async def _changeable(context: Context, access: Access, id: int) -> None:
    job = await visible(context, access, id)
    access.check_jobs_admin(job.queue)


async def _changed(context: Context, id: int, changed: bool) -> Response:
    return reply(ChangedReply(changed, JobReply.of(await context.hub.aio.jobs.get(id))))


async def _choose(
    context: Context, access: Access, wanted: ChangeRequest, states: list[StateName]
) -> tuple[list[int], int | None]:
    """The ids that a request means and may change, and where to go on. Unknown ids and those of
    other queues are left out alike."""
    if wanted.ids is None:
        access.check_jobs_admin("*" if wanted.queue is None else wanted.queue)
        if not 0 <= wanted.after <= ID_MAX:
            raise InvalidInput("after is an id.")
        found = await context.hub.aio.jobs.ids(
            wanted.queue,
            type=wanted.type,
            state=states,
            error=wanted.error,
            since=wanted.since,
            until=wanted.until,
            after=wanted.after,
            limit=MANY_MAX,
        )
        after = found[-1] if len(found) == MANY_MAX else None
    else:
        if len(wanted.ids) > MANY_MAX:
            raise InvalidInput(f"ids has up to {MANY_MAX:,} of them, not {len(wanted.ids):,}.")
        found, after = [id for id in dict.fromkeys(wanted.ids) if 0 < id <= ID_MAX], None
    if _may_all(access.jobs_admin):
        return found, after
    mine = []
    for id in found:
        try:
            await _changeable(context, access, id)
        except (JobNotFound, Forbidden):
            continue
        mine.append(id)
    return mine, after


def _may_all(granted: tuple[str, ...]) -> bool:
    return set(granted) >= set(EVERYTHING)


def _serves(access: Access, queues: dict[str, int]) -> bool:
    return any(may_use(access, queue) for queue in queues)
