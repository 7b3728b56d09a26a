"""`/v1/jobs`, taken into one's own hands: retry, cancel, bring forward, prune.

The right is `jobs_admin` on the job's queue. Unknown jobs and those of other queues are answered
for alike.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.delivery.access import Access
from penstock.errors import Forbidden, InvalidInput, JobNotFound
from penstock.jobs.prune import Pruned
from penstock.server.routes.context import Context, body_as, context_of, reply
from penstock.server.routes.job_shapes import (
    CancelRequest,
    ChangedManyReply,
    ChangedReply,
    ChangeRequest,
    JobReply,
    PriorityRequest,
    PruneRequest,
    ReasonRequest,
    StateName,
)
from penstock.server.routes.jobs import ID_MAX, JobId, may_all, visible
from penstock.server.routes.schema import describe

MANY_MAX = 1_000
"""Jobs that one request changes."""
OPEN_STATES: list[StateName] = ["pending", "scheduled", "waiting", "processing"]

router = APIRouter(tags=["jobs"])

_retry_body = msgspec.json.Decoder(ChangeRequest)
_cancel_body = msgspec.json.Decoder(CancelRequest)
_reason_body = msgspec.json.Decoder(ReasonRequest)
_priority_body = msgspec.json.Decoder(PriorityRequest)
_prune_body = msgspec.json.Decoder(PruneRequest)


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
    states = wanted.state or (["failed"] if wanted.ids is None else None)
    ids, after = await _choose(context, access, wanted, states)
    changed = await context.hub.aio.jobs.retry(*ids, state=states)
    return reply(ChangedManyReply(changed, after))


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
    states = wanted.state or (OPEN_STATES if wanted.ids is None else None)
    ids, after = await _choose(context, access, wanted, states)
    changed = await context.hub.aio.jobs.cancel(*ids, reason=wanted.reason, state=states)
    return reply(ChangedManyReply(changed, after))


@router.post(
    "/v1/jobs/prune",
    **describe(
        "Remove finished jobs of all queues now, as many as can be in a second",
        body=PruneRequest,
        ok={200: Pruned},
        errors=(400, 403, 413),
    ),
)
async def prune_jobs(request: Request) -> Response:
    context = context_of(request)
    context.access(request).check_jobs_admin("*")
    wanted = await body_as(request, _prune_body)
    pruned = await context.hub.aio.jobs.prune_some(
        state=wanted.state,
        older_than_seconds=wanted.older_than_seconds,
        after=wanted.after,
        seconds_max=wanted.seconds_max,
    )
    return reply(pruned)


async def _changeable(context: Context, access: Access, id: int) -> None:
    job = await visible(context, access, id)
    access.check_jobs_admin(job.queue)


async def _changed(context: Context, id: int, changed: bool) -> Response:
    return reply(ChangedReply(changed, JobReply.of(await context.hub.aio.jobs.get(id))))


async def _choose(
    context: Context, access: Access, wanted: ChangeRequest, states: list[StateName] | None
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
    if may_all(access.jobs_admin):
        return found, after
    mine = []
    for id in found:
        try:
            await _changeable(context, access, id)
        except (JobNotFound, Forbidden):
            continue
        mine.append(id)
    return mine, after
