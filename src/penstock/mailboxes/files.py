"""Open files, kept for the next use, and never more than so many."""

from __future__ import annotations

import errno
import os

from penstock.mailboxes.disk import Disk


class Files:
    """By path. The one not used for longest is closed first."""

    def __init__(self, disk: Disk, files_max: int) -> None:
        self._disk = disk
        self._files_max = files_max
        self._many_files = files_max // 2
        self._open: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, flags: int = os.O_RDWR) -> int:
        """Raises `FileNotFoundError`, unless the flags say that it is made."""
        files = self._open
        file = files.get(path)
        if file is None:
            while len(files) >= self._files_max:
                self._close_oldest()
            file = files[path] = self._open_anyway(path, flags)
        elif len(files) > self._many_files:
            # Those used last stand last, and go last; with much space left, none goes soon.
            del files[path]
            files[path] = file
        return file

    def _open_anyway(self, path: str, flags: int) -> int:
        """The process may have fewer descriptors left than we were promised."""
        while True:
            try:
                return self._disk.open(path, flags)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._open:
                    raise
            self._close_oldest()

    def drop(self, path: str) -> None:
        file = self._open.pop(path, None)
        if file is not None:
            self._disk.close(file)

    def close(self) -> None:
        while self._open:
            self._close_oldest()

    def _close_oldest(self) -> None:
        path = next(iter(self._open))
        self._disk.close(self._open.pop(path))
