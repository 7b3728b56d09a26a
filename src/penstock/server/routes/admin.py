"""`/health` and `/metrics`: is it well, and the figures.

Whether the process lives and takes requests, anybody may ask. The full report and the figures
name topics and consumers, so they need the right to read `penstock.delivery`.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.errors import PenstockError
from penstock.model import Check
from penstock.server.metrics import (
    CONTENT_TYPES,
    JSON,
    OPENMETRICS,
    TEXT,
    MetricsReply,
    as_openmetrics,
    as_reply,
    preferred,
)
from penstock.server.routes.context import check_monitor, context_of, reply
from penstock.server.routes.schema import describe
from penstock.server.routes.shapes import AliveReply, HealthReply, ReadyReply

READY_SECONDS = 2.0

router = APIRouter(tags=["operating"])


@router.get(
    "/health",
    **describe("The full report", ok={200: HealthReply, 503: HealthReply}, errors=()),
)
async def health(request: Request) -> Response:
    context = context_of(request)
    check_monitor(context.access(request))
    try:
        found = await context.hub.aio.health()
    except PenstockError as error:
        check = Check("store", "critical", error.message, error.hint)
        return reply(HealthReply("critical", [check]), 503)
    report = HealthReply(found.status, found.checks, found.lags, found.metrics)
    return reply(report, 503 if found.status == "critical" else 200)


@router.get(
    "/health/live",
    **describe(
        "Does the process answer? Asks nobody else",
        ok={200: AliveReply},
        errors=(),
        is_open=True,
    ),
)
async def live() -> Response:
    return reply(AliveReply("ok"))


@router.get(
    "/health/ready",
    **describe(
        "Should it be sent requests? It reads from the store",
        ok={200: ReadyReply, 503: ReadyReply},
        errors=(),
        is_open=True,
    ),
)
async def ready(request: Request) -> Response:
    context = context_of(request)
    if context.delivery.is_draining:
        return reply(ReadyReply("critical", "The server is stopping."), 503)
    try:
        async with asyncio.timeout(READY_SECONDS):
            await context.hub.aio.topics.position()
    except PenstockError as error:
        # The code and not the message, which may name files: anybody may ask this.
        return reply(ReadyReply("critical", error.code), 503)
    except TimeoutError:
        return reply(ReadyReply("critical", "The store does not answer."), 503)
    return reply(ReadyReply("ok"))


@router.get(
    "/metrics",
    **describe(
        "Figures: JSON, or OpenMetrics if Accept asks for it",
        ok={200: MetricsReply},
        errors=(),
        media={kind: {"schema": {"type": "string"}} for kind in (OPENMETRICS, TEXT)},
    ),
)
async def metrics(request: Request) -> Response:
    context = context_of(request)
    check_monitor(context.access(request))
    queue = await context.hub.aio.metrics()
    delivery = await context.delivery.metrics()
    kind = preferred(request.headers.get("accept", ""))
    if kind == JSON:
        answer = reply(as_reply(delivery, queue))
    else:
        connections = max(delivery.connections, len(context.connections))
        body = as_openmetrics(kind, delivery, queue, connections)
        # Not media_type, to which Starlette would add a charset of its own.
        answer = Response(body, headers={"content-type": CONTENT_TYPES[kind]})
    answer.headers["vary"] = "accept"
    return answer
