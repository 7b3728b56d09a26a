"""What came or was processed more than once: found, and left out of a stream (S6)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import penstock
from penstock.clock import SECOND
from penstock.errors import InvalidInput, InvalidTopic, PenstockError
from penstock.figures import DEDUP_TOPIC, Audit
from penstock.spark.pipelines.dedup import MARKS, PIPELINE, audit
from penstock.spark.runner import Run
from penstock.testing import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
MESSAGES = "id STRING, offset BIGINT, timestamp TIMESTAMP"
Messages = list[tuple[str | None, int]]
"""Ids, and how many seconds after NOW they were published."""
Marks = list[tuple[str, str, int]]
"""Keys, kinds of events, and seconds."""


class Crash(Exception):
    """In the place of a process that is killed."""


@pytest.fixture
def statuses(spark: SparkSession) -> Callable[..., dict[str | None, str]]:
    def statuses(messages: Messages, marks: Marks, **times: datetime) -> dict[str | None, str]:
        published = [
            (id, offset, NOW + timedelta(seconds=at)) for offset, (id, at) in enumerate(messages, 1)
        ]
        marked = [
            (offset, NOW + timedelta(seconds=at), "s", key, kind)
            for offset, (key, kind, at) in enumerate(marks, 1)
        ]
        rows = audit(
            spark.createDataFrame(published, MESSAGES),
            spark.createDataFrame(marked, MARKS),
            **times,
        ).collect()
        assert sum(row.messages for row in rows) == len(messages), "none is left out"
        return {row.id: row.status for row in rows}

    return statuses


Statuses = Callable[..., dict[str | None, str]]


def test_each_key_is_told_what_became_of_it(statuses: Statuses) -> None:
    """Processed twice, never, or marked without a message; and what is in between."""
    messages: Messages = [(name, 0) for name in "abcdefghi"]
    marks: Marks = [
        ("a", "marked", 1),
        *[("b", "claimed", 1), ("b", "completed", 2)],
        *[("c", "marked", 1), ("c", "marked", 90)],  # It was remembered for too short a time.
        *[("d", "marked", 1), ("d", "forgotten", 2), ("d", "claimed", 3), ("d", "completed", 4)],
        *[("e", "claimed", 1), ("e", "released", 2)],
        *[("f", "claimed", 1), ("f", "taken_over", 2)],
        *[("g", "claimed", 1), ("g", "failed", 2)],
        *[("h", "claimed", 1), ("h", "released", 2), ("h", "taken_over", 3), ("h", "completed", 4)],
        ("x", "marked", 1),
    ]
    assert statuses(messages, marks) == {
        "a": "once",
        "b": "once",
        "c": "twice",
        "d": "twice",
        "e": "never",
        "f": "open",
        "g": "failed",
        "h": "once",
        "i": "never",
        "x": "unmatched",
    }


def test_what_may_have_been_forgotten_is_not_called_lost(statuses: Statuses) -> None:
    times = {"marks_from": NOW, "messages_from": NOW}
    messages: Messages = [("old", -1), ("new", 1), (None, 1), (None, 1)]
    marks: Marks = [("removed", "marked", -1), ("strange", "marked", 1)]

    assert statuses(messages, marks, **times) == {
        "old": "unknown",
        "new": "never",
        None: "unknown",
        "removed": "unknown",
        "strange": "unmatched",
    }


def test_nothing_against_nothing_and_against_something(statuses: Statuses) -> None:
    assert statuses([], []) == {}
    assert statuses([("a", 0)], []) == {"a": "never"}
    assert statuses([], [("a", "marked", 0)]) == {"a": "unmatched"}


# The pipeline


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(int(NOW.timestamp()) * SECOND)


@pytest.fixture
def hub(open_hub: Callable[..., penstock.Hub], clock: FakeClock) -> penstock.Hub:
    return open_hub(clock=clock, idempotency_seconds=60, follow_batch_max=10)


@pytest.fixture
def go(hub: penstock.Hub, spark: SparkSession) -> Callable[..., Run]:
    def go(on_step: Callable[[str], None] = lambda name: None, **options: Any) -> Run:
        arguments = {name: options.pop(name) for name in ("since", "until") if name in options}
        run = Run(PIPELINE, spark, hub.settings, options=options, on_step=on_step, **arguments)
        PIPELINE.run(run)
        return run

    return go


Go = Callable[..., Run]


def last_audit(hub: penstock.Hub) -> Audit:
    return hub.topics.read(DEDUP_TOPIC)[-1].decode(Audit)


def test_planted_duplicates_are_found(
    hub: penstock.Hub, clock: FakeClock, go: Go, spark: SparkSession
) -> None:
    for number in range(50):
        hub.topics.publish("orders", {"n": number}, idempotency_key=f"m{number}", key=f"k{number}")
    hub.topics.publish("orders", b"no id")
    clock.advance(61)  # Beyond the memory for idempotency keys.
    for number in (7, 30):
        hub.topics.publish("orders", {"n": number}, idempotency_key=f"m{number}", key=f"k{number}")

    go(topic="orders")

    found = last_audit(hub)
    assert (found.messages, found.keys, found.repeated, found.without_key) == (53, 50, 2, 1)
    assert found.findings is not None
    rows = spark.read.parquet(found.findings).collect()
    assert {row.id: row.messages for row in rows} == {"m7": 2, "m30": 2}

    # Followers mark what they have had; somebody has marked twice, and one that never was.
    follower = hub.topics.follow("orders", consumer="billing", idempotent=True, start="earliest")
    for message in follower:
        if message.id > 40:
            break  # Asking for the fifth ten has committed the fourth.
    hub.ledger.forget("billing", "orders?key=m3")
    hub.ledger.mark_processed("billing", "orders?key=m3")
    hub.ledger.mark_processed("billing", "orders?key=gone")
    hub.ledger.mark_processed("billing", "another topic?key=m1")
    hub.ledger.mark_processed("another scope", "orders?key=m1")

    go(topic="orders", scope="billing")

    found = last_audit(hub)
    assert (found.scope, found.by, found.messages, found.keys) == ("billing", "follower", 53, 52)
    processed = found.once + found.twice
    assert (found.twice, found.unmatched, found.repeated, found.unknown) == (1, 1, 2, 0)
    assert processed == 40
    assert found.never == 51 - processed
    assert found.findings is not None
    findings = {row.id: row.status for row in spark.read.parquet(found.findings).collect()}
    assert findings["orders?key=m3"] == "twice"
    assert findings["orders?key=gone"] == "unmatched"
    assert findings["orders?id=51"] == "never"
    assert "orders?key=m1" not in findings

    go(topic="orders", scope="billing", until=NOW + timedelta(seconds=30))
    found = last_audit(hub)
    assert (found.messages, found.repeated, found.unmatched, found.unknown) == (51, 0, 0, 1)


@pytest.mark.soak
def test_a_stream_without_repetitions_is_in_order_and_survives_a_crash(
    hub: penstock.Hub, clock: FakeClock, go: Go
) -> None:
    """The first of several stays; what has no id passes; exactly once."""

    def publish(number: int, id: str | None, **options: Any) -> None:
        hub.topics.publish("in", {"n": number}, idempotency_key=id, **options)

    for number in range(20):
        publish(number, f"m{number}", key="k", headers={"h": "1"}, ttl=10**9)
    publish(20, None)
    publish(21, None)
    clock.advance(61)
    for number in range(5):
        publish(100 + number, f"m{number}")
    options = {"topic": "in", "to": "out", "max_offsets_per_trigger": 12}

    def crash(name: str) -> None:
        if name == "written":
            raise Crash

    for _ in range(2):
        with pytest.raises((StreamingQueryException, PenstockError)):
            go(crash, **options)
    go(**options)

    def passed(topic: str) -> list[int]:
        return [message.payload["n"] for message in hub.topics.read(topic)]

    assert passed("out") == list(range(22))
    first = hub.topics.read("out")[0]
    assert (first.key, first.headers) == ("k", {"h": "1", "message_id": "m0"})
    assert hub.topics.read("out")[-1].headers == {}
    assert first.expires_at == first.created_at + 10**9 * SECOND

    # State is kept between runs, until the time is over.
    clock.advance(61)
    publish(200, "m5")
    go(**options)
    assert passed("out") == list(range(22))
    clock.advance(2 * 3600)
    publish(201, "other")
    go(**options)
    publish(202, "m6")
    go(**options)
    assert passed("out") == [*range(22), 201, 202]

    # By key all of the first twenty are one.
    go(topic="in", to="by-key", by="key")
    assert passed("by-key")[:4] == [0, 20, 21, 100]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--topic is missing"),
        ({"topic": "a*"}, "stand for many topics"),
        ({"topic": "a", "by": "colour"}, "--by is not 'colour'"),
        ({"topic": "a", "to": "a"}, "--to is the topic itself"),
        ({"topic": "a", "to": "penstock.x"}, "is reserved"),
        ({"topic": "a", "to": "b", "scope": "s"}, "--scope is for an audit"),
        ({"topic": "a", "to": "b", "within": "soon"}, "is no time"),
    ],
)
def test_what_makes_no_sense_is_refused(go: Go, options: dict[str, str], message: str) -> None:
    with pytest.raises((InvalidInput, InvalidTopic), match=message):
        go(**options)


def test_an_empty_topic_is_audited_too(hub: penstock.Hub, go: Go) -> None:
    hub.topics.create("empty")
    go(topic="empty", scope="s")
    assert (last_audit(hub).messages, last_audit(hub).keys) == (0, 0)
