"""One subscription of a remote reader: what came and was not taken, and where to resume.

A feed outlives the connections it is served over. After each, it subscribes again after the last
message that came, and ignores what it has: so nothing is lost and nothing comes twice. When its
reader is slow, the server is asked to wait, and later goes on from the log.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

from penstock.client.frames import Frame, rebuild
from penstock.errors import (
    ConsumerBusy,
    Disconnected,
    EpochChanged,
    HubClosed,
    LogTrimmed,
    PenstockError,
)
from penstock.model import Message, OnTrimmed, Pattern, Position, Start
from penstock.protocol import Gap, Subscribe, Subscribed, WireFormat

State = Literal["new", "asked", "live", "paused", "ended"]

RETRY_SECONDS = 0.25
HELD_SECONDS_MAX = 60.0
"""How long, after a lost connection, the server may still believe in the old one's consumer."""


class Carrier(Protocol):
    """The link a feed is served over."""

    loop: asyncio.AbstractEventLoop

    def drained(self, feed: Feed) -> None:
        """The reader has caught up with what is in memory."""

    def drop(self, feed: Feed) -> None:
        """Nobody reads it any more."""


class Feed:
    """The link pushes, on its loop; the reader takes, on any thread."""

    run: Callable[[], None] | None = None

    def __init__(
        self,
        pattern: Pattern,
        *,
        after: Position | None = None,
        last: int | None = None,
        consumer: str | None = None,
        start: Start = "latest",
        standby: bool = False,
        on_trimmed: OnTrimmed = "raise",
        messages_max: int,
        bytes_max: int,
    ) -> None:
        self.pattern = pattern
        self.state: State = "new"
        self.wake: Callable[[], None] = lambda: None
        """Tells the reader that something came, or that there is an error. Never waits."""
        self.carrier: Carrier | None = None
        self.opened: asyncio.Future[None] | None = None
        """Done with the server's first answer."""
        self._after = after
        self._last = last
        self._consumer = consumer
        self._start = start
        self._standby = standby
        self._on_trimmed = on_trimmed
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._buffer: deque[Message] = deque()
        self._error: PenstockError | None = None
        self._epoch = ""
        self._taken = 0
        self._received = 0
        # Each is written by one side only, so no lock is needed.
        self._bytes_in = 0
        self._bytes_out = 0
        self._busy_since: float | None = None
        self.acked = 0
        """For a consumer: where its watermark is known to be."""

    # The reader's side

    @property
    def epoch(self) -> str:
        if not self._epoch:
            raise Disconnected(
                "The server has not said yet where the subscription begins.",
                hint="Take a message first, or enter it with 'async with'.",
            )
        return self._epoch

    @property
    def position(self) -> int:
        """Everything up to here was taken."""
        return self._taken

    @property
    def is_live(self) -> bool:
        """Taking never reads a log here."""
        return True

    @property
    def waiting(self) -> int:
        """Messages that came and were not taken yet."""
        return len(self._buffer)

    @property
    def has_waiting(self) -> bool:
        return bool(self._buffer) or self._error is not None

    def take(self, limit: int) -> list[Message]:
        """The next messages; empty if there are none now."""
        buffer = self._buffer
        taken: list[Message] = []
        size = 0
        try:
            while len(taken) < limit:
                message = buffer.popleft()
                size += len(message.body)
                taken.append(message)
        except IndexError:
            if not taken and self._error is not None:
                raise self._error from None
        if taken:
            self._taken = taken[-1].id
            self._bytes_out += size
            if self.is_waiting_for_reader and self.has_room and self.carrier is not None:
                self._on_loop(self.carrier.drained)
        return taken

    take_buffered = take

    def close(self) -> None:
        """From any thread. The reader's next `take` says that it is closed."""
        if self._error is None:
            self._error = HubClosed("The subscription is closed.", hint="Subscribe again.")
        if self.carrier is not None:
            self._on_loop(self.carrier.drop)
        self.wake()

    def _on_loop(self, call: Callable[[Feed], None]) -> None:
        assert self.carrier is not None
        try:
            self.carrier.loop.call_soon_threadsafe(call, self)
        except RuntimeError:
            return  # The loop has ended, and the link with it.

    # The link's side, on its loop

    is_waiting_for_reader = False
    """The server was asked to wait."""

    @property
    def has_room(self) -> bool:
        """Whether less than half of what may wait does: from then on, more is asked for."""
        waiting = self._bytes_in - self._bytes_out
        return len(self._buffer) <= self._messages_max // 2 and waiting <= self._bytes_max // 2

    @property
    def is_full(self) -> bool:
        waiting = self._bytes_in - self._bytes_out
        return len(self._buffer) >= self._messages_max or waiting >= self._bytes_max

    @property
    def is_standby(self) -> bool:
        return self._standby

    @property
    def has_consumer(self) -> bool:
        return self._consumer is not None

    def request(self, id: int) -> Subscribe:
        """What to ask the server for: at first what the reader wants, later what comes next."""
        topic = self.pattern.text
        if self._consumer is not None:
            after = None if self._after is None else str(self._after)
            return Subscribe(
                id=id, topic=topic, consumer=self._consumer, start=self._start, after=after
            )
        if self._epoch:
            return Subscribe(id=id, topic=topic, after=str(Position(self._epoch, self._received)))
        after = None if self._after is None else str(self._after)
        return Subscribe(id=id, topic=topic, after=after, last=self._last)

    def subscribed(self, answer: Subscribed) -> None:
        """The server serves it from here on."""
        position = Position.parse(answer.position)
        self._busy_since = None
        is_first = not self._epoch
        if self._epoch and position.epoch != self._epoch:
            self.fail(EpochChanged("The database was restored or replaced."))
            return
        self._epoch = position.epoch
        if is_first:
            self._received = self._taken = position.offset
        elif position.offset > self._received:
            # A consumer's watermark that somebody moved on meanwhile, or a gap.
            self._received = position.offset
        elif position.offset < self.acked:
            # Somebody moved it back meanwhile, and wants to see it all again.
            self._received = self.acked = position.offset
            self._buffer.clear()
            self._bytes_in = self._bytes_out
        self.state = "live"
        if answer.gap is not None:
            self.gap(answer.gap)
        self._settle()

    def refused(self, error: PenstockError) -> float | None:
        """Not subscribed. After how many seconds to try again; None: the feed has ended."""
        self.state = "new"
        if isinstance(error, ConsumerBusy):
            now = time.monotonic()
            self._busy_since = self._busy_since or now
            is_resuming = bool(self._epoch) and now - self._busy_since < HELD_SECONDS_MAX
            if self._standby or is_resuming:
                return RETRY_SECONDS
        elif error.retryable:
            return RETRY_SECONDS
        self.fail(error)
        return None

    def push(self, frame: Frame, format: WireFormat) -> int:
        """Messages came. Returns how many of them are new."""
        assert isinstance(frame.messages, list)
        count = 0
        topic, epoch, received = self.pattern.text, self._epoch, self._received
        for entry in frame.messages:
            if entry.id > received:
                message = rebuild(entry, topic, epoch, format)
                received = message.id
                self._bytes_in += len(message.body)
                self._buffer.append(message)
                count += 1
        self._received = received
        if count:
            self.wake()
        return count

    def gap(self, gap: Gap) -> None:
        """Messages are gone that were not read."""
        if gap.reason == "epoch_changed":
            self.fail(EpochChanged(f"The position {gap.after} belongs to another generation."))
            return
        resume = Position.parse(gap.resumes)
        if self._on_trimmed == "raise":
            self.fail(
                LogTrimmed(
                    f"Messages between {gap.after} and {gap.resumes} were trimmed.",
                    first=None,
                    resume=resume,
                )
            )
        else:
            self._received = max(self._received, resume.offset)

    def skipped(self, through: str | None) -> None:
        """Left out because of the topic's policy for slow clients."""
        if through is not None:
            self._received = max(self._received, Position.parse(through).offset)

    def fail(self, error: PenstockError) -> None:
        """After what is in memory, the reader gets this error."""
        self.state = "ended"
        if self._error is None:
            self._error = error
        self._settle()
        self.wake()

    def error(self) -> PenstockError | None:
        return self._error

    def _settle(self) -> None:
        if self.opened is not None and not self.opened.done():
            self.opened.set_result(None)
