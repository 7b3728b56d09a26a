"""What pipelines have worked out and published: read back from topics, without Spark.

A pipeline publishes a figure again whenever it has changed, under the same key. Whoever shows
figures reads on where it was, and keeps the newest of each key.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from penstock.delivery.stats import SMALLEST_MS, Histogram
from penstock.errors import EpochChanged, UndecodablePayload
from penstock.model import RESERVED_PREFIX, Message, Pattern, Position

ROLLUPS_TOPIC = f"{RESERVED_PREFIX}rollups"
JOB_HEALTH_TOPIC = f"{RESERVED_PREFIX}job_health"
DEDUP_TOPIC = f"{RESERVED_PREFIX}dedup"
TOPICS = frozenset({ROLLUPS_TOPIC, JOB_HEALTH_TOPIC, DEDUP_TOPIC})

READ_MAX = 5_000
KEYS_MAX = 200_000
"""Figures that are remembered; those that changed longest ago make room."""

Resolution = Literal["minute", "hour", "day"]
Buckets = dict[int, int]


class Rollup(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topic in a minute, an hour or a day. `docs/howto/rollups.md` explains the fields."""

    resolution: Resolution
    topic: str
    start: datetime
    messages: int = 0
    bytes: int = 0
    publishers: int = 0
    size_avg: float | None = None
    size_p50: int | None = None
    size_p95: int | None = None
    size_p99: int | None = None
    size_max: int | None = None
    size_buckets: Buckets = {}
    delivered: int = 0
    deliveries: int = 0
    delivered_bytes: int = 0
    batches: int = 0
    batch_avg: float | None = None
    batch_max: int | None = None
    dropped: int = 0
    catch_ups: int = 0
    latency_avg_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    latency_p99_ms: float | None = None
    latency_buckets: Buckets = {}
    broken: int = 0


class FailureClass(msgspec.Struct, frozen=True):
    error: str
    count: int
    message: str | None = None
    """Of the last one."""


class JobHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """Jobs of one queue and type. `docs/howto/job-health.md` explains the fields."""

    reported_at: datetime
    queue: str | None = None
    type: str | None = None
    events: int = 0
    jobs: int = 0
    attempts: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    died: int = 0
    rescued: int = 0
    released: int = 0
    snoozed: int = 0
    cancelled: int = 0
    expired: int = 0
    retried: int = 0
    attempts_per_job: float | None = None
    retry_rate: float | None = None
    failure_rate: float | None = None
    death_rate: float | None = None
    waits: int = 0
    wait_p50_seconds: float | None = None
    wait_p95_seconds: float | None = None
    wait_p99_seconds: float | None = None
    wait_max_seconds: float | None = None
    run_p50_seconds: float | None = None
    run_p95_seconds: float | None = None
    run_p99_seconds: float | None = None
    run_max_seconds: float | None = None
    timed_out: int = 0
    suggested_timeout_seconds: float | None = None
    failures: list[FailureClass] = []
    broken: int = 0


class Audit(msgspec.Struct, frozen=True):
    """A topic against a scope of the ledger. `docs/howto/dedup.md` explains the fields."""

    audited_at: datetime
    topic: str
    scope: str | None = None
    by: str = ""
    messages: int = 0
    without_key: int = 0
    keys: int = 0
    repeated: int = 0
    once: int = 0
    twice: int = 0
    never: int = 0
    open: int = 0
    failed: int = 0
    unmatched: int = 0
    unknown: int = 0
    taken_over: int = 0
    findings: str | None = None
    """The folder with every key that is not as it should be."""


class Reads(Protocol):
    """As `hub.topics`, on this machine or over the network."""

    def read(
        self,
        topic: str,
        *,
        after: Position | None = None,
        limit: int = ...,
        on_trimmed: Literal["raise", "skip"] = "raise",
    ) -> list[Message]: ...


T = TypeVar("T", bound=msgspec.Struct)


