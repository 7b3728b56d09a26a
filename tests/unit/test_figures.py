"""What pipelines have published, read back without Spark (S4, S5, S6)."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import penstock
from penstock import codec
from penstock.copies import new_generation
from penstock.delivery.stats import Histogram
from penstock.figures import ROLLUPS_TOPIC, Newest, Resolution, Rollup, Rollups, combine
from penstock.model import NewMessage

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def rollup(
    minute: int = 0, topic: str = "a", resolution: Resolution = "minute", **fields: Any
) -> Rollup:
    return Rollup(resolution, topic, NOON + timedelta(minutes=minute), **fields)


def publish(hub: penstock.Hub, *found: Rollup | bytes) -> None:
    """As a pipeline does."""
    messages = [
        NewMessage(ROLLUPS_TOPIC, value, codec.JSON, key="?")
        if isinstance(value, bytes)
        else NewMessage(
            ROLLUPS_TOPIC,
            msgspec.json.encode(value),
            codec.JSON,
            key=f"{value.resolution}/{value.start}/{value.topic}",
        )
        for value in found
    ]
    runtime = hub._open()
    runtime.committer.run(
        lambda tx: tx.topics.append(messages, producer="spark", now=runtime.clock.now())
    ).wait()


def test_the_newest_value_of_each_topic_and_minute_is_found(memory: penstock.Hub) -> None:
    rollups = Rollups(memory.topics)
    assert rollups.refresh() == 0
    publish(memory, rollup(1, messages=1), rollup(0, messages=2), rollup(1, "b", messages=3))
    publish(memory, rollup(1, messages=4), rollup(0, resolution="hour", messages=9))

    assert rollups.refresh() == 5
    assert rollups.refresh() == 0

    def found(*arguments: Any, **filters: Any) -> list[int]:
        return [rollup.messages for rollup in rollups.find(*arguments, **filters)]

    assert found() == [2, 4, 3], "by time and topic"
    assert found("b") == [3]
    assert found(resolution="hour") == [9]
    assert found(since=NOON + timedelta(minutes=1)) == [4, 3]
    assert found(until=NOON + timedelta(minutes=1)) == [2]
    publish(memory, rollup(0, messages=5))
    assert rollups.refresh() == 1
    assert found() == [5, 4, 3]


def test_what_is_not_understood_is_counted_and_what_is_too_much_makes_room(
    memory: penstock.Hub,
) -> None:
    newest = Newest(memory.topics, ROLLUPS_TOPIC, Rollup, keys_max=2)
    publish(memory, b"{", b'{"resolution": "week"}', rollup(0), rollup(1), rollup(0, messages=1))
    publish(memory, rollup(2))

    assert newest.refresh() == 6
    assert newest.undecodable == 2
    assert newest.values() == [rollup(0, messages=1), rollup(2)]


def test_many_pages_and_a_trimmed_topic_are_read_through(
    memory: penstock.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.figures.READ_MAX", 3)
    newest = Newest(memory.topics, ROLLUPS_TOPIC, Rollup)
    publish(memory, *(rollup(minute) for minute in range(8)))
    assert newest.refresh() == 8
    publish(memory, *(rollup(minute) for minute in range(8, 12)))
    memory.topics.trim(ROLLUPS_TOPIC, through=memory.topics.read(ROLLUPS_TOPIC)[9].position)

    assert newest.refresh() == 2
    assert len(newest.values()) == 10


def test_after_a_restore_it_is_read_from_the_beginning(hub: penstock.Hub) -> None:
    newest = Newest(hub.topics, ROLLUPS_TOPIC, Rollup)
    publish(hub, rollup(0), rollup(1))
    assert newest.refresh() == 2
    new_generation(hub._open())
    publish(hub, rollup(2))

    assert newest.refresh() == 3
    assert newest.values() == [rollup(0), rollup(1), rollup(2)]


def test_several_are_combined_as_if_they_had_been_counted_as_one() -> None:
    first = {40: 90, 60: 9}
    second = {50: 1, 60: 10}
    both = Histogram()
    both.merge(first, 0.0)
    both.merge(second, 0.0)

    found = combine(
        [
            rollup(
                1,
                messages=2,
                bytes=20,
                publishers=3,
                size_max=15,
                size_buckets={20: 1, 29: 1},
                latency_buckets=first,
                latency_avg_ms=1.0,
                batches=2,
                delivered=3,
                batch_max=2,
                dropped=1,
            ),
            rollup(
                0,
                "b",
                messages=1,
                bytes=10,
                publishers=1,
                size_max=10,
                size_buckets={25: 1},
                latency_buckets=second,
                latency_avg_ms=10.0,
                broken=1,
            ),
        ]
    )

    assert found is not None
    assert (found.topic, found.start) == ("*", NOON)
    assert (found.messages, found.bytes, found.size_avg, found.size_max) == (3, 30, 10.0, 15)
    assert (found.size_p50, found.size_p99) == (10, 15)
    assert (found.publishers, found.dropped, found.broken) == (3, 1, 1)
    assert (found.batch_avg, found.batch_max) == (1.5, 2)
    assert found.latency_p50_ms == both.percentile(0.5)
    assert found.latency_p99_ms == both.percentile(0.99)
    assert found.latency_avg_ms == pytest.approx((99 * 1.0 + 11 * 10.0) / 110)
    assert combine([]) is None
    nothing = combine([rollup()])
    assert nothing is not None
    assert (nothing.latency_p50_ms, nothing.size_p50, nothing.batch_avg) == (None, None, None)


def test_reading_figures_needs_no_spark() -> None:
    code = "import sys, penstock.figures; assert not {'pyspark', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
