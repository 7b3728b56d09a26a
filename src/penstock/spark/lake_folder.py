"""The lake's folder: where it is, and whose it is.

A file in it and a row in the database name the lake. So a database that was made anew beside an
old lake, or a setting that points to another's, is noticed before anything is written or read.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.clock import Clock
from penstock.errors import ForeignLake, InvalidOption, LakeDamaged
from penstock.ports import Store, Transaction
from penstock.ports.lake import LakeFile
from penstock.spark import checkpoints
from penstock.spark.lake_files import sync_folders

MARKER = "penstock-lake.json"
VERSION = 1


@contextmanager
def writing(store: Store) -> Iterator[Transaction]:
    """One transaction of a writer of its own."""
    writer = store.open_writer()
    try:
        with writer.transaction() as transaction:
            yield transaction
    finally:
        writer.close()


class Marker(msgspec.Struct, frozen=True):
    lake: str
    version: int = VERSION


class LakeFolder:
    """A folder on this machine, or one that all machines of the cluster have under this path."""

    def __init__(self, place: str) -> None:
        if checkpoints.is_remote(place):
            raise InvalidOption(
                f"The lake cannot be at {place}.",
                hint="Messages go into a folder that all executors see: the setting lake.",
            )
        self.path = checkpoints.local(place).absolute()

    def claim(self, store: Store, clock: Clock) -> None:
        """Make the folder if need be, and see that it is this database's.

        Raises `ForeignLake` if it is another's, `LakeDamaged` if it is not the one it was.
        """
        found, known = self.id(), store.lake.id()
        if found is not None and found != known:
            raise ForeignLake(
                f"{self.path} is the lake {found}, and this database's is {known or 'none yet'}."
            )
        if known is None:
            with writing(store) as transaction:
                known = transaction.lake.adopt(uuid.uuid4().hex, now=clock.now())
        elif found is None and store.lake.totals().files:
            raise LakeDamaged(
                f"{self.path} is empty, or no lake, and this database has one.",
                hint="Was it moved? The setting lake says where it is.",
            )
        if found is None:
            self._mark(known)

    def check(self, lake: str | None) -> None:
        """Raises unless the folder is this lake."""
        found = self.id()
        if found is None:
            raise LakeDamaged(
                f"There is no lake at {self.path}.",
                hint="Was it moved? The setting lake says where it is.",
            )
        if found != lake:
            raise ForeignLake(f"{self.path} is the lake {found}, and this database's is {lake}.")

    def id(self) -> str | None:
        """Whose it is; None if it is nobody's."""
        try:
            text = (self.path / MARKER).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            marker = msgspec.json.decode(text, type=Marker)
        except msgspec.MsgspecError as error:
            raise LakeDamaged(f"{self.path / MARKER} cannot be read: {error}.") from error
        if marker.version > VERSION:
            raise LakeDamaged(
                f"{self.path} was written by a newer penstock.", hint="Upgrade penstock here."
            )
        return marker.lake

    def missing(self, files: Iterable[LakeFile]) -> list[str]:
        """Of these files, those that are not there."""
        return [file.path for file in files if not (self.path / file.path).is_file()]

    def check_present(self, files: Iterable[LakeFile]) -> None:
        missing = self.missing(files)
        if missing:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise LakeDamaged(f"{self.path / missing[0]}{more} is not there any more.")

    def _mark(self, lake: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        part = self.path / f"{MARKER}.part"
        part.write_bytes(msgspec.json.encode(Marker(lake)) + b"\n")
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.rename(self.path / MARKER)
        sync_folders(self.path, [Path()])
