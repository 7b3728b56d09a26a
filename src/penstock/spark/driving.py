"""One stream on its way: started, watched batch by batch, and ended after a batch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidInput
from penstock.ports.scan import Scanner
from penstock.spark import checkpoints
from penstock.spark.entities import ENTITIES
from penstock.spark.groups import advance_group
from penstock.spark.offsets import Offset
from penstock.spark.options import SourceOptions
from penstock.spark.ranges import open_scan

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from penstock.spark.runner import Run

LOOK_SECONDS = 0.2
BEAT_SECONDS = 5.0
EVERYTHING = 2**62


class Driver:
    """Stays with one query until it has ended."""

    def __init__(self, run: Run, writer: DataStreamWriter, checkpoint: str) -> None:
        self._run = run
        self._writer = writer
        self._checkpoint = checkpoint
        self._backlogs = [Backlog(options) for options in run.sources]
        self._last_batch = -1
        self._beat_at = 0.0

    def run(self) -> None:
        if self._run.since is not None and checkpoints.is_used(self._checkpoint, self._run.spark):
            raise InvalidInput(
                f"{self._run.name} has been running, and goes on from its checkpoint: since says "
                "nothing here.",
                hint="Give until, too, to do a piece of the past again; or begin anew with "
                f"'penstock pipeline reset {self._run.name}'.",
            )
        writer = self._writer.option("checkpointLocation", self._checkpoint)
        if self._run.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=self._run.trigger)
        self._run.step("start")
        query = writer.start()
        try:
            while not query.awaitTermination(LOOK_SECONDS):  # type: ignore[arg-type]
                self._look(query)
                if self._run.is_stopping:
                    self._end(query)
                    break
            self._look(query)
            self._advance_groups(query)
        finally:
            if query.isActive:
                query.stop()
            for backlog in self._backlogs:
                backlog.close()
        self._run.step("end")

    def _end(self, query: StreamingQuery) -> None:
        """After the batch that is under way, or at once when it is urgent."""
        while query.isActive and query.status["isTriggerActive"] and not self._run.stop.is_urgent:
            before = self._last_batch
            self._look(query)
            if self._last_batch != before:
                break  # The next has begun; it is given up, and done again by the next run.
            query.awaitTermination(LOOK_SECONDS)  # type: ignore[arg-type]
        query.stop()

    def _look(self, query: StreamingQuery) -> None:
        """Report the batches that have ended since the last look."""
        last = query.lastProgress
        if last is None:
            return
        if not _is_batch(last):
            self._beat(last)
        elif last["batchId"] == self._last_batch:
            return
        for progress in query.recentProgress:
            if _is_batch(progress) and progress["batchId"] > self._last_batch:
                self._last_batch = int(progress["batchId"])
                self._report(progress)

    def _report(self, progress: Mapping[str, Any]) -> None:
        counted = self._run.counted.pop(int(progress["batchId"]), None)
        rows = int(progress["numInputRows"]) if counted is None else counted
        ranges = _ranges(progress["sources"])
        if counted is None and self._backlogs and len(ranges) == len(self._backlogs):
            read = sum(
                backlog.count(start, end)
                for backlog, (start, end, _) in zip(self._backlogs, ranges, strict=True)
            )
            # Spark counts a row as often as a batch is read over.
            rows = min(rows, read)
        self._run.report(
            rows=rows,
            batch=int(progress["batchId"]),
            lag=self._lag(ranges),
            seconds=progress["batchDuration"] / 1000,
        )

    def _beat(self, progress: Mapping[str, Any]) -> None:
        """Say now and then that it is there: Spark does when there is nothing to do."""
        if time.monotonic() - self._beat_at >= BEAT_SECONDS:
            self._beat_at = time.monotonic()
            self._run.beat(lag=self._lag(_ranges(progress["sources"])))

    def _lag(self, ranges: Sequence[tuple[Offset, Offset, Offset]]) -> int | None:
        if not ranges:
            return None
        if len(ranges) != len(self._backlogs):
            return sum(max(0, latest.id - end.id) for _, end, latest in ranges)
        return sum(
            backlog.rows(end, latest)
            for backlog, (_, end, latest) in zip(self._backlogs, ranges, strict=True)
        )

    def _advance_groups(self, query: StreamingQuery) -> None:
        """Spark tells of a batch when it plans the next, and so never of the last one."""
        progress = query.lastProgress
        groups = [options for options in self._run.sources if options.group is not None]
        if progress is None or not groups:
            return
        ends = [end for _, end, _ in _ranges(progress["sources"])]
        if ends:
            # Which source is whose is not told: the one that is furthest behind is right for all.
            slowest = min(ends, key=lambda end: end.id)
            for options in groups:
                assert options.group is not None
                advance_group(self._run.url, options.group, options.topics, slowest)


class Backlog:
    """How many rows of a source are still to be read, counted on from the last time."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._scanner: Scanner | None = None
        self._from = self._through = self._rows = 0

    def rows(self, end: Offset, latest: Offset) -> int:
        """Between what was read and the end of the log."""
        if latest.id <= end.id:
            self._rows = 0
        elif self._from <= end.id <= self._through <= latest.id:
            self._rows -= self._between(self._from, end.id)
            self._rows += self._between(self._through, latest.id)
        else:
            self._rows = self._between(end.id, latest.id)
        self._from, self._through = end.id, max(end.id, latest.id)
        self._rows = max(0, self._rows)
        return self._rows

    def count(self, start: Offset, end: Offset) -> int:
        return self._between(start.id, end.id)

    def close(self) -> None:
        if self._scanner is not None:
            self._scanner.close()
            self._scanner = None

    def _between(self, after: int, through: int) -> int:
        if self._scanner is None:
            self._scanner = open_scan(self._options.settings)
        source = ENTITIES[self._options.entity].source
        return self._scanner.count(
            source,  # type: ignore[arg-type]
            self._options.topics,
            after=after,
            through=through,
            limit=EVERYTHING,
        )


def _is_batch(progress: Mapping[str, Any]) -> bool:
    """Whether a batch was run; Spark also tells now and then that there was none."""
    return "addBatch" in progress["durationMs"]


def _ranges(sources: Sequence[Mapping[str, Any]]) -> list[tuple[Offset, Offset, Offset]]:
    """Where each of our sources was before the batch, is after it, and where its log ends."""
    found = []
    for source in sources:
        end = _offset(source["endOffset"])
        if end is not None:
            start, latest = _offset(source["startOffset"]), _offset(source["latestOffset"])
            # The first batch has no start: it says nothing of what was before.
            found.append((start or Offset(end.db, 0), end, latest or end))
    return found


def _offset(text: Any) -> Offset | None:
    value = json.loads(text) if isinstance(text, str) else text
    return Offset.parse(value) if isinstance(value, Mapping) and "db" in value else None
