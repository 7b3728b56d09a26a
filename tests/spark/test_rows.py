"""Rows on their way into topics and queues: what is taken, and what is refused by name (S2)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import penstock
from penstock.errors import InvalidInput, InvalidOption
from penstock.spark.entities import HEADERS
from tests.spark.driving import read_batch, source, write_batch

TEXT, BINARY = StringType(), BinaryType()


def schema(**types: DataType) -> StructType:
    return StructType([StructField(name, type) for name, type in types.items()])


def messages(hub: penstock.Hub, topic: str = "*") -> list[penstock.Message]:
    return hub.topics.read(topic)


# Messages


def test_every_column_of_a_message_is_taken(hub: penstock.Hub, path: Path) -> None:
    columns = schema(
        value=TEXT,
        key=TEXT,
        topic=TEXT,
        type=TEXT,
        headers=MapType(TEXT, TEXT),
        message_id=TEXT,
        ttl_seconds=DoubleType(),
    )
    row = {
        "value": '{"a": 1}',
        "key": "k",
        "topic": "t",
        "type": "x",
        "headers": [("h", "v")],
        "message_id": "m",
        "ttl_seconds": 60.0,
    }
    bare = {**dict.fromkeys(row), "value": "2", "topic": "t"}

    write_batch(path, columns, [[row, bare]])

    first, second = messages(hub)
    assert (first.payload, first.key, first.type, first.headers) == ({"a": 1}, "k", "x", {"h": "v"})
    assert (first.message_id, first.data) == ("m", b'{"a": 1}')
    assert first.expires_at == first.created_at + 60_000_000
    assert (second.payload, second.key, second.type, second.headers) == (2, None, None, {})
    assert first.producer == "spark:batch"


def test_the_option_says_the_topic_whatever_the_column_says(hub: penstock.Hub, path: Path) -> None:
    write_batch(path, schema(value=TEXT, topic=TEXT), [[{"value": "1", "topic": None}]], topic="t")

    assert [message.topic for message in messages(hub)] == ["t"]


def test_the_option_type_is_for_rows_without_one(hub: penstock.Hub, path: Path) -> None:
    rows = [{"value": "1", "type": None}, {"value": "2", "type": "own"}]
    write_batch(path, schema(value=TEXT, type=TEXT), [rows], topic="t", type="given")
    write_batch(path, schema(value=TEXT), [[{"value": "3"}]], topic="t", type="given")

    assert [message.type for message in messages(hub)] == ["given", "own", "given"]


@pytest.mark.parametrize(
    ("value", "kind", "options", "payload", "content_type"),
    [
        ('{"a":1}', TEXT, {}, {"a": 1}, "application/json"),
        (b"\x00", BINARY, {}, b"\x00", "application/octet-stream"),
        ("hello", TEXT, {"valueFormat": "text"}, "hello", "application/json"),
        ("hello", TEXT, {"valueFormat": "bytes"}, b"hello", "application/octet-stream"),
        (b'{"a":1}', BINARY, {"valueFormat": "json"}, {"a": 1}, "application/json"),
        (b"\x81\xa1a\x01", BINARY, {"valueFormat": "msgpack"}, {"a": 1}, "application/msgpack"),
    ],
)
def test_a_value_is_what_its_column_or_the_option_says(
    hub: penstock.Hub,
    path: Path,
    value: Any,
    kind: DataType,
    options: dict[str, str],
    payload: Any,
    content_type: str,
) -> None:
    write_batch(path, schema(value=kind), [[{"value": value}]], topic="t", **options)

    [message] = messages(hub)
    assert (message.payload, message.content_type) == (payload, content_type)


def test_what_was_read_can_be_written(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish("a", {"x": 1}, key="k", type="t", headers={"h": "ü"})
    hub.topics.publish("a", {"y": 2}, format="msgpack")
    hub.topics.publish("a", b"\xff" * 10_000)
    rows = read_batch(path, includeHeaders="true")
    columns = source(path, includeHeaders="true").schema()

    write_batch(path, columns, [rows], topic="copy")

    first, copies = messages(hub, "a"), messages(hub, "copy")
    assert [(m.payload, m.key, m.type, m.headers, m.encoding) for m in copies] == [
        (m.payload, m.key, m.type, m.headers, m.encoding) for m in first
    ]


def test_a_message_id_is_an_idempotency_key(hub: penstock.Hub, path: Path) -> None:
    columns = schema(value=TEXT, message_id=TEXT)
    for _ in range(2):
        write_batch(path, columns, [[{"value": "1", "message_id": "m"}]], topic="t")

    assert len(messages(hub)) == 1
    with pytest.raises(penstock.IdempotencyConflict):
        write_batch(path, columns, [[{"value": "2", "message_id": "m"}]], topic="t")


# Jobs


def test_every_column_of_a_job_is_taken(hub: penstock.Hub, path: Path) -> None:
    columns = schema(
        queue=TEXT,
        type=TEXT,
        payload=TEXT,
        priority=IntegerType(),
        max_attempts=LongType(),
        run_at=TimestampType(),
        deadline=TimestampType(),
        timeout_seconds=DoubleType(),
        unique_key=TEXT,
        unique_seconds=IntegerType(),
    )
    at = datetime(2099, 1, 1, tzinfo=UTC)
    row = {
        "queue": "q",
        "type": "t",
        "payload": '{"n":1}',
        "priority": -5,
        "max_attempts": 9,
        "run_at": at,
        "deadline": at,
        "timeout_seconds": 1.5,
        "unique_key": "u",
        "unique_seconds": 60,
    }
    bare = {**dict.fromkeys(row), "queue": "q", "type": "t", "payload": "2"}

    write_batch(path, columns, [[row, bare]], entity="jobs")

    first, second = hub.jobs.get(1), hub.jobs.get(2)
    assert (first.payload, first.priority, first.max_attempts) == ({"n": 1}, -5, 9)
    assert first.run_at == first.deadline == round(at.timestamp() * 1e6)
    assert (first.timeout, first.unique_key) == (1_500_000, "u")
    assert (first.state, second.state) == (penstock.State.SCHEDULED, penstock.State.PENDING)
    assert (second.payload, second.max_attempts, second.priority) == (2, 3, 0)


def test_a_taken_unique_key_is_no_reason_to_stop_unless_told(hub: penstock.Hub, path: Path) -> None:
    columns = schema(payload=TEXT, unique_key=TEXT)
    options = {"queue": "q", "type": "t"}
    for _ in range(2):
        write_batch(path, columns, [[{"payload": "1", "unique_key": "u"}]], **options)
    assert [stats.pending for stats in hub.jobs.stats()] == [1]

    with pytest.raises(penstock.JobExists):
        write_batch(
            path,
            columns,
            [[{"payload": "1", "unique_key": "u"}]],
            **{**options, "onConflict": "reject"},
        )
    write_batch(
        path, columns, [[{"payload": "7", "unique_key": "u"}]], **options, onConflict="replace"
    )
    assert hub.jobs.get(1).payload == 7


# Columns that are refused


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (schema(key=TEXT), {"topic": "t"}, "There is no column 'value'"),
        (schema(value=TEXT), {}, "Nothing says which topic"),
        (schema(value=TEXT, colour=TEXT), {"topic": "t"}, "no place for the column 'colour'"),
        (schema(value=LongType()), {"topic": "t"}, "The column value cannot be bigint"),
        (schema(value=ArrayType(TEXT)), {"topic": "t"}, "value cannot be array<string>"),
        (schema(value=TEXT, headers=TEXT), {"topic": "t"}, "headers cannot be string"),
        (
            schema(value=TEXT, headers=MapType(TEXT, LongType())),
            {"topic": "t"},
            "headers cannot be map<string,bigint>",
        ),
        (schema(value=TEXT, ttl_seconds=TEXT), {"topic": "t"}, "ttl_seconds cannot be string"),
        (schema(value=TEXT), {"queue": "q", "type": "t"}, "no place for the column 'value'"),
        (schema(payload=TEXT), {"queue": "q"}, "Nothing says the type of the jobs"),
        (schema(payload=TEXT), {"entity": "jobs", "type": "t"}, "Nothing says the queue"),
        (schema(payload=TEXT, run_at=TEXT), {"queue": "q", "type": "t"}, "run_at cannot be string"),
    ],
)
def test_columns_that_cannot_be_written_are_named(
    path: Path, columns: StructType, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        source(path, **options).writer(columns, overwrite=False)
    with pytest.raises(InvalidOption, match=message):
        source(path, **options).streamWriter(columns, overwrite=False)


def test_a_column_that_is_there_twice_is_named(path: Path) -> None:
    twice = StructType([StructField("value", TEXT), StructField("value", TEXT)])
    with pytest.raises(InvalidOption, match="value is there twice"):
        source(path, topic="t").writer(twice, overwrite=False)


def test_kafkas_headers_are_taken(path: Path) -> None:
    source(path, topic="t").writer(schema(value=TEXT, headers=HEADERS), overwrite=False)


def test_nothing_is_overwritten(path: Path) -> None:
    for make in (source(path, topic="t").writer, source(path, topic="t").streamWriter):
        with pytest.raises(InvalidOption, match="never overwritten"):
            make(schema(value=TEXT), overwrite=True)


# Rows that are refused


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"value": None}, "column value: It is NULL"),
        ({"value": "{broken"}, "column value: It is not JSON"),
        ({"value": "1 2"}, "column value: It is not JSON"),
        ({"value": f'"{"x" * 2_000_000}"'}, "column value: .* the limit is"),
        ({"topic": None}, "column topic: It is NULL"),
        ({"topic": "a*"}, "column topic: The topic name 'a\\*'"),
        ({"topic": "penstock.x"}, "column topic: The topic 'penstock.x' is reserved"),
        ({"type": ""}, "column type: The message type '' is not valid"),
        ({"key": "k" * 2000}, "column key: The key has 2,000 bytes"),
        ({"message_id": "m\n"}, "column message_id: The message_id"),
        ({"ttl_seconds": -1.0}, "column ttl_seconds: ttl_seconds is a number of seconds above 0"),
        ({"headers": [("h", None)]}, "column headers: The header 'h' is not text"),
        ({"content_type": "text/html"}, "column value: There is no content type 'text/html'"),
    ],
)
def test_a_row_that_cannot_be_written_is_named_and_nothing_is(
    hub: penstock.Hub, path: Path, bad: dict[str, Any], message: str
) -> None:
    columns = schema(
        value=TEXT,
        topic=TEXT,
        type=TEXT,
        key=TEXT,
        message_id=TEXT,
        ttl_seconds=DoubleType(),
        headers=MapType(TEXT, TEXT),
        content_type=TEXT,
    )
    good = {**dict.fromkeys(columns.names), "value": "1", "topic": "t"}

    with pytest.raises(InvalidInput, match=f"Row 3 of its partition, {message}"):
        write_batch(path, columns, [[good, good, {**good, **bad}, good]])
    assert messages(hub) == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"payload": None}, "column payload: It is NULL"),
        ({"queue": None}, "column queue: It is NULL"),
        ({"type": None}, "column type: It is NULL"),
        ({"max_attempts": 0}, "column max_attempts: max_attempts is 1 to"),
        ({"timeout_seconds": 0.0}, "column timeout_seconds: timeout_seconds is a number"),
    ],
)
def test_a_job_that_cannot_be_written_is_named(
    hub: penstock.Hub, path: Path, bad: dict[str, Any], message: str
) -> None:
    columns = schema(
        payload=TEXT,
        queue=TEXT,
        type=TEXT,
        max_attempts=IntegerType(),
        timeout_seconds=DoubleType(),
    )
    good = {**dict.fromkeys(columns.names), "payload": "1", "queue": "q", "type": "t"}

    with pytest.raises(InvalidInput, match=f"Row 2 of its partition, {message}"):
        write_batch(path, columns, [[good, {**good, **bad}]], entity="jobs")
    assert hub.jobs.stats() == []


def test_a_binary_key_is_text_or_refused(hub: penstock.Hub, path: Path) -> None:
    columns = schema(value=TEXT, key=BINARY)
    write_batch(path, columns, [[{"value": "1", "key": "ü".encode()}]], topic="t")
    assert messages(hub)[0].key == "ü"

    with pytest.raises(InvalidInput, match=r"Row 1 of its partition, column key: .*utf-8"):
        write_batch(path, columns, [[{"value": "1", "key": b"\xff"}]], topic="t")


def test_large_values_are_compressed_in_the_task(hub: penstock.Hub, path: Path) -> None:
    value = json.dumps({"text": "x" * 50_000})
    write_batch(path, schema(value=TEXT), [[{"value": value}]], topic="t")

    [message] = messages(hub)
    assert len(message.body) < 1000
    assert message.data == value.encode()
