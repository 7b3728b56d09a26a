"""`/v1/topics`: publish, read, and what topics there are."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from msgspec import UNSET
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock import codec
from penstock.errors import BadRequest, InvalidInput, TopicExists
from penstock.model import OnTrimmed, Pattern, Position, Publication, Receipt, check_topic
from penstock.protocol import JSON_WIRE, Members, Outgoing, Published, PublishedMany
from penstock.server.routes.context import (
    Context,
    body_as,
    check_see,
    context_of,
    decode,
    may_see,
    reply,
)
from penstock.server.routes.reading import read_last, read_on
from penstock.server.routes.schema import describe
from penstock.server.routes.shapes import (
    MessagesReply,
    OutgoingMany,
    OutgoingOne,
    PublishRequest,
    RawMessagesReply,
    RemovedReply,
    TopicReply,
    TopicRequest,
    TopicsReply,
    TopicStatsReply,
    TrimRequest,
)

READ_MAX = 1_000
TOPICS_MAX = 10_000

router = APIRouter(prefix="/v1/topics", tags=["topics"])

_publish_body = msgspec.json.Decoder(PublishRequest)
_topic_body = msgspec.json.Decoder(TopicRequest)
_trim_body = msgspec.json.Decoder(TrimRequest)

After = Annotated[str | None, Query(description="A position, `epoch:offset`: what comes after it.")]
Last = Annotated[int | None, Query(ge=1, le=READ_MAX, description="The last so many messages.")]


@router.post(
    "/{topic:name}/messages",
    **describe(
        "Publish one message, or many in one transaction",
        body=(OutgoingOne, OutgoingMany),
        ok={201: (Published, PublishedMany)},
        errors=(400, 403, 409, 413, 429),
    ),
)
async def publish(request: Request, topic: str) -> Response:
    context = context_of(request)
    access = context.access(request)
    access.check_publish(topic)
    wanted = await body_as(request, _publish_body)
    if wanted.messages is not UNSET:
        return await _publish_many(context, request, topic, wanted)
    payload = _payload(wanted)
    context.rates.check(context.address(request), access, 1)
    receipt = await context.hub.aio.topics.publish(
        topic,
        payload,
        type=wanted.type,
        key=wanted.key,
        headers=wanted.headers,
        ttl=wanted.ttl,
        idempotency_key=wanted.idempotency_key,
        conflate=wanted.conflate,
        format=wanted.format,
    )
    return reply(_published(receipt), 201)


class PublishRoute:
    """`publish` for a router to call by itself: what FastAPI does around a route takes longer
    than the route. FastAPI has it all the same, for the document."""

    path = "/v1/topics/{topic:name}/messages"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        answer = await publish(request, scope["path_params"]["topic"])
        await answer(scope, receive, send)


async def _publish_many(
    context: Context, request: Request, topic: str, wanted: PublishRequest
) -> Response:
    messages = wanted.messages
    assert isinstance(messages, list)
    if wanted != PublishRequest(messages=messages):
        raise BadRequest("Beside messages nothing else is said.", hint="Say it in each message.")
    limit = context.settings.commit_group_max
    if not 1 <= len(messages) <= limit:
        raise InvalidInput(f"messages has 1 to {limit:,} of them, not {len(messages):,}.")
    context.rates.check(context.address(request), context.access(request), len(messages))
    publications = [
        Publication(
            _payload(one),
            one.type,
            one.key,
            one.headers,
            one.ttl,
            one.idempotency_key,
            one.format,
        )
        for one in messages
    ]
    receipts = await context.hub.aio.topics.publish_many(topic, publications)
    return reply(PublishedMany([_published(receipt) for receipt in receipts]), 201)


@router.get(
    "/{topic:name}/messages",
    **describe(
        "Read messages of a topic or glob, oldest first",
        ok={200: MessagesReply},
        errors=(400, 403, 409, 410),
    ),
)
async def read(
    request: Request,
    topic: str,
    after: After = None,
    last: Last = None,
    since: Annotated[
        float | None, Query(ge=0, lt=1e11, description="From this time on, in seconds since 1970.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=READ_MAX)] = 100,
    on_trimmed: Annotated[
        OnTrimmed, Query(description="Whether messages that are gone are an error, or left out.")
    ] = "raise",
) -> Response:
    context = context_of(request)
    context.access(request).check_subscribe(topic)
    if sum(option is not None for option in (after, last, since)) > 1:
        raise InvalidInput("Pass one of after, last and since.")
    topics = context.hub.aio.topics
    start = None if after is None else Position.parse(after)
    # Before reading: what is published meanwhile must not lie before the position given back.
    end = await topics.position()
    if last is not None:
        found = await read_last(topics, topic, min(last, limit))
        position = found[-1].position if found else end
    else:
        found, position = await read_on(
            topics,
            topic,
            after=start,
            since=since,
            limit=limit,
            end=end,
            on_trimmed=on_trimmed,
        )
    with_topic = Pattern(topic).is_glob
    entries = [JSON_WIRE.entry(message, with_topic=with_topic) for message in found]
    return reply(RawMessagesReply(position.epoch, entries, str(position)))


@router.get(
    "",
    **describe("List the topics the token may read or administer", ok={200: TopicsReply}),
)
async def list_topics(
    request: Request,
    match: Annotated[str, Query(description="A glob over names.")] = "*",
    after: Annotated[str, Query(description="Names behind this one.")] = "",
    limit: Annotated[int, Query(ge=1, le=TOPICS_MAX)] = 1_000,
) -> Response:
    context = context_of(request)
    access = context.access(request)
    topics = await context.hub.aio.topics.list(match)
    seen = [topic for topic in topics if topic.name > after and may_see(access, topic.name)]
    shown = [TopicReply.of(topic) for topic in seen[:limit]]
    return reply(TopicsReply(shown, len(seen) <= limit))


@router.put(
    "/{topic:name}",
    **describe(
        "Create a topic, or configure one that exists",
        body=TopicRequest,
        ok={200: TopicReply, 201: TopicReply},
        errors=(400, 403, 413),
    ),
)
async def put_topic(request: Request, topic: str) -> Response:
    context = context_of(request)
    context.access(request).check_admin(topic)
    body = await request.body()
    wanted = decode(body, _topic_body) if body else TopicRequest()
    retention, delivery = wanted.values()
    topics = context.hub.aio.topics
    try:
        made = await topics.create(topic, retention, delivery=delivery)
    except TopicExists:
        if retention is None and delivery is None:
            return reply(TopicReply.of(await topics.get(topic)))
        changed = await topics.configure(topic, retention, delivery=delivery)
        return reply(TopicReply.of(changed))
    return reply(TopicReply.of(made), 201)


@router.get(
    "/{topic:name}",
    **describe("One topic", ok={200: TopicReply}, errors=(400, 403, 404)),
)
async def get_topic(request: Request, topic: str) -> Response:
    context = context_of(request)
    check_see(context.access(request), topic)
    return reply(TopicReply.of(await context.hub.aio.topics.get(topic)))


@router.delete(
    "/{topic:name}",
    **describe("Delete a topic and its messages", ok={200: RemovedReply}, errors=(400, 403, 404)),
)
async def delete_topic(request: Request, topic: str) -> Response:
    context = context_of(request)
    context.access(request).check_admin(topic)
    return reply(RemovedReply(await context.hub.aio.topics.delete(topic)))


@router.post(
    "/{topic:name}/trim",
    **describe(
        "Remove old messages by hand",
        body=TrimRequest,
        ok={200: RemovedReply},
        errors=(400, 403, 404, 409, 413),
    ),
)
async def trim_topic(request: Request, topic: str) -> Response:
    context = context_of(request)
    context.access(request).check_admin(topic)
    wanted = await body_as(request, _trim_body)
    removed = await context.hub.aio.topics.trim(
        topic,
        through=None if wanted.through is None else Position.parse(wanted.through),
        keep=wanted.keep,
        older_than_seconds=wanted.older_than_seconds,
    )
    return reply(RemovedReply(removed))


@router.get(
    "/{topic:name}/stats",
    **describe("Size, age and rate", ok={200: TopicStatsReply}, errors=(400, 403, 404)),
)
async def topic_stats(request: Request, topic: str) -> Response:
    context = context_of(request)
    check_see(context.access(request), topic)
    return reply(TopicStatsReply.of(await context.hub.aio.topics.stats(topic)))


@router.get(
    "/{topic:name}/presence",
    **describe("Who is present", ok={200: Members}, errors=(400, 403)),
)
async def presence(request: Request, topic: str) -> Response:
    context = context_of(request)
    context.access(request).check_subscribe(topic)
    return reply(await context.delivery.roster.members(check_topic(topic)))


def _payload(outgoing: Outgoing | PublishRequest) -> Any:
    if (outgoing.payload is UNSET) == (outgoing.base64 is UNSET):
        raise BadRequest("A message has either payload or base64.", hint="/docs has the shapes.")
    if isinstance(outgoing.base64, str):
        return codec.from_base64(outgoing.base64)
    return outgoing.payload


def _published(receipt: Receipt) -> Published:
    position = None if receipt.position is None else str(receipt.position)
    return Published(position, receipt.created_at, receipt.durable, receipt.duplicate)
