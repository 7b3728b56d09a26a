"""The commit of a sink's batch: exactly once, whoever brings it how often.

A batch that fits one transaction is written in it, together with the note that it was. A larger
one is entered first, with the plan of where its rows lie; then each chunk is written in the
transaction that counts it. After a crash the next attempt finds the plan and goes on behind the
last chunk, with the rows as they were staged first.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.clock import Clock, SystemClock
from penstock.errors import SinkReused, StagingDamaged
from penstock.ports import Store, Transaction, Writer
from penstock.ports.sinks import SinkBatch
from penstock.spark import staging
from penstock.spark.options import SinkOptions, settings_of
from penstock.spark.rows import to_jobs, to_messages
from penstock.spark.staging import Part
from penstock.stores import open_store

logger = logging.getLogger("penstock.spark")

Step = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True):
    """Where the rows of a large batch lie until all are written."""

    folder: str
    files: list[tuple[str, int, str]]
    """Name, rows and digest of each."""
    rows_max: int
    entity: str

    @property
    def parts(self) -> list[Part]:
        return [Part(rows, digest, file=file) for file, rows, digest in self.files]


class Batch(msgspec.Struct, frozen=True):
    """What the tasks have brought for one batch. Without a sink's name it is written as it is."""

    sink: str | None
    number: int
    query: str
    parts: tuple[Part, ...]
    digest: int

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def no_step(name: str) -> None:
    """Told of each step of a commit. Does nothing."""


