"""A task's rows, checked and encoded for the store: in parallel, before anything is written."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa

from penstock import codec
from penstock.clock import SECOND
from penstock.errors import InvalidInput, PayloadTooLarge, PenstockError
from penstock.job import check_queue
from penstock.job import check_type as check_job_type
from penstock.jobs.enqueueing import check_attempts, check_duration, check_priority
from penstock.model import check_key, check_name
from penstock.spark.options import SinkOptions
from penstock.spark.rows import staged_schema
from penstock.topics.publishing import check_publishable

Columns = Mapping[str, Sequence[Any]]
Check = Callable[[Any], Any]

DIGEST_MAX = 2**63

_check_json = msgspec.json.Decoder(msgspec.Raw).decode
_FORMATS = {"json": codec.JSON, "text": codec.JSON, "msgpack": codec.MSGPACK, "bytes": codec.BYTES}
_TYPES = {text: number for number, text in codec.CONTENT_TYPES.items()}


class Encoder:
    """Turns a task's batches into staged ones. Counts rows, and adds up what they are."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._settings = options.settings
        self.rows = 0
        self.digest = 0
        """The sum over all rows, so that it does not depend on their order."""

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, ready to be written. Raises `InvalidInput`, which says which of them is not."""
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        if self._options.entity == "messages":
            made = self._messages(columns, batch)
        else:
            made = self._jobs(columns, batch)
        self.digest = (self.digest + digest_of(made, batch.num_rows)) % DIGEST_MAX
        self.rows += batch.num_rows
        schema = staged_schema(self._options)
        arrays = [pa.array(made[field.name], type=field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _messages(self, columns: Columns, batch: pa.RecordBatch) -> Columns:
        count = batch.num_rows
        bodies, encodings = self._payloads("value", columns, batch)
        return {
            "topic": self._targets("topic", self._options.topic, columns, count, check_publishable),
            "body": bodies,
            "encoding": encodings,
            "type": self._types(columns, count, lambda name: check_name(name, "message type")),
            "key": self._each("key", columns, count, _key),
            "headers": self._each("headers", columns, count, self._headers),
            "ttl": self._each("ttl_seconds", columns, count, _duration("ttl_seconds")),
            "idempotency_key": self._each(
                "message_id", columns, count, lambda name: check_name(name, "message_id")
            ),
        }

    def _jobs(self, columns: Columns, batch: pa.RecordBatch) -> Columns:
        count, settings = batch.num_rows, self._settings
        bodies, encodings = self._payloads("payload", columns, batch)
        types = self._types(columns, count, check_job_type)
        self._refuse_null(types, "type")
        return {
            "queue": self._targets("queue", self._options.queue, columns, count, check_queue),
            "type": types,
            "body": bodies,
            "encoding": encodings,
            "priority": self._each("priority", columns, count, check_priority, default=0),
            "max_attempts": self._each(
                "max_attempts",
                columns,
                count,
                lambda value: check_attempts(value, settings),
                default=settings.job_attempts_max,
            ),
            "run_at": self._each("run_at", columns, count, _instant),
            "deadline": self._each("deadline", columns, count, _instant),
            "timeout": self._each("timeout_seconds", columns, count, _duration("timeout_seconds")),
            "unique_key": self._each("unique_key", columns, count, check_key),
            "unique_for": self._each("unique_seconds", columns, count, _duration("unique_seconds")),
        }

    def _targets(
        self, name: str, given: str | None, columns: Columns, count: int, check: Check
    ) -> Sequence[Any]:
        """Where the rows go: the option, or else the column."""
        if given is not None:
            return [given] * count
        self._refuse_null(columns[name], name)
        self._check_distinct(columns[name], name, check)
        return columns[name]

    def _types(self, columns: Columns, count: int, check: Check) -> Sequence[Any]:
        values = columns.get("type", [None] * count)
        self._check_distinct(values, "type", check)
        given = self._options.type
        return values if given is None else [given if type is None else type for type in values]

    def _payloads(
        self, name: str, columns: Columns, batch: pa.RecordBatch
    ) -> tuple[Sequence[bytes], Sequence[int]]:
        """The bodies, and how each is encoded."""
        is_text = not pa.types.is_binary(batch.schema.field(name).type)
        self._refuse_null(columns[name], name)
        values: Sequence[bytes] = columns[name]
        if is_text and self._options.value_format != "text":
            # Arrow's text is UTF-8 already.
            values = batch.column(name).cast(pa.binary()).to_pylist()
        if self._options.value_format is not None:
            usual = _FORMATS[self._options.value_format]
        else:
            usual = codec.JSON if is_text else codec.BYTES
        types = columns.get("content_type")
        bodies = list(values)
        encodings = [usual] * len(bodies)
        bytes_max = self._settings.payload_bytes_max
        compress_above = min(bytes_max, self._settings.compress_above_bytes)
        for place, value in enumerate(values):
            try:
                if types is not None and types[place] is not None:
                    encodings[place] = _encoding_of(types[place])
                elif self._options.value_format == "text":
                    value = bodies[place] = _quoted(value, is_text)
                if encodings[place] == codec.JSON:
                    _check_json(value)
                if len(value) > compress_above:
                    if len(value) > bytes_max:
                        raise PayloadTooLarge(
                            f"It has {len(value):,} bytes; the limit is {bytes_max:,}."
                        )
                    bodies[place], packed = codec.encode(value, "bytes", bytes_max, compress_above)
                    encodings[place] |= packed & codec.ZSTD
            except (msgspec.MsgspecError, UnicodeError) as error:
                raise self._row_error(place, name, _not_json(error)) from error
            except PenstockError as error:
                raise self._row_error(place, name, error) from error
        return bodies, encodings

    def _headers(self, value: Any) -> bytes | None:
        """From a map, or from Kafka's list of pairs."""
        pairs = [(p["key"], p["value"]) if isinstance(p, dict) else p for p in value]
        headers = {name: text.decode() if isinstance(text, bytes) else text for name, text in pairs}
        return codec.encode_headers(headers, bytes_max=self._settings.headers_bytes_max)

    def _each(
        self, name: str, columns: Columns, count: int, check: Check, default: Any = None
    ) -> Sequence[Any]:
        """A column that may be absent, and may have NULLs, checked value by value."""
        if name not in columns:
            return [default] * count
        found = []
        for place, value in enumerate(columns[name]):
            try:
                found.append(default if value is None else check(value))
            except (PenstockError, UnicodeError) as error:
                raise self._row_error(place, name, error) from error
        return found

    def _check_distinct(self, values: Sequence[Any], name: str, check: Check) -> None:
        """A column of few different values: each is checked once."""
        for value in dict.fromkeys(values):
            try:
                if value is not None:
                    check(value)
            except PenstockError as error:
                raise self._row_error(values.index(value), name, error) from error

    def _refuse_null(self, values: Sequence[Any], name: str) -> None:
        if None in values:
            error = InvalidInput("It is NULL.", hint="Fill it, or filter such rows out.")
            raise self._row_error(values.index(None), name, error)

    def _row_error(self, place: int, name: str, error: Exception) -> InvalidInput:
        message = error.message if isinstance(error, PenstockError) else str(error)
        hint = error.hint if isinstance(error, PenstockError) else ""
        number = self.rows + place + 1
        return InvalidInput(f"Row {number} of its partition, column {name}: {message}", hint=hint)


