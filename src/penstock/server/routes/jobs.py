"""`/v1/jobs`: enqueue, list, look, wait.

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
    InvalidInput,
    JobExists,
    JobNotFound,
    WaitTimeout,
)
from penstock.job import Job
from penstock.server.routes.context import Context, body_as, context_of, reply
from penstock.server.routes.job_shapes import (
    EnqueuedManyReply,
    EnqueuedReply,
    EnqueueRequest,
    EventReply,
    ExplanationReply,
    HistoryReply,
    IdsReply,
    JobReply,
    JobsReply,
    StateName,
    payload_of,
)
from penstock.server.routes.schema import describe

LIST_MAX = 1_000
PAGE = 50
REPLY_BYTES_MAX = 4 * 1024 * 1024
"""A reply gets no further job beyond this."""
WAIT_SECONDS_MAX = 20.0
ID_MAX = 2**63 - 1

router = APIRouter(tags=["jobs"])

_enqueue_body = msgspec.json.Decoder(EnqueueRequest)

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
    if may_all((*access.jobs, *access.jobs_admin)):
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


def may_all(granted: tuple[str, ...]) -> bool:
    return set(granted) >= set(EVERYTHING)
