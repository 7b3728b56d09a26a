"""The lake's files: which folder a message belongs in, and how a task writes its messages there.

A file is written once, under a name that nobody else uses, and is on disk before anybody hears of
it. It counts only once it stands in the books, so half a file, or one that was written twice,
does no harm.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock import codec
from penstock.ports.lake import LakeFile
from penstock.spark.entities import MESSAGES

# What every message is given when it is read, and so need not be in a file.
CONSTANTS: Mapping[str, int] = {"partition": 0, "timestampType": 1}
SCHEMA = StructType(
    [
        field
        for field in MESSAGES.schema(include=MESSAGES.optional).fields
        if field.name not in CONSTANTS
    ]
)
"""The columns of a file."""

MESSAGES_FOLDER = "messages"
NAMED_MAX = 64
"""More topics than this, and they share folders: a file for each would have a few rows."""
SHARED_FOLDERS = 16
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 32 * 1024 * 1024
WAITING_BYTES_MAX = 256 * 1024 * 1024
"""Of all files that a task has open: what waits for the rest of its row group."""
OPEN_MAX = 256
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
DAY = 86_400_000_000
READ_BYTES = 1024 * 1024

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_json = msgspec.json.Decoder(msgspec.Raw)

# Few different values, or rising numbers. A column that proves otherwise goes on without.
_DICTIONARY = ["topic", "type", "content_type", "producer", "key", "value"]
_RISING = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
_STATISTICS = ["offset", "timestamp", "topic", "key", "type", "message_id", "expires_at"]


def folder_of(topic: str) -> str:
    """The folder of a topic: its name where that is plain, else a digest of it.

    No other byte of a name gets into a path, and two names never share a folder, not even where
    the file system does not know capitals.
    """
    if _PLAIN.fullmatch(topic):
        return topic
    return "~" + hashlib.sha256(topic.encode()).hexdigest()[:32]


def shared_folder_of(topic: str) -> str:
    """The folder that the topic shares with others while there are very many."""
    return f"+{hashlib.sha256(topic.encode()).digest()[0] % SHARED_FOLDERS:02}"


def folders_of(topic: str) -> tuple[str, str]:
    """All folders that can have messages of the topic."""
    return folder_of(topic), shared_folder_of(topic)


class Place(msgspec.Struct, frozen=True):
    """Where a task's files go, and what they are called: nobody else uses the name."""

    root: str
    batch: str
    name: str
    is_shared: bool = False
    """Whether topics share folders."""


class LakeWriter(Protocol):
    """Writes one task's messages as files of the lake."""

    def add(self, rows: pa.RecordBatch) -> None: ...

    def finish(self) -> list[LakeFile]:
        """The files, on disk for good."""

    def abort(self) -> None:
        """Remove what was written."""


class LakeFormat(Protocol):
    """How messages are kept in files. Goes to the tasks, so it can be pickled.

    What another format has to give. Which files count is not its matter.
    """

    def open(self, place: Place) -> LakeWriter: ...

    def rows(self, path: Path) -> Iterator[pa.RecordBatch]:
        """What is in a file, for compaction."""


class Parquet(msgspec.Struct, frozen=True):
    """Parquet files, a folder for each topic and date."""

    compression: str = "zstd"

    def open(self, place: Place) -> LakeWriter:
        return ParquetWriter(place, self.compression)

    def rows(self, path: Path) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROW_GROUP_ROWS // 4):
                yield _conform(batch)


class ParquetWriter:
    """A file for each folder and date among the rows."""

    def __init__(self, place: Place, compression: str) -> None:
        self._place = place
        self._compression = compression
        self._open: dict[tuple[str, str], _Growing] = {}
        self._done: list[LakeFile] = []
        self._count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        for folder, date, piece in split(rows, is_shared=self._place.is_shared):
            self._file(folder, date).add(piece)
        while sum(file.waiting_bytes for file in self._open.values()) > WAITING_BYTES_MAX:
            max(self._open.values(), key=lambda file: file.waiting_bytes).flush()

    def finish(self) -> list[LakeFile]:
        self._done += [file.finish() for file in self._open.values()]
        self._open.clear()
        sync_folders(Path(self._place.root), [Path(file.path).parent for file in self._done])
        return self._done

    def abort(self) -> None:
        for file in self._open.values():
            file.abort()
        for done in self._done:
            (Path(self._place.root) / done.path).unlink(missing_ok=True)

    def _file(self, folder: str, date: str) -> _Growing:
        found = self._open.pop((folder, date), None)
        if found is None:
            if len(self._open) >= OPEN_MAX:
                # The one that was not used for the longest time.
                self._done.append(self._open.pop(next(iter(self._open))).finish())
            self._count += 1
            found = _Growing(self._place, folder, date, self._count, self._compression)
        self._open[folder, date] = found
        return found


