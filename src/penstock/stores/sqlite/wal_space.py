"""Space in the write-ahead log before it is needed.

A commit that makes a file longer waits for the new length, too. One that writes over zeros waits
for its bytes alone, which takes half the time under load and a fifth less after a pause. So the
log is lengthened a little ahead, by whoever may write; SQLite takes zeros for the log's end.
"""

from __future__ import annotations

import os
import sys

from penstock.stores.sqlite.checkpoint import PAGE_BYTES, Checkpointer
from penstock.stores.sqlite.connection import Database

HEADER_BYTES = 32
FRAME_BYTES = 24 + PAGE_BYTES
AHEAD_FRAMES = 16
STEP_BYTES_MIN = 256 * 1024
STEP_BYTES_MAX = 1024 * 1024
ZEROS = bytes(64 * 1024)


class WalSpace:
    def __init__(self, database: Database, checkpointer: Checkpointer) -> None:
        self._database = database
        self._checkpointer = checkpointer
        self._name = f"{database.path}-wal"
        self._bytes_max = HEADER_BYTES + checkpointer.restart_pages * FRAME_BYTES
        # Without a sync at each commit there is nothing to wait for.
        self._enough_for = 0 if database.synchronous == "FULL" else sys.maxsize

    @property
    def is_low(self) -> bool:
        return self._checkpointer.pages >= self._enough_for

    def reserve(self) -> None:
        """By the one who holds the write lock."""
        try:
            file = os.open(self._name, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return  # Not made yet: there will be a next time.
        try:
            # If another database is here by now, this is not its writer.
            self._database.check_present()
            size, used = os.fstat(file).st_size, self._checkpointer.pages
            if _fitting(size) <= used:
                size = self._lengthen(file, size)
            is_over = size >= self._bytes_max or _fitting(size) <= used
            self._enough_for = sys.maxsize if is_over else _fitting(size)
        finally:
            os.close(file)

    def _lengthen(self, file: int, size: int) -> int:
        step = min(max(STEP_BYTES_MIN, size), STEP_BYTES_MAX, max(0, self._bytes_max - size))
        pieces = [ZEROS] * (step // len(ZEROS))
        try:
            return size + os.pwritev(file, pieces, size)
        except OSError:
            # The disk is full, or nearly: what is left of it is for messages.
            os.ftruncate(file, size)
            return size


def _fitting(size: int) -> int:
    """So many frames may be in a log of this size for there to be space for the next ones."""
    return (size - HEADER_BYTES) // FRAME_BYTES - AHEAD_FRAMES
