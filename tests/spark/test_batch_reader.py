"""Reading as a batch, without a JVM: rows, columns, places, partitions, loss (S1)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual, StringContains
from pyspark.sql.types import DataType, IntegerType, StringType, StructType

import penstock
from penstock import codec
from penstock.errors import (
    DataLost,
    EpochChanged,
    InvalidOption,
    SchemaTooOld,
    StoreReplaced,
    StoreUnavailable,
)
from penstock.model import NewMessage
from penstock.spark.batch import FilteringBatchReader
from penstock.spark.entities import ENTITIES
from penstock.spark.ranges import Range, divide
from penstock.stores.sqlite.migrate import downgrade
from penstock.testing import FakeClock
from tests.factories import hub_on
from tests.spark.driving import columns, read_batch, rows_of, source

OFFSETS = columns("offset")


def offsets(path: Path, **options: Any) -> list[int]:
    return [row["offset"] for row in read_batch(path, OFFSETS, **options)]


# Rows


def test_a_message_has_kafkas_columns_and_ours(hub: penstock.Hub, path: Path) -> None:
    receipt = hub.topics.publish(
        "orders", {"id": 7}, type="placed", key="k", ttl=60, idempotency_key="m-1"
    )

    [row] = read_batch(path)

    at = datetime.fromtimestamp(receipt.created_at / 1e6, UTC)
    assert row.pop("producer")
    assert row == {
        "key": "k",
        "value": b'{"id":7}',
        "topic": "orders",
        "partition": 0,
        "offset": 1,
        "timestamp": at,
        "timestampType": 1,
        "type": "placed",
        "content_type": "application/json",
        "message_id": "m-1",
        "expires_at": row["expires_at"],
    }
    assert (row["expires_at"] - at).total_seconds() == 60


def test_what_a_message_has_not_is_null(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish("raw", b"\x00\xff")

    [row] = read_batch(path)

    assert (row["value"], row["content_type"]) == (b"\x00\xff", "application/octet-stream")
    assert [row[name] for name in ("key", "type", "message_id", "expires_at")] == [None] * 4


def test_values_are_decompressed_and_msgpack_becomes_json_when_asked(
    hub: penstock.Hub, path: Path
) -> None:
    large = {"text": "x" * 20_000}
    hub.topics.publish("a", large)
    hub.topics.publish("a", large, format="msgpack")
    hub.topics.publish("a", b"y" * 20_000)
    hub.topics.publish("a", {"small": 1}, format="msgpack")

    raw = [row["value"] for row in read_batch(path)]
    rows = read_batch(path, valueFormat="json")

    assert raw == [
        msgspec.json.encode(large),
        msgspec.msgpack.encode(large),
        b"y" * 20_000,
        msgspec.msgpack.encode({"small": 1}),
    ]
    assert [json.loads(row["value"]) for row in (rows[0], rows[1], rows[3])] == [
        *(large, large, {"small": 1}),
    ]
    assert rows[2]["value"] == b"y" * 20_000
    assert [row["content_type"] for row in rows] == [
        *("application/json", "application/json"),
        *("application/octet-stream", "application/json"),
    ]


def test_msgpack_that_json_cannot_say_is_kept_as_it_is(hub: penstock.Hub, path: Path) -> None:
    """Never dropped in silence, and no reason to stop: whoever parses it finds out."""
    broken = b"\xc1 not msgpack"
    message = NewMessage("a", broken, codec.MSGPACK)
    runtime = hub._open()
    runtime.committer.run(
        lambda tx: tx.topics.append([message], producer="p", now=runtime.clock.now())
    ).wait()

    assert [row["value"] for row in read_batch(path, valueFormat="json")] == [broken]


def test_headers_come_when_they_are_asked_for(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish("a", 1, headers={"trace": "ü", "b": ""})
    hub.topics.publish("a", 2)

    assert "headers" not in read_batch(path)[0]
    first, second = read_batch(path, includeHeaders="true")
    assert first["headers"] == [
        {"key": "trace", "value": "ü".encode()},
        {"key": "b", "value": b""},
    ]
    assert second["headers"] is None


def test_a_schema_chooses_columns_in_any_order(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish("a", 1, headers={"x": "y"})
    wanted = columns("topic", "offset", "headers")

    [row] = read_batch(path, wanted)

    assert list(row.items()) == [
        *(("topic", "a"), ("offset", 1), ("headers", [{"key": "x", "value": b"y"}])),
    ]


@pytest.mark.parametrize(
    ("name", "type", "message"),
    [
        ("colour", StringType(), "messages has no column 'colour'"),
        ("value", StringType(), "The column value is binary, not string"),
        ("offset", IntegerType(), "The column offset is bigint, not int"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(
    path: Path, name: str, type: DataType, message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        source(path).reader(columns(**{name: type}))
    with pytest.raises(InvalidOption, match=message):
        source(path).streamReader(columns(**{name: type}))


def test_an_empty_schema_is_refused(path: Path) -> None:
    with pytest.raises(InvalidOption, match="empty"):
        source(path).reader(StructType([]))


# Which messages


def test_topics_are_chosen_by_name_or_glob(hub: penstock.Hub, path: Path) -> None:
    for topic in ("canvas-1", "orders", "canvas-2", "other"):
        hub.topics.publish(topic, 1)

    assert offsets(path) == [1, 2, 3, 4]
    assert offsets(path, subscribe="orders,other") == [2, 4]
    assert offsets(path, subscribePattern="canvas-*,other") == [1, 3, 4]
    assert offsets(path, subscribe="nobody") == []


def test_places_to_begin_and_to_end(hub: penstock.Hub, path: Path) -> None:
    """As Kafka counts offsets: the first that is read, and the first that is not."""
    epoch = hub.topics.position().epoch
    hub.topics.publish_many("a", range(10))

    assert offsets(path, startingOffsets=4) == [4, 5, 6, 7, 8, 9, 10]
    assert offsets(path, startingOffsets=4, endingOffsets=7) == [4, 5, 6]
    assert offsets(path, startingOffsets=f"{epoch}:4", endingOffsets=f"{epoch}:7") == [5, 6, 7]
    assert offsets(path, startingOffsets="latest") == []
    assert offsets(path, startingOffsets=7, endingOffsets=3) == []
    assert offsets(path, endingOffsets="latest") == list(range(1, 11))


def test_times_to_begin_and_to_end(open_hub: Callable[..., penstock.Hub], path: Path) -> None:
    clock = FakeClock()
    hub = open_hub(clock=clock)
    times = []
    for number in range(4):
        times.append(datetime.fromtimestamp(clock.now() / 1e6, UTC))
        hub.topics.publish("a", number)
        clock.advance(60)

    assert offsets(path, startingTimestamp=times[1].isoformat()) == [2, 3, 4]
    assert offsets(path, endingTimestamp=times[2].isoformat()) == [1, 2]
    milliseconds = round(times[3].timestamp() * 1000)
    assert offsets(path, startingTimestamp=milliseconds) == [4]


def test_a_place_that_is_not_there_is_refused(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish("a", 1)

    assert offsets(path, startingOffsets=2) == []
    with pytest.raises(EpochChanged, match="offset 3 is ahead of the database, which ends at 1"):
        offsets(path, startingOffsets=3)
    with pytest.raises(EpochChanged, match="position belongs to the database other-1"):
        offsets(path, startingOffsets="other-1:1")


def test_expired_messages_are_left_out(open_hub: Callable[..., penstock.Hub], path: Path) -> None:
    clock = FakeClock()  # Long ago: what lived for an hour then has expired.
    hub = open_hub(clock=clock)
    hub.topics.publish("a", 1, ttl=3600)
    hub.topics.publish("a", 2)

    assert offsets(path) == [2]


def test_what_was_published_can_be_counted_also_after_it_expired(
    open_hub: Callable[..., penstock.Hub], path: Path
) -> None:
    """S4: throughput is of what was published, and payloads need not be read for their size."""
    hub = open_hub(clock=FakeClock())
    hub.topics.publish("a", b"12345", ttl=3600)
    hub.topics.publish("a", b"x" * 20_000)

    rows = read_batch(path, columns("offset", "size"), includeExpired="true")

    assert rows[0] == {"offset": 1, "size": 5}
    assert rows[1]["size"] < 20_000, "as it is stored: compressed"
    assert [row["offset"] for row in read_batch(path, columns("offset"))] == [2]


def test_an_empty_database_an_empty_range_and_one_row(hub: penstock.Hub, path: Path) -> None:
    hub.topics.position()
    for entity in ENTITIES:
        assert read_batch(path, entity=entity) == []

    hub.topics.publish("a", 1)
    assert offsets(path) == [1]
    assert offsets(path, endingOffsets=1) == []


# Partitions


def whole(after: int, through: int) -> Range:
    return Range(after, through, "e", 0)


def test_parts_cover_the_range_without_overlap() -> None:
    parts = divide(whole(10, 1_000_010), first_id=1, partitions_min=7)

    assert len(parts) == 7
    assert (parts[0].after, parts[-1].through) == (10, 1_000_010)
    assert all(a.through == b.after for a, b in itertools.pairwise(parts))
    sizes = {part.through - part.after for part in parts}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("count", "asked", "parts"),
    [
        (0, None, 0),
        (1, None, 1),
        (5_000, None, 1),
        (50_000, None, 2),
        (5_000_000, None, 10),
        (3, 8, 3),
        (5_000, 8, 8),
        (10**12, None, 10_000),
    ],
)
def test_there_are_as_many_parts_as_make_sense(count: int, asked: int | None, parts: int) -> None:
    assert len(divide(whole(0, count), first_id=1, partitions_min=asked)) == parts


def test_what_was_removed_makes_no_parts(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("a", range(100))
    trim(hub, "a", 100)
    hub.topics.publish_many("a", range(4))

    parts = source(path, minPartitions=2).reader(OFFSETS).partitions()

    assert [(part.after, part.through) for part in parts] == [(100, 102), (102, 104)]  # type: ignore[attr-defined]


def test_chunks_of_a_long_part_are_all_read(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("a", range(45_000))

    found = offsets(path, minPartitions=1)

    assert found == list(range(1, 45_001))


# Loss


def trim(hub: penstock.Hub, topic: str, through: int) -> None:
    """As retention does it: by count, before anybody's time to live."""
    hub.topics.trim(topic, through=penstock.Position(hub.topics.position().epoch, through))


