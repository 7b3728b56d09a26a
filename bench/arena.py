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
        self._used: list[Path] = []
        self._is_keeping = False
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
        self._used.append(folder)
        try:
            yield folder
        finally:
            if not self._is_keeping:
                self._clear()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Nothing is removed until the end."""
        self._is_keeping = True
        try:
            yield
        finally:
            self._is_keeping = False
            self._clear()

    def _clear(self) -> None:
        while self._used:
            shutil.rmtree(self._used.pop(), ignore_errors=True)
