"""Where roll-ups lie: the folder `_rollups` of the lake, and the manifest that says what counts.

    parts/batch=<query>-<batch>.parquet        facts: what one batch of the stream has counted
    minutes/period=<hour>.<generation>.parquet figures, added up from all batches before
    hours/period=<day>.<generation>.parquet
    days/period=<month>.<generation>.parquet
    manifest.json                              which of them count

A file that is there is whole: it was renamed into its place. Files of figures count from the
moment at which the manifest names them, and parts until they are in one of those. So readers and
crashes meet one state or the next.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet

from penstock.errors import InvalidInput
from penstock.figures import Resolution

FOLDER = "_rollups"
MANIFEST = "manifest.json"
VERSION = 1
FOLDERS: Mapping[Resolution, str] = {"minute": "minutes", "hour": "hours", "day": "days"}
# A file is written anew when something in it changes, so it does not cover too much.
PERIODS: Mapping[Resolution, str] = {"minute": "%Y-%m-%dT%H", "hour": "%Y-%m-%d", "day": "%Y-%m"}


class Covered(msgspec.Struct, frozen=True):
    """Up to which ids the log has been counted."""

    messages: int = 0
    reports: int = 0
    """Of `penstock.delivery`."""

    def __or__(self, other: Covered) -> Covered:
        return Covered(max(self.messages, other.messages), max(self.reports, other.reports))


class Manifest(msgspec.Struct, frozen=True):
    """What counts: these files, and the parts of the query that are not in them yet."""

    version: int = VERSION
    id: str = ""
    """Of this folder's history; another one if it was deleted and begun anew."""
    epoch: str = ""
    query: str = ""
    """The query whose parts count, after the batch `merged_through`."""
    merged_through: int = -1
    base: Covered = Covered()
    """What queries before this one have counted: it leaves that out."""
    covered: Covered = Covered()
    """What is in the files."""
    generation: int = 0
    files: dict[Resolution, dict[str, str]] = {}
    """The file of each period."""
    changed: dict[Resolution, list[int]] = {}
    """What the last generation has changed: when each hour and day began, in seconds."""
    published: int = 0
    """The last generation whose changes were published."""


class RollupFolder:
    """The files of one lake's roll-ups. One process writes; any may read."""

    def __init__(self, lake: str) -> None:
        self.root = Path(_local(lake)) / FOLDER
        self._parts = self.root / "parts"

    def manifest(self) -> Manifest:
        """As it stands; a new one if there is none."""
        path = self.root / MANIFEST
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            return Manifest(id=uuid.uuid4().hex)
        except msgspec.MsgspecError as error:
            raise InvalidInput(
                f"{path} cannot be read: {error}.",
                hint="Restore it, or move the folder away: roll-ups then begin anew.",
            ) from error
        if found.version != VERSION:
            raise InvalidInput(
                f"{path} is of version {found.version}; this penstock knows {VERSION}.",
                hint="Upgrade penstock here.",
            )
        return found

    def save(self, manifest: Manifest) -> None:
        """Let this one count from now on. What it names is on disk before it is."""
        path = self.root / MANIFEST
        temporary = _beside(path)
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        _settle(temporary, path)

    # Parts

    def write_part(self, query: str, batch: int, facts: pa.Table) -> None:
        """What a batch has counted, in the place of what it had counted before, if anything."""
        _write(self._parts / f"batch={query}-{batch}.parquet", facts)

    def parts(self, manifest: Manifest, through: int | None = None) -> dict[int, Path]:
        """The parts that are not in files yet, by batch; up to one batch if it is said."""
        found: dict[int, Path] = {}
        for path in self._parts.glob(f"batch={manifest.query}-*.parquet"):
            batch = int(path.stem.rpartition("-")[2])
            if manifest.merged_through < batch and (through is None or batch <= through):
                found[batch] = path
        return dict(sorted(found.items()))

    # Figures

    def write_figures(self, resolution: Resolution, name: str, figures: pa.Table) -> str:
        """A file that nobody sees until a manifest names it. Returns what to call it there."""
        path = self.root / FOLDERS[resolution] / f"period={name}.parquet"
        _write(path, figures)
        return str(path.relative_to(self.root))

    def figures(
        self, manifest: Manifest, resolution: Resolution, periods: Iterable[str] | None = None
    ) -> dict[str, Path]:
        """The files of these periods that count, of all if none are given."""
        known = manifest.files.get(resolution, {})
        wanted = sorted(known if periods is None else set(periods) & known.keys())
        return {period: self.root / known[period] for period in wanted}

    def clean(self, manifest: Manifest) -> None:
        """Remove what does not count. Done before the next generation is made, so that whoever
        has just read the manifest still finds what it names."""
        counted = {self.root / name for files in manifest.files.values() for name in files.values()}
        counted |= set(self.parts(manifest).values())
        for folder in (self._parts, *(self.root / name for name in FOLDERS.values())):
            for path in folder.glob("*"):
                if path not in counted:
                    path.unlink(missing_ok=True)


def files_of(lake: str, resolution: Resolution) -> list[Path]:
    """The Parquet files of minutes, hours or days, as of the last compaction: for any reader of
    Parquet, such as `pyarrow.parquet.read_table`. No row is in two of them."""
    folder = RollupFolder(lake)
    return list(folder.figures(folder.manifest(), resolution).values())


def period_of(resolution: Resolution, start: int) -> str:
    """The file that a row belongs to, by when it starts, in seconds."""
    return datetime.fromtimestamp(start, UTC).strftime(PERIODS[resolution])


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    return pa.parquet.read_table(path, schema=schema)


def _local(lake: str) -> str:
    path = lake.removeprefix("file://") if lake.startswith("file:///") else lake
    if "://" in path:
        raise InvalidInput(
            f"Roll-ups cannot be kept in {lake}.",
            hint="They need a folder in which files can be renamed: set lake to one.",
        )
    return path


def _write(path: Path, table: pa.Table) -> None:
    temporary = _beside(path)
    pa.parquet.write_table(table, temporary, compression="zstd")
    _settle(temporary, path)


def _beside(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}")


def _settle(temporary: Path, path: Path) -> None:
    """A durable change: synced, renamed, and the folder synced."""
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
