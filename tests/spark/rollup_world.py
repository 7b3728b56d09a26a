"""A hub with traffic, and what SQL says of it: for tests of roll-ups."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import penstock
from penstock import codec
from penstock.clock import SECOND, as_datetime
from penstock.delivery.stats import STATS_TOPIC, Histogram
from penstock.figures import Resolution, Rollup, Rollups
from penstock.model import NewMessage
from penstock.testing import FakeClock

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
SIZES: dict[Resolution, int] = {"minute": 60, "hour": 3_600, "day": 86_400}


class World:
    """A hub whose clock stands still, and what SQL says of its log."""

    def __init__(self, hub: penstock.Hub, clock: FakeClock) -> None:
        self.hub = hub
        self.clock = clock
        self.figures = Rollups(hub.topics)

    def publish(self, topic: str, *sizes: int, ttl: float | None = None) -> None:
        for size in sizes:
            self.hub.topics.publish(topic, b"x" * size, ttl=ttl)

    def deliver(self, topic: str, buckets: dict[int, int], **fields: Any) -> None:
        """A server's report."""
        second = {
            "topic": topic,
            "instance": "i",
            "seconds": 1.0,
            "messages": 1,
            "batches": 1,
            "deliveries": sum(buckets.values()),
            "bytes": 10,
            "dropped": 0,
            "catch_ups": 0,
            "subscribers": 1,
            "latency_buckets": buckets,
            "latency_total_ms": 1.5,
            **fields,
        }
        self.report(json.dumps(second).encode())

    def report(self, body: bytes) -> None:
        runtime = self.hub._open()
        message = NewMessage(STATS_TOPIC, body, codec.JSON, type="delivery")
        runtime.committer.run(
            lambda tx: tx.topics.append([message], producer="server", now=runtime.clock.now())
        ).wait()

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        with self.hub.transaction(limit_seconds=60) as tx:
            return [tuple(row) for row in tx.execute(text)]

    def truth(self, resolution: Resolution) -> dict[tuple[str, datetime], dict[str, Any]]:
        """What SQL finds in the log."""
        length = SIZES[resolution] * SECOND
        start = f"m.created_at / {length} * {length}"
        of_topic = "FROM penstock_messages m JOIN penstock_topics t ON t.id = m.topic_id"
        found: dict[tuple[str, datetime], dict[str, Any]] = {}

        def at(topic: str, micros: int) -> dict[str, Any]:
            return found.setdefault((topic, as_datetime(micros)), dict.fromkeys(COUNTED, 0))

        for topic, micros, *values in self.sql(
            f"""SELECT t.name, {start}, count(*), sum(length(body)), count(DISTINCT producer)
            {of_topic} WHERE t.name NOT LIKE 'penstock.%' GROUP BY 1, 2"""
        ):
            at(topic, micros).update(zip(("messages", "bytes", "publishers"), values, strict=True))
        sums = ("messages", "deliveries", "bytes", "batches", "dropped", "catch_ups")
        fields = ", ".join(f"sum(json_extract(body, '$.{name}'))" for name in sums)
        reports = f"{of_topic} WHERE t.name = '{STATS_TOPIC}' AND json_valid(body)"
        for topic, micros, *values in self.sql(
            f"SELECT json_extract(body, '$.topic'), {start}, {fields} {reports} GROUP BY 1, 2"
        ):
            at(topic, micros).update(zip(DELIVERED, values, strict=True))
        for topic, micros, broken in self.sql(
            f"""SELECT t.name, {start}, count(*) {of_topic}
            WHERE t.name = '{STATS_TOPIC}' AND NOT json_valid(body) GROUP BY 1, 2"""
        ):
            at(topic, micros)["broken"] = broken
        histograms: dict[tuple[str, datetime], Histogram] = {}
        for topic, micros, bucket, count in self.sql(
            f"""SELECT json_extract(body, '$.topic'), {start}, e.key, sum(e.value)
            FROM (SELECT m.* {reports}) AS m, json_each(m.body, '$.latency_buckets') AS e
            GROUP BY 1, 2, 3"""
        ):
            histogram = histograms.setdefault((topic, as_datetime(micros)), Histogram())
            histogram.merge({int(bucket): count}, 0.0)
        for key, histogram in histograms.items():
            for number in (50, 95, 99):
                found[key][f"latency_p{number}_ms"] = pytest.approx(
                    histogram.percentile(number / 100)
                )
        return found

    def published(self, resolution: Resolution) -> dict[tuple[str, datetime], dict[str, Any]]:
        """What the pipeline has published, without Spark."""
        self.figures.refresh()
        return as_counts(
            rollup
            for pattern in ("*", "penstock.*")
            for rollup in self.figures.find(pattern, resolution=resolution)
        )


DELIVERED = ("delivered", "deliveries", "delivered_bytes", "batches", "dropped", "catch_ups")
COUNTED = ("messages", "bytes", "publishers", *DELIVERED, "broken")


def as_counts(rollups: Iterator[Rollup]) -> dict[tuple[str, datetime], dict[str, Any]]:
    counts: dict[tuple[str, datetime], dict[str, Any]] = {}
    for rollup in rollups:
        found = {name: getattr(rollup, name) for name in COUNTED}
        for number in (50, 95, 99):
            name = f"latency_p{number}_ms"
            if getattr(rollup, name) is not None:
                found[name] = getattr(rollup, name)
        assert (rollup.topic, rollup.start) not in counts
        counts[rollup.topic, rollup.start] = found
    return counts


def fill(world: World) -> None:
    """Some minutes around an hour's end."""
    world.clock.advance(58 * 60)
    for minute in range(4):
        world.publish("orders", *range(1, 20 + minute))
        world.publish("canvas-1", 0, 5_000, ttl=1)
        world.deliver("orders", {40: 10, 60: 5, 90: 1}, dropped=minute, batch_max=3)
        world.deliver("canvas-*", {}, dropped=1, catch_ups=1)
        world.clock.advance(60)
