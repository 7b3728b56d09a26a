"""`/v1/consumers`: who has read how far, and moving them by hand."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from penstock.delivery.access import Access
from penstock.errors import ConsumerNotFound, Forbidden
from penstock.model import Consumer, Position, Start
from penstock.server.routes.context import Context, body_as, context_of, may_see, reply
from penstock.server.routes.schema import describe
from penstock.server.routes.shapes import (
    ConsumerReply,
    ConsumersReply,
    RemovedReply,
    ResetRequest,
)

router = APIRouter(prefix="/v1/consumers", tags=["consumers"])

_reset_body = msgspec.json.Decoder(ResetRequest)


@router.get(
    "",
    **describe("List the consumers on topics the token may see", ok={200: ConsumersReply}),
)
async def list_consumers(request: Request) -> Response:
    context = context_of(request)
    return reply(await _find(context, context.access(request), None))


@router.get(
    "/{consumer:name}",
    **describe(
        "One consumer, on each topic or glob it follows",
        ok={200: ConsumersReply},
        errors=(400, 404),
    ),
)
async def get_consumer(request: Request, consumer: str) -> Response:
    context = context_of(request)
    found = await _find(context, context.access(request), consumer)
    if not found.consumers:
        raise _unknown(consumer)
    return reply(found)


@router.delete(
    "/{consumer:name}",
    **describe(
        "Forget a consumer, on one topic or glob or on all the token may administer",
        ok={200: RemovedReply},
        errors=(400, 403, 404),
    ),
)
async def delete_consumer(
    request: Request, consumer: str, topic: Annotated[str | None, Query()] = None
) -> Response:
    context = context_of(request)
    access = context.access(request)
    if topic is not None:
        access.check_admin(topic)
    owned = [
        found
        for found in await context.hub.aio.consumers.list(consumer)
        if topic in (None, found.subscription) and _may_administer(access, found)
    ]
    if not owned:
        raise _unknown(consumer)
    removed = 0
    for found in owned:
        removed += await context.hub.aio.consumers.delete(consumer, found.subscription)
    return reply(RemovedReply(removed))


@router.post(
    "/{consumer:name}/reset",
    **describe(
        "Set where a consumer goes on, also back",
        body=ResetRequest,
        ok={200: ConsumerReply},
        errors=(400, 403, 404, 409, 413),
    ),
)
async def reset_consumer(request: Request, consumer: str) -> Response:
    context = context_of(request)
    wanted = await body_as(request, _reset_body)
    context.access(request).check_admin(wanted.topic)
    consumers = context.hub.aio.consumers
    await consumers.get(consumer, wanted.topic)
    to: Position | Start
    if wanted.to == "latest":
        to = "latest"
    elif wanted.to == "earliest":
        to = "earliest"
    else:
        to = Position.parse(wanted.to)
    moved = await consumers.seek(consumer, wanted.topic, to)
    return reply(ConsumerReply.of(moved, await consumers.lag(consumer, wanted.topic)))


async def _find(context: Context, access: Access, name: str | None) -> ConsumersReply:
    consumers = context.hub.aio.consumers
    seen: list[ConsumerReply] = []
    for consumer in await consumers.list(name):
        if not may_see(access, consumer.subscription):
            continue
        try:
            lag = await consumers.lag(consumer.name, consumer.subscription)
        except ConsumerNotFound:
            continue  # Deleted meanwhile.
        seen.append(ConsumerReply.of(consumer, lag))
    return ConsumersReply(seen)


def _may_administer(access: Access, consumer: Consumer) -> bool:
    try:
        access.check_admin(consumer.subscription)
    except Forbidden:
        return False
    return True


def _unknown(name: str) -> ConsumerNotFound:
    """The same whether it does not exist or is none of the caller's business."""
    return ConsumerNotFound(f"There is no consumer {name!r}.")
