"""The sink: tasks check, encode and stage their rows; the driver commits them once.

Spark tells a stream's batch number only to the driver, so the query's id travels with what the
tasks report. A batch has a name and a number of its own only if the user gives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.errors import InvalidOption
from penstock.spark import staging
from penstock.spark.commit import Batch, Committer, Step, no_step
from penstock.spark.encoder import DIGEST_MAX, Encoder
from penstock.spark.options import SinkOptions, parse_sink
from penstock.spark.rows import check_schema, staged_schema
from penstock.spark.staging import Part, Stage

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


def writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    parsed = _parsed(options, schema, overwrite)
    if (parsed.app is None) != (parsed.version is None):
        raise InvalidOption(
            "txnAppId and txnVersion belong together.",
            hint="The name says whose batch it is, the number which: written once, however often "
            "it comes.",
        )
    return BatchWriter(parsed)


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    parsed = _parsed(options, schema, overwrite)
    if parsed.version is not None:
        raise InvalidOption(
            "txnVersion is for batches.", hint="A stream's batches have their own numbers."
        )
    return StreamWriter(parsed)


def _parsed(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise InvalidOption(
            "Topics and queues are appended to, never overwritten.",
            hint="Use mode('append'), or outputMode('append').",
        )
    parsed = parse_sink(options)
    check_schema(parsed, schema)
    return parsed


@dataclass
class Report(WriterCommitMessage):
    """What a task tells the driver: its rows, and whose they are."""

    part: Part
    digest: int
    partition: int
    query: str
    batch: int | None


def stage(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Report:
    """In a task: check, encode and stage its rows."""
    context = TaskContext.get()
    encoder = Encoder(options)
    folder = staging.folder_of(options.settings.url, options.staging)
    schema = staged_schema(options)
    with Stage(folder, schema, inline_bytes_max=options.inline_bytes_max) as staged:
        for batch in batches:
            staged.add(encoder.encode(batch))
        part = staged.finish()
    query = number = None
    if context is not None:
        query, number = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    return Report(
        part,
        encoder.digest,
        0 if context is None else context.partitionId(),
        query or "",
        None if number is None else int(number),
    )


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, on_step: Step = no_step) -> None:
        self._options = options
        self._on_step = on_step

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Report:
        return stage(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        reports = _reports(messages)
        batch = Batch(
            self._options.app,
            self._options.version or 0,
            "",
            tuple(report.part for report in reports),
            sum(report.digest for report in reports) % DIGEST_MAX,
        )
        Committer(self._options, on_step=self._on_step).commit(batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        Committer(self._options).abort([report.part for report in _reports(messages)])


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, on_step: Step = no_step) -> None:
        self._options = options
        self._on_step = on_step

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Report:
        return stage(self._options, iterator)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        reports = _reports(messages)
        if not reports:
            return
        query = reports[0].query
        assert all(report.query == query for report in reports), "one query's batch"
        batch = Batch(
            self._sink(query),
            batchId,
            query,
            tuple(report.part for report in reports),
            sum(report.digest for report in reports) % DIGEST_MAX,
        )
        Committer(self._options, on_step=self._on_step).commit(batch)

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        Committer(self._options).abort([report.part for report in _reports(messages)])

    def _sink(self, query: str) -> str:
        """The name under which its batches are known: the query's own, unless one is given.

        A query may have several sinks, so where it goes is part of it.
        """
        if self._options.app is not None:
            return self._options.app
        if not query:
            raise InvalidOption(
                "This Spark does not tell which query a batch is of.",
                hint="Give the option txnAppId, another one for each query and sink.",
            )
        options = self._options
        return f"{query}:{options.entity}:{options.topic or options.queue or '*'}"


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[Report]:
    """In the order of partitions. A task that failed has no report."""
    found = [message for message in messages if isinstance(message, Report)]
    return sorted(found, key=lambda report: report.partition)
