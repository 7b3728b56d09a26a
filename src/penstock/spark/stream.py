"""Reading as a stream: batches are planned on the driver and read by tasks.

Spark's checkpoint alone says how far the stream has come. The row of its group in the store is
for people, and for retention, which can be told to wait for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.clock import Clock, SystemClock
from penstock.errors import StoreBusy
from penstock.ports.scan import Log, LogEnd, Scanner
from penstock.spark.entities import ENTITIES
from penstock.spark.groups import note_group
from penstock.spark.offsets import Offset
from penstock.spark.options import LATEST, SourceOptions
from penstock.spark.places import find_place
from penstock.spark.ranges import Range, RangeReader, divide, open_scan, report_loss

logger = logging.getLogger("penstock.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver as long as the query; copies of it read in tasks."""

    def __init__(
        self, options: SourceOptions, schema: StructType, clock: Clock | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock or SystemClock()
        self._scanner: Scanner | None = None
        self._target: LogEnd | None = None
        self._waiting_since: float | None = None
        self._is_noted = False
        ENTITIES[options.entity].choose(schema)

    # Where the stream is

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        scanner, options = self._scan(), self._options
        end = scanner.end(self._source)
        return find_place(scanner, options, options.starting or LATEST, end).as_json()

    def latestOffset(  # noqa: N802
        self, start: Mapping[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        scanner, options = self._scan(), self._options
        begin = Offset.parse(start)
        end = scanner.end(self._source)
        begin.check(end.epoch, end.last_id)
        self._note(begin)
        last_id = end.last_id
        if self._target is not None and self._target.epoch == end.epoch:
            # Not before where the stream is: it may have been further before a restart.
            last_id = max(begin.id, min(last_id, self._target.last_id))
        if begin.at:
            # Where nothing that is meant was added, no batch is made of what was added elsewhere.
            is_idle = last_id == begin.id or (
                scanner.newest(self._source, options.topics) <= begin.id
            )
            if is_idle or self._waits(scanner, begin, last_id):
                return dict(start)
        # Otherwise it has just begun. Its first batch may be empty: it puts the place where the
        # stream began into the checkpoint, so that what comes before the second is not missed.
        rows_max, bytes_max = self._limits(limit)
        trims = scanner.trims(self._source, options.topics, after=begin.id)
        news = begin.news(trims)
        if news:
            report_loss(options, begin.id, news)
        through = scanner.step(
            self._source,
            options.topics,
            after=begin.id,
            through=last_id,
            rows_max=rows_max,
            bytes_max=bytes_max,
        )
        self._waiting_since = None
        return Offset(end.epoch, through, self._clock.now(), trims).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.rows_max or 0)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        end = self._scan().end(self._source)
        return Offset(end.epoch, end.last_id).as_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._scan().end(self._source)

    # Reading

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        begin, last = Offset.parse(start), Offset.parse(end)
        scanner = self._scan()
        now = scanner.end(self._source)
        begin.check(now.epoch, now.last_id)
        last.check(now.epoch, now.last_id)
        told = {**begin.told, **last.told}
        whole = Range(begin.id, last.id, now.epoch, last.at or self._clock.now(), told)
        lost = whole.lost(scanner.trims(self._source, self._options.topics, after=begin.id))
        if lost:
            report_loss(self._options, begin.id, lost)
        first = scanner.first_id(self._source)
        return divide(whole, first_id=first, partitions_min=self._options.partitions_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Range):
            return iter(())
        return RangeReader(self._options, self._schema).read(partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        if self._options.group is not None:
            try:
                note_group(self._options, Offset.parse(end), self._clock)
            except StoreBusy as error:
                # No reason to end a stream: the next commit tells of this batch, too.
                logger.warning("the group %s was not noted: %s", self._options.group, error)

    def stop(self) -> None:
        scanner, self._scanner = self._scanner, None
        if scanner is not None:
            scanner.close()

    def __getstate__(self) -> dict[str, Any]:
        """Tasks open the store themselves, and ask for no time."""
        return {**self.__dict__, "_scanner": None, "_clock": None}

    # Inside

    @property
    def _source(self) -> Log:
        return ENTITIES[self._options.entity].source  # type: ignore[return-value]

    def _scan(self) -> Scanner:
        if self._scanner is None:
            self._scanner = open_scan(self._options.settings)
        return self._scanner

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Rows and bytes. What Spark asks for comes first; the options add to it."""
        if isinstance(limit, ReadAllAvailable):
            return None, None
        rows_max, bytes_max = self._options.rows_max, self._options.bytes_max
        if isinstance(limit, ReadMaxRows):
            rows_max = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            bytes_max = limit.max_bytes
        return rows_max, bytes_max

    def _waits(self, scanner: Scanner, begin: Offset, last_id: int) -> bool:
        """Whether there is too little to begin with, and some time left to wait for more."""
        wanted = self._options.rows_min
        if wanted is None or self._target is not None:
            return False
        found = scanner.count(
            self._source, self._options.topics, after=begin.id, through=last_id, limit=wanted
        )
        if found >= wanted:
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since < self._options.delay_max_seconds

    def _note(self, begin: Offset) -> None:
        """From its first batch on, so that retention can wait for the group."""
        if self._options.group is not None and not self._is_noted:
            note_group(self._options, begin, self._clock)
            self._is_noted = True
