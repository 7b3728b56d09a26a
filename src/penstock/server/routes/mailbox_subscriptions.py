"""`/v1/mailboxes/{mailbox}/subscriptions`: mailboxes that are fed from topics.

A subscription outlives the token it was made with, so it takes the right to administer the
mailbox beside that to read the topic.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from penstock.delivery.access import covers
from penstock.server.routes.context import context_of, decode, reply
from penstock.server.routes.mailbox_shapes import (
    SubscribeRequest,
    SubscriptionReply,
    SubscriptionsReply,
)
from penstock.server.routes.schema import describe
from penstock.server.routes.shapes import RemovedReply

LIST_MAX = 10_000
ID_MAX = 2**63 - 1

router = APIRouter(tags=["mailboxes"])

_subscribe_body = msgspec.json.Decoder(SubscribeRequest)

After = Annotated[int, Query(ge=0, le=ID_MAX, description="Those made after this id.")]
Limit = Annotated[int, Query(ge=1, le=LIST_MAX)]


@router.get(
    "/v1/mailbox-subscriptions",
    **describe(
        "Subscriptions of all mailboxes the token may administer", ok={200: SubscriptionsReply}
    ),
)
async def list_all(request: Request, after: After = 0, limit: Limit = 1_000) -> Response:
    context = context_of(request)
    access = context.access(request)
    found = await context.hub.aio.mailboxes.subscriptions(after=after, limit=limit)
    seen = [
        SubscriptionReply.of(one)
        for one in found
        if any(covers(grant, one.mailbox) for grant in access.mailboxes_admin)
    ]
    return reply(SubscriptionsReply(seen, found[-1].id if len(found) == limit else None))


@router.get(
    "/v1/mailboxes/{mailbox:name}/subscriptions",
    **describe(
        "The topics and globs it is fed from", ok={200: SubscriptionsReply}, errors=(400, 403)
    ),
)
async def list_subscriptions(
    request: Request, mailbox: str, after: After = 0, limit: Limit = 1_000
) -> Response:
    context = context_of(request)
    context.access(request).check_mailboxes_see(mailbox)
    found = await context.hub.aio.mailboxes.subscriptions(mailbox, after=after, limit=limit)
    shown = [SubscriptionReply.of(one) for one in found]
    return reply(SubscriptionsReply(shown, found[-1].id if len(found) == limit else None))


@router.put(
    "/v1/mailboxes/{mailbox:name}/subscriptions/{topic:name}",
    **describe(
        "Feed it from a topic or a glob; one that exists goes on as it is",
        body=SubscribeRequest,
        ok={200: SubscriptionReply},
        errors=(400, 403, 413),
    ),
)
async def subscribe(request: Request, mailbox: str, topic: str) -> Response:
    context = context_of(request)
    access = context.access(request)
    access.check_mailboxes_admin(mailbox)
    access.check_subscribe(topic)
    body = await request.body()
    wanted = decode(body, _subscribe_body) if body else SubscribeRequest()
    made = await context.hub.aio.mailboxes.subscribe(mailbox, topic, wanted.start)
    return reply(SubscriptionReply.of(made))


@router.delete(
    "/v1/mailboxes/{mailbox:name}/subscriptions/{topic:name}",
    **describe("Feed it no longer from a topic", ok={200: RemovedReply}, errors=(400, 403)),
)
async def unsubscribe(request: Request, mailbox: str, topic: str) -> Response:
    context = context_of(request)
    context.access(request).check_mailboxes_admin(mailbox)
    return reply(RemovedReply(await context.hub.aio.mailboxes.unsubscribe(mailbox, topic)))


@router.delete(
    "/v1/mailboxes/{mailbox:name}/subscriptions",
    **describe("Feed it from no topic any more", ok={200: RemovedReply}, errors=(400, 403)),
)
async def unsubscribe_all(request: Request, mailbox: str) -> Response:
    context = context_of(request)
    context.access(request).check_mailboxes_admin(mailbox)
    return reply(RemovedReply(await context.hub.aio.mailboxes.unsubscribe(mailbox)))
