"""One stream on its way: started, watched batch by batch, and ended after a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.spark.groups import advance_group
from penstock.spark.offsets import Offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from penstock.spark.runner import Run

LOOK_SECONDS = 0.2
RECENT_MAX = 100
"""Batches that Spark remembers."""


class Driver:
    """Stays with one query until it has ended."""

    def __init__(self, run: Run, writer: DataStreamWriter, checkpoint: str) -> None:
        self._run = run
        self._writer = writer
        self._checkpoint = checkpoint
        self._seen: int | None = None
        """The last batch that was reported."""

    def run(self) -> None:
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
        finally:
            if query.isActive:
                query.stop()
        error = query.exception()
        if error is not None:
            raise error
        self._advance_groups(query)
        self._run.step("end")

    def _end(self, query: StreamingQuery) -> None:
        """After the batch that is under way, or at once when it is urgent."""
        batch = self._last_batch(query)
        while query.isActive and not self._run.stop.is_urgent:
            if not query.status["isTriggerActive"] or self._last_batch(query) != batch:
                break
            query.awaitTermination(LOOK_SECONDS)  # type: ignore[arg-type]
        query.stop()

    def _last_batch(self, query: StreamingQuery) -> int | None:
        progress = query.lastProgress
        return None if progress is None else int(progress["batchId"])

    def _advance_groups(self, query: StreamingQuery) -> None:
        """Spark tells of a batch when it plans the next, and so never of the last one."""
        progress = query.lastProgress
        if progress is None or not self._run.groups:
            return
        ends = [end for source in progress["sources"] if (end := _offset(source["endOffset"]))]
        if ends:
            # Which source is whose is not told: the one that is furthest behind is right for all.
            slowest = min(ends, key=lambda end: end.id)
            for options in self._run.groups:
                assert options.group is not None
                advance_group(self._run.url, options.group, options.topics, slowest)

    def _look(self, query: StreamingQuery) -> None:
        """Report the batches that have ended since the last look."""
        last = query.lastProgress
        if last is None or last["batchId"] == self._seen:
            return
        for progress in query.recentProgress:
            batch = int(progress["batchId"])
            if self._seen is not None and batch <= self._seen:
                continue
            self._seen = batch
            self._run.report(
                rows=int(progress["numInputRows"]),
                batch=batch,
                lag=_lag(progress),
                seconds=progress["batchDuration"] / 1000,
            )


def _lag(progress: Mapping[str, Any]) -> int | None:
    """Ids between what was read and the end of the log, over all sources that tell."""
    found = []
    for source in progress["sources"]:
        end, latest = _offset(source["endOffset"]), _offset(source["latestOffset"])
        if end is not None and latest is not None:
            found.append(max(0, latest.id - end.id))
    return sum(found) if found else None


def _offset(text: Any) -> Offset | None:
    value = json.loads(text) if isinstance(text, str) else text
    return Offset.parse(value) if isinstance(value, Mapping) and "db" in value else None