def digest_of(made: Columns, count: int) -> int:
    """A sum over the rows. Two batches with the same rows in another order have the same."""
    if not count:
        return 0
    crc, bodies = zlib.crc32, made["body"]
    same: list[Any] = []
    varied: list[Any] = []
    for name, column in made.items():
        if name != "body":
            # Most columns say the same of all rows: that is weighed once.
            (same if column.count(column[0]) == count else varied).append(column)
    seed = crc(repr([column[0] for column in same]).encode())
    if not varied:
        return sum([crc(body, seed) for body in bodies])
    rest = zip(*varied, strict=True)
    return sum(
        [crc(b, crc(repr(values).encode(), seed)) for b, values in zip(bodies, rest, strict=True)]
    )


def _encoding_of(content_type: str) -> int:
    if content_type not in _TYPES:
        raise InvalidInput(
            f"There is no content type {content_type!r}.", hint=f"There are {', '.join(_TYPES)}."
        )
    return _TYPES[content_type]


def _quoted(value: Any, is_text: bool) -> bytes:
    if not is_text:
        raise InvalidInput("It is binary.", hint="valueFormat=text is for text.")
    return msgspec.json.encode(value)


def _not_json(error: Exception) -> InvalidInput:
    return InvalidInput(
        f"It is not JSON: {error}.",
        hint="Set valueFormat to text or bytes, or make JSON with to_json().",
    )


def _key(value: str | bytes) -> str:
    return check_key(value.decode() if isinstance(value, bytes) else value)


def _instant(value: datetime) -> int:
    return round(value.timestamp() * SECOND)


def _duration(name: str) -> Check:
    return lambda value: check_duration(value, name)
