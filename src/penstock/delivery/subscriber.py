"""One socket's place in a channel: live, or behind and served from memory or the log.

A subscriber whose socket backs up leaves the live path with its cursor at what it was sent last.
When the socket has room again it is sent what it missed, from the channel's memory if that
reaches back far enough and from the log otherwise, at its own pace. It is live again in the step
of the event loop in which its cursor meets the channel's, so nothing is missing and nothing
comes twice. Others never wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from penstock.delivery.batch import Item, frame, split
from penstock.errors import EpochChanged, HubClosed, LogTrimmed, PenstockError
from penstock.model import Chunk, Position, SlowPolicy
from penstock.ports.topics import NOTHING_TOLD
from penstock.protocol import DroppedPush, Gap, GapPush, Wire

if TYPE_CHECKING:
    from penstock.delivery.channel import Channel

FIRST_CHUNK = 16
"""Messages of the first read of the log. Later ones follow the size of what was found."""
RETRY_SECONDS = (0.1, 0.5, 2.0, 5.0)


class Socket(Protocol):
    """What delivery needs of a connection. All calls are made on the event loop's thread."""

    wire: Wire
    is_paused: bool
    """Whether its buffer is full: what is sent now only makes it longer."""

    def send(self, data: bytes) -> None:
        """Never waits."""

    def close(self, code: int, reason: str = "") -> None:
        """Send what is queued, tell the client why, and end."""

    def ping(self) -> None:
        """Ask the client for a sign of life."""

    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""

    def taken(self) -> int:
        """Bytes that it has taken, from the first on."""

    def hold(self, is_held: bool) -> None:
        """Stop, or go on, reading what the client sends."""


