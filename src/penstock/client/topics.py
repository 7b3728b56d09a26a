"""`hub.topics` of a remote hub: the coroutines of `hub.aio.topics`, waited for by threads."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from datetime import datetime
from typing import Any

from penstock.client.aio_topics import (
    AsyncRemoteTopics,
    durable_feed,
    encoded,
    live_feed,
    open_feed,
    refuse_idempotent,
)
from penstock.client.exchange import Exchange
from penstock.client.follower import RemoteFollower
from penstock.client.portal import Portal
from penstock.model import (
    Delivery,
    Format,
    Message,
    NewMessage,
    OnTrimmed,
    Position,
    Receipt,
    Retention,
    Start,
    Topic,
    TopicStats,
)
from penstock.topics.bus import READ_LIMIT, Topics_
from penstock.topics.listener import Listener
from penstock.topics.publishing import check_publishable
from penstock.topics.sieve import KeyOf, OnError
from penstock.topics.subscription import Live

Bridge = Callable[[], tuple[Portal, Exchange]]


class RemoteTopics:
    """The same, for threads."""

    def __init__(
        self, bridge: Bridge, coroutines: AsyncRemoteTopics, executor: Callable[[], Executor]
    ) -> None:
        self._bridge = bridge
        self._aio = coroutines
        self._executor = executor

    def publish(
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
        portal, _ = self._bridge()
        return portal.run(
            self._aio.publish(
                topic,
                payload,
                type=type,
                key=key,
                headers=headers,
                ttl=ttl,
                idempotency_key=idempotency_key,
                conflate=conflate,
                format=format,
                timeout=timeout,
            )
        )

    def publish_many(
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
        portal, exchange = self._bridge()
        check_publishable(topic)
        # Encoded, and an iterator read, on the caller's thread: both may take their time.
        if isinstance(payloads, (builtins.list, tuple)):
            messages = builtins.list(encoded(exchange, topic, payloads, type, format))
            return portal.run(exchange.publish_many(topic, messages, timeout))
        receipts: list[Receipt] = []
        group: list[NewMessage] = []
        for message in encoded(exchange, topic, payloads, type, format):
            group.append(message)
            if len(group) == exchange.settings.commit_group_max:
                receipts += portal.run(exchange.publish_many(topic, group, timeout))
                group = []
        return receipts + portal.run(exchange.publish_many(topic, group, timeout))

    def read(
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
        portal, _ = self._bridge()
        reading = self._aio.read(
            topic, after=after, last=last, since=since, limit=limit, on_trimmed=on_trimmed
        )
        return portal.run(reading)

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
    ) -> RemoteFollower:
        """Messages of a topic or glob for a named consumer, which resumes where it was.

        At least once, in order. One follower at a time holds the name; `standby` waits for it.
        """
        refuse_idempotent(idempotent)
        portal, exchange = self._bridge()
        feed = durable_feed(exchange, topic, consumer, start, on_trimmed, standby)
        portal.run(open_feed(exchange, feed))
        return RemoteFollower(portal, exchange, feed)

    def subscribe(
        self,
        topic: str,
        *,
        after: Position | None = None,
        last: int | None = None,
        on_trimmed: OnTrimmed = "raise",
    ) -> Live:
        """Messages of a topic or glob as they come, from now on.

        Or first those `after` a position, or the `last` so many. Connections come and go
        underneath: nothing is lost or comes twice.
        """
        portal, exchange = self._bridge()
        feed = live_feed(exchange, topic, after, last, on_trimmed)
        portal.run(open_feed(exchange, feed))
        return Live(feed, exchange.settings.follow_batch_max)

    def listen(
        self,
        topic: str,
        callback: Callable[[Message], object],
        *,
        after: Position | None = None,
        last: int | None = None,
        on_trimmed: OnTrimmed = "raise",
    ) -> Listener:
        """As `subscribe`, calling back for each message, on a thread of the hub's."""
        portal, exchange = self._bridge()
        feed = live_feed(exchange, topic, after, last, on_trimmed)
        portal.run(open_feed(exchange, feed))
        batch_max = exchange.settings.follow_batch_max
        return Listener(feed, callback, batch_max, self._executor(), exchange.telemetry)

    def position(self) -> Position:
        """The end of the log now."""
        portal, _ = self._bridge()
        return portal.run(self._aio.position())

    def create(
        self,
        name: str,
        retention: Retention | None = None,
        *,
        delivery: Delivery | None = None,
    ) -> Topic:
        """Make a topic. Publishing makes one, too, with the server's settings."""
        portal, _ = self._bridge()
        return portal.run(self._aio.create(name, retention, delivery=delivery))

    def configure(
        self,
        name: str,
        retention: Retention | None = None,
        *,
        delivery: Delivery | None = None,
    ) -> Topic:
        """Change how long the topic keeps its messages, and how they are sent to clients."""
        portal, _ = self._bridge()
        return portal.run(self._aio.configure(name, retention, delivery=delivery))

    def get(self, name: str) -> Topic:
        portal, _ = self._bridge()
        return portal.run(self._aio.get(name))

    def list(self, pattern: str | None = None) -> Topics_:
        """All topics, or those a glob stands for, by name."""
        portal, _ = self._bridge()
        return portal.run(self._aio.list(pattern))

    def delete(self, name: str, progress: Callable[[int], None] | None = None) -> int:
        """Delete a topic and its messages. Returns how many messages that were."""
        portal, _ = self._bridge()
        return portal.run(self._aio.delete(name, progress))

    def trim(
        self,
        name: str,
        *,
        through: Position | None = None,
        keep: int | None = None,
        older_than_seconds: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove old messages by hand, whatever retention and holds say."""
        portal, _ = self._bridge()
        return portal.run(
            self._aio.trim(
                name,
                through=through,
                keep=keep,
                older_than_seconds=older_than_seconds,
                progress=progress,
            )
        )

    def stats(self, name: str) -> TopicStats:
        """Size, age and rate of a topic."""
        portal, _ = self._bridge()
        return portal.run(self._aio.stats(name))
