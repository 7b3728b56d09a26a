"""Where databases are made."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.machine import filesystem_kind

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})


class Arena:
    """A folder on a real disk, and one fresh folder in it for each database."""

    def __init__(self, root: Path, *, needs_disk: bool = True) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._kept: list[Path] | None = None
        self.root = root.resolve()
        self.filesystem = filesystem_kind(self.root)
        if needs_disk and self.filesystem in MEMORY_FILESYSTEMS:
            raise SystemExit(
                f"The folder for the databases is on {self.filesystem}, where fsync costs nothing. "
                "Pass --dir with a folder on a real disk."
            )

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        # What the measurement before has left to be written is not this one's.
        os.sync()
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self.root))
        try:
            yield folder
        finally:
            if self._kept is None:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                self._kept.append(folder)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Nothing is removed until the end."""
        self._kept = kept = []
        try:
            yield
        finally:
            self._kept = None
            for folder in kept:
                shutil.rmtree(folder, ignore_errors=True)