def test_what_is_gone_before_one_begins_is_no_loss(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("a", range(10))
    hub.topics.publish("b", 1)
    trim(hub, "a", 5)

    assert offsets(path) == [6, 7, 8, 9, 10, 11]
    assert offsets(path, startingTimestamp=0) == [6, 7, 8, 9, 10, 11]


def test_asking_for_what_is_gone_is_a_loss(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("a", range(10))
    trim(hub, "a", 5)

    assert offsets(path, startingOffsets=6) == [6, 7, 8, 9, 10]
    with pytest.raises(DataLost, match="messages of 'a' above 2, up to 5, were removed"):
        offsets(path, startingOffsets=3)
    assert offsets(path, startingOffsets=3, failOnDataLoss="false") == [6, 7, 8, 9, 10]
    assert offsets(path, startingOffsets=3, subscribe="b") == []


def test_retention_that_races_a_read_is_noticed_by_the_task(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("a", range(10))
    reader = source(path, minPartitions=2).reader(OFFSETS)
    first, second = reader.partitions()
    trim(hub, "a", 3)

    with pytest.raises(DataLost, match="up to 3"):
        list(reader.read(first))
    assert [row["offset"] for row in rows_of(reader.read(second), OFFSETS)] == [6, 7, 8, 9, 10]

    skipping = source(path, failOnDataLoss="false").reader(OFFSETS)
    assert [row["offset"] for row in rows_of(skipping.read(first), OFFSETS)] == [4, 5]


def test_what_came_and_went_after_planning_is_no_loss_to_a_batch(
    hub: penstock.Hub, path: Path
) -> None:
    hub.topics.publish_many("a", range(10))
    reader = source(path).reader(OFFSETS)
    [part] = reader.partitions()
    hub.topics.publish_many("b", range(10))
    trim(hub, "b", 15)

    assert len(rows_of(reader.read(part), OFFSETS)) == 10


def test_a_restored_database_is_noticed_by_the_task(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("a", range(10))
    reader = source(path).reader(OFFSETS)
    [part] = reader.partitions()
    hub.new_generation()

    with pytest.raises(EpochChanged, match="when the read was planned"):
        list(reader.read(part))


def test_a_file_that_was_replaced_under_a_task_is_noticed(
    hub: penstock.Hub, path: Path, tmp_path: Path
) -> None:
    hub.topics.publish_many("a", range(50_000))
    reader = source(path).reader(OFFSETS)
    batches = reader.read(reader.partitions()[0])
    next(batches)
    hub.close()
    with hub_on(tmp_path / "other.db") as other:
        other.topics.publish("a", 1)
    (tmp_path / "other.db").rename(path)

    with pytest.raises(StoreReplaced):
        list(batches)


def test_events_that_went_with_their_jobs_are_a_loss(
    open_hub: Callable[..., penstock.Hub], path: Path
) -> None:
    clock = FakeClock()
    hub = open_hub(clock=clock, job_keep_cancelled_seconds=10.0)
    job = hub.jobs.enqueue("q", "t", 1)
    hub.jobs.enqueue("q", "t", 2)
    hub.jobs.cancel(job.id)
    wanted = columns("job_id", entity="job_events")
    reader = source(path, entity="job_events").reader(wanted)
    [part] = reader.partitions()
    clock.advance(60)
    hub._open().sweeper.run_once()

    with pytest.raises(DataLost, match="job_events above 0, up to 3"):
        list(reader.read(part))
    assert [row["job_id"] for row in read_batch(path, wanted, entity="job_events")] == [2]


# Other entities


def test_histories_and_tables_are_read(hub: penstock.Hub, path: Path) -> None:
    hub.jobs.enqueue("mails", "send", {"to": 7}, priority=5, timeout=1.5, unique_key="u")
    hub.ledger.mark_processed("scope", "key")
    hub.topics.publish("a", 1)

    [event] = read_batch(path, entity="job_events")
    assert event.pop("timestamp")
    assert event == {
        "offset": 1,
        "job_id": 1,
        "kind": "enqueued",
        "attempt": 0,
        "queue": "mails",
        "type": "send",
        "data": None,
    }
    [entry] = read_batch(path, entity="ledger_events")
    assert (entry["scope"], entry["key"], entry["kind"]) == ("scope", "key", "marked")
    [job] = read_batch(path, entity="jobs")
    assert (job["payload"], job["state"], job["timeout_seconds"]) == (b'{"to":7}', "pending", 1.5)
    assert (job["priority"], job["unique_key"], job["error"]) == (5, "u", None)
    [topic] = read_batch(path, entity="topics")
    assert (topic["topic"], topic["messages"], topic["last_offset"]) == ("a", 1, 1)


def test_dead_letters_say_why(hub: penstock.Hub, path: Path) -> None:
    @hub.job(name="fails", queue="q", max_attempts=1)
    def fails(n: int) -> None:
        raise ValueError("broken")

    job = fails.enqueue(1)
    hub.jobs.enqueue("q", "other", 1)
    crew = hub.start_workers({"q": 1})
    with pytest.raises(penstock.JobFailed):
        hub.jobs.wait(job.id, timeout=60)
    crew.stop()

    letters = {row["job_id"]: row for row in read_batch(path, entity="dead_letters")}

    letter = letters[job.id]
    assert (letter["state"], letter["attempts"]) == ("failed", 1)
    assert (letter["error"], letter["error_message"]) == ("ValueError", "broken")
    assert "raise ValueError" in letter["traceback"]


@pytest.mark.parametrize("entity", ["jobs", "dead_letters", "topics"])
def test_tables_are_no_streams(path: Path, entity: str) -> None:
    data_source = source(path, entity=entity)
    with pytest.raises(InvalidOption, match=f"{entity} can only be read as a batch"):
        data_source.streamReader(data_source.schema())


# Filters


def filtering(path: Path, **options: Any) -> FilteringBatchReader:
    reader = source(path, pushdown="true", **options).reader(OFFSETS)
    assert isinstance(reader, FilteringBatchReader)
    return reader


def test_filters_are_taken_over_where_they_can_be(hub: penstock.Hub, path: Path) -> None:
    for number in range(6):
        hub.topics.publish("ab"[number % 2], number, key=str(number), type="t" * (number + 1))
    reader = filtering(path)
    taken = [GreaterThan(("offset",), 1), In(("key",), ("1", "2", "5")), EqualTo(("topic",), "b")]
    left = [StringContains(("type",), "t"), EqualTo(("value",), b"1"), EqualTo(("key",), None)]

    assert list(reader.pushFilters([*taken, *left])) == left
    [part] = reader.partitions()
    assert [row["offset"] for row in rows_of(reader.read(part), OFFSETS)] == [2, 6]


def test_filters_on_topics_only_ever_narrow(hub: penstock.Hub, path: Path) -> None:
    for topic in ("a", "b", "c"):
        hub.topics.publish(topic, 1)
    reader = filtering(path, subscribePattern="a,b")

    assert list(reader.pushFilters([In(("topic",), ("b", "c"))])) == []
    [part] = reader.partitions()
    assert [row["offset"] for row in rows_of(reader.read(part), OFFSETS)] == [2]
    nothing = [EqualTo(("topic",), "a"), EqualTo(("topic",), "c")]
    assert list(reader.pushFilters(nothing)) == []
    for part in reader.partitions():
        assert rows_of(reader.read(part), OFFSETS) == []


def test_filters_on_times_are_taken_over(open_hub: Callable[..., penstock.Hub], path: Path) -> None:
    clock = FakeClock()
    hub = open_hub(clock=clock)
    for number in range(4):
        hub.topics.publish("a", number)
        clock.advance(60)
    reader = filtering(path)
    limit = datetime.fromtimestamp((clock.now() - 180 * 10**6) / 1e6, UTC)

    assert list(reader.pushFilters([LessThanOrEqual(("timestamp",), limit)])) == []
    [part] = reader.partitions()
    assert [row["offset"] for row in rows_of(reader.read(part), OFFSETS)] == [1, 2]


# The file


def test_a_missing_file_is_said_to_be_missing_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="There is no database at") as caught:
        read_batch(tmp_path / "typo.db")

    assert "Check the URL" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_is_brought_up_to_date_or_refused(
    hub: penstock.Hub, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import apsw

    hub.topics.publish("a", 1)
    hub.close()
    connection = apsw.Connection(str(path))
    downgrade(connection, path, to=5)
    connection.close()

    monkeypatch.setenv("PENSTOCK_MIGRATE", "off")
    with pytest.raises(SchemaTooOld):
        read_batch(path)
    monkeypatch.delenv("PENSTOCK_MIGRATE")
    assert offsets(path) == [1]
