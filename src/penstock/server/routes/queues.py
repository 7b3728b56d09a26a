"""`/v1/queues` and `/v1/workers`: figures, limits and pauses, and who works.

Rights go by queue: `jobs` to look, `jobs_admin` to change.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from penstock.delivery.access import Access
from penstock.job import QueueLimits, QueueStats, check_queue
from penstock.jobs.overview import Overview, total
from penstock.server.routes.context import body_as, context_of, reply
from penstock.server.routes.job_shapes import LimitsRequest, WorkersReply
from penstock.server.routes.jobs import may_all, may_use
from penstock.server.routes.schema import describe

router = APIRouter(tags=["jobs"])

_limits_body = msgspec.json.Decoder(LimitsRequest)


@router.get(
    "/v1/queues",
    **describe("The queues the token may use: counts, sums, pace", ok={200: Overview}),
)
async def list_queues(request: Request) -> Response:
    context = context_of(request)
    access = context.access(request)
    found = await context.hub.aio.jobs.overview()
    if may_all((*access.jobs, *access.jobs_admin)):
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
    if not may_all((*access.jobs, *access.jobs_admin)):
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


def _serves(access: Access, queues: dict[str, int]) -> bool:
    return any(may_use(access, queue) for queue in queues)
