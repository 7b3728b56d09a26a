"""A reader's place in the log: live from the tail, or from the log while behind.

A subscription starts behind, reads the log up to its end, and joins the tail there in one step.
If its reader is slower than its buffer is long, it leaves the tail, forgets the buffer and reads
the log again from where the reader is. So memory is bounded, and nothing is lost or repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Protocol

from penstock.alarm import Alarm
from penstock.clock import Clock
from penstock.errors import EpochChanged, HubClosed, LogTrimmed
from penstock.model import Message, OnTrimmed, Pattern, Position
from penstock.ports import TopicReader
from penstock.telemetry import Telemetry
from penstock.topics.tail import Tail


class Source(Protocol):
    """What a reader takes from: the log of this process, or that of a server."""

    wake: Callable[[], None]

    @property
    def epoch(self) -> str: ...
    @property
    def position(self) -> int: ...
    @property
    def is_live(self) -> bool: ...
    def take(self, limit: int) -> list[Message]: ...
    def take_buffered(self, limit: int) -> list[Message]: ...
    def close(self) -> None: ...


class Subscription:
    """For one reader. The tail pushes; the reader takes."""

    def __init__(
        self,
        tail: Tail,
        topics: TopicReader,
        clock: Clock,
        telemetry: Telemetry,
        pattern: Pattern,
        position: Position,
        *,
        floor: int,
        told: Mapping[str, int],
        buffer_max: int,
        on_trimmed: OnTrimmed,
    ) -> None:
        self.pattern = pattern
        self.epoch = position.epoch
        self.position = position.offset
        self._floor = floor
        self._told = told
        self.wake: Callable[[], None] = lambda: None
        """Tells the reader that something came, or that it must read the log. Never waits."""
        self.run: Callable[[], None] | None = None
        """Instead, where user code may run: on the thread that reads for the process."""
        self._tail = tail
        self._topics = topics
        self._clock = clock
        self._telemetry = telemetry
        self._buffer: deque[Message] = deque()
        self._buffer_max = buffer_max
        self._on_trimmed = on_trimmed
        self._is_live = False
        self._joined_at = 0
        self._error: Exception | None = None

    # The tail's side, under its lock

    def joined(self, position: int) -> None:
        self._joined_at = position
        self._is_live = True

    def push(self, messages: list[Message]) -> bool:
        """False: the reader is too slow, and the subscription has left. The tail wakes it."""
        if messages[0].id <= self._joined_at:
            messages = [message for message in messages if message.id > self._joined_at]
        if len(self._buffer) + len(messages) > self._buffer_max:
            self.fall_behind()
            return False
        self._buffer.extend(messages)
        return True

    def fall_behind(self) -> None:
        """Read the log again from where the reader is. The tail lets go of it, and wakes it."""
        self._is_live = False
        self._buffer.clear()
        self._telemetry.emit("behind", subscription=self.pattern.text)

    def fail(self, error: Exception) -> None:
        self._error = error
        self.wake()

    # The reader's side

    @property
    def skipped_through(self) -> int:
        """Trims up to this id are known to the reader."""
        return max(self._floor, *self._told.values(), 0)

    @property
    def is_live(self) -> bool:
        """Whether `take` can be answered without reading the log."""
        return self._is_live

    @property
    def waiting(self) -> int:
        """Messages that came and were not taken yet."""
        return len(self._buffer)

    @property
    def has_waiting(self) -> bool:
        """Whether something came that was not taken yet, or there is an error to be told."""
        return bool(self._buffer) or not self._is_live or self._error is not None

    def take(self, limit: int) -> list[Message]:
        """The next messages; empty if there are none now. May read the log."""
        while True:
            if self._is_live or self._buffer:
                taken = self._take_live(limit)
                if taken or self._is_live:
                    return taken
            if self._error is not None:
                raise self._error
            taken = self._take_logged(limit)
            if taken:
                return taken

    def take_buffered(self, limit: int) -> list[Message]:
        """As `take`, without ever reading the log."""
        return self._take_live(limit)

    def close(self) -> None:
        self._tail.leave(self)
        if self._error is None:
            self._error = HubClosed("The subscription is closed.", hint="Subscribe again.")
        self.wake()

    def _take_live(self, limit: int) -> list[Message]:
        buffer = self._buffer
        taken: list[Message] = []
        try:
            while len(taken) < limit:
                message = buffer.popleft()
                self.position = message.id
                if message.expires_at is None or message.expires_at > self._clock.now():
                    taken.append(message)
        except IndexError:
            if not taken and self._error is not None:
                raise self._error from None
        if taken:
            self._telemetry.count("delivered", len(taken))
        return taken

    def _take_logged(self, limit: int) -> list[Message]:
        """Messages from the log; none only after having joined the tail."""
        while not self._is_live:
            try:
                chunk = self._topics.read(
                    self.pattern,
                    after=self.position,
                    floor=self._floor,
                    limit=limit,
                    now=self._clock.now(),
                    told=self._told,
                )
            except LogTrimmed as error:
                # Told once. Who asks again gets what there is.
                self._told = {**self._told, **error.trims}
                if self._on_trimmed == "raise":
                    raise
                continue
            if chunk.epoch != self.epoch:
                raise EpochChanged("The database was restored or replaced.")
            self.position = chunk.through
            if chunk.messages:
                self._telemetry.count("delivered", len(chunk.messages))
                return chunk.messages
            self._tail.join(self, self.position)
        return []


class Live(Iterator[Message]):
    """Messages as they come, for a thread. `for message in live`, `live.get(timeout)`."""

    def __init__(self, subscription: Source, batch_max: int) -> None:
        self._subscription = subscription
        self._batch_max = batch_max
        self._arrived = Alarm()
        self._ready: deque[Message] = deque()
        subscription.wake = self._arrived.ring

    @property
    def position(self) -> Position:
        """Where to subscribe again, with `after=`, to miss and repeat nothing."""
        offset = self._ready[0].id - 1 if self._ready else self._subscription.position
        return Position(self._subscription.epoch, offset)

    def __iter__(self) -> Live:
        return self

    def __next__(self) -> Message:
        try:
            message = self.get()
        except HubClosed:
            raise StopIteration from None
        assert message is not None
        return message

    def get(self, timeout: float | None = None) -> Message | None:
        """The next message, or None after `timeout` seconds."""
        if not self._ready:
            self._ready.extend(self.take(timeout=timeout))
        return self._ready.popleft() if self._ready else None

    def take(self, limit: int | None = None, *, timeout: float | None = None) -> list[Message]:
        """The next messages, at least one; empty after `timeout` seconds."""
        limit = limit or self._batch_max
        if self._ready:
            return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._arrived.clear()
            taken = self._subscription.take(limit)
            if taken:
                return taken
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return []
            self._arrived.sleep(remaining)

    def batches(self, limit: int | None = None) -> Iterator[list[Message]]:
        while True:
            yield self.take(limit)

    def close(self) -> None:
        self._subscription.close()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_subscription"):
            self._subscription.close()


class AsyncLive(AsyncIterator[Message]):
    """Messages as they come, for an event loop."""

    def __init__(
        self, subscription: Source, batch_max: int, executor: Executor | None = None
    ) -> None:
        self._subscription = subscription
        self._batch_max = batch_max
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._ready: deque[Message] = deque()
        self._reading: asyncio.Future[list[Message]] | None = None
        subscription.wake = _LoopWaker(self._loop, self._arrived).notify

    @property
    def position(self) -> Position:
        """Where to subscribe again, with `after=`, to miss and repeat nothing."""
        offset = self._ready[0].id - 1 if self._ready else self._subscription.position
        return Position(self._subscription.epoch, offset)

    def __aiter__(self) -> AsyncLive:
        return self

    async def __anext__(self) -> Message:
        try:
            message = await self.get()
        except HubClosed:
            raise StopAsyncIteration from None
        assert message is not None
        return message

    async def get(self, timeout: float | None = None) -> Message | None:
        """The next message, or None after `timeout` seconds."""
        if not self._ready:
            self._ready.extend(await self.take(timeout=timeout))
        return self._ready.popleft() if self._ready else None

    async def take(
        self, limit: int | None = None, *, timeout: float | None = None
    ) -> list[Message]:
        """The next messages, at least one; empty after `timeout` seconds."""
        limit = limit or self._batch_max
        if self._ready:
            return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._arrived.clear()
                    taken = await self._take(limit)
                    if taken:
                        return taken
                    await self._arrived.wait()
        except TimeoutError:
            return []

    async def batches(self, limit: int | None = None) -> AsyncIterator[list[Message]]:
        while True:
            yield await self.take(limit)

    async def close(self) -> None:
        self._subscription.close()

    async def __aenter__(self) -> AsyncLive:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if hasattr(self, "_subscription"):
            self._subscription.close()

    async def _take(self, limit: int) -> list[Message]:
        subscription = self._subscription
        if self._reading is None and subscription.is_live:
            taken = subscription.take_buffered(limit)
            if taken or subscription.is_live:
                return taken
        # Not to be cancelled half-way: a chunk taken by the thread would be lost to the reader.
        # Whoever asks next, after a timeout, gets the answer of the same thread.
        if self._reading is None:
            self._reading = self._loop.run_in_executor(self._executor, subscription.take, limit)
        if not self._reading.done():
            await asyncio.wait([self._reading])
        reading, self._reading = self._reading, None
        taken = reading.result()
        self._ready.extend(taken[limit:])
        return taken[:limit]


class _LoopWaker:
    """One wake of the loop, however many pushes come meanwhile. Knows nothing of the reader, so
    that a reader nobody holds any more can be collected."""

    def __init__(self, loop: asyncio.AbstractEventLoop, arrived: asyncio.Event) -> None:
        self._loop = loop
        self._arrived = arrived
        self._is_notified = False

    def notify(self) -> None:
        if self._is_notified:
            return
        self._is_notified = True
        try:
            self._loop.call_soon_threadsafe(self._wake_up)
        except RuntimeError:
            return  # The loop has ended.

    def _wake_up(self) -> None:
        self._is_notified = False
        self._arrived.set()
