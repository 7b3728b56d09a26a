"""One WebSocket that is kept open: commands by id, subscriptions that are resumed.

Whatever waits for an answer when a connection is lost is sent again on the next one, in the same
order. Publishes carry idempotency keys, so that this never makes a second message of one.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import (
    ConnectionClosed,
    InvalidStatus,
    WebSocketException,
)
from websockets.typing import Subprotocol

from penstock.client.addresses import Addresses
from penstock.client.feed import Feed
from penstock.client.frames import Frame, as_error, decode_frame, decode_reply
from penstock.client.refusals import (
    Refused,
    Unavailable,
    close_of,
    describe,
    error_of_close,
    refusal,
)
from penstock.client.tokens import Tokens
from penstock.errors import (
    Disconnected,
    HubClosed,
    InvalidPayload,
    OutcomeUnknown,
    PenstockError,
    QueueFull,
    Unauthorized,
    WriteTimeout,
)
from penstock.protocol import (
    WIRES,
    Close,
    Command,
    Connect,
    Connected,
    Ping,
    Refresh,
    Subscribed,
    Unsubscribe,
)
from penstock.settings import Settings
from penstock.telemetry import Telemetry

RECONNECT_SECONDS: Final = 0.1
STABLE_SECONDS: Final = 5.0
OPEN_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 2.0
PONG_SECONDS: Final = 10.0
REPEATED_FOR: Final = 0.8
"""Of the time a server remembers an idempotency key."""
REFRESH_AT: Final = 0.8
"""Of a token's life."""
FRAME_BYTES_MAX: Final = 384 * 1024 * 1024
"""A message may have 256 MiB, and base64 takes four bytes for three."""
FRAMES_AHEAD: Final = 8

T = TypeVar("T")


class _Call:
    __slots__ = ("feed", "frame", "future", "sent_at")

    def __init__(self, frame: bytes, future: asyncio.Future[Any], feed: Feed | None) -> None:
        self.frame = frame
        self.future = future
        self.feed = feed
        self.sent_at: float | None = None


