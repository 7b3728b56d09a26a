"""What can be read: each entity's columns, their types, and how they are made of what is stored.

A further entity is an entry in `ENTITIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock import codec
from penstock.clock import SECOND
from penstock.entry import EntryKind
from penstock.errors import InvalidOption, UndecodablePayload
from penstock.job import Kind, State
from penstock.ports.scan import Log, Table

Columns = Mapping[str, Sequence[Any]]
Make = Callable[[Columns, bool, pa.DataType], pa.Array]
"""From the stored columns, and whether MessagePack becomes JSON, to an array of the type."""

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
MICROSECONDS = pa.timestamp("us", tz="UTC")


class Field(msgspec.Struct, frozen=True):
    """A column as Spark sees it, and what it is made of."""

    name: str
    type: DataType
    stored: tuple[str, ...]
    make: Make
    filter: str | None = None
    """The stored column that a filter on it can be handed down to."""


class Entity(msgspec.Struct, frozen=True):
    name: str
    source: Log | Table
    fields: tuple[Field, ...]
    is_log: bool = False
    """Whether it has offsets, and can be streamed."""
    has_payload: bool = False
    optional: frozenset[str] = frozenset()
    """Columns that are there only when they are asked for."""

    def schema(self, *, include: frozenset[str] = frozenset()) -> StructType:
        return StructType(
            [
                StructField(field.name, field.type)
                for field in self.fields
                if field.name not in self.optional or field.name in include
            ]
        )

    def choose(self, schema: StructType) -> tuple[Field, ...]:
        """The fields of a schema that the user gave. Raises `InvalidOption`."""
        known = {field.name: field for field in self.fields}
        if not schema.fields:
            raise InvalidOption("The schema is empty.", hint="Choose at least one column.")
        chosen = []
        for wanted in schema.fields:
            field = known.get(wanted.name)
            if field is None:
                raise InvalidOption(
                    f"{self.name} has no column {wanted.name!r}.",
                    hint=f"There are {', '.join(known)}.",
                )
            if wanted.dataType != field.type:
                raise InvalidOption(
                    f"The column {wanted.name} is {field.type.simpleString()}, not "
                    f"{wanted.dataType.simpleString()}.",
                    hint="The schema chooses columns; cast them after load().",
                )
            chosen.append(field)
        return tuple(chosen)


def _array(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    """Much faster where all values are the same, which those of most columns are."""
    first, count = values[0], len(values)
    if first is None:
        if values.count(None) == count:
            return pa.nulls(count, type)
    elif values[-1] == first and values.count(first) == count:
        return pa.repeat(pa.scalar(first, type), count)
    return pa.array(values, type=type)


def _plain(name: str) -> Make:
    return lambda columns, as_json, type: _array(columns[name], type)


def _constant(value: int) -> Make:
    def make(columns: Columns, as_json: bool, type: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, type), len(next(iter(columns.values()))))

    return make


def _words(name: str, words: Mapping[int, str]) -> Make:
    """Small numbers by their names."""
    codes = {number: place for place, number in enumerate(words)}

    def make(columns: Columns, as_json: bool, type: pa.DataType) -> pa.Array:
        places = pa.array([codes[number] for number in columns[name]], type=pa.int8())
        # Not when this is loaded: the first array of a process loads pandas, and a process that
        # only plans makes none.
        return pa.DictionaryArray.from_arrays(places, pa.array(list(words.values()))).cast(type)

    return make


def _seconds(name: str) -> Make:
    return lambda columns, as_json, type: pa.array(
        [None if value is None else value / SECOND for value in columns[name]], type=type
    )


def _text(name: str) -> Make:
    """JSON, which is stored as bytes."""
    return lambda columns, as_json, type: pa.array(columns[name], type=pa.binary()).cast(type)


def _inside(name: str, key: str) -> Make:
    """A field of stored JSON."""

    def make(columns: Columns, as_json: bool, type: pa.DataType) -> pa.Array:
        return pa.array(
            [None if v is None else msgspec.json.decode(v).get(key) for v in columns[name]],
            type=type,
        )

    return make


def _payload(body: str, encoding: str) -> Make:
    def make(columns: Columns, as_json: bool, type: pa.DataType) -> pa.Array:
        return _array(payloads(columns[body], columns[encoding], as_json=as_json), type)

    return make


def payloads(
    bodies: Sequence[bytes], encodings: Sequence[int | None], *, as_json: bool
) -> Sequence[bytes | None]:
    """Decompressed, and MessagePack as JSON if that is asked for. Most need neither."""
    special = {
        encoding
        for encoding in set(encodings)
        if encoding is not None
        and (encoding & codec.ZSTD or (as_json and encoding & codec.FORMAT_MASK == codec.MSGPACK))
    }
    if not special:
        return bodies
    return [
        _unpacked(body, encoding, as_json) if encoding is not None and encoding in special else body
        for body, encoding in zip(bodies, encodings, strict=True)
    ]


def _unpacked(body: bytes, encoding: int, as_json: bool) -> bytes:
    data = codec.decompress(body, encoding)
    if not as_json or encoding & codec.FORMAT_MASK != codec.MSGPACK:
        return data
    try:
        return msgspec.json.encode(codec.decode(body, encoding))
    except (UndecodablePayload, TypeError, ValueError, msgspec.MsgspecError):
        # Whoever parses it finds out; it is neither lost nor does it stop the others.
        return data


def _content_types(encoding: str) -> Make:
    def make(columns: Columns, as_json: bool, type: pa.DataType) -> pa.Array:
        known = {number: _content_type(number, as_json) for number in set(columns[encoding])}
        return _array([known[number] for number in columns[encoding]], type)

    return make


def _content_type(encoding: int | None, as_json: bool) -> str | None:
    if encoding is None:
        return None
    if as_json and encoding & codec.FORMAT_MASK == codec.MSGPACK:
        encoding = codec.JSON
    return codec.content_type(encoding)


def _headers(name: str) -> Make:
    def make(columns: Columns, as_json: bool, type: pa.DataType) -> pa.Array:
        return pa.array(
            [
                None
                if raw is None
                else [
                    {"key": key, "value": value.encode()}
                    for key, value in codec.decode_headers(raw).items()
                ]
                for raw in columns[name]
            ],
            type=type,
        )

    return make


def _field(name: str, type: DataType, stored: str | None = None, make: Make | None = None) -> Field:
    column = stored or name
    return Field(name, type, (column,), make or _plain(column), filter=column)


_OFFSET = _field("offset", LongType(), "id")
_TEXT, _LONG, _INT, _TIME = StringType(), LongType(), IntegerType(), TimestampType()

MESSAGES = Entity(
    "messages",
    "messages",
    (
        _field("key", _TEXT),
        Field("value", BinaryType(), ("body", "encoding"), _payload("body", "encoding")),
        _field("topic", _TEXT),
        Field("partition", _INT, ("id",), _constant(0)),
        _OFFSET,
        _field("timestamp", _TIME, "created_at"),
        # As Kafka says it: 1 is the time at which the message came into the log.
        Field("timestampType", _INT, ("id",), _constant(1)),
        _field("type", _TEXT),
        Field("content_type", _TEXT, ("encoding",), _content_types("encoding")),
        _field("message_id", _TEXT),
        _field("producer", _TEXT),
        _field("expires_at", _TIME),
        Field("headers", HEADERS, ("headers",), _headers("headers")),
        # In bytes, as it is stored; without reading the value.
        _field("size", _LONG),
    ),
    is_log=True,
    has_payload=True,
    optional=frozenset({"headers", "size"}),
)

JOB_EVENTS = Entity(
    "job_events",
    "job_events",
    (
        _OFFSET,
        _field("timestamp", _TIME, "at"),
        _field("job_id", _LONG),
        Field("kind", _TEXT, ("kind",), _words("kind", {k: k.name.lower() for k in Kind})),
        _field("attempt", _INT),
        _field("queue", _TEXT),
        _field("type", _TEXT),
        Field("data", _TEXT, ("data",), _text("data")),
    ),
    is_log=True,
)

LEDGER_EVENTS = Entity(
    "ledger_events",
    "ledger_events",
    (
        _OFFSET,
        _field("timestamp", _TIME, "at"),
        _field("scope", _TEXT),
        _field("key", _TEXT),
        Field("kind", _TEXT, ("kind",), _words("kind", {k: k.name.lower() for k in EntryKind})),
        _field("attempt", _INT),
    ),
    is_log=True,
)

_JOB_FIELDS = (
    _field("job_id", _LONG, "id"),
    _field("queue", _TEXT),
    _field("type", _TEXT),
    Field("state", _TEXT, ("state",), _words("state", {s: s.name.lower() for s in State})),
    _field("priority", _INT),
    _field("attempts", _INT),
    _field("max_attempts", _INT),
    _field("crashes", _INT),
    _field("created_at", _TIME),
    _field("run_at", _TIME),
    _field("deadline", _TIME),
    _field("claimed_at", _TIME),
    _field("started_at", _TIME),
    _field("finished_at", _TIME),
    Field("timeout_seconds", DoubleType(), ("timeout",), _seconds("timeout")),
    _field("unique_key", _TEXT),
    _field("schedule", _TEXT),
    _field("worker", _TEXT),
    Field("error", _TEXT, ("failure",), _inside("failure", "error")),
    Field("error_message", _TEXT, ("failure",), _inside("failure", "message")),
    Field("traceback", _TEXT, ("failure",), _inside("failure", "traceback")),
    Field("progress", _TEXT, ("progress",), _text("progress")),
    Field("payload", BinaryType(), ("body", "encoding"), _payload("body", "encoding")),
    Field("content_type", _TEXT, ("encoding",), _content_types("encoding")),
    Field(
        "result",
        BinaryType(),
        ("result", "result_encoding"),
        _payload("result", "result_encoding"),
    ),
)
JOBS = Entity("jobs", "jobs", _JOB_FIELDS, has_payload=True)
DEAD_LETTERS = Entity("dead_letters", "dead_letters", _JOB_FIELDS, has_payload=True)

TOPICS = Entity(
    "topics",
    "topics",
    (
        _field("topic", _TEXT, "name"),
        _field("created_at", _TIME),
        _field("messages", _LONG),
        _field("bytes", _LONG),
        _field("published", _LONG),
        _field("last_offset", _LONG, "last_id"),
        _field("deleted_through", _LONG),
        Field("retention", _TEXT, ("retention",), _text("retention")),
    ),
)

# Not in the store, but in files beside it: read by `mailbox_rows`, not by a scanner.
MAILBOXES = Entity(
    "mailboxes",
    "topics",
    (
        Field("mailbox", _TEXT, ("mailbox",), _plain("mailbox")),
        Field("message_id", _TEXT, ("id",), _plain("id")),
        Field("seq", _LONG, ("seq",), _plain("seq")),
        Field("timestamp", _TIME, ("at",), _plain("at")),
        Field("kind", _TEXT, ("kind",), _plain("kind")),
        Field("type", _TEXT, ("type",), _plain("type")),
        Field("topic", _TEXT, ("topic",), _plain("topic")),
        Field("value", BinaryType(), ("body", "encoding"), _payload("body", "encoding")),
        Field("content_type", _TEXT, ("encoding",), _content_types("encoding")),
        Field("missing", _LONG, ("missing",), _plain("missing")),
    ),
    has_payload=True,
)

ENTITIES: dict[str, Entity] = {
    entity.name: entity
    for entity in (MESSAGES, JOB_EVENTS, LEDGER_EVENTS, JOBS, DEAD_LETTERS, TOPICS, MAILBOXES)
}
