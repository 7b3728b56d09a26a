"""Rows on their way into topics and queues: checked and encoded in the tasks, in parallel.

What comes out has the columns of `MESSAGE` or `JOB`: all that the store needs, and nothing that
could still be wrong.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
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

from penstock import codec
from penstock.errors import InvalidInput, InvalidOption, PenstockError
from penstock.job import NewJob, check_queue
from penstock.job import check_type as check_job_type
from penstock.jobs.enqueueing import check_attempts, check_duration, check_priority
from penstock.model import NewMessage, check_key, check_name
from penstock.settings import Settings
from penstock.spark.options import SinkOptions
from penstock.topics.publishing import check_publishable

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
IGNORED = frozenset({"partition", "offset", "timestamp", "timestampType", "producer", "expires_at"})

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

_is_json = msgspec.json.Decoder(msgspec.Raw).decode
_FORMATS = {"json": codec.JSON, "text": codec.JSON, "msgpack": codec.MSGPACK, "bytes": codec.BYTES}
_TYPES = {text: number for number, text in codec.CONTENT_TYPES.items()}


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
        if not isinstance(field.dataType, kinds[field.name]):
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


_KIND_HINTS = {
    "value": "It is text or binary: use to_json() for structs, arrays and maps.",
    "payload": "It is text or binary: use to_json() for structs, arrays and maps.",
    "headers": "Headers are map<string,string>, or an array of structs with key and value.",
}


class Encoder:
    """Turns a task's batches into staged ones. Counts rows, and adds up what they are."""

    def __init__(self, options: SinkOptions, settings: Settings) -> None:
        self._options = options
        self._settings = settings
        self.rows = 0
        self.digest = 0
        """The sum over all rows, so that it does not depend on their order."""

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.schema.names
        columns = {name: batch.column(place).to_pylist() for place, name in enumerate(names)}
        make = self._messages if self._options.entity == "messages" else self._jobs
        made = make(columns, batch.num_rows)
        staged = pa.RecordBatch.from_arrays(
            [pa.array(made[field.name], type=field.type) for field in staged_schema(self._options)],
            schema=staged_schema(self._options),
        )
        self._add(made, batch.num_rows)
        self.rows += batch.num_rows
        return staged

    def _add(self, made: dict[str, Sequence[Any]], count: int) -> None:
        weighed = [name for name, column in made.items() if name != "body" and any(column)]
        others = zip(*(made[name] for name in weighed), strict=True) if weighed else [()] * count
        self.digest = (
            self.digest
            + sum(
                zlib.crc32(body, zlib.crc32(repr(other).encode())) + 1
                for body, other in zip(made["body"], others, strict=True)
            )
        ) % 2**63

    def _messages(self, columns: dict[str, list[Any]], count: int) -> dict[str, Sequence[Any]]:
        options = self._options
        topics = [options.topic] * count if options.topic is not None else columns["topic"]
        for topic in dict.fromkeys(topics):
            self._check(topics, topic, "topic", check_publishable)
        types = columns.get("type") or [None] * count
        if options.type is not None:
            types = [options.type if type is None else type for type in types]
        for type in dict.fromkeys(types):
            if type is not None:
                self._check(types, type, "type", lambda name: check_name(name, "message type"))
        bodies, encodings = self._payloads("value", columns, count)
        return {
            "topic": topics,
            "body": bodies,
            "encoding": encodings,
            "type": types,
            "key": self._each("key", columns, count, _key),
            "headers": self._each("headers", columns, count, self._headers),
            "ttl": self._each("ttl_seconds", columns, count, _duration("ttl_seconds")),
            "idempotency_key": self._each(
                "message_id", columns, count, lambda name: check_name(name, "message_id")
            ),
        }

    def _jobs(self, columns: dict[str, list[Any]], count: int) -> dict[str, Sequence[Any]]:
        options, settings = self._options, self._settings
        queues = [options.queue] * count if options.queue is not None else columns["queue"]
        types = columns.get("type") or [None] * count
        if options.type is not None:
            types = [options.type if type is None else type for type in types]
        for queue in dict.fromkeys(queues):
            self._check(queues, queue, "queue", check_queue)
        for type in dict.fromkeys(types):
            self._check(types, type, "type", check_job_type)
        bodies, encodings = self._payloads("payload", columns, count)
        attempts = self._each(
            "max_attempts", columns, count, lambda value: check_attempts(value, settings)
        )
        return {
            "queue": queues,
            "type": types,
            "body": bodies,
            "encoding": encodings,
            "priority": [
                0 if value is None else value
                for value in self._each("priority", columns, count, check_priority)
            ],
            "max_attempts": [
                settings.job_attempts_max if value is None else value for value in attempts
            ],
            "run_at": self._each("run_at", columns, count, _instant),
            "deadline": self._each("deadline", columns, count, _instant),
            "timeout": self._each("timeout_seconds", columns, count, _duration("timeout_seconds")),
            "unique_key": self._each("unique_key", columns, count, check_key),
            "unique_for": self._each("unique_seconds", columns, count, _duration("unique_seconds")),
        }

    def _payloads(
        self, name: str, columns: dict[str, list[Any]], count: int
    ) -> tuple[list[bytes], list[int]]:
        types = columns.get("content_type") or [None] * count
        bodies: list[bytes] = []
        encodings: list[int] = []
        for place, (value, content_type) in enumerate(zip(columns[name], types, strict=True)):
            try:
                body, encoding = self._payload(value, content_type)
            except PenstockError as error:
                raise self._row_error(place, name, error) from error
            bodies.append(body)
            encodings.append(encoding)
        return bodies, encodings

    def _payload(self, value: Any, content_type: str | None) -> tuple[bytes, int]:
        settings, format = self._settings, self._options.value_format
        if value is None:
            raise InvalidInput("It is NULL.", hint="Filter such rows out, or write 'null'.")
        if content_type is not None:
            if content_type not in _TYPES:
                raise InvalidInput(
                    f"There is no content type {content_type!r}.",
                    hint=f"There are {', '.join(_TYPES)}.",
                )
            encoding = _TYPES[content_type]
        elif format is not None:
            encoding = _FORMATS[format]
        else:
            encoding = codec.JSON if isinstance(value, str) else codec.BYTES
        if format == "text" and content_type is None:
            if not isinstance(value, str):
                raise InvalidInput("It is binary.", hint="valueFormat=text is for text.")
            return codec.encode(
                value, "json", settings.payload_bytes_max, settings.compress_above_bytes
            )
        data = value.encode() if isinstance(value, str) else value
        if encoding == codec.JSON:
            try:
                _is_json(data)
            except (msgspec.MsgspecError, ValueError) as error:
                raise InvalidInput(
                    f"It is not JSON: {error}.",
                    hint="Set valueFormat to text or bytes, or make JSON with to_json().",
                ) from error
        body, packed = codec.encode(
            data, "bytes", settings.payload_bytes_max, settings.compress_above_bytes
        )
        return body, encoding | (packed & codec.ZSTD)

    def _headers(self, value: Any) -> bytes | None:
        pairs = [(p["key"], p["value"]) if isinstance(p, dict) else p for p in value]
        headers = {name: text.decode() if isinstance(text, bytes) else text for name, text in pairs}
        return codec.encode_headers(headers, bytes_max=self._settings.headers_bytes_max)

    def _each(
        self, name: str, columns: dict[str, list[Any]], count: int, check: Callable[[Any], Any]
    ) -> list[Any]:
        if name not in columns:
            return [None] * count
        found = []
        for place, value in enumerate(columns[name]):
            try:
                found.append(None if value is None else check(value))
            except (PenstockError, UnicodeError) as error:
                raise self._row_error(place, name, error) from error
        return found

    def _check(self, column: list[Any], value: Any, name: str, check: Callable[[Any], Any]) -> None:
        try:
            if value is None:
                raise InvalidInput("It is NULL.", hint=f"Give the option {name}, or fill it.")
            check(value)
        except PenstockError as error:
            raise self._row_error(column.index(value), name, error) from error

    def _row_error(self, place: int, name: str, error: Exception) -> InvalidInput:
        message = error.message if isinstance(error, PenstockError) else str(error)
        hint = error.hint if isinstance(error, PenstockError) else ""
        number = self.rows + place + 1
        return InvalidInput(f"Row {number} of its partition, column {name}: {message}", hint=hint)


def to_messages(batch: pa.RecordBatch) -> list[NewMessage]:
    return [NewMessage(*row) for row in _tuples(batch)]


def to_jobs(batch: pa.RecordBatch, options: SinkOptions) -> list[NewJob]:
    conflict: Any = options.on_conflict
    return [NewJob(*(*row, conflict)) for row in _tuples(batch)]


def _tuples(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _key(value: str | bytes) -> str:
    return check_key(value.decode() if isinstance(value, bytes) else value)


def _instant(value: datetime) -> int:
    return round(value.timestamp() * 1_000_000)


def _duration(name: str) -> Callable[[Any], int]:
    return lambda value: check_duration(value, name)
