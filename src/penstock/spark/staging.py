"""Rows between a task and the commit: small parts in the commit message, large ones in files.

A staged file is whole or absent: it is written under another name, synced and renamed. Its digest
travels separately, so that a damaged file is found before any of its rows is written.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.errors import StagingDamaged
from penstock.stores import check_url

SUFFIX = ".arrow"
PARTIAL = ".part"
SUFFIXES = (SUFFIX, PARTIAL)
ORPHAN_SECONDS = 86_400.0
"""Files that no batch speaks of are removed when they are this old: their tasks are long gone."""
READ_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Part:
    """One task's rows: in a file, or right here."""

    rows: int
    digest: str
    file: str | None = None
    data: bytes | None = None


def folder_of(url: str, given: str | None = None) -> Path:
    """Where a store's parts are staged: beside the database, unless another place is given."""
    if given is not None:
        return Path(given).absolute()
    _, path = check_url(url)
    return Path(path).absolute().with_name(Path(path).name + "-staging")


class Stage:
    """One task's rows as they come in. Use as a context: what is not finished leaves nothing."""

    def __init__(self, folder: Path, schema: pa.Schema, *, inline_bytes_max: int) -> None:
        self._folder = folder
        self._schema = schema
        self._inline_bytes_max = inline_bytes_max
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._path: Path | None = None
        self._file: pa.OSFile | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        if self._writer is not None:
            self._writer.write_batch(batch)
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes > self._inline_bytes_max:
            self._spill()

    def finish(self) -> Part:
        """The part, durable if it is a file."""
        if self._writer is None:
            data = _encoded(self._waiting, self._schema)
            return Part(self.rows, _digest([data]), data=data)
        assert self._file is not None
        assert self._path is not None
        self._writer.close()
        self._file.close()
        self._writer = None
        return _settle(self._path, self.rows)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._file is not None and not self._file.closed:
            self._file.close()
        if kind is not None and self._path is not None:
            self._path.unlink(missing_ok=True)

    def _spill(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path = self._folder / f"{uuid.uuid4().hex}{PARTIAL}"
        self._file = pa.OSFile(str(self._path), "wb")
        self._writer = pa.ipc.new_stream(self._file, self._schema)
        for batch in self._waiting:
            self._writer.write_batch(batch)
        self._waiting = []


def put(folder: Path, part: Part) -> Part:
    """The part in a file, if it was not in one."""
    if part.data is None:
        return part
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{uuid.uuid4().hex}{PARTIAL}"
    path.write_bytes(part.data)
    return _settle(path, part.rows)


def check(folder: Path, parts: Sequence[Part]) -> None:
    """Raises `StagingDamaged` unless all of them are as they were staged."""
    for part in parts:
        if part.data is not None:
            found = _digest([part.data])
        else:
            path = folder / str(part.file)
            try:
                found = _digest(_pieces(path))
            except OSError as error:
                raise StagingDamaged(
                    f"The staged file {path} cannot be read: {error.strerror}."
                ) from error
        if found != part.digest:
            raise StagingDamaged(f"The staged file {part.file or '(inline)'} is damaged.")


def chunks(
    folder: Path, parts: Sequence[Part], *, rows: int, skip: int = 0
) -> Iterator[pa.RecordBatch]:
    """The parts' rows in order, in chunks of so many, without the first `skip` chunks."""
    waiting: list[pa.RecordBatch] = []
    count, number = 0, 0
    for batch in _batches(folder, parts):
        while batch.num_rows:
            piece = batch.slice(0, rows - count)
            batch = batch.slice(piece.num_rows)
            waiting.append(piece)
            count += piece.num_rows
            if count == rows:
                if number >= skip:
                    yield _joined(waiting)
                waiting, count, number = [], 0, number + 1
    if waiting and number >= skip:
        yield _joined(waiting)


def remove(folder: Path, files: Collection[str | None]) -> None:
    for file in files:
        if file is not None:
            (folder / file).unlink(missing_ok=True)


def sweep(
    folder: Path,
    planned: Callable[[], Collection[str]],
    *,
    older_than_seconds: float = ORPHAN_SECONDS,
) -> int:
    """Remove old files that no batch will go on with. Returns how many."""
    limit = time.time() - older_than_seconds
    try:
        old = [entry for entry in os.scandir(folder) if entry.stat().st_mtime < limit]
    except FileNotFoundError:
        return 0  # Nothing was ever staged, or somebody else is sweeping.
    orphans = {entry.name for entry in old if entry.name.endswith(SUFFIXES)}
    if orphans:
        orphans -= set(planned())
        remove(folder, orphans)
    return len(orphans)


def _settle(path: Path, rows: int) -> Part:
    digest = _digest(_pieces(path))
    final = path.with_suffix(SUFFIX)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    path.rename(final)
    descriptor = os.open(final.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Part(rows, digest, file=final.name)


def _batches(folder: Path, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        source = pa.BufferReader(part.data) if part.data is not None else None
        try:
            with source or pa.OSFile(str(folder / str(part.file)), "rb") as file:
                yield from pa.ipc.open_stream(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise StagingDamaged(f"The staged file {part.file} cannot be read: {error}.") from error


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _encoded(batches: list[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            yield piece


def _digest(pieces: Iterator[bytes] | list[bytes]) -> str:
    summary = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        summary.update(piece)
    return summary.hexdigest()
