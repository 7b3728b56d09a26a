"""Rows that a sink takes: which columns of which types, and what they are staged as.

What is staged has the columns of `MESSAGE` or `JOB`: all that the store needs, and nothing that
could still be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from penstock.errors import InvalidOption
from penstock.job import NewJob
from penstock.model import NewMessage
from penstock.spark.options import SinkOptions

TEXT = (StringType, VarcharType)
WHOLE = (ByteType, ShortType, IntegerType, LongType)
NUMBER = (*WHOLE, FloatType, DoubleType)
PAYLOAD = (*TEXT, BinaryType)

MESSAGE_KINDS: dict[str, tuple[type[DataType], ...]] = {
    "value": PAYLOAD,
    "key": PAYLOAD,
    "topic": TEXT,
    "type": TEXT,
    "headers": (ArrayType, MapType),
    "message_id": TEXT,
    "content_type": TEXT,
    "ttl_seconds": NUMBER,
}
JOB_KINDS: dict[str, tuple[type[DataType], ...]] = {
    "queue": TEXT,
    "type": TEXT,
    "payload": PAYLOAD,
    "content_type": TEXT,
    "priority": WHOLE,
    "max_attempts": WHOLE,
    "run_at": (TimestampType,),
    "deadline": (TimestampType,),
    "timeout_seconds": NUMBER,
    "unique_key": TEXT,
    "unique_seconds": NUMBER,
}
# Columns of the source that say nothing on the way back: a DataFrame that was read can be written.
IGNORED = frozenset(
    {"partition", "offset", "timestamp", "timestampType", "producer", "expires_at", "size"}
)

MESSAGE = pa.schema(
    [
        ("topic", pa.string()),
        ("body", pa.binary()),
        ("encoding", pa.int8()),
        ("type", pa.string()),
        ("key", pa.string()),
        ("headers", pa.binary()),
        ("ttl", pa.int64()),
        ("idempotency_key", pa.string()),
    ]
)
JOB = pa.schema(
    [
        ("queue", pa.string()),
        ("type", pa.string()),
        ("body", pa.binary()),
        ("encoding", pa.int8()),
        ("priority", pa.int64()),
        ("max_attempts", pa.int64()),
        ("run_at", pa.int64()),
        ("deadline", pa.int64()),
        ("timeout", pa.int64()),
        ("unique_key", pa.string()),
        ("unique_for", pa.int64()),
    ]
)


def staged_schema(options: SinkOptions) -> pa.Schema:
    return MESSAGE if options.entity == "messages" else JOB


def check_schema(options: SinkOptions, schema: StructType) -> None:
    """Raises `InvalidOption` if these columns cannot be written, and says which."""
    is_messages = options.entity == "messages"
    kinds = MESSAGE_KINDS if is_messages else JOB_KINDS
    names = [field.name for field in schema.fields]
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(f"The column {name} is there twice.")
    for field in schema.fields:
        if is_messages and field.name in IGNORED:
            continue
        if field.name not in kinds:
            raise InvalidOption(
                f"A sink for {options.entity} has no place for the column {field.name!r}.",
                hint=f"It takes {', '.join(kinds)}. Select those, or put the rest into the "
                "payload with to_json(struct('*')).",
            )
        if not _fits(field.dataType, kinds[field.name]):
            raise InvalidOption(
                f"The column {field.name} cannot be {field.dataType.simpleString()}.",
                hint=_KIND_HINTS.get(field.name, "Cast it."),
            )
    payload = "value" if is_messages else "payload"
    if payload not in names:
        raise InvalidOption(
            f"There is no column {payload!r}.",
            hint=f"Make it with to_json(struct('*')).alias('{payload}').",
        )
    if is_messages and "topic" not in names and options.topic is None:
        raise InvalidOption(
            "Nothing says which topic the rows go to.",
            hint="Give the option topic, or a column of that name.",
        )
    if not is_messages:
        for name, given in (("queue", options.queue), ("type", options.type)):
            if name not in names and given is None:
                raise InvalidOption(
                    f"Nothing says the {name} of the jobs.",
                    hint=f"Give the option {name}, or a column of that name.",
                )


def _fits(given: DataType, kinds: tuple[type[DataType], ...]) -> bool:
    if isinstance(given, MapType):
        return MapType in kinds and given.simpleString() == "map<string,string>"
    if isinstance(given, ArrayType):
        pair = given.elementType
        return (
            ArrayType in kinds
            and isinstance(pair, StructType)
            and pair.names == ["key", "value"]
            and isinstance(pair.fields[0].dataType, TEXT)
            and isinstance(pair.fields[1].dataType, PAYLOAD)
        )
    return isinstance(given, kinds)


_KIND_HINTS = {
    "value": "It is text or binary: use to_json() for structs, arrays and maps.",
    "payload": "It is text or binary: use to_json() for structs, arrays and maps.",
    "headers": "Headers are map<string,string>, or an array of structs with key and value.",
}


def to_messages(batch: pa.RecordBatch) -> list[NewMessage]:
    return [NewMessage(*row) for row in _tuples(batch)]


def to_jobs(batch: pa.RecordBatch, options: SinkOptions) -> list[NewJob]:
    conflict: Any = options.on_conflict
    return [NewJob(*(*row, conflict)) for row in _tuples(batch)]


def _tuples(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)
