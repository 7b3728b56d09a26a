"""`/v1/topics/{topic}/events`: live messages as server-sent events."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.model import Position
from penstock.server.routes.context import context_of
from penstock.server.routes.schema import event_stream
from penstock.server.routes.topics import After, Last
from penstock.server.sse import EventStream, Stream

router = APIRouter(prefix="/v1/topics", tags=["topics"])


@router.get("/{topic:name}/events", **event_stream("Live messages as server-sent events"))
async def events(request: Request, topic: str, after: After = None, last: Last = None) -> Response:
    """Header `Last-Event-ID`: resume after this position, whatever the URL says."""
    context = context_of(request)
    access = context.access(request)
    access.check_subscribe(topic)
    resume = request.headers.get("last-event-id") or after
    start = None if resume is None else Position.parse(resume)
    stream = Stream(context, access, topic)
    address = context.address(request)
    context.connections.enter(address, access.subject)
    leave = partial(context.connections.leave, address, access.subject)
    try:
        await stream.open(start, last)
    except BaseException:
        leave()
        raise
    return EventStream(context, stream, leave)
