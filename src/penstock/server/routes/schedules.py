"""`/v1/schedules`: jobs that are enqueued by the clock.

Rights go by the queue a schedule enqueues into: `jobs` to see it, `jobs_admin` to change it.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.delivery.access import Access
from penstock.errors import ScheduleNotFound
from penstock.job import Schedule
from penstock.server.routes.context import Context, body_as, context_of, reply
from penstock.server.routes.job_shapes import (
    EnqueuedReply,
    ScheduleReply,
    ScheduleRequest,
    SchedulesReply,
    payload_of,
)
from penstock.server.routes.jobs import may_use
from penstock.server.routes.schema import describe
from penstock.server.routes.shapes import RemovedReply

router = APIRouter(prefix="/v1/schedules", tags=["jobs"])

_put_body = msgspec.json.Decoder(ScheduleRequest)


@router.get(
    "",
    **describe("List the schedules of queues the token may use", ok={200: SchedulesReply}),
)
async def list_schedules(request: Request) -> Response:
    context = context_of(request)
    access = context.access(request)
    found = await context.hub.aio.schedules.list()
    shown = [ScheduleReply.of(one) for one in found if may_use(access, one.queue)]
    return reply(SchedulesReply(shown))


@router.get(
    "/{schedule:name}",
    **describe("One schedule", ok={200: ScheduleReply}, errors=(400, 404)),
)
async def get_schedule(request: Request, schedule: str) -> Response:
    context = context_of(request)
    return reply(ScheduleReply.of(await _visible(context, context.access(request), schedule)))


@router.put(
    "/{schedule:name}",
    **describe(
        "Make a schedule, or change it",
        body=ScheduleRequest,
        ok={200: ScheduleReply},
        errors=(400, 403, 413),
    ),
)
async def put_schedule(request: Request, schedule: str) -> Response:
    context = context_of(request)
    access = context.access(request)
    wanted = await body_as(request, _put_body)
    access.check_jobs_admin(wanted.queue)
    schedules = context.hub.aio.schedules
    for known in await schedules.list():
        if known.name == schedule:
            # It would be taken away from the queue it is for now.
            access.check_jobs_admin(known.queue)
    made = await schedules.put(
        schedule,
        wanted.cron,
        wanted.queue,
        wanted.type,
        payload_of(wanted),
        timezone=wanted.timezone,
        missed=wanted.missed,
        priority=wanted.priority,
        max_attempts=wanted.max_attempts,
        timeout=wanted.timeout,
    )
    return reply(ScheduleReply.of(made))


@router.delete(
    "/{schedule:name}",
    **describe("Remove a schedule; its jobs stay", ok={200: RemovedReply}, errors=(400, 403, 404)),
)
async def remove_schedule(request: Request, schedule: str) -> Response:
    context = context_of(request)
    await _changeable(context, context.access(request), schedule)
    await context.hub.aio.schedules.remove(schedule)
    return reply(RemovedReply(1))


@router.post(
    "/{schedule:name}/pause",
    **describe("No ticks until it is resumed", ok={200: ScheduleReply}, errors=(400, 403, 404)),
)
async def pause_schedule(request: Request, schedule: str) -> Response:
    context = context_of(request)
    await _changeable(context, context.access(request), schedule)
    await context.hub.aio.schedules.pause(schedule)
    return reply(ScheduleReply.of(await context.hub.aio.schedules.get(schedule)))


@router.post(
    "/{schedule:name}/resume",
    **describe("Go on with the next tick", ok={200: ScheduleReply}, errors=(400, 403, 404)),
)
async def resume_schedule(request: Request, schedule: str) -> Response:
    context = context_of(request)
    await _changeable(context, context.access(request), schedule)
    await context.hub.aio.schedules.resume(schedule)
    return reply(ScheduleReply.of(await context.hub.aio.schedules.get(schedule)))


@router.post(
    "/{schedule:name}/run",
    **describe("Enqueue its job once, now", ok={201: EnqueuedReply}, errors=(400, 403, 404)),
)
async def run_schedule(request: Request, schedule: str) -> Response:
    context = context_of(request)
    await _changeable(context, context.access(request), schedule)
    return reply(EnqueuedReply.of(await context.hub.aio.schedules.run_now(schedule)), 201)


async def _visible(context: Context, access: Access, name: str) -> Schedule:
    """Raises `ScheduleNotFound`, in the same words for one that is none of the caller's."""
    found = await context.hub.aio.schedules.get(name)
    if not may_use(access, found.queue):
        raise ScheduleNotFound(f"There is no schedule {name!r}.")
    return found


async def _changeable(context: Context, access: Access, name: str) -> None:
    access.check_jobs_admin((await _visible(context, access, name)).queue)
