"""A little space kept back, so that a full disk can still be emptied.

To acknowledge a message takes a line in a state log. When there is no space for it, this gives its
own; from then on nothing is put until it could be taken again. All processes know of it at once.
"""

from __future__ import annotations

import os

from penstock.mailboxes.changes import Changes
from penstock.mailboxes.disk import Disk


class Reserve:
    def __init__(self, disk: Disk, path: str, size: int, changes: Changes) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        self._changes = changes
        try:
            self._take()
        except OSError:
            changes.is_low = True  # Full already: it can still be read.

    def check(self) -> None:
        """Raises `OSError` if it was given away, and there is no space to take it again."""
        if self._changes.is_low:
            self._take()

    def _take(self) -> None:
        try:
            is_there = self._disk.stat_path(self._path).st_size >= self._size
        except FileNotFoundError:
            is_there = not self._size
        if not is_there:
            self._resize(self._size)
        self._changes.is_low = False

    def give(self) -> bool:
        """Whether there was something to give."""
        try:
            if not self._size or not self._disk.stat_path(self._path).st_size:
                return False
            self._resize(0)
        except OSError:
            return False
        self._changes.is_low = True
        return True

    def _resize(self, size: int) -> None:
        file = self._disk.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            if size:
                self._disk.allocate(file, size)
            else:
                self._disk.truncate(file, 0)
        finally:
            self._disk.close(file)
