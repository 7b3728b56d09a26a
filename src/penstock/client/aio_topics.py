"""`hub.aio.topics` of a remote hub: a local hub's names, over the network.

Messages and subscriptions go over the WebSocket, the rest over HTTP.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from penstock.client.exchange import Exchange
from penstock.client.feed import Feed
from penstock.client.follower import AsyncRemoteFollower
from penstock.client.frames import rebuild
from penstock.client.portal import Portal
from penstock.client.replies import ReadReply, RemovedReply, StatsReply, TopicReply, TopicsReply
from penstock.client.rest import path
from penstock.clock import SECOND
from penstock.errors import InvalidInput, TopicExists, Unsupported
from penstock.model import (
    Delivery,
    Format,
    Message,
    NewMessage,
    OnTrimmed,
    Pattern,
    Position,
    Publication,
    Receipt,
    Retention,
    Start,
    Topic,
    TopicStats,
    as_micros,
    check_count,
    check_name,
    check_topic,
)
from penstock.topics.bus import READ_LIMIT, Topics_
from penstock.topics.listener import AsyncCallback, AsyncListener
from penstock.topics.positions import check_on_trimmed
from penstock.topics.publishing import check_publishable, refuse_with_conflate
from penstock.topics.sieve import KeyOf, OnError
from penstock.topics.subscription import AsyncLive

PAGE = 1_000
"""Messages, or topics, a server gives at once."""
FAR_FUTURE_SECONDS = 9e10

OpenExchange = Callable[[], Exchange]
Bridge = Callable[[], tuple[Portal, Exchange]]


class AsyncRemoteTopics:
    def __init__(self, open_exchange: OpenExchange) -> None:
        self._open = open_exchange

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        ttl: float | None = None,
        idempotency_key: str | None = None,
        conflate: bool = False,
        format: Format | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Append one message; returns when it is on the server's disk.

        Sent again after a lost connection, and stored once. `timeout` (default:
        `client_timeout_seconds`) bounds the wait for a server, and for its answer.
        """
        exchange = self._open()
        if conflate:
            check_publishable(topic)
            refuse_with_conflate(headers, ttl, idempotency_key, format)
            return await exchange.publish_conflated(topic, key, payload, type)
        given = None if headers is None else dict(headers)
        item = Publication(payload, type, key, given, ttl, idempotency_key, format)
        return await exchange.publish(exchange.encode(topic, item), timeout)

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[Any],
        *,
        type: str | None = None,
        format: Format | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """Append many messages; returns when all are on the server's disk.

        As a local hub does it, in transactions of up to 500 messages and 512 KiB. `timeout`
        bounds the wait for each of them.
        """
        exchange = self._open()
        check_publishable(topic)
        messages = encoded(exchange, topic, payloads, type, format)
        if isinstance(payloads, (builtins.list, tuple)):
            messages = iter(builtins.list(messages))
        return await exchange.publish_many(topic, messages, timeout)

    async def read(
        self,
        topic: str,
        *,
        after: Position | None = None,
        last: int | None = None,
        since: datetime | float | None = None,
        limit: int = READ_LIMIT,
        on_trimmed: OnTrimmed = "raise",
    ) -> list[Message]:
        """Up to `limit` messages of a topic or glob, oldest first."""
        rest = self._open().rest
        pattern = Pattern.parse(topic)
        check_on_trimmed(on_trimmed)
        check_count(limit, "limit")
        if sum(option is not None for option in (after, last, since)) > 1:
            raise InvalidInput("Pass one of after=, last= and since=.")
        if last is not None:
            limit = min(check_count(last, "last"), limit)
            if limit > PAGE:
                raise Unsupported(f"A server gives the last {PAGE:,} messages, not {limit:,}.")
        found: list[Message] = []
        parameters: dict[str, str | int | float | None] = {
            "after": None if after is None else str(after),
            "last": last if last is None else limit,
            "since": None if since is None else as_micros(since) / SECOND,
            "on_trimmed": on_trimmed,
        }
        while True:
            parameters["limit"] = min(PAGE, limit - len(found))
            body = await rest.call("GET", path("topics", topic, "messages"), parameters=parameters)
            page = msgspec.json.decode(body, type=ReadReply)
            found += [rebuild(entry, topic, page.epoch, "json") for entry in page.messages]
            if not page.messages or len(found) >= limit or last is not None:
                return found
            # Of a glob's topics one may be trimmed further than this page came: that is no news.
            skips = "skip" if pattern.is_glob else on_trimmed
            parameters = {"after": page.position, "on_trimmed": skips}

    def follow(
        self,
        topic: str,
        *,
        consumer: str,
        start: Start | Position = "latest",
        on_trimmed: OnTrimmed = "raise",
        standby: bool = False,
        idempotent: bool | KeyOf = False,
        on_error: OnError = "process",
    ) -> AsyncRemoteFollower:
        """Messages of a topic or glob for a named consumer, which resumes where it was."""
        refuse_idempotent(idempotent)
        feed = durable_feed(self._open(), topic, consumer, start, on_trimmed, standby)
        return AsyncRemoteFollower(self._open, feed)

    def subscribe(
        self,
        topic: str,
        *,
        after: Position | None = None,
        last: int | None = None,
        on_trimmed: OnTrimmed = "raise",
    ) -> AsyncRemoteLive:
        """Messages of a topic or glob as they come, from now on."""
        exchange = self._open()
        feed = exchange.subscribe(live_feed(exchange, topic, after, last, on_trimmed))
        return AsyncRemoteLive(exchange, feed)

    def listen(
        self,
        topic: str,
        callback: AsyncCallback,
        *,
        after: Position | None = None,
        last: int | None = None,
        on_trimmed: OnTrimmed = "raise",
    ) -> AsyncListener:
        """As `subscribe`, calling back for each message, on the event loop."""
        live = self.subscribe(topic, after=after, last=last, on_trimmed=on_trimmed)
        return AsyncListener(live, callback, self._open().telemetry)

    async def position(self) -> Position:
        """The end of the log now."""
        body = await self._open().rest.call(
            "GET",
            path("topics", "*", "messages"),
            parameters={"since": FAR_FUTURE_SECONDS, "limit": 1},
        )
        return Position.parse(msgspec.json.decode(body, type=ReadReply).position)

    async def create(
        self,
        name: str,
        retention: Retention | None = None,
        *,
        delivery: Delivery | None = None,
    ) -> Topic:
        """Make a topic. Publishing makes one, too, with the server's settings."""
        check_publishable(name)
        if await self.list(name):
            raise TopicExists(f"There is a topic {name!r} already.")
        return await self._put(name, retention, delivery)

    async def configure(
        self,
        name: str,
        retention: Retention | None = None,
        *,
        delivery: Delivery | None = None,
    ) -> Topic:
        """Change how long the topic keeps its messages, and how they are sent to clients."""
        check_topic(name)
        if retention is None and delivery is None:
            raise InvalidInput("Pass a retention or delivery=.")
        await self.get(name)
        return await self._put(name, retention, delivery)

    async def get(self, name: str) -> Topic:
        body = await self._open().rest.call("GET", path("topics", check_topic(name)))
        return msgspec.json.decode(body, type=TopicReply).as_topic()

    async def list(self, pattern: str | None = None) -> Topics_:
        """All topics, or those a glob stands for, by name."""
        match = Pattern.parse("*" if pattern is None else pattern).text
        found: Topics_ = []
        while True:
            body = await self._open().rest.call(
                "GET",
                path("topics"),
                parameters={
                    "match": match,
                    "after": found[-1].name if found else None,
                    "limit": PAGE,
                },
            )
            page = msgspec.json.decode(body, type=TopicsReply)
            found += [topic.as_topic() for topic in page.topics]
            if page.is_complete or not page.topics:
                return found

    async def delete(self, name: str, progress: Callable[[int], None] | None = None) -> int:
        """Delete a topic and its messages. Returns how many messages that were."""
        body = await self._open().rest.call("DELETE", path("topics", check_topic(name)))
        return _removed(body, progress)

    async def trim(
        self,
        name: str,
        *,
        through: Position | None = None,
        keep: int | None = None,
        older_than_seconds: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove old messages by hand, whatever retention and holds say."""
        if sum(option is not None for option in (through, keep, older_than_seconds)) != 1:
            raise InvalidInput("Pass one of through=, keep= and older_than_seconds=.")
        body = await self._open().rest.call(
            "POST",
            path("topics", check_topic(name), "trim"),
            body={
                "through": None if through is None else str(through),
                "keep": keep,
                "older_than_seconds": older_than_seconds,
            },
        )
        return _removed(body, progress)

    async def stats(self, name: str) -> TopicStats:
        """Size, age and rate of a topic."""
        body = await self._open().rest.call("GET", path("topics", check_topic(name), "stats"))
        stats = msgspec.json.decode(body, type=StatsReply)
        return TopicStats(
            stats.topic,
            stats.messages,
            stats.bytes,
            stats.published,
            _position(stats.first),
            _position(stats.last),
            stats.oldest_age_seconds,
            stats.messages_per_second,
            stats.consumers,
        )

    async def _put(
        self, name: str, retention: Retention | None, delivery: Delivery | None
    ) -> Topic:
        wanted = {
            key: value
            for key, value in (("retention", retention), ("delivery", delivery))
            if value is not None
        }
        body = await self._open().rest.call("PUT", path("topics", name), body=wanted)
        return msgspec.json.decode(body, type=TopicReply).as_topic()


class AsyncRemoteLive(AsyncLive):
    """As `AsyncLive`. Entering it waits until the server has said where it begins."""

    def __init__(self, exchange: Exchange, feed: Feed) -> None:
        super().__init__(feed, exchange.settings.follow_batch_max)
        self._exchange = exchange
        self._feed = feed

    async def __aenter__(self) -> AsyncRemoteLive:
        await self._exchange.opened(self._feed)
        return self


def live_feed(
    exchange: Exchange,
    topic: str,
    after: Position | None,
    last: int | None,
    on_trimmed: OnTrimmed,
) -> Feed:
    if after is not None and last is not None:
        raise InvalidInput("Pass either after= or last=, not both.")
    if last is not None:
        check_count(last, "last")
    check_on_trimmed(on_trimmed)
    return Feed(
        Pattern.parse(topic),
        after=after,
        last=last,
        on_trimmed=on_trimmed,
        messages_max=exchange.settings.subscriber_buffer_max,
        bytes_max=exchange.settings.client_buffer_bytes_max,
    )


def refuse_idempotent(idempotent: bool | KeyOf) -> None:
    if idempotent is not False:
        raise Unsupported(
            "A remote follower does not ask the ledger.",
            hint="Follow with idempotent=True in a process beside the file.",
        )


def durable_feed(
    exchange: Exchange,
    topic: str,
    consumer: str,
    start: Start | Position,
    on_trimmed: OnTrimmed,
    standby: bool,
) -> Feed:
    check_on_trimmed(on_trimmed)
    check_name(consumer, "consumer name")
    pattern = Pattern.parse(topic)
    if not isinstance(start, Position) and start not in ("latest", "earliest"):
        raise InvalidInput(f"start is 'latest', 'earliest' or a position, not {start!r}.")
    return Feed(
        pattern,
        consumer=consumer,
        after=start if isinstance(start, Position) else None,
        start="latest" if isinstance(start, Position) else start,
        standby=standby,
        on_trimmed=on_trimmed,
        messages_max=exchange.settings.subscriber_buffer_max,
        bytes_max=exchange.settings.client_buffer_bytes_max,
    )


async def open_feed(exchange: Exchange, feed: Feed) -> None:
    exchange.subscribe(feed)
    try:
        await exchange.opened(feed)
    except BaseException:
        await exchange.unsubscribe(feed)
        raise


def encoded(
    exchange: Exchange,
    topic: str,
    payloads: Iterable[Any],
    type: str | None,
    format: Format | None,
) -> Iterator[NewMessage]:
    for item in payloads:
        if not isinstance(item, Publication):
            item = Publication(item, type, format=format)
        elif (type and not item.type) or (format and not item.format):
            item = msgspec.structs.replace(
                item, type=item.type or type, format=item.format or format
            )
        yield exchange.encode(topic, item)


def _removed(body: bytes, progress: Callable[[int], None] | None) -> int:
    removed = msgspec.json.decode(body, type=RemovedReply).removed
    if progress is not None:
        progress(removed)
    return removed


def _position(text: str | None) -> Position | None:
    return None if text is None else Position.parse(text)