class Link:
    """Belongs to one event loop. Opens at the first use, and again whenever it is lost."""

    def __init__(
        self,
        addresses: Addresses,
        tokens: Tokens,
        settings: Settings,
        telemetry: Telemetry,
        *,
        client: str | None,
        subprotocol: str,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.feeds: dict[str, Feed] = {}
        self.connected: Connected | None = None
        self.last_error = ""
        self.addresses = addresses
        self._tokens = tokens
        self._settings = settings
        self._telemetry = telemetry
        self._client = client
        self._subprotocol = subprotocol
        self._wire = WIRES[subprotocol]
        self._calls: dict[int, _Call] = {}
        self._asked: dict[int, Feed] = {}
        self._next_id = 0
        self._outbox: deque[bytes] = deque()
        self._has_output = asyncio.Event()
        self._may_read = asyncio.Event()
        self._is_ready = False
        self._heard = False
        self._unavailable: PenstockError | None = None
        self._is_closed = False
        self._runner: asyncio.Task[None] | None = None

    # Commands

    async def call(
        self,
        make: Callable[[int], Command],
        answer: type[T],
        *,
        timeout: float,
        feed: Feed | None = None,
    ) -> T:
        """Send a command and wait for its reply, over as many connections as it takes.

        With a `feed`, it is sent only while the server serves that subscription.
        """
        if len(self._calls) >= self._settings.write_queue_max:
            raise QueueFull("Too many commands wait for the server.")
        return await self._call(make, answer, timeout, feed)

    async def _call(
        self, make: Callable[[int], Command], answer: type[T], timeout: float, feed: Feed | None
    ) -> T:
        if self._is_closed:
            raise HubClosed
        id = self._take_id()
        call = _Call(self._encoded(make(id)), self.loop.create_future(), feed)
        self._calls[id] = call
        self.start()
        if self._is_ready and (feed is None or feed.state == "live"):
            self._send_call(call)
        self._may_read.set()
        try:
            async with asyncio.timeout(timeout):
                ok = await call.future
        except TimeoutError:
            raise self._late(timeout) from None
        finally:
            self._calls.pop(id, None)
        result: T = decode_reply(ok, answer, self._wire.format)
        return result

    def _late(self, timeout: float) -> PenstockError:
        if self._is_ready:
            return WriteTimeout(f"The server did not answer within {timeout:.3g} seconds.")
        if self._unavailable is not None:
            return self._unavailable
        why = f": {self.last_error}" if self.last_error else ""
        return Disconnected(f"No server at {self.addresses} within {timeout:.3g} seconds{why}.")

    @property
    def is_searching(self) -> bool:
        """Whether there is no server now, and it will have one as soon as there is."""
        return self._runner is not None and not self._is_ready

    # Subscriptions

    def has_place_for(self, feed: Feed) -> bool:
        """A socket has one subscription of a name."""
        is_taken = feed.pattern.text in self.feeds
        return not is_taken and len(self.feeds) < self._settings.subscriptions_max // 2

    @property
    def is_held_by_a_consumer(self) -> bool:
        return any(feed.has_consumer for feed in self.feeds.values())

    def add(self, feed: Feed) -> None:
        feed.carrier = self
        feed.opened = self.loop.create_future()
        self.feeds[feed.pattern.text] = feed
        self.start()
        if self._is_ready:
            self._ask(feed)

    def drained(self, feed: Feed) -> None:
        feed.is_waiting_for_reader = False
        self._may_read.set()
        if feed.state == "paused":
            feed.state = "new"
            if self._is_ready:
                self._ask(feed)

    def drop(self, feed: Feed) -> None:
        was, feed.state = feed.state, "ended"
        if self.feeds.get(feed.pattern.text) is not feed or was == "asked":
            return  # While it is being opened it keeps its place; the reply frees it.
        del self.feeds[feed.pattern.text]
        if was == "live" and self._is_ready:
            self._send(self._wire.encode(self._unsubscribe(feed)))

    async def leave(self, feed: Feed) -> None:
        """End a subscription, and wait until the server knows, but not for long."""
        if self._is_ready and feed.state == "live":
            with suppress(PenstockError):
                make = self._unsubscribe
                await self.call(lambda id: make(feed, id), dict[str, Any], timeout=CLOSE_SECONDS)
        feed.state = "ended"
        self.feeds.pop(feed.pattern.text, None)

    def _unsubscribe(self, feed: Feed, id: int | None = None) -> Unsubscribe:
        return Unsubscribe(id=self._take_id() if id is None else id, topic=feed.pattern.text)

    def _ask(self, feed: Feed) -> None:
        """Subscribe, at first or again."""
        id = self._take_id()
        feed.state = "asked"
        self._asked[id] = feed
        self._send(self._wire.encode(feed.request(id)))

    def _ask_later(self, feed: Feed, seconds: float) -> None:
        def again() -> None:
            if self._is_ready and feed.state == "new" and feed.pattern.text in self.feeds:
                self._ask(feed)

        self.loop.call_later(seconds * random.uniform(0.5, 1.5), again)

    def _answered(self, feed: Feed, frame: Frame) -> None:
        if feed.state == "ended":
            # Closed while it was being opened.
            self._forget(feed)
            if frame.error is None:
                self._send(self._wire.encode(self._unsubscribe(feed)))
            return
        if frame.error is not None:
            delay = feed.refused(as_error(frame.error))
            if delay is None:
                self._forget(feed)
            else:
                self._ask_later(feed, delay)
            return
        feed.subscribed(decode_reply(frame.ok, Subscribed, self._wire.format))
        if feed.error() is not None:
            self._forget(feed)
            self._send(self._wire.encode(self._unsubscribe(feed)))
            return
        for call in self._calls.values():
            if call.feed is feed:
                self._send_call(call)

    def _forget(self, feed: Feed) -> None:
        if self.feeds.get(feed.pattern.text) is feed:
            del self.feeds[feed.pattern.text]

    # The connection

    def start(self) -> None:
        if self._runner is None and not self._is_closed:
            self._runner = self.loop.create_task(self._run(), name="penstock-link")
            self._runner.add_done_callback(self._on_end)

    def _on_end(self, runner: asyncio.Task[None]) -> None:
        """A mistake of ours must not leave anybody waiting."""
        if not runner.cancelled() and (error := runner.exception()) is not None:
            self._runner = None
            self._end(PenstockError(f"The client failed: {error!r}."))
            raise error

    async def close(self) -> None:
        self._end(HubClosed("The hub is closed."))
        self._is_closed = True
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
            with suppress(asyncio.CancelledError):
                await runner

    async def _run(self) -> None:
        tried = 0
        while True:
            started = self.loop.time()
            try:
                await self._connect_and_serve()
            except (Refused, PenstockError) as refused:
                self._runner = self.connected = None
                self._end(refused.error if isinstance(refused, Refused) else refused)
                return
            except (OSError, WebSocketException, TimeoutError, msgspec.MsgspecError) as error:
                self.last_error = describe(error)
                self._unavailable = error.error if isinstance(error, Unavailable) else None
            if self.connected is not None:
                self.connected = None
                self._telemetry.emit("disconnected", error=self.last_error)
                # One that takes clients and drops them at once has not worked.
                if self.loop.time() - started > STABLE_SECONDS:
                    tried = 0
            # Elsewhere first: a server that stops says so to everybody.
            self.addresses.move_on()
            limit = RECONNECT_SECONDS * 2 ** min(tried // len(self.addresses), 20)
            await asyncio.sleep(random.uniform(0, min(limit, self._settings.reconnect_seconds_max)))
            tried += 1

    async def _connect_and_serve(self) -> None:
        try:
            async with open_websocket(
                self.addresses.current.websocket,
                subprotocols=[Subprotocol(self._subprotocol)],
                compression=None,
                open_timeout=OPEN_SECONDS,
                close_timeout=CLOSE_SECONDS,
                # A paused reader would miss the pongs: _keep_alive does it in our own way.
                ping_interval=None,
                max_size=FRAME_BYTES_MAX,
                max_queue=FRAMES_AHEAD,
            ) as socket:
                await self._serve(socket)
        except InvalidStatus as error:
            raise refusal(error) from None
        except ConnectionClosed as closed:
            code, reason = close_of(closed)
            if code == Close.TOKEN_EXPIRED or code == Close.BAD_TOKEN:
                self._tokens.forget()
            if code is not None and 3500 <= code < 4000:
                raise Refused(error_of_close(code, reason)) from None
            raise

    async def _serve(self, socket: ClientConnection) -> None:
        connected = await self._introduce(socket)
        self.connected = connected
        self.last_error = ""
        self._unavailable = None
        self._outbox.clear()
        self._asked.clear()
        self._is_ready = True
        self._telemetry.emit("connected", instance=connected.instance)
        # Subscriptions before commands: what is published next is seen by them.
        for feed in list(self.feeds.values()):
            if feed.state in ("new", "asked", "live"):
                self._ask(feed)
        for call in self._calls.values():
            if call.feed is None:
                self._send_call(call)
        helpers = [
            self.loop.create_task(self._write(socket)),
            self.loop.create_task(self._keep_alive(socket, connected)),
            self.loop.create_task(self._refresh(connected)),
        ]
        try:
            await self._read(socket)
        finally:
            self._is_ready = False
            for feed in self.feeds.values():
                if feed.state in ("asked", "live"):
                    feed.state = "new"
            for feed in [feed for feed in self.feeds.values() if feed.state == "ended"]:
                self._forget(feed)
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _introduce(self, socket: ClientConnection) -> Connected:
        id = self._take_id()
        token = await self._tokens.get()
        hello = self._encoded(Connect(id=id, token=token, client=self._client))
        await socket.send(hello, text=self._wire.is_text)
        async with asyncio.timeout(OPEN_SECONDS):
            frame = decode_frame(await socket.recv(decode=False), self._wire.format)
        if frame.error is not None:
            error = as_error(frame.error)
            if isinstance(error, Unauthorized):
                self._tokens.forget()
            if not error.retryable:
                raise Refused(error)
            raise OSError(error.message)
        connected: Connected = decode_reply(frame.ok, Connected, self._wire.format)
        return connected

    async def _read(self, socket: ClientConnection) -> None:
        while True:
            while self._is_held:
                self._may_read.clear()
                await self._may_read.wait()
            data = await socket.recv(decode=False)
            self._heard = True
            self._handle(decode_frame(data, self._wire.format))

    @property
    def _is_held(self) -> bool:
        """Not to be read while the reader of a durable subscription has enough.

        Unless a command waits for its reply, which comes behind what is on its way already.
        """
        if self._calls:
            return False
        return any(feed.is_waiting_for_reader and feed.has_consumer for feed in self.feeds.values())

    def _handle(self, frame: Frame) -> None:
        if frame.id is not None:
            call = self._calls.get(frame.id)
            if call is not None and not call.future.done():
                if frame.error is None:
                    call.future.set_result(frame.ok)
                else:
                    call.future.set_exception(as_error(frame.error))
            elif (feed := self._asked.pop(frame.id, None)) is not None:
                self._answered(feed, frame)
            return
        feed = self.feeds.get(frame.topic)
        if feed is None or feed.state != "live":
            return  # On its way before the server knew that it was not wanted any more.
        match frame.push:
            case "messages":
                self._telemetry.count("delivered", feed.push(frame, self._wire.format))
                if feed.is_full and not feed.is_waiting_for_reader:
                    self._pause(feed)
            case "gap" if frame.gap is not None:
                feed.gap(frame.gap)
                if feed.error() is not None:
                    self._forget(feed)
                    self._send(self._wire.encode(self._unsubscribe(feed)))
            case "dropped":
                feed.skipped(frame.through)
            case "unsubscribed" if frame.error is not None:
                self._forget(feed)
                feed.fail(as_error(frame.error))

    def _pause(self, feed: Feed) -> None:
        """Its reader is slow. Others on this socket do not wait for it."""
        feed.is_waiting_for_reader = True
        self._telemetry.emit("behind", subscription=feed.pattern.text)
        if not feed.has_consumer:
            feed.state = "paused"
            self._send(self._wire.encode(self._unsubscribe(feed)))
        if feed.has_room:
            self.drained(feed)  # Taken meanwhile, by a thread that did not see the flag.

    async def _write(self, socket: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                await self._has_output.wait()
                self._has_output.clear()
                while self._outbox:
                    await socket.send(self._outbox.popleft(), text=self._wire.is_text)

    async def _keep_alive(self, socket: ClientConnection, connected: Connected) -> None:
        """A connection that says nothing is asked; one that is not read shows that it lives."""
        with suppress(ConnectionClosed):
            while True:
                self._heard = False
                await asyncio.sleep(connected.ping_seconds / 2)
                if self._heard:
                    continue
                if self._is_held:
                    await socket.pong()
                    self._telemetry.count("kept_alive")
                    continue
                try:
                    # Also if many commands wait: whether anybody answers is the question.
                    await self._call(lambda id: Ping(id=id), dict[str, Any], PONG_SECONDS, None)
                except PenstockError:
                    self.last_error = "the server does not answer"
                    socket.transport.abort()
                    return

    async def _refresh(self, connected: Connected) -> None:
        """Show a fresh token before the old one runs out."""
        expires = connected.expires_in_seconds
        while expires is not None and self._tokens.can_refresh:
            await asyncio.sleep(expires * REFRESH_AT)
            try:
                token = await self._tokens.get(fresh=True)
                assert token is not None
                shown = token
                answer = await self.call(
                    lambda id, shown=shown: Refresh(id=id, token=shown),  # type: ignore[misc]
                    Connected,
                    timeout=self._settings.client_timeout_seconds,
                )
            except PenstockError as error:
                self.last_error = error.message
                return  # When the old one has run out, the server ends the connection.
            expires = answer.expires_in_seconds

    def _end(self, error: PenstockError) -> None:
        """Everybody who waits gets the error; later calls try again."""
        for call in list(self._calls.values()):
            if not call.future.done():
                call.future.set_exception(error)
        for feed in list(self.feeds.values()):
            feed.fail(error)
        self.feeds.clear()

    @property
    def repeatable_seconds(self) -> float:
        """How long the server surely remembers the key of what was sent."""
        connected = self.connected
        known = self._settings if connected is None else connected
        return known.idempotency_seconds * REPEATED_FOR

    def _send_call(self, call: _Call) -> None:
        now = self.loop.time()
        if call.sent_at is None:
            call.sent_at = now
        if now - call.sent_at < self.repeatable_seconds:
            self._send(call.frame)
        elif not call.future.done():
            # The server may have forgotten the key, and would store a second message.
            call.future.set_exception(OutcomeUnknown())

    def _send(self, frame: bytes) -> None:
        self._outbox.append(frame)
        self._has_output.set()

    def _encoded(self, command: Command) -> bytes:
        try:
            return self._wire.encode(command)
        except OverflowError:
            raise InvalidPayload(
                "A whole number has more than 64 bits.", hint="Publish it as text."
            ) from None

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id
