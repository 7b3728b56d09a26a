"""Compaction: many small files become few large ones, while others read and write.

Files of about the same size are merged when there are enough of them, so that a message is
rewritten a few times at most, however often something is archived. In the books the new file
takes the place of the others in one step. They are removed much later, for the sake of readers
that have begun with them, and of backups of the database that still name them.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from penstock.clock import Clock, SystemClock, micros
from penstock.errors import LakeConflict, LakeDamaged
from penstock.ports import Store
from penstock.ports.lake import LakeFile
from penstock.settings import Settings
from penstock.spark.lake_files import MESSAGES_FOLDER, LakeFormat, Parquet, Place, digest_of
from penstock.spark.lake_folder import LakeFolder, writing

FILES_MIN = 8
"""So many files of about the same size become one."""
SMALLEST_BYTES = 64 * 1024
GROWTH = 8
FORGET_BATCH = 1_000

Step = Callable[[str], None]


class Compacted(msgspec.Struct, frozen=True):
    """How many files were merged into how many, and how many were removed for good."""

    merged: int = 0
    made: int = 0
    removed: int = 0


def no_step(name: str) -> None:
    """Told of each step. Does nothing."""


class Compactor:
    """Works on one lake. `on_step` is told of each point where a crash can follow."""

    def __init__(
        self,
        store: Store,
        folder: LakeFolder,
        settings: Settings,
        *,
        format: LakeFormat | None = None,
        clock: Clock | None = None,
        on_step: Step = no_step,
    ) -> None:
        self._store = store
        self._root = folder.path
        self._file_bytes = settings.lake_file_bytes
        self._keep = micros(settings.lake_replaced_seconds)
        self._format: LakeFormat = format or Parquet()
        self._clock = clock or SystemClock()
        self._on_step = on_step

    def run(
        self, *, everything: bool = False, should_stop: Callable[[], bool] = lambda: False
    ) -> Compacted:
        """Merge what is due, and remove what was replaced long ago.

        With `everything`, small files of a folder and date are merged as soon as there are two.
        """
        merged = made = 0
        for group in self.due(everything=everything):
            if should_stop():
                break
            if self.merge(group):
                merged += len(group)
                made += 1
        return Compacted(merged, made, self.remove_replaced())

    def due(self, *, everything: bool = False) -> list[list[LakeFile]]:
        """The files that are to be merged now, group by group."""
        small = self._store.lake.small_files(bytes_max=self._file_bytes)
        newest = self._store.lake.newest_date()
        groups: list[list[LakeFile]] = []
        for (_, date), found in itertools.groupby(small, lambda file: (file.folder, file.date)):
            files = list(found)
            # A date before the last one gets no more: what is left of it is merged, however few.
            is_over = newest is not None and date < newest
            parts = [files] if everything or is_over else tiers(files)
            groups += [group for part in parts for group in fill(part, self._file_bytes)]
        return groups

    def merge(self, files: Sequence[LakeFile]) -> bool:
        """Put one file in the place of these. False if they were replaced meanwhile."""
        name = uuid.uuid4().hex
        is_shared = files[0].folder.startswith("+")
        batch = f"{MESSAGES_FOLDER}/compact={name}"
        writer = self._format.open(Place(str(self._root), batch, name[:12], is_shared))
        try:
            for file in files:
                check_file(self._root, file)
                for rows in self._format.rows(self._root / file.path):
                    writer.add(rows)
            made = writer.finish()
            if sum(file.rows for file in made) != sum(file.rows for file in files):
                raise LakeDamaged(f"Files of {files[0].folder} on {files[0].date} lack rows.")
            self._on_step("merged")
            self._enter(files, made)
        except BaseException as error:
            writer.abort()
            remove_empty(self._root, [f"{batch}/x"])
            if isinstance(error, LakeConflict):
                return False
            raise
        self._on_step("replaced")
        return True

    def remove_replaced(self) -> int:
        """Remove files that were replaced long enough ago. Returns how many."""
        before, removed = self._clock.now() - self._keep, 0
        while paths := self._store.lake.replaced(before=before, limit=FORGET_BATCH):
            for path in paths:
                (self._root / path).unlink(missing_ok=True)
            remove_empty(self._root, paths)
            self._on_step("removed")
            with writing(self._store) as transaction:
                transaction.lake.forget(paths)
            removed += len(paths)
        return removed

    def _enter(self, files: Sequence[LakeFile], made: Sequence[LakeFile]) -> None:
        with writing(self._store) as transaction:
            paths = [file.path for file in files]
            transaction.lake.replace(paths, made, now=self._clock.now())


def tiers(files: Iterable[LakeFile]) -> list[list[LakeFile]]:
    """The files by size, where there are enough of one size."""
    by_size: dict[int, list[LakeFile]] = {}
    for file in files:
        by_size.setdefault(size_class(file.bytes), []).append(file)
    return [found for _, found in sorted(by_size.items()) if len(found) >= FILES_MIN]


def size_class(size: int) -> int:
    """0 for the smallest; each further one has files eight times as large."""
    found, limit = 0, SMALLEST_BYTES
    while size >= limit:
        found, limit = found + 1, limit * GROWTH
    return found


def fill(files: Sequence[LakeFile], file_bytes: int) -> Iterator[list[LakeFile]]:
    """Runs of files that fill one together; a single one is left alone."""
    run: list[LakeFile] = []
    size = 0
    for file in files:
        if run and size + file.bytes > file_bytes:
            if len(run) > 1:
                yield run
            run, size = [], 0
        run.append(file)
        size += file.bytes
    if len(run) > 1:
        yield run


def check_file(root: Path, file: LakeFile) -> None:
    """Raises `LakeDamaged` unless the file is as it was written."""
    try:
        found = digest_of(root / file.path)
    except OSError as error:
        raise LakeDamaged(f"{root / file.path} cannot be read: {error.strerror}.") from error
    if found != file.digest:
        raise LakeDamaged(f"{root / file.path} is not as it was written.")


def orphans(
    store: Store, folder: LakeFolder, *, older_than_seconds: float, now: float | None = None
) -> list[str]:
    """Files in the lake's folder that do not belong to it: of runs that were killed, or of a
    database as it was before it was restored. Younger ones may be about to join."""
    limit = (time.time() if now is None else now) - older_than_seconds
    found = []
    for place, _, names in os.walk(folder.path / MESSAGES_FOLDER):
        paths = [Path(place) / name for name in names]
        old = [str(path.relative_to(folder.path)) for path in paths if _age(path) < limit]
        found += sorted(set(old) - store.lake.is_known(old))
    return sorted(found)


def remove_empty(root: Path, paths: Iterable[str]) -> None:
    """Remove the folders of files that were removed, if nothing else is in them."""
    above = {root / parent for path in paths for parent in list(Path(path).parents)[:-2]}
    for folder in sorted(above, key=lambda path: len(path.parts), reverse=True):
        try:
            folder.rmdir()
        except OSError:
            continue  # Something is in it, or somebody else was faster.


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
