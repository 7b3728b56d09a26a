"""All live delivery of one process: channels by pattern, sessions, presence, statistics.

Lives on one event loop. The hub makes it; the server feeds it with sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec

from penstock import codec
from penstock.clock import seconds
from penstock.delivery.access import Access, Anybody, Authenticator
from penstock.delivery.channel import Channel
from penstock.delivery.mailbox_feed import MailboxFeeds
from penstock.delivery.presence import Roster
from penstock.delivery.session import Session
from penstock.delivery.stats import (
    STATS_TOPIC,
    Counters,
    DeliveryMetrics,
    DeliverySecond,
    Latency,
    Stats,
    TopicDelivery,
)
from penstock.errors import EpochChanged, PenstockError
from penstock.mailboxes.mailroom import MailRoom
from penstock.model import RESERVED_PREFIX, Delivery, Instance, NewMessage, Pattern
from penstock.protocol import Close, Connected
from penstock.topics import runtime as topics_runtime
from penstock.topics.followers import Holding
from penstock.topics.positions import open_live_subscription
from penstock.topics.subscription import Subscription

P = ParamSpec("P")
T = TypeVar("T")

LINGER_SECONDS = 10.0
"""How long a channel outlives its last subscriber: clients come back, and find it in memory."""
LINGERING_MAX = 1_000
"""How many channels do. One client can ask for many that nobody publishes to."""
TICK_SECONDS = 1.0
CONFIGURE_TICKS = 5
"""Every so many ticks, topics are asked for changes of their configuration, and for trims."""
CONFIGURE_CHUNK = 100
"""Topics asked in one go, so that other readers of the log get their turn."""
ROOM_BYTES_MAX = 256 * 1024 * 1024
"""Bytes that all clients together have sent and that are not on disk yet."""
RECENT_BYTES_MAX = 256 * 1024 * 1024
"""Bytes that all channels together keep for clients that resume."""


class Runtime(topics_runtime.Runtime, Protocol):
    instance: Instance | None
    mail: MailRoom


class Switchboard:
    def __init__(
        self, runtime: Runtime, version: str, authenticator: Authenticator | None = None
    ) -> None:
        self.runtime = runtime
        self.loop = asyncio.get_running_loop()
        self.authenticator: Authenticator = authenticator or Anybody()
        self.sessions: set[Session] = set()
        self.stats = Stats()
        self.roster = Roster(self)
        self.mailboxes = MailboxFeeds(self)
        self._version = version
        self._channels: dict[str, Channel] = {}
        self._opening: dict[str, asyncio.Task[Channel]] = {}
        self._lingering: dict[Channel, float] = {}
        """Channels without subscribers, and since when; the longest first."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._room = ROOM_BYTES_MAX
        self._appends = 0
        self._settled: asyncio.Event | None = None
        self._ticks = 0
        self._epoch = ""
        self._timer: asyncio.TimerHandle | None = None
        self._ticking: asyncio.Task[None] | None = None
        self.is_draining = False
        self.draining = asyncio.Event()
        """Set when it begins: whoever waits for something else is to stop waiting."""
        self._empty = asyncio.Event()

    async def start(self) -> None:
        """Open the store's reading side, and begin to look after things."""
        await self.in_thread(self.runtime.start_reading)
        self._epoch = (await self.in_thread(self.runtime.store.log)).epoch
        self._timer = self.loop.call_later(TICK_SECONDS, self._tick)

    async def drain(self, timeout_seconds: float) -> None:
        """Send what waits and tell every client to go elsewhere."""
        if self.is_draining:
            return
        self.is_draining = True
        self.draining.set()
        await self._finish_appends(timeout_seconds / 2)
        for channel in tuple(self._channels.values()):
            channel.flush()
        for session in tuple(self.sessions):
            session.close(Close.SHUTDOWN, "The server is stopping.")
        if self.sessions:
            try:
                await asyncio.wait_for(self._empty.wait(), timeout_seconds)
            except TimeoutError:
                return  # Those who do not go are cut off with the process.

    async def _finish_appends(self, timeout_seconds: float) -> None:
        """What was accepted is answered, so that nobody is left in doubt; nothing more is read."""
        if not self._appends:
            return
        for session in tuple(self.sessions):
            session.hold("stopping")
        self._settled = asyncio.Event()
        try:
            await asyncio.wait_for(self._settled.wait(), timeout_seconds)
        except TimeoutError:
            return  # The disk does not answer; idempotency keys resolve what came of it.

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._ticking is not None:
            await asyncio.wait([self._ticking])
        for channel in tuple(self._channels.values()):
            channel.close()
        self._channels.clear()
        self.mailboxes.close()
        try:
            await self.roster.close()
            await self._publish_stats()
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    # For sessions

    def forget(self, session: Session) -> None:
        self.sessions.discard(session)
        if not self.sessions and self.is_draining:
            self._empty.set()

    def welcome(self, client: str, access: Access) -> Connected:
        settings = self.runtime.settings
        expires = None
        if access.expires_at is not None:
            expires = max(0.0, seconds(access.expires_at - self.runtime.clock.now()))
        return Connected(
            client,
            self._epoch,
            self.runtime.name,
            self._version,
            settings.ping_seconds,
            settings.idempotency_seconds,
            expires,
        )

    def find_channel(self, pattern: Pattern) -> Channel | None:
        channel = self._channels.get(pattern.text)
        return None if channel is None or channel.is_closed else channel

    async def open_channel(self, pattern: Pattern) -> Channel:
        """The channel, opened if need be: once, however many ask."""
        channel = self.find_channel(pattern)
        if channel is not None:
            return channel
        opening = self._opening.get(pattern.text)
        if opening is None:
            opening = self._opening[pattern.text] = self.spawn(self._open_channel(pattern))
            opening.add_done_callback(lambda _: self._opening.pop(pattern.text, None))
        # One who gives up waiting must not take it from the others.
        return await asyncio.shield(opening)

    async def open_current_channel(self, pattern: Pattern) -> Channel:
        """As `open_channel`, but one that has not noticed a restore yet is not handed out."""
        channel = await self.open_channel(pattern)
        epoch = (await self.in_thread(self.runtime.store.log)).epoch
        if channel.epoch != epoch:
            channel.end(EpochChanged("The database was restored or replaced."))
            channel = await self.open_channel(pattern)
        return channel

    def release(self, holding: Holding) -> None:
        """Let another process be the consumer."""
        release = holding.give_up()
        if release is not None:
            self.runtime.committer.run_quietly(release)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it, and hold it until it is done: the event loop alone would not."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def in_thread(self, call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """For what may read the store."""
        return await self.loop.run_in_executor(
            self.runtime.executor, lambda: call(*arguments, **keywords)
        )

    def take_room(self, size: int) -> bool:
        """Whether so many bytes more may wait for the disk."""
        if size > self._room:
            return False
        self._room -= size
        self._appends += 1
        return True

    def give_room(self, size: int) -> None:
        self._room += size
        self._appends -= 1
        if not self._appends and self._settled is not None:
            self._settled.set()

    # Channels

    async def _open_channel(self, pattern: Pattern) -> Channel:
        subscription, delivery = await self.in_thread(self._find, pattern)
        channel = Channel(self.runtime, self.loop, self.stats, pattern, subscription, delivery)
        channel.on_empty = self._on_empty
        self._channels[pattern.text] = channel
        self._epoch = channel.epoch
        return channel

    def _find(self, pattern: Pattern) -> tuple[Subscription, Delivery]:
        subscription = open_live_subscription(
            self.runtime, pattern, after=None, last=None, on_trimmed="raise"
        )
        return subscription, self._delivery(pattern)

    def _delivery(self, pattern: Pattern) -> Delivery:
        """A glob has no topic to ask, so the settings hold for it."""
        topic = None if pattern.is_glob else self.runtime.store.topics.get(pattern.text)
        return Delivery() if topic is None else topic.delivery

    def _on_empty(self, channel: Channel) -> None:
        self._lingering.pop(channel, None)
        self._lingering[channel] = self.loop.time()
        if len(self._lingering) > LINGERING_MAX:
            self._close_if_empty(next(iter(self._lingering)))

    def _close_lingering(self, now: float) -> None:
        for channel, since in tuple(self._lingering.items()):
            if now - since < LINGER_SECONDS and not channel.is_closed:
                return
            self._close_if_empty(channel)

    def _close_if_empty(self, channel: Channel) -> None:
        del self._lingering[channel]
        if channel.subscriber_count:
            return
        if self._channels.get(channel.pattern.text) is channel:
            del self._channels[channel.pattern.text]
        channel.close()

    # Upkeep

    def _tick(self) -> None:
        self._timer = self.loop.call_later(TICK_SECONDS, self._tick)
        now = self.loop.time()
        for session in tuple(self.sessions):
            session.check(now)
        self._close_lingering(now)
        if self._ticking is None or self._ticking.done():
            self._ticking = self.spawn(self._upkeep())

    async def _upkeep(self) -> None:
        self._ticks += 1
        for work in (self.roster.tick, self._configure, self._publish_stats, self._bound_recent):
            try:
                await work()
            except PenstockError as error:
                # The database is busy or away; the next tick tries again.
                self.runtime.telemetry.emit("service_failed", service="delivery", error=repr(error))

    async def _configure(self) -> None:
        if self._ticks % CONFIGURE_TICKS:
            return
        channels = tuple(self._channels.values())
        for start in range(0, len(channels), CONFIGURE_CHUNK):
            some = channels[start : start + CONFIGURE_CHUNK]
            found = await self.in_thread(self._look_up, [channel.pattern for channel in some])
            for channel, (delivery, trimmed_through) in zip(some, found, strict=True):
                channel.configure(delivery)
                channel.recent.forget(trimmed_through)

    def _look_up(self, patterns: list[Pattern]) -> list[tuple[Delivery, int]]:
        trimmed_through = self.runtime.store.topics.trimmed_through
        return [(self._delivery(pattern), trimmed_through(pattern)) for pattern in patterns]

    async def _bound_recent(self) -> None:
        total = sum(channel.recent.size for channel in self._channels.values())
        for channel in tuple(self._channels.values()):
            if total <= RECENT_BYTES_MAX:
                return
            total -= channel.recent.size
            channel.recent.restart(channel.sent_through)

    async def _publish_stats(self) -> None:
        interval = self.runtime.settings.stats_seconds
        if not interval or self._ticks % max(1, round(interval / TICK_SECONDS)):
            return
        taken, elapsed = self.stats.take()
        messages = [
            NewMessage(
                STATS_TOPIC,
                msgspec.json.encode(self._second(topic, counters, elapsed)),
                codec.JSON,
                type="delivery",
                key=topic,
            )
            for topic, counters in taken.items()
        ]
        if messages:
            await self.runtime.committer.append_async(messages)

    def _second(self, topic: str, counters: Counters, elapsed: float) -> DeliverySecond:
        channel = self._channels.get(topic)
        return DeliverySecond(
            topic,
            self.runtime.name,
            round(elapsed, 3),
            counters.messages,
            counters.deliveries,
            counters.bytes,
            counters.batches,
            counters.dropped,
            counters.catch_ups,
            0 if channel is None else channel.subscriber_count,
            counters.latency.buckets,
            round(counters.latency.total_ms, 3),
            counters.batch_max,
        )

    # Figures

    async def metrics(self) -> DeliveryMetrics:
        """What this instance has delivered, with the topics' own counts of what was published."""
        published = await self.in_thread(self._published)
        overall = self.stats.overall()
        topics: dict[str, TopicDelivery] = {}
        for name in dict.fromkeys([*self._channels, *overall]):
            if name.startswith(RESERVED_PREFIX):
                continue
            channel = self._channels.get(name)
            topics[name] = self._topic(
                channel, overall.get(name) or Counters(), published.get(name, 0)
            )
        return DeliveryMetrics(
            uptime_seconds=self.stats.uptime_seconds,
            topics=topics,
            connections=len(self.sessions),
            active_topics=sum(1 for topic in topics.values() if topic.subscriber_count),
            active_subscribers=sum(topic.subscriber_count for topic in topics.values()),
            total_published=sum(topic.messages_published for topic in topics.values()),
            total_delivered=sum(topic.messages_delivered for topic in topics.values()),
            total_dropped=sum(topic.messages_dropped for topic in topics.values()),
            slow_connections=sum(1 for session in self.sessions if session.socket.is_paused),
            open_mailboxes=len(self.mailboxes),
            pushed_mail=self.mailboxes.pushed,
        )

    def _published(self) -> dict[str, int]:
        return {topic.name: topic.published for topic in self.runtime.store.topics.find()}

    def _topic(self, channel: Channel | None, counters: Counters, published: int) -> TopicDelivery:
        latency = counters.latency
        return TopicDelivery(
            queue_depth=0 if channel is None else channel.queue_depth,
            queue_max_size=self.runtime.settings.subscriber_buffer_max,
            batch_size_avg=counters.messages / counters.batches if counters.batches else 0.0,
            messages_published=published,
            messages_delivered=counters.deliveries,
            messages_dropped=counters.dropped,
            subscriber_count=0 if channel is None else channel.subscriber_count,
            latency_ms=Latency(latency.average, latency.percentile(0.95), latency.percentile(0.99)),
            bytes_delivered=counters.bytes,
            catch_ups=counters.catch_ups,
        )
