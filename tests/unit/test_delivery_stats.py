"""What was delivered, counted: percentiles, sums, seconds (D9)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import codec
from penstock.delivery import stats as stats_module
from penstock.delivery.batch import Item
from penstock.delivery.stats import GROWTH, SMALLEST_MS, Histogram, Stats
from penstock.model import Message

latencies = st.lists(st.floats(SMALLEST_MS, 60_000), min_size=1, max_size=300)


def histogram(values: list[float]) -> Histogram:
    filled = Histogram()
    for value in values:
        filled.add(value)
    return filled


def item(topic: str = "orders", size: int = 3, at: int = 0) -> Item:
    return Item(Message(1, topic, at, b"x" * size, codec.BYTES, "e"), with_topic=False)


@given(latencies, st.floats(0.01, 1.0))
def test_a_percentile_is_right_to_within_five_per_cent(values: list[float], share: float) -> None:
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    assert histogram(values).percentile(share) == pytest.approx(exact, rel=0.05)


@given(latencies)
def test_the_average_is_exact(values: list[float]) -> None:
    assert histogram(values).average == pytest.approx(sum(values) / len(values))


@given(latencies, latencies)
def test_merging_is_as_if_all_had_been_counted_in_one(a: list[float], b: list[float]) -> None:
    merged, both = histogram(a), histogram([*a, *b])
    other = histogram(b)
    merged.merge(other.buckets, other.total_ms)
    assert merged.buckets == both.buckets
    assert merged.count == both.count
    assert merged.total_ms == pytest.approx(both.total_ms)


@given(st.floats(SMALLEST_MS, 60_000))
def test_a_bucket_ends_where_its_documentation_says(value: float) -> None:
    """Whoever reads `penstock.delivery` computes with `0.01 ms * 1.1**i`."""
    [bucket] = histogram([value]).buckets
    assert value <= SMALLEST_MS * GROWTH**bucket * (1 + 1e-9)
    assert bucket == 0 or value >= SMALLEST_MS * GROWTH ** (bucket - 1) * (1 - 1e-9)


def test_nothing_counted_is_zero_and_the_future_is_now() -> None:
    empty = Histogram()
    assert (empty.average, empty.percentile(0.99)) == (0.0, 0.0)
    empty.add(-5.0)
    assert empty.average == 0.0
    assert empty.buckets == {0: 1}


def test_a_batch_counts_messages_deliveries_bytes_and_latency() -> None:
    stats = Stats()
    stats.sent([item(at=0), item(at=1_000)], 10, 2_000)
    taken, _ = stats.take()
    counters = taken["orders"]
    assert (counters.messages, counters.deliveries, counters.batches) == (2, 20, 1)
    assert counters.bytes == 60
    assert counters.latency.count == 20
    assert counters.latency.average == pytest.approx(1.5)


def test_what_is_sent_from_the_log_says_nothing_about_latency() -> None:
    stats = Stats()
    stats.sent([item()], 1, None)
    taken, _ = stats.take()
    assert taken["orders"].deliveries == 1
    assert taken["orders"].latency.count == 0


def test_a_globs_batch_is_counted_by_topic() -> None:
    stats = Stats()
    stats.sent([item("a"), item("b"), item("b")], 1, None)
    taken, _ = stats.take()
    assert {topic: c.messages for topic, c in taken.items()} == {"a": 1, "b": 2}


def test_the_largest_batch_is_known_over_seconds_and_topics() -> None:
    """S4: sizes of batches, for roll-ups."""
    stats = Stats()
    stats.sent([item("a"), item("b"), item("b"), item("b")], 5, None)
    stats.sent([item("a"), item("a")], 5, None)
    taken, _ = stats.take()
    assert {topic: c.batch_max for topic, c in taken.items()} == {"a": 2, "b": 3}
    stats.sent([item("b")], 1, None)
    assert stats.take()[0]["b"].batch_max == 1
    assert stats.overall()["b"].batch_max == 3


def test_penstocks_own_topics_are_not_counted() -> None:
    """Statistics of statistics would never end."""
    stats = Stats()
    stats.sent([item("penstock.delivery"), item("a"), item("penstock.x")], 1, 0)
    stats.of("penstock.delivery").dropped += 1
    assert set(stats.overall()) == {"a"}
    assert set(stats.take()[0]) == {"a"}


def test_taking_moves_to_the_totals_and_reading_takes_nothing() -> None:
    stats = Stats()
    stats.sent([item()], 2, 0)
    assert stats.overall()["orders"].deliveries == 2
    assert stats.take()[0]["orders"].deliveries == 2
    assert stats.take()[0] == {}
    stats.sent([item()], 3, 0)
    assert stats.overall()["orders"].deliveries == 5


def test_topics_idle_longest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "TOPICS_MAX", 2)
    stats = Stats()
    for topic in ("a", "b", "a", "c"):
        stats.sent([item(topic)], 1, 0)
        stats.take()
    assert set(stats.overall()) == {"a", "c"}
