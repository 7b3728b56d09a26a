"""One topic or glob, and the sockets that listen to it on this instance.

A channel has its own place in the log, fed by the process's tail in id order. A batch is encoded
once per format and the same bytes are written to every socket. The first message after a pause is
sent at once; those that follow soon wait for others, until the batch is full or its time is up.
While sending itself takes long, because there are many sockets, batches grow: after a batch the
channel rests for as long as sending it took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from penstock.clock import Clock
from penstock.delivery.batch import Item, Recent, frame, split
from penstock.delivery.stats import Stats
from penstock.delivery.subscriber import Subscriber
from penstock.errors import EpochChanged, HubClosed, LogTrimmed, PenstockError
from penstock.model import Chunk, Delivery, Message, Pattern, Position, SlowPolicy
from penstock.ports import TopicReader
from penstock.protocol import Wire
from penstock.settings import Settings
from penstock.telemetry import Telemetry
from penstock.topics.runtime import Runtime
from penstock.topics.subscription import Subscription

RETRY_SECONDS = 0.2


class Channel:
    """Made by the switchboard, used on its event loop only."""

    def __init__(
        self,
        runtime: Runtime,
        loop: asyncio.AbstractEventLoop,
        stats: Stats,
        pattern: Pattern,
        subscription: Subscription,
        delivery: Delivery,
    ) -> None:
        self.pattern = pattern
        self.loop = loop
        self.settings: Settings = runtime.settings
        self.telemetry: Telemetry = runtime.telemetry
        self.epoch = subscription.epoch
        self.sent_through = subscription.position
        """Every live subscriber was sent all up to this id."""
        self.sent_count = 0
        """Messages sent since the channel was opened."""
        settings = runtime.settings
        self.recent = Recent(
            self.sent_through, settings.recent_messages_max, settings.recent_bytes_max
        )
        self._runtime = runtime
        self._topics: TopicReader = runtime.store.topics
        self.clock: Clock = runtime.clock
        self._stats = stats
        self._subscription = subscription
        self._pending: list[Item] = []
        self._subscribers: set[Subscriber] = set()
        self._live: dict[Wire, dict[Subscriber, Callable[[bytes], None]]] = {}
        self._early: set[Subscriber] = set()
        self._waker = _Waker(loop, self._on_wake)
        self._timer: asyncio.TimerHandle | None = None
        self._is_reading = False
        self.is_closed = False
        self._next_at = 0.0
        self._full_at = 0.0
        self.on_empty: Callable[[Channel], None] | None = None
        self.configure(delivery)
        subscription.wake = self._waker.notify
        self._waker.notify()

    def configure(self, delivery: Delivery) -> None:
        """The topic's own choices, where it has made any."""
        settings = self.settings
        self.slow_policy: SlowPolicy = delivery.slow_policy or settings.slow_policy
        # A frame that is full is sent, also where a batch may have more.
        self._batch_max = min(delivery.batch_max or settings.batch_max, settings.frame_messages_max)
        batch_ms = settings.batch_ms if delivery.batch_ms is None else delivery.batch_ms
        self._batch_seconds = batch_ms / 1000

    @property
    def executor(self) -> Executor:
        return self._runtime.executor

    @property
    def subscriber_count(self) -> int:
        return len(self._subscribers)

    @property
    def queue_depth(self) -> int:
        """Messages read but not sent yet."""
        return len(self._pending) + self._subscription.waiting

    @property
    def position(self) -> Position:
        """Subscribing here and now starts after this."""
        pending = self._pending  # Once: a reader's thread may ask while a batch is sent.
        last = pending[-1].id if pending else self.sent_through
        return Position(self.epoch, max(last, self._subscription.position))

    # Who listens

    def add(self, subscriber: Subscriber) -> None:
        self._subscribers.add(subscriber)

    def leave(self, subscriber: Subscriber) -> None:
        self.suspend(subscriber)
        self._subscribers.discard(subscriber)
        if not self._subscribers and self.on_empty is not None:
            self.on_empty(self)

    def join(self, subscriber: Subscriber) -> None:
        """Its cursor has reached what was sent: from now on it gets each batch as it goes out."""
        if subscriber.cursor > self.sent_through:
            self._early.add(subscriber)
        else:
            wire = subscriber.socket.wire
            self._live.setdefault(wire, {})[subscriber] = subscriber.socket.send
        subscriber.is_live = True

    def suspend(self, subscriber: Subscriber) -> None:
        """Off the live path."""
        if subscriber.is_live:
            subscriber.is_live = False
            self._early.discard(subscriber)
            live = self._live.get(subscriber.socket.wire)
            if live is not None:
                live.pop(subscriber, None)

    # The log, for those behind; on a reader's thread

    def read_log(self, after: int, floor: int, told: Mapping[str, int], limit: int) -> Chunk:
        """Raises `EpochChanged` if the log is not the channel's any more."""
        now = self.clock.now()
        chunk = self._topics.read(
            self.pattern, after=after, floor=floor, limit=limit, now=now, told=told
        )
        if chunk.epoch != self.epoch:
            raise EpochChanged("The database was restored or replaced.")
        return chunk

    # Counting

    def delivered(self, items: list[Item]) -> None:
        """To one subscriber that was behind."""
        self._stats.sent(items, 1, None)

    def dropped(self, count: int) -> None:
        """A subscriber was too slow for them."""
        self._stats.of(self.pattern.text).dropped += count

    def fell_behind(self) -> None:
        """A subscriber is served from memory or the log for a while."""
        self._stats.of(self.pattern.text).catch_ups += 1

    # What comes

    def flush(self) -> None:
        """Send all that has come, without waiting for more."""
        while True:
            self._drain()
            if not self._pending:
                return
            self._send_batch()

    def close(self) -> None:
        self.is_closed = True
        self._subscription.close()
        if self._timer is not None:
            self._timer.cancel()

    def end(self, error: PenstockError) -> None:
        """Nobody can be served here any more."""
        self.close()
        for subscriber in tuple(self._subscribers):
            subscriber.end(error)

    def _on_wake(self) -> None:
        if self.is_closed:
            return
        self._drain()
        self._schedule()

    def _drain(self) -> None:
        """Take what the tail has brought."""
        subscription = self._subscription
        if self._is_reading or self.is_closed:
            return
        # Not more than a frame: what waits longer is bounded in the subscription, not here.
        room = self.settings.frame_messages_max - len(self._pending)
        if room > 0 and (subscription.is_live or subscription.waiting):
            try:
                self._extend(subscription.take_buffered(room))
            except PenstockError as error:
                self._fail(error)
                return
        if room > 0 and not subscription.is_live and not subscription.waiting:
            self._is_reading = True
            reading = self.loop.run_in_executor(self.executor, subscription.take, room)
            reading.add_done_callback(self._on_read)

    def _extend(self, messages: list[Message]) -> None:
        with_topic = self.pattern.is_glob
        self._pending += [Item(message, with_topic) for message in messages]

    def _on_read(self, reading: asyncio.Future[list[Message]]) -> None:
        if reading.cancelled():
            return
        error = reading.exception()
        if self.is_closed:
            return
        if error is None:
            self._is_reading = False
            self._extend(reading.result())
            self._on_wake()
        elif isinstance(error, PenstockError):
            self._fail(error)
        else:
            raise error

    def _fail(self, error: PenstockError) -> None:
        if isinstance(error, (EpochChanged, HubClosed)):
            self.end(error)
        elif isinstance(error, LogTrimmed):
            self._start_over(error.resume)
        else:
            # The database is locked or away for a moment; nobody loses a place over that.
            self._is_reading = True
            self.loop.call_later(RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._is_reading = False
        self._on_wake()

    def _start_over(self, resume: Position) -> None:
        """This instance was so late that messages are gone. Each subscriber is told its own gap.

        The channel's own reading goes on: it was told.
        """
        while self._pending:
            self._send_batch()
        self.recent.restart(resume.offset)
        for subscriber in self._subscribers:
            subscriber.stop_dropping()
        behind = [s for s in self._subscribers if s.is_live]
        for subscriber in behind:
            self.suspend(subscriber)
            subscriber.cursor = max(subscriber.cursor, self.sent_through)
        self.sent_through = resume.offset
        self._is_reading = False
        for subscriber in behind:
            subscriber.start()
        self._waker.notify()

    def _schedule(self) -> None:
        if not self._pending:
            return
        is_full = len(self._pending) >= self._batch_max
        at = self._full_at if is_full else self._next_at
        if self.loop.time() >= at:
            self._send_and_go_on()
        elif self._timer is None or self._timer.when() > at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.is_closed:
            return
        self._drain()
        if self._pending:
            self._send_and_go_on()

    def _send_and_go_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        started = self.loop.time()
        self._send_batch()
        ended = self.loop.time()
        self._next_at = started + self._batch_seconds
        self._full_at = min(self._next_at, 2 * ended - started)
        if self._pending or self._subscription.has_waiting:
            self._waker.notify()

    def _send_batch(self) -> None:
        """One frame to every live subscriber. Sending never waits, and holds no lock."""
        settings = self.settings
        count = split(self._pending, settings.frame_messages_max, settings.frame_payload_bytes_max)
        items, self._pending = self._pending[:count], self._pending[count:]
        self.sent_through = items[-1].id
        self.sent_count += len(items)
        self.recent.extend(items)
        subscribers = 0
        for wire, live in self._live.items():
            if live:
                data = frame(self.pattern.text, items, wire)
                subscribers += len(live)
                # A copy: a socket that fills up leaves while we are at it.
                for send in tuple(live.values()):
                    send(data)
        if self._early:
            self._send_early(items)
        if subscribers:
            self._stats.sent(items, subscribers, self.clock.now())

    def _send_early(self, items: list[Item]) -> None:
        """To those who had read ahead of the channel: only what they do not have."""
        for subscriber in tuple(self._early):
            news = [item for item in items if item.id > subscriber.cursor]
            if news:
                subscriber.socket.send(frame(self.pattern.text, news, subscriber.socket.wire))
                self.delivered(news)
            if self.sent_through >= subscriber.cursor and subscriber.is_live:
                self._early.discard(subscriber)
                self.join(subscriber)


class _Waker:
    """From any thread: one call on the event loop, however often it is asked for meanwhile."""

    __slots__ = ("_call", "_is_due", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._is_due = False

    def notify(self) -> None:
        if self._is_due:
            return
        self._is_due = True
        try:
            self._loop.call_soon_threadsafe(self._run)
        except RuntimeError:
            return  # The loop has ended.

    def _run(self) -> None:
        self._is_due = False
        self._call()
