"""Reading in bulk: bounded, in order, and exact about what is gone (S1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import SECOND, micros
from penstock.entry import NewMark
from penstock.job import Kind, State
from penstock.model import Retention
from penstock.ports.scan import COLUMNS, Condition, Query, Slice
from penstock.stores.sqlite import scan as scan_module
from penstock.testing import FakeClock
from tests.conformance.desk import Desk
from tests.conformance.places import Scribe
from tests.factories import new_message, store_at

ALL = 10**12


def scan(
    scribe: Scribe | Desk,
    *columns: str,
    source: Any = "messages",
    topics: tuple[str, ...] | None = None,
    after: int = 0,
    through: int = ALL,
    limit: int = 7,
    conditions: tuple[Condition, ...] = (),
    alive_at: int | None = None,
) -> list[Any]:
    """All rows, read piece by piece; of one column, its values."""
    scanner = scribe.store.scan()
    through = min(through, scanner.end(source).last_id)
    query = Query(source, columns or ("id",), topics, conditions, alive_at)
    rows: list[Any] = []
    while after < through:
        found = scanner.read(query, after=after, through=through, limit=limit)
        assert after < found.through <= through
        assert found.count <= limit
        rows += zip(*found.columns, strict=True) if found.count else ()
        after = found.through
    scanner.close()
    return [row[0] for row in rows] if len(query.columns) == 1 else rows


def one(scribe: Scribe, topics: tuple[str, ...] | None = None, after: int = 0) -> Slice:
    query = Query("messages", ("id",), topics)
    return scribe.store.scan().read(query, after=after, through=ALL, limit=1000)


def sweep_count(scribe: Scribe, topic: str, messages_max: int) -> None:
    scribe.sweep(topic, Retention(messages_max=messages_max))


# Messages


def test_an_empty_log_has_nothing_to_scan(scribe: Scribe) -> None:
    scanner = scribe.store.scan()

    assert scanner.end("messages").last_id == 0
    assert scanner.end("messages").epoch == scribe.store.log().epoch
    assert scanner.first_id("messages") is None
    assert scanner.newest("messages", None) == 0
    assert scanner.newest("messages", ("nobody",)) == 0
    assert scanner.step("messages", None, after=0, through=0, rows_max=5, bytes_max=5) == 0
    assert one(scribe).count == 0


def test_every_column_comes_as_it_was_published(scribe: Scribe, clock: FakeClock) -> None:
    scribe.append(
        new_message("a", b"{}", key="k", type="t", ttl=5, idempotency_key="m", encoding=1)
    )
    columns = COLUMNS["messages"]

    [row] = scan(scribe, *columns)

    assert dict(zip(columns, row, strict=True)) == {
        "id": 1,
        "topic": "a",
        "created_at": clock.now(),
        "expires_at": clock.now() + 5 * SECOND,
        "type": "t",
        "key": "k",
        "encoding": 1,
        "headers": None,
        "message_id": "m",
        "producer": "test",
        "body": b"{}",
        "size": 2,
    }


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pieces_of_any_size_add_up(scribe: Scribe, limit: int) -> None:
    for _ in range(4):
        scribe.publish("a", 5)
        scribe.publish("b", 1)

    assert scan(scribe, limit=limit) == list(range(1, 25))
    assert scan(scribe, limit=limit, topics=("b",)) == [6, 12, 18, 24]
    assert scan(scribe, limit=limit, topics=("b",), after=6, through=18) == [12, 18]
    assert scan(scribe, limit=limit, topics=("nobody",)) == []


@pytest.mark.parametrize("topics", [None, ("rare",)])
def test_a_read_ends_when_it_has_many_bytes(
    scribe: Scribe, monkeypatch: pytest.MonkeyPatch, topics: tuple[str, ...] | None
) -> None:
    monkeypatch.setattr(scan_module, "BYTES_MAX", 1000)
    monkeypatch.setattr(scan_module, "FIRST_PIECE", 2)
    monkeypatch.setattr(scan_module, "PIECE", 2)
    for _ in range(20):
        scribe.append(new_message("rare", b"x" * 400))
        scribe.publish("common", 20)
    query = Query("messages", ("id", "body"), topics)
    scanner = scribe.store.scan()
    sizes, ids, after = [], [], 0
    while after < scribe.store.log().last_id:
        found = scanner.read(query, after=after, through=10**6, limit=1000)
        if found.count:
            sizes.append(sum(len(body) for body in found.columns[1]))
            ids += found.columns[0]
        after = found.through
    scanner.close()

    assert ids == scan(scribe, "id", topics=topics)
    assert len(sizes) >= 5
    assert max(sizes) <= 1000 + 2 * 400


def test_a_rare_topic_is_found_among_many_messages_without_reading_them(scribe: Scribe) -> None:
    scribe.publish("rare", 1)
    scribe.publish("common", 500)
    scribe.publish("rare", 1)

    found = one(scribe, ("rare",))

    assert list(found.columns[0]) == [1, 502]
    assert found.through == ALL


def test_globs_and_names_are_meant_together_and_never_penstocks_own(scribe: Scribe) -> None:
    for topic in ("canvas-1", "canvas-2", "orders", "penstock.delivery"):
        scribe.publish(topic)

    assert scan(scribe, "topic") == ["canvas-1", "canvas-2", "orders"]
    assert scan(scribe, "topic", topics=("canvas-*",)) == ["canvas-1", "canvas-2"]
    assert scan(scribe, "topic", topics=("canvas-?", "orders")) == [
        *("canvas-1", "canvas-2", "orders"),
    ]
    assert scan(scribe, "topic", topics=("penstock.delivery",)) == ["penstock.delivery"]


def test_more_topics_than_are_sought_one_by_one(scribe: Scribe) -> None:
    for number in range(140):
        scribe.publish(f"even-{number}" if number % 2 == 0 else "odd")
    scanner = scribe.store.scan()

    assert scan(scribe, topics=("even-*",)) == list(range(1, 140, 2))
    # Each id of the log counts, where they are too many to be asked one by one.
    assert scanner.step("messages", ("even-1*",), after=0, through=140, rows_max=3) > 10
    assert scanner.step("messages", ("even-*",), after=0, through=140, rows_max=3) == 3
    assert scanner.step("messages", ("even-*",), after=0, through=140, bytes_max=3) == 6


def test_what_had_expired_at_the_time_named_is_left_out(scribe: Scribe, clock: FakeClock) -> None:
    scribe.append(new_message("a", ttl=10), new_message("a"), new_message("b", ttl=20))
    then = clock.now() + micros(10)
    clock.advance(15)

    assert scan(scribe, alive_at=clock.now()) == [2, 3]
    assert scan(scribe, alive_at=then) == [2, 3]
    assert scan(scribe, alive_at=then - 1) == [1, 2, 3]
    assert scan(scribe, topics=("b",), alive_at=then + micros(10)) == []


def test_hidden_messages_are_left_out_before_they_are_removed(scribe: Scribe) -> None:
    scribe.publish("a", 3)
    scribe.publish("b", 1)
    scribe.publish("gone", 2)
    scribe.write(lambda tx: tx.topics.trim("a", 2))
    scribe.write(lambda tx: tx.topics.delete("gone", now=scribe.clock.now()))

    assert scan(scribe) == [3, 4]
    assert scan(scribe, topics=("a",)) == [3]
    assert scan(scribe, topics=("gone",)) == []


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        (Condition("type", "=", "x"), [1, 3]),
        (Condition("id", ">=", 2), [2, 3]),
        (Condition("key", "in", ["k", "l"]), [2]),
        (Condition("key", "=", "zz"), []),
    ],
)
def test_conditions_choose_rows(scribe: Scribe, condition: Condition, ids: list[int]) -> None:
    scribe.append(new_message(type="x"), new_message(type="y", key="k"), new_message(type="x"))

    assert scan(scribe, conditions=(condition,)) == ids
    assert scan(scribe, conditions=(condition,), topics=("orders",)) == ids


# What is gone


def test_a_removal_is_told_with_the_rows_it_is_missing_from(scribe: Scribe) -> None:
    scribe.publish("a", 5)
    scribe.publish("b", 5)
    sweep_count(scribe, "a", 2)

    assert dict(one(scribe).trims) == {"a": 3}
    assert dict(one(scribe, ("b",)).trims) == {}
    assert dict(one(scribe, after=2).trims) == {"a": 3}
    assert dict(one(scribe, after=3).trims) == {}
    assert scribe.store.scan().trims("messages", ("a",), after=0) == {"a": 3}
    assert scan(scribe) == [4, 5, 6, 7, 8, 9, 10]


def test_what_expired_by_itself_is_no_removal(scribe: Scribe, clock: FakeClock) -> None:
    scribe.append(new_message("a", ttl=1), new_message("a"))
    clock.advance(2)
    scribe.sweep("a", Retention())

    assert scan(scribe) == [2]
    assert dict(one(scribe).trims) == {}


def test_topics_are_active_above_an_id_if_they_ever_had_messages_there(scribe: Scribe) -> None:
    scribe.publish("a", 2)
    scribe.publish("b", 2)
    sweep_count(scribe, "b", 1)
    scanner = scribe.store.scan()

    assert scanner.active(None, after=0, limit=9) == {"a", "b"}
    assert scanner.active(None, after=2, limit=9) == {"b"}
    assert scanner.active(("a",), after=2, limit=9) == frozenset()
    assert scanner.active(None, after=0, limit=1) is None
    assert scanner.newest("messages", ("a",)) == 2
    assert scanner.newest("messages", None) == 4


# How far one step goes


def test_a_step_ends_before_the_row_that_is_too_many(scribe: Scribe) -> None:
    for _ in range(5):
        scribe.publish("a", 1)
        scribe.publish("b", 1)
    scanner = scribe.store.scan()

    assert scanner.step("messages", None, after=0, through=10) == 10
    assert scanner.step("messages", None, after=0, through=10, rows_max=3) == 3
    assert scanner.step("messages", None, after=9, through=10, rows_max=3) == 10
    # Of one topic: up to the id before its next row.
    assert scanner.step("messages", ("b",), after=0, through=10, rows_max=2) == 5
    assert scanner.step("messages", ("b",), after=5, through=10, rows_max=3) == 10
    assert scanner.step("messages", ("nobody",), after=0, through=10, rows_max=1) == 10


def test_a_step_over_a_gap_counts_what_is_there(scribe: Scribe) -> None:
    scribe.publish("a", 10)
    sweep_count(scribe, "a", 4)

    assert scribe.store.scan().step("messages", None, after=0, through=10, rows_max=2) == 8


def test_a_step_has_so_many_bytes_and_at_least_one_row(scribe: Scribe) -> None:
    scribe.append(*(new_message("a", b"x" * 100) for _ in range(4)), new_message("b", b"y" * 1000))
    scanner = scribe.store.scan()

    assert scanner.step("messages", None, after=0, through=5, bytes_max=250) == 2
    assert scanner.step("messages", None, after=0, through=5, bytes_max=300) == 3
    assert scanner.step("messages", None, after=0, through=5, bytes_max=1) == 1
    assert scanner.step("messages", ("b",), after=0, through=5, bytes_max=1) == 5
    assert scanner.step("messages", None, after=0, through=5, rows_max=2, bytes_max=10**6) == 2


@given(
    topics=st.lists(st.sampled_from("abc"), min_size=1, max_size=40),
    asked=st.sampled_from([None, ("a",), ("b", "c")]),
    after=st.integers(0, 40),
    rows_max=st.integers(1, 10),
    swept=st.integers(0, 20),
)
def test_steps_neither_pass_too_many_rows_nor_stand_still(
    topics: list[str], asked: tuple[str, ...] | None, after: int, rows_max: int, swept: int
) -> None:
    clock = FakeClock()
    store = store_at("memory:", clock=clock)
    writer = store.open_writer()
    try:
        scribe = Scribe(store, writer, clock)
        for topic in topics:
            scribe.publish(topic)
        if "a" in topics:
            scribe.write(lambda tx: tx.topics.trim("a", swept))
            scribe.sweep("a")
        last = len(topics)
        rows = scan(scribe, topics=asked, after=after)
        seen: list[int] = []
        while after < last:
            through = store.scan().step(
                "messages", asked, after=after, through=last, rows_max=rows_max
            )
            part = scan(scribe, topics=asked, after=after, through=through)
            assert after < through <= last
            assert len(part) <= rows_max
            seen += part
            after = through
        assert seen == rows
    finally:
        writer.close()
        store.close()


def test_rows_are_counted_up_to_a_limit(scribe: Scribe) -> None:
    scribe.publish("a", 5)
    scribe.publish("b", 5)
    scanner = scribe.store.scan()

    assert scanner.count("messages", ("b",), after=0, through=10, limit=100) == 5
    assert scanner.count("messages", ("a", "b"), after=3, through=8, limit=100) == 5
    assert scanner.count("messages", ("a", "b"), after=0, through=10, limit=3) == 3
    assert scanner.count("messages", None, after=4, through=10, limit=100) == 6


def test_a_time_is_found_by_its_id(scribe: Scribe, clock: FakeClock) -> None:
    times = []
    for _ in range(5):
        scribe.publish("a", 3)
        times.append(clock.now())
        clock.advance(10)
    scanner = scribe.store.scan()

    assert scanner.id_at("messages", times[0]) == 0
    assert scanner.id_at("messages", times[2]) == 6
    assert scanner.id_at("messages", times[2] + 1) == 9
    assert scanner.id_at("messages", clock.now()) == 15


def test_another_generation_is_told_with_the_rows(scribe: Scribe) -> None:
    scribe.publish("a", 2)
    before = one(scribe).epoch
    scribe.store.new_generation()

    assert before != one(scribe).epoch == scribe.store.log().epoch


# Events


def test_events_of_jobs_come_with_their_jobs_queue_and_type(desk: Desk) -> None:
    desk.enqueue("q", type="mail")
    desk.claim()

    assert scan(desk, "id", "job_id", "kind", "queue", "type", source="job_events") == [
        (1, 1, 1, "q", "mail")
    ]
    assert scan(desk, "kind", source="job_events") == [1]


def test_removed_events_of_jobs_are_told_up_to_the_highest(desk: Desk, clock: FakeClock) -> None:
    """S1: removal goes by job, so what is gone lies between what is not."""
    for _ in range(3):
        desk.enqueue()
    desk.complete(desk.take())
    last = desk.store.scan().end("job_events").last_id
    clock.advance(100)
    desk.enqueue()
    desk.prune({State.COMPLETED: 50})
    scanner = desk.store.scan()

    assert scanner.trims("job_events", None, after=0) == {"": last}
    assert scanner.trims("job_events", None, after=last) == {}
    assert scan(desk, "job_id", source="job_events") == [2, 3, 4]
    assert scanner.end("job_events").last_id == last + 1
    assert scanner.first_id("job_events") == 2


def test_removed_events_of_the_ledger_are_told(scribe: Scribe, clock: FakeClock) -> None:
    for key in "ab":
        mark, now = NewMark("s", key), clock.now()
        scribe.write(lambda tx, mark=mark, now=now: tx.ledger.mark([mark], now=now))
        clock.advance(10)
    before = clock.now() - 5 * SECOND
    assert scan(scribe, "key", source="ledger_events") == ["a", "b"]
    assert scribe.store.scan().id_at("ledger_events", before) == 2

    scribe.write(lambda tx: tx.ledger.prune_events(before=clock.now() - 15 * SECOND, limit=9))
    scanner = scribe.store.scan()
    assert scanner.trims("ledger_events", None, after=0) == {"": 1}
    assert scanner.trims("ledger_events", None, after=1) == {}
    assert scan(scribe, "key", source="ledger_events") == ["b"]

    scribe.write(lambda tx: tx.ledger.prune_events(before=clock.now(), limit=9))
    assert scanner.end("ledger_events").last_id == 2
    assert scanner.first_id("ledger_events") is None
    assert scanner.trims("ledger_events", None, after=1) == {"": 2}


# Tables


def test_jobs_are_read_with_where_they_are(desk: Desk) -> None:
    desk.enqueue(body=b"1")
    desk.enqueue(delay=60)
    desk.enqueue(after=(1,))
    desk.enqueue("other")
    desk.complete(desk.take("other"))
    dead = desk.enqueue("dead")
    desk.set_back(desk.take("dead"), Kind.DIED)

    states = [State(number).name.lower() for number in scan(desk, "state", source="jobs")]
    assert states == ["pending", "scheduled", "waiting", "completed", "failed"]
    assert scan(desk, "id", "queue", source="dead_letters") == [(dead, "dead")]
    for source in ("jobs", "dead_letters"):
        columns = COLUMNS[source]
        assert scan(desk, *columns, source=source, limit=2)


def test_topics_are_read_with_their_counters(scribe: Scribe) -> None:
    scribe.publish("a", 3)
    scribe.publish("b", 1)
    scribe.write(lambda tx: tx.topics.delete("b", now=scribe.clock.now()))

    columns = ("name", "messages", "bytes", "published", "last_id", "deleted_through")
    assert scan(scribe, *columns, source="topics") == [("a", 3, 3, 3, 3, 0)]
