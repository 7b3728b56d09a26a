"""The source and the sink driven as Spark drives them, without a JVM.

What Spark does between its calls is done here, too: offsets become JSON and back, readers and
writers are pickled on their way to a task.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import DataType, StructField, StructType

from penstock.spark.entities import ENTITIES
from penstock.spark.sink import BATCH_ID, QUERY_ID
from penstock.spark.stream import StreamReader
from pyspark_penstock import DefaultSource
from tests.factories import file_url

Row = dict[str, Any]


def columns(*names: str, entity: str = "messages", **types: DataType) -> StructType:
    """These columns of an entity, or others of these types."""
    known = {field.name: field.type for field in ENTITIES[entity].fields}
    wanted = {**{name: known[name] for name in names}, **types}
    return StructType([StructField(name, type) for name, type in wanted.items()])


def shipped(value: Any) -> Any:
    """As it arrives in another process."""
    serializer, pipe = CloudPickleSerializer(), io.BytesIO()
    serializer._write_with_length(value, pipe)
    pipe.seek(0)
    return serializer._read_with_length(pipe)


def source(path: Path, **options: Any) -> DefaultSource:
    given = {name: str(value) for name, value in options.items()}
    return DefaultSource(CaseInsensitiveDict({"url": file_url(path), **given}))


def rows_of(batches: Iterator[pa.RecordBatch], schema: StructType) -> list[Row]:
    """The rows, after the check that Spark makes."""
    expected = to_arrow_schema(schema, timezone="UTC")
    rows: list[Row] = []
    for batch in batches:
        assert batch.schema.equals(expected)
        assert batch.num_rows > 0
        rows += batch.to_pylist()
    return rows


def read_batch(path: Path, schema: StructType | None = None, **options: Any) -> list[Row]:
    """As `spark.read`: planned once, read in parts."""
    data_source = source(path, **options)
    schema = schema or data_source.schema()
    reader = data_source.reader(schema)
    parts = reader.partitions() or [None]
    task = shipped(reader)
    return [row for part in parts for row in rows_of(task.read(shipped(part)), schema)]


class Stream:
    """As `spark.readStream`: one reader on the driver, copies of it in tasks."""

    def __init__(self, path: Path, schema: StructType | None = None, **options: Any) -> None:
        data_source = source(path, **options)
        self.schema = schema or data_source.schema()
        reader = data_source.streamReader(self.schema)
        assert isinstance(reader, StreamReader)
        self.reader = reader
        self.offset: dict[str, Any] | None = None

    def begin(self) -> dict[str, Any]:
        if self.offset is None:
            self.offset = through_json(self.reader.initialOffset())
        return self.offset

    def plan(self, limit: ReadLimit | None = None) -> dict[str, Any]:
        return through_json(
            self.reader.latestOffset(self.begin(), limit or self.reader.getDefaultReadLimit())
        )

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
        parts = self.reader.partitions(start, end) or [None]
        task = shipped(self.reader)
        return [row for part in parts for row in rows_of(task.read(shipped(part)), self.schema)]

    def batch(self, limit: ReadLimit | None = None) -> list[Row] | None:
        """One micro-batch; None if there is nothing to do."""
        start, end = self.begin(), self.plan(limit)
        if end == start:
            return None
        rows = self.read(start, end)
        self.reader.commit(start)  # The one before: Spark commits it when it plans the next.
        self.offset = end
        return rows

    def drain(self) -> list[list[Row]]:
        """As a run with Trigger.AvailableNow."""
        self.reader.prepareForTriggerAvailableNow()
        batches = []
        while (rows := self.batch()) is not None:
            batches.append(rows)
        return batches

    def close(self) -> None:
        self.reader.stop()


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@contextmanager
def task(
    partition: int = 0, query: str | None = None, batch: int | None = None, attempt: int = 0
) -> Iterator[None]:
    """The context that Spark gives a task."""
    properties = {}
    if query is not None:
        properties = {QUERY_ID: query, BATCH_ID: str(batch)}
    TaskContext._setTaskContext(None)
    try:
        TaskContext(partitionId=partition, taskAttemptId=attempt, localProperties=properties)
        yield
    finally:
        TaskContext._setTaskContext(None)


def write_part(
    writer: Any,
    schema: StructType,
    rows: Sequence[Row],
    *,
    partition: int = 0,
    query: str | None = None,
    batch: int | None = None,
    rows_per_batch: int = 1000,
) -> WriterCommitMessage:
    """A task of a write."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    batches = (
        pa.RecordBatch.from_pylist(list(rows[first : first + rows_per_batch]), schema=arrow)
        for first in range(0, len(rows), rows_per_batch)
    )
    with task(partition, query, batch):
        message = shipped(writer).write(batches)
    assert isinstance(message, WriterCommitMessage)
    return shipped(message)  # type: ignore[no-any-return]


def write_stream(
    path: Path,
    schema: StructType,
    parts: Sequence[Sequence[Row]],
    batch: int,
    *,
    query: str = "query-1",
    **options: Any,
) -> None:
    """A micro-batch of a stream into the sink."""
    writer = source(path, **options).streamWriter(schema, overwrite=False)
    messages = [
        write_part(writer, schema, rows, partition=number, query=query, batch=batch)
        for number, rows in enumerate(parts)
    ]
    # Spark makes another one for the commit: nothing but the messages is kept.
    source(path, **options).streamWriter(schema, overwrite=False).commit(messages, batch)


def write_batch(
    path: Path, schema: StructType, parts: Sequence[Sequence[Row]], **options: Any
) -> None:
    writer = source(path, **options).writer(schema, overwrite=False)
    messages = [
        write_part(writer, schema, rows, partition=number) for number, rows in enumerate(parts)
    ]
    shipped(writer).commit(messages)
