"""From the log into the lake: tasks read messages and write files, the driver enters them.

This is a source whose tasks do not hand messages on but write them where they belong, and report
which files they have made: on the way through the JVM a message costs more than all the rest.
Planning, limits and the notice of losses are the stream's, as for every reader.

A batch that comes again finds in the books that it is in the lake, and does nothing. One that is
in the lake in part, or of which some topics were archived before, leaves those out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StringType, StructField, StructType

from penstock.clock import Clock, SystemClock
from penstock.model import Pattern
from penstock.ports import Store
from penstock.ports.lake import Coverage, LakeBatch, LakeFile
from penstock.spark.entities import ENTITIES
from penstock.spark.lake_files import (
    MESSAGES_FOLDER,
    NAMED_MAX,
    SCHEMA,
    LakeFormat,
    Parquet,
    Place,
)
from penstock.spark.lake_folder import LakeFolder, writing
from penstock.spark.offsets import Offset
from penstock.spark.options import SourceOptions, parse_source
from penstock.spark.ranges import Range, RangeReader
from penstock.spark.sink import BATCH_ID, QUERY_ID
from penstock.spark.stream import StreamReader

FORMAT = "penstock_archive"
REPORTS = StructType([StructField("report", StringType())])
OWN = ("lake", "attempt", "tasks", "compression")
ACTIVE_MAX = 100_000
TASK_ROWS = 50_000
"""A task of fewer rows makes files that are not worth it."""

Step = Callable[[str], None]


class Report(msgspec.Struct, frozen=True):
    """What a task has made, and of what."""

    query: str
    batch: int
    epoch: str
    after: int
    """Where the batch begins; not the task alone."""
    through: int
    """How far the task has come."""
    expected: dict[str, int]
    """Where the held subscriptions were when the batch was planned."""
    files: tuple[LakeFile, ...]


@dataclass(frozen=True)
class Portion(InputPartition):
    """A task's part of a batch."""

    part: Range
    after: int
    expected: Mapping[str, int]
    covered: tuple[tuple[str, int], ...]
    """Subscriptions, and up to where each is in the lake: that is left out."""
    is_shared: bool