class Newest(Generic[T]):
    """The newest figure of each key of a topic. One thread at a time."""

    def __init__(
        self, topics: Reads, topic: str, kind: type[T], *, keys_max: int = KEYS_MAX
    ) -> None:
        self._topics = topics
        self._topic = topic
        self._kind = kind
        self._keys_max = keys_max
        self._after: Position | None = None
        self._found: dict[str | None, T] = {}
        self.undecodable = 0
        """Messages that this penstock does not understand."""

    def refresh(self) -> int:
        """Read what was published since the last time. Returns how many messages there were."""
        count = 0
        while messages := self._read():
            for message in messages:
                self._take(message)
            self._after = messages[-1].position
            count += len(messages)
        return count

    def values(self) -> list[T]:
        """In the order in which they changed."""
        return list(self._found.values())

    def _read(self) -> list[Message]:
        try:
            return self._topics.read(
                self._topic, after=self._after, limit=READ_MAX, on_trimmed="skip"
            )
        except EpochChanged:
            # A backup was restored: what came after it is no more.
            self._after = None
            self._found.clear()
            return self._topics.read(self._topic, limit=READ_MAX, on_trimmed="skip")

    def _take(self, message: Message) -> None:
        try:
            value = message.decode(self._kind)
        except UndecodablePayload:
            self.undecodable += 1
            return
        self._found.pop(message.key, None)
        self._found[message.key] = value
        if len(self._found) > self._keys_max:
            del self._found[next(iter(self._found))]


class Rollups:
    """What `penstock.rollups` says, as far as the topic goes back."""

    def __init__(self, topics: Reads, *, keys_max: int = KEYS_MAX) -> None:
        self._newest = Newest(topics, ROLLUPS_TOPIC, Rollup, keys_max=keys_max)

    def refresh(self) -> int:
        """Read what is new. Returns how many messages there were."""
        return self._newest.refresh()

    def find(
        self,
        pattern: str = "*",
        *,
        resolution: Resolution = "minute",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Rollup]:
        """The newest of each topic and start from `since` to before `until`, by time and topic."""
        wanted = Pattern.parse(pattern)
        return sorted(
            (
                rollup
                for rollup in self._newest.values()
                if rollup.resolution == resolution
                and wanted.matches(rollup.topic)
                and (since is None or rollup.start >= since)
                and (until is None or rollup.start < until)
            ),
            key=lambda rollup: (rollup.start, rollup.topic),
        )


def combine(rollups: Iterable[Rollup], topic: str = "*") -> Rollup | None:
    """Several as one, such as all topics of a minute. None if there are none.

    Who published cannot be told apart any more: `publishers` is the most that any of them had.
    """
    found = list(rollups)
    if not found:
        return None

    def total(name: str) -> int:
        return sum(getattr(rollup, name) for rollup in found)

    def largest(name: str) -> int | None:
        return max((getattr(r, name) for r in found if getattr(r, name) is not None), default=None)

    latency, sizes = Histogram(), Histogram()
    for rollup in found:
        count = sum(rollup.latency_buckets.values())
        latency.merge(rollup.latency_buckets, (rollup.latency_avg_ms or 0.0) * count)
        sizes.merge(rollup.size_buckets, 0.0)
    messages, batches, has_latency = total("messages"), total("batches"), latency.count > 0
    largest_size = largest("size_max")
    return Rollup(
        found[0].resolution,
        topic,
        min(rollup.start for rollup in found),
        messages=messages,
        bytes=total("bytes"),
        publishers=largest("publishers") or 0,
        size_avg=total("bytes") / messages if messages else None,
        size_p50=_size_at(sizes, 0.5, largest_size),
        size_p95=_size_at(sizes, 0.95, largest_size),
        size_p99=_size_at(sizes, 0.99, largest_size),
        size_max=largest_size,
        size_buckets=sizes.buckets,
        delivered=total("delivered"),
        deliveries=total("deliveries"),
        delivered_bytes=total("delivered_bytes"),
        batches=batches,
        batch_avg=total("delivered") / batches if batches else None,
        batch_max=largest("batch_max"),
        dropped=total("dropped"),
        catch_ups=total("catch_ups"),
        latency_avg_ms=latency.average if has_latency else None,
        latency_p50_ms=latency.percentile(0.5) if has_latency else None,
        latency_p95_ms=latency.percentile(0.95) if has_latency else None,
        latency_p99_ms=latency.percentile(0.99) if has_latency else None,
        latency_buckets=latency.buckets,
        broken=total("broken"),
    )


def _size_at(sizes: Histogram, share: float, largest: int | None) -> int | None:
    """Buckets of sizes end at 1.1**i bytes, as those of latencies at 0.01 ms * 1.1**i."""
    if largest is None or not sizes.count:
        return None
    return min(round(sizes.percentile(share) / SMALLEST_MS), largest)
