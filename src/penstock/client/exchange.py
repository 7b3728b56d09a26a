"""All that a remote hub does on one event loop: its links, its feeds, its publishes."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from penstock.client.addresses import Addresses
from penstock.client.feed import Feed
from penstock.client.frames import outgoing, receipt
from penstock.client.link import Link
from penstock.client.rest import Rest
from penstock.client.tokens import Tokens
from penstock.errors import (
    Disconnected,
    HubClosed,
    InvalidInput,
    LogTrimmed,
    OutcomeUnknown,
    PenstockError,
    QueueFull,
    RateLimited,
)
from penstock.model import NewMessage, Position, Publication, Receipt
from penstock.protocol import (
    SUBPROTOCOL_MSGPACK,
    WIRES,
    Ack,
    Acked,
    Command,
    Outgoing,
    Publish,
    Published,
    PublishedMany,
    PublishMany,
)
from penstock.settings import Settings
from penstock.telemetry import Telemetry
from penstock.topics.publishing import encode_message

GROUP_MESSAGES_MAX = 500
GROUP_BYTES_MAX = 512 * 1024
"""Of one publish_many command. A server takes 1,000 messages and 2 MiB by default."""
RETRY_SECONDS = 0.05

T = TypeVar("T")


class Exchange:
    """Belongs to one event loop."""

    def __init__(
        self,
        addresses: Addresses,
        tokens: Tokens,
        settings: Settings,
        telemetry: Telemetry,
        *,
        client: str | None,
        subprotocol: str = SUBPROTOCOL_MSGPACK,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.telemetry = telemetry
        self.rest = Rest(addresses.copy(), tokens, settings)
        self._format = WIRES[subprotocol].format
        # It travels in a frame; the server compresses what it stores.
        self._encoding = msgspec.structs.replace(settings, compress_above_bytes=2**40)
        self._new_link: Callable[[], Link] = lambda: Link(
            self._links[0].addresses.copy() if self._links else addresses,
            tokens,
            settings,
            telemetry,
            client=client,
            subprotocol=subprotocol,
        )
        self._links: list[Link] = []
        self._links.append(self._new_link())
        self._opening: set[asyncio.Future[None]] = set()
        self._key = secrets.token_urlsafe(12)
        self._keys = itertools.count()
        self._is_closed = False

    # Commands

    async def call(
        self, make: Callable[[int], Command], answer: type[T], timeout: float | None = None
    ) -> T:
        """On the first link, which all threads and tasks share."""
        limit = self.settings.client_timeout_seconds if timeout is None else timeout
        return await self._links[0].call(make, answer, timeout=limit)

    def encode(self, topic: str, item: Publication) -> NewMessage:
        """Checked as a local hub does, before anything is sent."""
        return encode_message(
            self._encoding,
            topic,
            item.payload,
            item.type,
            item.key,
            item.headers,
            item.ttl,
            item.idempotency_key,
            item.format,
        )

    async def publish(self, message: NewMessage, timeout: float | None) -> Receipt:
        await self._opened()
        own = None if message.idempotency_key is not None else self._make_key()
        key = message.idempotency_key or own
        sent = outgoing(message, idempotency_key=key, format=self._format)

        def make(id: int) -> Publish:
            return Publish(
                id=id,
                topic=message.topic,
                payload=sent.payload,
                base64=sent.base64,
                type=sent.type,
                key=sent.key,
                headers=sent.headers,
                ttl=sent.ttl,
                idempotency_key=key,
                format=sent.format,
            )

        published = await self._insist(make, Published, timeout)
        return receipt(message.topic, published, is_own_key=own is not None)

    async def publish_many(
        self, topic: str, messages: Iterable[NewMessage], timeout: float | None
    ) -> list[Receipt]:
        """One group after the other: that one has to wait must not change their order."""
        await self._opened()
        receipts: list[Receipt] = []
        for group in _groups(messages):
            own = [m.idempotency_key is None for m in group]
            sent = [
                outgoing(
                    m,
                    idempotency_key=m.idempotency_key or self._make_key(),
                    format=self._format,
                )
                for m in group
            ]
            published = await self._insist(_many(topic, sent), PublishedMany, timeout)
            receipts += [
                receipt(topic, p, is_own_key=is_own)
                for p, is_own in zip(published.messages, own, strict=True)
            ]
        return receipts

    async def publish_conflated(
        self, topic: str, key: str | None, payload: Any, type: str | None
    ) -> Receipt:
        sent = outgoing(
            encode_message(self._encoding, topic, payload, type, key),
            idempotency_key=None,
            format=self._format,
        )
        published = await self.call(
            lambda id: Publish(
                id=id,
                topic=topic,
                payload=sent.payload,
                base64=sent.base64,
                type=type,
                key=key,
                conflate=True,
            ),
            Published,
        )
        return receipt(topic, published, is_own_key=False)

    async def _insist(
        self, make: Callable[[int], Command], answer: type[T], timeout: float | None
    ) -> T:
        """Try again where that helps and cannot make two of one, until the time is over."""
        limit = self.settings.client_timeout_seconds if timeout is None else timeout
        deadline = self.loop.time() + limit
        # As long as the server remembers the keys.
        repeated_until = self.loop.time() + self._links[0].repeatable_seconds
        pause = RETRY_SECONDS
        while True:
            try:
                return await self._links[0].call(
                    make, answer, timeout=max(0.0, deadline - self.loop.time())
                )
            except (RateLimited, QueueFull, OutcomeUnknown):
                if self.loop.time() + pause >= min(deadline, repeated_until):
                    raise
                await asyncio.sleep(pause)
                pause *= 2

    def _make_key(self) -> str:
        return f"{self._key}-{next(self._keys)}"

    # Subscriptions

    def subscribe(self, feed: Feed) -> Feed:
        """On a link that has a place for it. A durable one has a link of its own: it is held by
        not being read, which must hold nobody else."""
        if self._is_closed:
            raise HubClosed
        link = None
        if not feed.has_consumer:
            shared = [link for link in self._links if not link.is_held_by_a_consumer]
            link = next((link for link in shared if link.has_place_for(feed)), None)
        if link is None:
            link = self._new_link()
            self._links.append(link)
        link.add(feed)
        opened = feed.opened
        assert opened is not None
        if not feed.is_standby:
            self._opening.add(opened)
            opened.add_done_callback(self._opening.discard)
        return feed

    async def opened(self, feed: Feed) -> None:
        """Wait for the server's first answer. Raises what it says, or `Disconnected`."""
        assert feed.opened is not None
        limit = self.settings.client_timeout_seconds
        try:
            async with asyncio.timeout(None if feed.is_standby else limit):
                await asyncio.shield(feed.opened)
        except TimeoutError:
            feed.close()
            why = getattr(feed.carrier, "last_error", "")
            raise Disconnected(
                f"The server did not open the subscription within {limit:g} seconds"
                f"{': ' if why else ''}{why}."
            ) from None
        error = feed.error()
        # What was trimmed is told to whoever reads, as it is without a server: a pushed gap may
        # come before this line is reached, or after it.
        if error is not None and not feed.waiting and not isinstance(error, LogTrimmed):
            raise error

    async def ack(self, feed: Feed, position: Position, *, is_patient: bool) -> None:
        """Move the consumer of a feed; returns when the server has it on disk.

        If patient, it waits for a server as long as it takes.
        """
        link = feed.carrier
        assert isinstance(link, Link)
        limit = self.settings.client_timeout_seconds
        deadline = self.loop.time() + limit
        pause = RETRY_SECONDS
        while True:
            try:
                answer = await link.call(
                    lambda id: Ack(id=id, topic=feed.pattern.text, position=str(position)),
                    Acked,
                    timeout=max(0.0, deadline - self.loop.time()),
                    feed=feed,
                )
            except InvalidInput:
                # After a lost connection the server sends again what was not acknowledged, and
                # takes no acknowledgement of what it has not sent yet.
                if is_patient and pause == RETRY_SECONDS:
                    deadline = self.loop.time() + limit
                if self.loop.time() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
                pause *= 2
            except PenstockError as error:
                # A server that is there may still have to take the consumer from the one before.
                is_passing = error.retryable or link.is_searching
                if not (is_patient and is_passing) or feed.error() is not None:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
                deadline = self.loop.time() + limit
            else:
                feed.acked = max(feed.acked, Position.parse(answer.position).offset)
                return

    async def unsubscribe(self, feed: Feed) -> None:
        """For a durable one: its consumer is free when this returns."""
        link = feed.carrier
        if isinstance(link, Link) and feed.has_consumer:
            await link.leave(feed)
            await link.close()
            if link in self._links:
                self._links.remove(link)
        feed.close()

    async def close(self) -> None:
        self._is_closed = True
        links, self._links = self._links, self._links[:1]
        for link in links:
            await link.close()
        await self.rest.close()

    async def _opened(self) -> None:
        """A program that subscribes and then publishes sees what it published."""
        if self._opening:
            await asyncio.wait(self._opening, timeout=self.settings.client_timeout_seconds)


def _many(topic: str, sent: list[Outgoing]) -> Callable[[int], PublishMany]:
    return lambda id: PublishMany(id=id, topic=topic, messages=sent)


def _groups(messages: Iterable[NewMessage]) -> Iterator[list[NewMessage]]:
    group: list[NewMessage] = []
    size = 0
    for message in messages:
        weight = len(message.body) + len(message.headers or b"")
        if group and (len(group) >= GROUP_MESSAGES_MAX or size + weight > GROUP_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(message)
        size += weight
    if group:
        yield group