class ArchiveSource(DataSource):
    """`readStream.format("penstock_archive")`; each row is a task's report."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return REPORTS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        given = {name: value for name, value in self.options.items() if name.lower() not in OWN}
        return ArchiveReader(
            parse_source(given, ENTITIES),
            lake=self.options["lake"],
            attempt=self.options["attempt"],
            tasks=int(self.options["tasks"]),
            format=Parquet(self.options["compression"]),
        )


class ArchiveReader(StreamReader):
    def __init__(
        self,
        options: SourceOptions,
        *,
        lake: str,
        attempt: str,
        tasks: int = 2,
        format: LakeFormat | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(options, SCHEMA, clock)
        self._lake = lake
        self._attempt = attempt
        self._tasks = tasks
        self._format: LakeFormat = format or Parquet()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the lake ends: what is in it is not read again, whatever became of a checkpoint."""
        scanner = self._scan()
        end = scanner.end("messages")
        coverage = [found for found in scanner.lake.coverage() if found.is_held]
        after = min((found.through for found in coverage), default=0)
        trims = scanner.trims("messages", self._options.topics, after=after)
        # What was removed before its subscription was held for the first time is no loss.
        told = {
            topic: through for topic, through in trims.items() if _floor(coverage, topic, through)
        }
        return Offset(end.epoch, after, told=told).as_json()

    def latestOffset(  # noqa: N802
        self, start: Mapping[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        return super().latestOffset(self._behind_lake(start).as_json(), limit)

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        begin, last = self._behind_lake(start), Offset.parse(end)
        if begin.id >= last.id:
            return []  # It was entered, and then the checkpoint was not written any more.
        tasks = min(self._tasks, math.ceil((last.id - begin.id) / TASK_ROWS))
        self._options = msgspec.structs.replace(self._options, partitions_min=max(1, tasks))
        planned = super().partitions(begin.as_json(), end)
        parts = [part for part in planned if isinstance(part, Range)]
        scanner = self._scan()
        coverage = scanner.lake.coverage()
        held = {found.subscription: found.through for found in coverage if found.is_held}
        active = scanner.active(self._options.topics, after=begin.id, limit=NAMED_MAX)
        covered = tuple(
            (found.subscription, found.through) for found in coverage if found.through > begin.id
        )
        # Where nothing is left to read, one task says so.
        parts = parts or [Range(last.id, last.id, last.db, last.at)]
        return [Portion(part, begin.id, held, covered, active is None) for part in parts]

    def _behind_lake(self, start: Mapping[str, Any]) -> Offset:
        """The place, or the end of the lake if that is further on: what is in the lake may have
        been removed since."""
        begin, scanner = Offset.parse(start), self._scan()
        coverage = scanner.lake.coverage()
        held = [found.through for found in coverage if found.is_held]
        after, told = max(begin.id, min(held, default=0)), dict(begin.told)
        covered = [(found.subscription, found.through) for found in coverage]
        if any(through > after for _, through in covered):
            # Some topics are further on than others: of those, too.
            topics = self._options.topics
            names = scanner.active(topics, after=after, limit=ACTIVE_MAX)
            for topic in scanner.trims("messages", topics, after=after) if names is None else names:
                told[topic] = max(told.get(topic, 0), archived_through(topic, covered))
        return msgspec.structs.replace(begin, id=after, told=told)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Portion):
            return
        query, batch, attempt = _task()
        part = partition.part
        name = f"{self._attempt}-{part.after + 1:012}-{attempt}"
        place = Place(self._lake, batch_folder(query, batch), name, partition.is_shared)
        writer = self._format.open(place)
        try:
            for rows in RangeReader(self._options, self._schema).read(part):
                writer.add(left_out(rows, partition.covered))
            files = writer.finish()
        except BaseException:
            writer.abort()
            raise
        report = Report(
            query,
            batch,
            part.epoch,
            partition.after,
            part.through,
            dict(partition.expected),
            tuple(files),
        )
        yield pa.RecordBatch.from_pydict({"report": [msgspec.json.encode(report).decode()]})


class Archive:
    """Enters what the tasks of a batch have reported, on the driver."""

    def __init__(self, store: Store, folder: LakeFolder, *, clock: Clock | None = None) -> None:
        self._store = store
        self._lake = folder.path
        self._clock = clock or SystemClock()

    def enter(self, reports: Sequence[Report], step: Step) -> LakeBatch | None:
        """In one transaction, the files and how far the lake goes. None if nothing was to do.

        `step` is told of each point where a crash can follow.
        """
        step("written")
        if not reports:
            return None
        first = reports[0]
        assert all(
            (report.query, report.batch, report.epoch, report.after, report.expected)
            == (first.query, first.batch, first.epoch, first.after, first.expected)
            for report in reports
        ), "one batch's reports"
        files = tuple(sorted((f for r in reports for f in r.files), key=lambda f: f.path))
        batch = LakeBatch(
            first.query,
            first.batch,
            first.after,
            max(report.through for report in reports),
            files,
            _summary(files),
        )
        now = self._clock.now()
        with writing(self._store) as transaction:
            transaction.lake.add(batch, epoch=first.epoch, now=now)
            step("manifest")
            transaction.lake.advance(first.expected, batch, now=now)
            step("hold")
        step("entered")
        self._remove_other_attempts(batch)
        self._store.maintain()
        return batch

    def _remove_other_attempts(self, batch: LakeBatch) -> None:
        """Files of tasks that failed, or of a run that was killed before it entered them."""
        folder = self._lake / batch_folder(batch.query, batch.number)
        found = {str(path.relative_to(self._lake)) for path in folder.glob("*/*/*")}
        others = found - {file.path for file in batch.files}
        for path in others - self._store.lake.is_known(sorted(others)):
            (self._lake / path).unlink(missing_ok=True)


def batch_folder(query: str, batch: int) -> str:
    return f"{MESSAGES_FOLDER}/batch={query}-{batch}"


def left_out(rows: pa.RecordBatch, covered: Sequence[tuple[str, int]]) -> pa.RecordBatch:
    """The rows without those that are in the lake: of these subscriptions, up to an id each."""
    if not rows.num_rows or not covered:
        return rows
    offsets = rows.column("offset").to_numpy()
    if int(offsets[0]) > max(through for _, through in covered):
        return rows
    topics = rows.column("topic").dictionary_encode()
    through = np.array(
        [archived_through(topic, covered) for topic in topics.dictionary.to_pylist()]
    )
    return rows.filter(pa.array(offsets > through[topics.indices.to_numpy()]))


def archived_through(topic: str, covered: Sequence[tuple[str, int]]) -> int:
    """Up to which id all messages of the topic are in the lake."""
    return max((id for text, id in covered if Pattern(text).matches(topic)), default=0)


def _floor(coverage: Sequence[Coverage], topic: str, through: int) -> bool:
    """Whether the removal was made before the topic was held for the first time."""
    return any(
        through <= found.floor for found in coverage if Pattern(found.subscription).matches(topic)
    )


def _task() -> tuple[str, int, int]:
    """The query, the batch, and the number of this attempt."""
    context = TaskContext.get()
    assert context is not None, "in a task"
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    assert query is not None, "the task of a stream"
    assert batch is not None, "the task of a stream"
    return query, int(batch), context.taskAttemptId()


def _summary(files: Sequence[LakeFile]) -> str:
    return hashlib.blake2b(
        "".join(file.digest for file in files).encode(), digest_size=16
    ).hexdigest()
