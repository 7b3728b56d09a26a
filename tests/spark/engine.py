"""What Spark does with a source and a sink, step by step, in a process that can be killed.

The order is Spark's: a batch's offsets are written down before anything is read, its number after
everything is committed; whoever starts again begins with the batch that has the one and not the
other. Offsets and numbers are files in a checkpoint folder, written whole or not at all.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict

from penstock.spark.options import parse_sink
from penstock.spark.sink import StreamWriter
from pyspark_penstock import DefaultSource
from tests.spark.driving import columns, shipped, task, through_json

Step = Callable[[str], None]
WANTED = columns("value", "key")


class Engine:
    """A query from a topic to a topic. `on_step` is told of every step; it may never return."""

    def __init__(
        self,
        url: str,
        checkpoint: Path,
        on_step: Step,
        *,
        source: dict[str, str],
        sink: dict[str, str],
    ) -> None:
        self._checkpoint = checkpoint
        self._on_step = on_step
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
        self._query = self._named()
        options = CaseInsensitiveDict({"url": url, **source})
        self._reader: Any = DefaultSource(options).streamReader(WANTED)
        self._options = parse_sink({"url": url, **sink})

    def run(self) -> None:
        """To the end of what was there when it began."""
        self._reader.prepareForTriggerAvailableNow()
        while True:
            number, start, end = self._next()
            if end == start:
                break
            self._on_step("planned")
            self._batch(number, start, end)
        self._reader.stop()

    def _next(self) -> tuple[int, Any, Any]:
        """The batch that is to be done: one that was begun, or a new one."""
        planned = sorted(int(path.name) for path in (self._checkpoint / "offsets").iterdir())
        if planned and not (self._checkpoint / "commits" / str(planned[-1])).exists():
            return planned[-1], *self._read(f"offsets/{planned[-1]}")
        if planned:
            start = self._read(f"offsets/{planned[-1]}")[1]
        else:
            start = through_json(self._reader.initialOffset())
        limit = self._reader.getDefaultReadLimit()
        end = through_json(self._reader.latestOffset(start, limit))
        number = planned[-1] + 1 if planned else 0
        if end != start:
            self._write(f"offsets/{number}", [start, end])
        return number, start, end

    def _batch(self, number: int, start: Any, end: Any) -> None:
        parts = self._reader.partitions(start, end) or [None]
        reports = []
        for place, part in enumerate(parts):
            with task(place, self._query, number):
                rows = self._noticed(shipped(self._reader).read(part))
                reports.append(shipped(StreamWriter(self._options).write(rows)))
            self._on_step("staged a part")
        StreamWriter(self._options, on_step=self._on_step).commit(reports, number)
        self._on_step("committed")
        self._write(f"commits/{number}", True)
        self._on_step("noted")
        self._reader.commit(end)

    def _noticed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            self._on_step("wrote some rows")

    def _named(self) -> str:
        path = self._checkpoint / "query"
        if not path.exists():
            self._write("query", str(uuid.uuid4()))
        return str(self._read("query"))

    def _read(self, name: str) -> Any:
        return json.loads((self._checkpoint / name).read_text())

    def _write(self, name: str, value: Any) -> None:
        partial = self._checkpoint / f"{name.replace('/', '-')}.partial"
        partial.write_text(json.dumps(value))
        partial.rename(self._checkpoint / name)
