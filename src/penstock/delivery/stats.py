"""What was delivered, counted per topic: totals for `/metrics`, seconds for `penstock.delivery`.

Latencies go into a histogram whose buckets grow by a tenth, so that percentiles are right to
within five per cent, and histograms of many instances and seconds can be added up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import msgspec

from penstock.clock import Micros
from penstock.delivery.batch import Item
from penstock.model import RESERVED_PREFIX

STATS_TOPIC = f"{RESERVED_PREFIX}delivery"
GROWTH = 1.1
"""A bucket's upper bound over its lower one."""
SMALLEST_MS = 0.01
TOPICS_MAX = 10_000
"""Topics with counters of their own; those idle longest make room."""

_LOG_GROWTH = math.log(GROWTH)


class Histogram:
    """Counts by bucket. Bucket `i` holds latencies up to `SMALLEST_MS * GROWTH**i` ms."""

    __slots__ = ("buckets", "count", "total_ms")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.total_ms = 0.0

    def add(self, ms: float, count: int = 1) -> None:
        ms = max(0.0, ms)  # A clock that was set back makes messages from the future.
        bucket = 0 if ms <= SMALLEST_MS else math.ceil(math.log(ms / SMALLEST_MS) / _LOG_GROWTH)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.count += count
        self.total_ms += ms * count

    def merge(self, buckets: Mapping[int, int], total_ms: float) -> None:
        for bucket, count in buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
            self.count += count
        self.total_ms += total_ms

    def percentile(self, share: float) -> float:
        """In milliseconds; 0 if nothing was counted."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                # The middle of the bucket halves the largest error.
                return SMALLEST_MS * GROWTH ** (bucket - 0.5) if bucket else SMALLEST_MS
        return 0.0

    @property
    def average(self) -> float:
        return self.total_ms / self.count if self.count else 0.0


class DeliverySecond(msgspec.Struct, frozen=True):
    """One message of `penstock.delivery`: a topic, an instance and an interval."""

    topic: str
    instance: str
    seconds: float
    messages: int
    """Messages sent to at least one subscriber."""
    deliveries: int
    """Messages times subscribers."""
    bytes: int
    """Of payloads, times subscribers."""
    batches: int
    dropped: int
    catch_ups: int
    subscribers: int
    latency_buckets: dict[int, int]
    """From publishing to sending, by bucket: bucket i ends at 0.01 ms * 1.1**i."""
    latency_total_ms: float
    batch_max: int = 0
    """Messages in the largest batch."""


class Latency(msgspec.Struct, frozen=True):
    avg: float
    p95: float
    p99: float


class TopicDelivery(msgspec.Struct, frozen=True):
    """A topic in `/metrics`. The names are those of the requirements."""

    queue_depth: int
    queue_max_size: int
    batch_size_avg: float
    messages_published: int
    messages_delivered: int
    messages_dropped: int
    subscriber_count: int
    latency_ms: Latency
    bytes_delivered: int = 0
    catch_ups: int = 0


class DeliveryMetrics(msgspec.Struct, frozen=True):
    """This instance's deliveries."""

    uptime_seconds: float
    topics: dict[str, TopicDelivery]
    connections: int
    active_topics: int
    active_subscribers: int
    total_published: int
    total_delivered: int
    total_dropped: int
    slow_connections: int
    """Sockets that wait for their client to read."""
    open_mailboxes: int = 0
    """Mailboxes that are pushed to a socket."""
    pushed_mail: int = 0
    """Messages of mailboxes that were pushed."""


class Counters:
    """One topic's, since the start or since they were last taken."""

    __slots__ = (
        *("batch_max", "batches", "bytes", "catch_ups", "deliveries", "dropped", "latency"),
        "messages",
    )

    def __init__(self) -> None:
        self.messages = 0
        self.deliveries = 0
        self.bytes = 0
        self.batches = 0
        self.batch_max = 0
        self.dropped = 0
        self.catch_ups = 0
        self.latency = Histogram()

    def merge(self, other: Counters) -> None:
        self.messages += other.messages
        self.deliveries += other.deliveries
        self.bytes += other.bytes
        self.batches += other.batches
        self.batch_max = max(self.batch_max, other.batch_max)
        self.dropped += other.dropped
        self.catch_ups += other.catch_ups
        self.latency.merge(other.latency.buckets, other.latency.total_ms)


class Stats:
    """Counters by topic, on the event loop's thread. `penstock.` topics are not counted."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self.totals: dict[str, Counters] = {}
        self._recent: dict[str, Counters] = {}
        self._taken_at = time.monotonic()

    @property
    def uptime_seconds(self) -> float:
        return time.monotonic() - self._started_at

    def of(self, topic: str) -> Counters:
        """Where to count what happens on a topic now."""
        if topic.startswith(RESERVED_PREFIX):
            return Counters()  # Nobody looks at it.
        counters = self._recent.get(topic)
        if counters is None:
            counters = self._recent[topic] = Counters()
        return counters

    def sent(self, items: Sequence[Item], subscribers: int, now: Micros | None) -> None:
        """A batch went out to so many subscribers; live, if `now` is given.

        The age of what was sent from the log says nothing about latency.
        """
        counters: Counters | None = None
        topic, size = "", 0
        for item in items:
            message = item.message
            if counters is None or message.topic != topic:
                topic, size = message.topic, 0
                if topic.startswith(RESERVED_PREFIX):
                    counters = None
                    continue
                counters = self.of(topic)
                counters.batches += 1
            size += 1
            counters.batch_max = max(counters.batch_max, size)
            counters.messages += 1
            counters.deliveries += subscribers
            counters.bytes += len(message.body) * subscribers
            if now is not None:
                counters.latency.add((now - message.created_at) / 1000, subscribers)

    def take(self) -> tuple[dict[str, Counters], float]:
        """What was counted since the last time, and how long that was. Adds it to the totals."""
        taken, self._recent = self._recent, {}
        now = time.monotonic()
        elapsed, self._taken_at = now - self._taken_at, now
        self._add(taken)
        return taken, elapsed

    def overall(self) -> dict[str, Counters]:
        """Since the start. Reading does not take what is still to be published."""
        combined: dict[str, Counters] = {}
        for source in (self.totals, self._recent):
            for topic, counters in source.items():
                if topic not in combined:
                    combined[topic] = Counters()
                combined[topic].merge(counters)
        return combined

    def _add(self, taken: dict[str, Counters]) -> None:
        for topic, counters in taken.items():
            # Re-inserted, so that those idle longest come first.
            total = self.totals.pop(topic, None) or Counters()
            total.merge(counters)
            self.totals[topic] = total
        while len(self.totals) > TOPICS_MAX:
            del self.totals[next(iter(self.totals))]