class _Growing:
    """One file on its way."""

    def __init__(self, place: Place, folder: str, date: str, number: int, compression: str) -> None:
        self._place = place
        self._folder, self._date = folder, date
        name = f"{place.name}-{number:04}.parquet"
        self._relative = f"{place.batch}/topic={folder}/date={date}/{name}"
        self._path = Path(place.root) / self._relative
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._schema = to_arrow_schema(SCHEMA, timezone="UTC")
        self._writer = pq.ParquetWriter(
            self._path,
            self._schema,
            compression=compression,
            use_dictionary=_DICTIONARY,
            column_encoding=_RISING,
            write_statistics=_STATISTICS,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self.waiting_bytes = 0
        self._rows = self._unparsable = 0
        self._ids: list[int] = []
        self._times: list[int] = []
        self._formats: Counter[str] = Counter()

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self.waiting_bytes += rows.nbytes
        self._rows += rows.num_rows
        self._ids += _bounds(rows.column("offset"))
        self._times += _bounds(rows.column("timestamp").cast(pa.int64()))
        formats, unparsable = _count_payloads(rows)
        self._formats += formats
        self._unparsable += unparsable
        if self._waiting_rows >= ROW_GROUP_ROWS or self.waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """What waits becomes a row group."""
        table = pa.Table.from_batches(self._waiting, self._schema)
        if self._place.is_shared:
            # So that a reader of one topic can pass over most of it.
            table = table.sort_by([("topic", "ascending"), ("offset", "ascending")])
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0

    def finish(self) -> LakeFile:
        if self._waiting:
            self.flush()
        self._writer.close()
        digest = sync_file(self._path)
        return LakeFile(
            self._relative,
            self._folder,
            self._date,
            self._rows,
            self._path.stat().st_size,
            min(self._ids),
            max(self._ids),
            min(self._times),
            max(self._times),
            digest,
            dict(self._formats),
            self._unparsable,
        )

    def abort(self) -> None:
        self._writer.close()
        self._path.unlink(missing_ok=True)


def split(rows: pa.RecordBatch, *, is_shared: bool) -> Iterator[tuple[str, str, pa.RecordBatch]]:
    """The rows by folder and date, each part in the order they came in."""
    if not rows.num_rows:
        return
    topics = rows.column("topic").dictionary_encode()
    find = shared_folder_of if is_shared else folder_of
    names = [find(topic) for topic in topics.dictionary.to_pylist()]
    folders = sorted(set(names))
    days = rows.column("timestamp").cast(pa.int64()).to_numpy() // DAY
    first_day, last_day = int(days.min()), int(days.max())
    if len(folders) == 1 and first_day == last_day:
        yield folders[0], date_of(first_day), rows
        return
    places = np.array([folders.index(name) for name in names])
    span = last_day - first_day + 1
    codes = places[topics.indices.to_numpy()] * span + (days - first_day)
    order = np.argsort(codes, kind="stable")
    sorted_rows, sorted_codes = rows.take(pa.array(order)), codes[order]
    starts = [0, *(np.flatnonzero(np.diff(sorted_codes)) + 1).tolist(), rows.num_rows]
    for start, end in itertools.pairwise(starts):
        folder, day = divmod(int(sorted_codes[start]), span)
        yield folders[folder], date_of(first_day + day), sorted_rows.slice(start, end - start)


def date_of(day: int) -> str:
    """The date, in UTC, of a day since 1970."""
    return (_EPOCH + timedelta(days=day)).strftime("%Y-%m-%d")


def sync_file(path: Path) -> str:
    """Bring a file to disk for good. Returns its digest."""
    summary = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            summary.update(piece)
        os.fsync(file.fileno())
    return summary.hexdigest()


def digest_of(path: Path) -> str:
    summary = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            summary.update(piece)
    return summary.hexdigest()


def sync_folders(root: Path, folders: Sequence[Path]) -> None:
    """Bring these folders' entries to disk, and those of all folders above them up to the root."""
    above = {parent for folder in folders for parent in (folder, *folder.parents)}
    for folder in sorted(above, reverse=True):
        descriptor = os.open(root / folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _bounds(column: pa.Array) -> list[int]:
    found = pc.min_max(column)
    return [found["min"].as_py(), found["max"].as_py()]


def _count_payloads(rows: pa.RecordBatch) -> tuple[Counter[str], int]:
    """How many there are of each content type, and how many are not the JSON they say they are."""
    types = rows.column("content_type")
    formats = Counter(
        {str(entry["values"]): entry["counts"] for entry in pc.value_counts(types).to_pylist()}
    )
    values = rows.column("value")
    is_json = codec.CONTENT_TYPES[codec.JSON]
    if formats.get(is_json, 0) < rows.num_rows:
        values = values.filter(pc.equal(types, is_json))
    unparsable = 0
    for value in values.to_pylist():
        try:
            _json.decode(value)
        except (msgspec.DecodeError, TypeError):
            unparsable += 1
    return formats, unparsable


def _conform(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the columns of today: a file of an older release may have fewer."""
    schema = to_arrow_schema(SCHEMA, timezone="UTC")
    return pa.RecordBatch.from_arrays(
        [
            batch.column(field.name).cast(field.type)
            if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ],
        schema=schema,
    )
