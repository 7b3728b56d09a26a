"""The archive driven as Spark drives it, without a JVM, and the lake read back from its files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.ports import Store
from penstock.settings import Settings
from penstock.spark.archiving import Archive, ArchiveReader, Report
from penstock.spark.compaction import Compactor
from penstock.spark.entities import ENTITIES
from penstock.spark.lake_files import SCHEMA, Parquet
from penstock.spark.lake_folder import LakeFolder, writing
from penstock.spark.options import parse_source
from penstock.stores import open_store
from tests.factories import file_url, settings_for
from tests.spark.driving import Row, read_batch, shipped, task
from tests.spark.engine import Engine

Step = Callable[[str], None]


def no_step(name: str) -> None:
    """Told of each step. Does nothing."""


def lake_of(path: Path) -> Path:
    return path.with_name(path.name + ".lake")


@contextmanager
def store_of(path: Path, *, clock: Clock | None = None, **settings: Any) -> Iterator[Store]:
    store = open_store(settings_for(file_url(path), **settings), clock or SystemClock())
    try:
        yield store
    finally:
        store.close()


class ArchiveEngine(Engine):
    """The archive's query; one checkpoint folder is one query. `on_step` may never return."""

    def __init__(
        self,
        path: Path,
        checkpoint: Path,
        on_step: Step = no_step,
        *,
        topics: Sequence[str] = (),
        rows_max: int = 100_000,
        tasks: int = 2,
        compact: bool = True,
        allow_loss: bool = False,
        lake: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._on_step = on_step
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
        self._query = self._named()
        self._compact = compact
        self._clock = clock or SystemClock()
        self.settings: Settings = settings_for(file_url(path))
        self.folder = LakeFolder(str(lake or lake_of(path)))
        self.store = open_store(self.settings, self._clock)
        given = {
            "url": file_url(path),
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(rows_max),
            "failOnDataLoss": str(not allow_loss).lower(),
        }
        if topics:
            given["subscribePattern"] = ",".join(topics)
        try:
            self.folder.claim(self.store, self._clock)
            with writing(self.store) as transaction:
                transaction.lake.hold(topics or ("*",), now=self._clock.now())
            on_step("held")
        except BaseException:
            self.store.close()
            raise
        self._reader = ArchiveReader(
            parse_source(given, ENTITIES),
            lake=str(self.folder.path),
            attempt=uuid.uuid4().hex[:12],
            tasks=tasks,
            clock=clock,
        )
        self.archived = 0

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._reader.stop()
            self.store.close()

    def _batch(self, number: int, start: Any, end: Any) -> None:
        reports = [report for part in self.parts(start, end) for report in self.work(part, number)]
        entered = Archive(self.store, self.folder, clock=self._clock).enter(reports, self._on_step)
        self.archived += 0 if entered is None else entered.rows
        if entered is not None and self._compact:
            self.compactor().run()
        self._on_step("done")
        self._write(f"commits/{number}", True)
        self._on_step("noted")

    def parts(self, start: Any, end: Any) -> list[Any]:
        return [*self._reader.partitions(start, end)] or [None]

    def work(self, part: Any, number: int, attempt: int = 0) -> list[Report]:
        """A task."""
        with task(0, self._query, number, attempt):
            batches = list(shipped(self._reader).read(shipped(part)))
        self._on_step("worked")
        return [
            msgspec.json.decode(text, type=Report)
            for batch in batches
            for text in batch.column("report").to_pylist()
        ]

    def compactor(self) -> Compactor:
        return Compactor(
            self.store, self.folder, self.settings, clock=self._clock, on_step=self._on_step
        )


def archive(path: Path, checkpoint: Path | None = None, **options: Any) -> int:
    """Run it to the end of what is there. Returns how many messages were archived."""
    engine = ArchiveEngine(path, checkpoint or path.with_name("checkpoint"), **options)
    engine.run()
    return engine.archived


def rows_in_lake(path: Path, *, lake: Path | None = None, **asked: Any) -> list[Row]:
    """What the files have that stand in the books, by offset."""
    with store_of(path) as store:
        files = store.lake.view(**asked).files
    root = lake or lake_of(path)
    rows = [
        row
        for file in files
        for batch in Parquet().rows(root / file.path)
        for row in batch.to_pylist()
    ]
    assert len(rows) == sum(file.rows for file in files)
    return sorted(rows, key=lambda row: row["offset"])


def rows_in_log(path: Path, **options: Any) -> list[Row]:
    """The same columns from the log."""
    return read_batch(path, SCHEMA, includeHeaders="true", **options)


def files_on_disk(path: Path, *, lake: Path | None = None) -> set[str]:
    root = lake or lake_of(path)
    return {str(found.relative_to(root)) for found in (root / "messages").rglob("*.parquet")}