class Subscriber:
    """Sends one channel's messages to one socket, each exactly once and in order."""

    def __init__(
        self,
        channel: Channel,
        socket: Socket,
        cursor: int,
        floor: int,
        told: Mapping[str, int] = NOTHING_TOLD,
    ) -> None:
        self.channel = channel
        self.socket = socket
        self.cursor = cursor
        """While behind: everything up to this id was sent, or is none of its business."""
        # Trims up to this id, and of each topic up to the one here, are no loss to it.
        self._floor = floor
        self._told = told
        self.is_live = False
        self.is_closed = False
        self._is_reading = False
        self._chunk = FIRST_CHUNK
        self._failures = 0
        self._dropping_since: int | None = None
        self.on_slow: Callable[[Position], None] | None = None
        """Told instead of being served on, where the policy is to disconnect."""
        self.on_end: Callable[[PenstockError], None] | None = None
        """Told when the channel cannot go on."""

    @property
    def position(self) -> Position:
        """After what was sent last."""
        channel = self.channel
        sent = max(self.cursor, channel.sent_through) if self.is_live else self.cursor
        return Position(channel.epoch, sent)

    @property
    def skipped_through(self) -> int:
        """Trims up to this id are known to the client."""
        return max(self._floor, *self._told.values(), 0)

    def start(self) -> None:
        """Send what lies between the cursor and now, then go on live."""
        self._pump()

    def close(self) -> None:
        self.is_closed = True
        self.channel.leave(self)

    def pause(self) -> None:
        """The socket has backed up."""
        if not self.is_live or self.is_closed:
            return
        channel = self.channel
        policy: SlowPolicy = channel.slow_policy
        channel.suspend(self)
        self.cursor = max(self.cursor, channel.sent_through)
        channel.telemetry.emit("slow", subscription=channel.pattern.text, policy=policy)
        if policy == "disconnect" and self.on_slow is not None:
            self.on_slow(self.position)
        elif policy == "drop_oldest" and self.cursor == channel.sent_through:
            self._dropping_since = channel.sent_count
        else:
            channel.fell_behind()

    def resume(self) -> None:
        """The socket has room again."""
        if self.is_live or self.is_closed:
            return
        if self._dropping_since is not None:
            self._skip(self._dropping_since)
        self._pump()

    def stop_dropping(self) -> None:
        """Messages are gone that the channel has not seen, so what is left out cannot be counted:
        the log is read instead, and tells."""
        self._dropping_since = None

    def _skip(self, since: int) -> None:
        channel = self.channel
        dropped, self._dropping_since = channel.sent_count - since, None
        self.cursor = max(self.cursor, channel.sent_through)
        if dropped:
            channel.dropped(dropped)
            self._push(DroppedPush(channel.pattern.text, dropped, str(self.position)))

    def _pump(self) -> None:
        channel, socket = self.channel, self.socket
        while not (self.is_closed or self.is_live or socket.is_paused or self._is_reading):
            if not channel.recent.covers(self.cursor):
                self._read()
                return
            items = channel.recent.after(self.cursor)
            if not items:
                channel.join(self)
                return
            now = channel.clock.now()
            alive = [item for item in items if not item.has_expired(now)]
            if alive:
                self._send(alive)
            else:
                self.cursor = items[-1].id

    def _send(self, items: list[Item]) -> None:
        """One frame with the first of them."""
        settings = self.channel.settings
        count = split(items, settings.frame_messages_max, settings.frame_payload_bytes_max)
        sent = items[:count]
        self.cursor = sent[-1].id
        self.socket.send(frame(self.channel.pattern.text, sent, self.socket.wire))
        self.channel.delivered(sent)

    def _read(self) -> None:
        """Have the next part of the log read. The event loop goes on meanwhile."""
        self._is_reading = True
        channel = self.channel
        reading = channel.loop.run_in_executor(
            channel.executor, channel.read_log, self.cursor, self._floor, self._told, self._chunk
        )
        reading.add_done_callback(self._on_read)

    def _on_read(self, reading: asyncio.Future[Chunk]) -> None:
        self._is_reading = False
        if reading.cancelled():
            return
        error = reading.exception()
        if self.is_closed:
            return
        if error is None:
            self._failures = 0
            self._take(reading.result())
        elif isinstance(error, LogTrimmed):
            self._tell_gap(error)
        elif isinstance(error, (EpochChanged, HubClosed)):
            self.end(error)
            return
        elif isinstance(error, PenstockError):
            # Locked, or away for a moment: the client keeps its socket and its place.
            delay = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
            self._failures += 1
            self._is_reading = True
            self.channel.loop.call_later(delay, self._read_again)
            return
        else:
            raise error
        self._pump()

    def _read_again(self) -> None:
        self._is_reading = False
        self._pump()

    def _take(self, chunk: Chunk) -> None:
        channel = self.channel
        settings = channel.settings
        items = [Item(message, channel.pattern.is_glob) for message in chunk.messages]
        size = sum(len(item.message.body) for item in items)
        if size > settings.frame_payload_bytes_max:
            self._chunk = max(1, self._chunk // 2)
        elif len(items) == self._chunk:
            self._chunk = min(settings.frame_messages_max, self._chunk * 2)
        while items:
            if self.socket.is_paused:
                return  # What is left is read again, rather than kept for a socket that is full.
            count = split(items, settings.frame_messages_max, settings.frame_payload_bytes_max)
            self._send(items[:count])
            items = items[count:]
        self.cursor = max(self.cursor, chunk.through)

    def _tell_gap(self, error: LogTrimmed) -> None:
        after = str(self.position)
        self.cursor = max(self.cursor, error.resume.offset)
        # What lies before the cursor is no loss any more, and need not be remembered.
        told = {**self._told, **error.trims}
        self._told = {topic: to for topic, to in told.items() if to > self.cursor}
        self._floor = max(self._floor, self.cursor)
        gap = Gap("trimmed", after, str(self.position))
        self._push(GapPush(self.channel.pattern.text, gap))

    def end(self, error: PenstockError) -> None:
        """The subscription cannot go on; the socket can."""
        self.close()
        if self.on_end is not None:
            self.on_end(error)

    def _push(self, push: GapPush | DroppedPush) -> None:
        self.socket.send(self.socket.wire.encode(push))
