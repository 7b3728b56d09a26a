"""Server-sent events: live messages for those without WebSocket.

One stream is one topic or glob. Each message is an event `message` whose id is its position, so
that a client that comes back with `Last-Event-ID` misses and repeats nothing. Where messages are
gone, an event `gap` says so. A comment at least every `ping_seconds` keeps proxies from hanging
up, and moves the id along while other topics are busy.

A slow client is served from the log at its own pace: at most one batch and the socket's buffer
wait for it in memory. One that takes nothing at all for `request_seconds` is cut by its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.delivery.access import Access
from penstock.delivery.batch import Item, split
from penstock.errors import EpochChanged, HubClosed, LogTrimmed, PenstockError, Unauthorized
from penstock.model import Pattern, Position
from penstock.protocol import JSON_WIRE, Gap, Problem
from penstock.server.routes.context import Context
from penstock.server.routes.reading import read_last
from penstock.topics.subscription import AsyncLive

RETRY_MS = 2_000
"""How long a browser waits before it connects again."""
CHECK_SECONDS = 1.0
"""How often a stream asks whether its client is there and its token good."""
BATCH_MAX = 50
FIRST_BATCH = 4
SLOW_SECONDS = 0.2
"""A client that has not taken a batch for so long is served from the log."""
STORE_RETRY_SECONDS = 1.0

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # nginx would collect events until a buffer is full.
    (b"x-accel-buffering", b"no"),
)


class Stream:
    """One client's events, from a starting point on."""

    def __init__(self, context: Context, access: Access, topic: str) -> None:
        self._context = context
        self._access = access
        self._topic = topic
        self._with_topic = Pattern.parse(topic).is_glob
        self._live: AsyncLive | None = None
        self._resume: Position | None = None
        """Where to go on, while it is not subscribed."""
        self._taken: list[Item] = []
        """What was taken of the log and is not sent yet: a few messages more than fit at once."""
        self._limit = FIRST_BATCH
        self._news: list[bytes] = []
        """Events to be sent before the next messages."""

    @property
    def position(self) -> Position:
        """After what was sent last."""
        if self._taken:
            return Position(self._taken[0].message.epoch, self._taken[0].id - 1)
        if self._live is not None:
            return self._live.position
        assert self._resume is not None
        return self._resume

    async def open(self, after: Position | None, last: int | None) -> None:
        """Find the start. Raises what is wrong with it, while the status can still say so."""
        if after is None and last is not None:
            recent = await read_last(self._context.hub.aio.topics, self._topic, last)
            if recent:
                after = Position(recent[0].epoch, recent[0].id - 1)
        await self._subscribe(after)

    async def next_events(self, timeout: float) -> bytes:
        """What is to be sent next; nothing after `timeout` seconds."""
        if self._news:
            events, self._news = b"".join(self._news), []
            return events
        if self._live is None:
            await self._subscribe(self._resume)
            return await self.next_events(timeout)
        if not self._taken:
            try:
                messages = await self._live.take(self._limit, timeout=timeout)
            except LogTrimmed as error:
                # Told once: asking again gives what there is.
                self._tell(Gap("trimmed", str(self.position), str(error.resume)))
                return await self.next_events(timeout)
            except EpochChanged:
                here = await self._context.hub.aio.topics.position()
                await self.close()
                self._tell(Gap("epoch_changed", str(self.position), str(here)))
                await self._subscribe(here)
                return await self.next_events(timeout)
            self._taken = [Item(message, self._with_topic) for message in messages]
        return self._send_some()

    async def fall_behind(self) -> None:
        """The client reads slowly: what comes meanwhile is read from the log when it is wanted."""
        if self._live is not None:
            self._resume = self.position
            self._taken = []
            await self.close()
            self._live = None
            self._context.delivery.stats.of(self._topic).catch_ups += 1

    def heartbeat(self) -> bytes:
        """A comment, and the place reached: an id without data is remembered, not dispatched."""
        return b": here\nid: %s\n\n" % str(self.position).encode()

    def check(self) -> None:
        """Raises `Unauthorized` when the token has expired or was revoked."""
        expires_at = self._access.expires_at
        if expires_at is not None and self._context.clock.now() >= expires_at:
            raise Unauthorized
        if self._context.authenticator.is_revoked(self._access):
            raise Unauthorized

    async def close(self) -> None:
        if self._live is not None:
            await self._live.close()

    def _send_some(self) -> bytes:
        if not self._taken:
            return b""
        bytes_max = self._context.settings.frame_payload_bytes_max
        count = split(self._taken, BATCH_MAX, bytes_max)
        # Large messages are taken a few at a time, small ones many.
        is_large = count < len(self._taken)
        self._limit = max(1, self._limit // 2) if is_large else min(BATCH_MAX, self._limit * 2)
        sent, self._taken = self._taken[:count], self._taken[count:]
        self._context.delivery.stats.sent(sent, 1, self._context.clock.now())
        return b"".join(map(_event, sent))

    async def _subscribe(self, after: Position | None) -> None:
        topics = self._context.hub.aio.topics
        try:
            self._live = topics.subscribe(self._topic, after=after)
        except EpochChanged:
            assert after is not None
            here = await topics.position()
            self._live = topics.subscribe(self._topic, after=here)
            self._tell(Gap("epoch_changed", str(after), str(here)))

    def _tell(self, gap: Gap) -> None:
        data = msgspec.json.encode(gap)
        self._news.append(b"event: gap\nid: %s\ndata: %s\n\n" % (gap.resumes.encode(), data))


class EventStream(Response):
    """The response: sends a stream's events until the client leaves or the server stops."""

    media_type = "text/event-stream"

    def __init__(self, context: Context, stream: Stream, leave: Callable[[], None]) -> None:
        super().__init__()
        self._context = context
        self._stream = stream
        self._leave = leave

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(_until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS]})
            await self._send_all(send, leaving)
            await send({"type": "http.response.body", "body": b""})
        finally:
            leaving.cancel()
            self._leave()
            await self._stream.close()

    async def _send_all(self, send: Send, leaving: asyncio.Future[None]) -> None:
        stream, settings = self._stream, self._context.settings
        loop = asyncio.get_running_loop()
        await self._write(send, b"retry: %d\n\n" % RETRY_MS + stream.heartbeat())
        sent_at = loop.time()
        while not leaving.done() and not self._context.delivery.is_draining:
            try:
                stream.check()
                events = await stream.next_events(min(CHECK_SECONDS, settings.ping_seconds))
            except HubClosed:
                return
            except PenstockError as error:
                if not error.retryable:
                    problem = msgspec.json.encode(Problem.of(error))
                    await self._write(send, b"event: error\ndata: %s\n\n" % problem)
                    return
                # The store is locked or away for a moment: the client keeps its place.
                await asyncio.sleep(STORE_RETRY_SECONDS)
                continue
            if not events and loop.time() - sent_at >= settings.ping_seconds:
                events = stream.heartbeat()
            if events:
                await self._write(send, events)
                sent_at = loop.time()

    async def _write(self, send: Send, body: bytes) -> None:
        """Waits for as long as the client takes; if it takes long, the stream falls behind."""
        message = {"type": "http.response.body", "body": body, "more_body": True}
        sending = asyncio.ensure_future(send(message))
        try:
            done, _ = await asyncio.wait([sending], timeout=SLOW_SECONDS)
            if not done:
                await self._stream.fall_behind()
            await sending
        finally:
            sending.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(item: Item) -> bytes:
    data = bytes(item.encoded(JSON_WIRE))
    if b"\n" in data or b"\r" in data:
        # JSON that somebody else encoded may have line breaks between its tokens.
        data = b"\ndata: ".join(data.splitlines())
    position = str(item.message.position).encode()
    return b"event: message\nid: %s\ndata: %s\n\n" % (position, data)