class Committer:
    """Writes batches into one store. `on_step` is told before each step that a crash can follow."""

    def __init__(
        self, options: SinkOptions, *, clock: Clock | None = None, on_step: Step = no_step
    ) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._on_step = on_step
        self._settings = options.settings
        self._folder = staging.folder_of(options.settings.url, options.staging)

    def commit(self, batch: Batch) -> bool:
        """Write it, unless it was written before. Returns whether anything was written."""
        if not batch.rows:
            return False
        store = open_store(self._settings, self._clock)
        try:
            wrote = self._commit(store, batch)
            self._on_step("written")
            staging.remove(self._folder, [part.file for part in batch.parts])
            self._on_step("cleaned")
            staging.sweep(self._folder, lambda: _planned(store))
            store.maintain()
            return wrote
        finally:
            store.close()

    def abort(self, parts: Sequence[Part]) -> None:
        """Remove what the tasks have staged, but for what an open batch will go on with."""
        files = {part.file for part in parts if part.file is not None}
        if not files:
            return
        store = open_store(self._settings, self._clock)
        try:
            staging.remove(self._folder, files - _planned(store))
        finally:
            store.close()

    # Inside

    def _commit(self, store: Store, batch: Batch) -> bool:
        chunks = math.ceil(batch.rows / self._options.rows_max)
        staging.check(self._folder, batch.parts)
        if batch.sink is None:
            self._write_chunks(store, None, batch.parts, self._folder, self._options.rows_max, 0)
            return True
        parts, plan = batch.parts, b""
        if chunks > 1:
            # A crash between two chunks leaves only what is in files.
            parts = tuple(staging.put(self._folder, part) for part in parts if part.rows)
            plan = msgspec.json.encode(
                Plan(
                    str(self._folder),
                    [(str(part.file), part.rows, part.digest) for part in parts],
                    self._options.rows_max,
                    self._options.entity,
                )
            )
        entry = SinkBatch(
            batch.sink,
            batch.number,
            batch.query,
            batch.rows,
            batch.digest.to_bytes(8, "big"),
            chunks,
            plan=plan,
        )
        self._on_step("staged")
        if chunks == 1:
            return self._write_whole(store, entry, parts)
        with store_writer(store) as writer, writer.transaction() as transaction:
            known = transaction.sinks.enter(entry, now=self._clock.now())
        self._on_step("entered")
        self._check_same(known, entry)
        if known.is_done:
            staging.remove(self._folder, [part.file for part in parts])
            return False
        self._go_on(store, known, entry)
        staging.remove(self._folder, [part.file for part in parts])
        return True

    def _write_whole(self, store: Store, entry: SinkBatch, parts: Sequence[Part]) -> bool:
        """All in one transaction."""
        [rows] = staging.chunks(self._folder, parts, rows=self._options.rows_max)
        append = self._prepare(rows, entry.sink)
        with store_writer(store) as writer, writer.transaction() as transaction:
            known = transaction.sinks.enter(entry, now=self._clock.now())
            is_new = known.chunks_done == 0 and not known.plan
            if is_new:
                append(transaction)
                self._on_step("appended")
                transaction.sinks.advance(entry.sink, entry.number, chunk=0, now=self._clock.now())
        self._check_same(known, entry)
        if not is_new and not known.is_done:
            # It was begun in chunks, under another limit.
            self._go_on(store, known, entry)
            return True
        return is_new

    def _go_on(self, store: Store, known: SinkBatch, entry: SinkBatch) -> None:
        """Write what is left of a batch that was entered, by this attempt or one before it."""
        plan = msgspec.json.decode(known.plan, type=Plan)
        folder, parts = Path(plan.folder), plan.parts
        try:
            staging.check(folder, parts)
        except StagingDamaged:
            fresh = msgspec.json.decode(entry.plan, type=Plan) if entry.plan else None
            if fresh is None or [part[1:] for part in fresh.files] != [
                part[1:] for part in plan.files
            ]:
                raise
            # The tasks have staged the very same rows again.
            folder, parts = Path(fresh.folder), fresh.parts
        self._write_chunks(store, known, parts, folder, plan.rows_max, known.chunks_done)
        staging.remove(Path(plan.folder), [part.file for part in plan.parts])

    def _write_chunks(
        self,
        store: Store,
        known: SinkBatch | None,
        parts: Sequence[Part],
        folder: Path,
        rows_max: int,
        skip: int,
    ) -> None:
        sink = None if known is None else known.sink
        with store_writer(store) as writer:
            for number, rows in enumerate(
                staging.chunks(folder, parts, rows=rows_max, skip=skip), skip
            ):
                append = self._prepare(rows, sink)
                with writer.transaction() as transaction:
                    append(transaction)
                    if known is not None:
                        transaction.sinks.advance(
                            known.sink, known.number, chunk=number, now=self._clock.now()
                        )
                self._on_step(f"chunk {number}")
                # Between two chunks: what was written must not pile up until the end.
                store.maintain()

    def _prepare(self, rows: pa.RecordBatch, sink: str | None) -> Callable[[Transaction], object]:
        """What writes these rows. All that takes time is done before it is others' turn to wait."""
        if self._options.entity == "messages":
            messages = to_messages(rows)
            producer = self._settings.name or f"spark:{sink or 'batch'}"
            return lambda tx: tx.topics.append(messages, producer=producer, now=self._clock.now())
        jobs = to_jobs(rows, self._options)
        return lambda tx: tx.jobs.enqueue(jobs, now=self._clock.now())

    def _check_same(self, known: SinkBatch, entry: SinkBatch) -> None:
        if (known.rows, known.digest) == (entry.rows, entry.digest):
            return
        text = (
            f"Batch {entry.number} of the sink {entry.sink!r} was written with {known.rows:,} "
            f"rows, and comes again with {entry.rows:,} other ones."
        )
        if self._options.fail_on_mismatch:
            raise SinkReused(
                text,
                hint="Its checkpoint was deleted or set back; choose another txnAppId. If the "
                "query gives other rows each time, set failOnMismatch to false: the first stay.",
            )
        logger.warning("%s failOnMismatch is false: the first ones stay.", text)


def forget_sink(url: str, app: str) -> int:
    """Let go of what was written under a txnAppId, so that it can be used anew.

    Returns how many batches were known. What they have written stays.
    """
    store = open_store(settings_of(url), SystemClock())
    try:
        with store_writer(store) as writer, writer.transaction() as transaction:
            return transaction.sinks.forget(app)
    finally:
        store.close()


@contextmanager
def store_writer(store: Store) -> Iterator[Writer]:
    """A writer of the store, closed at the end."""
    writer = store.open_writer()
    try:
        yield writer
    finally:
        writer.close()


def _planned(store: Store) -> set[str]:
    """Files that open batches still need."""
    return {
        file
        for batch in store.sinks.unfinished()
        if batch.plan
        for file, _, _ in msgspec.json.decode(batch.plan, type=Plan).files
    }
