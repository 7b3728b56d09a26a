"""Who may use which box: a byte of one file for each, which all processes lock and unlock.

The locks belong to the open file, so that several hubs of one process exclude each other, too.
Threads that share one are held apart by their own mutex.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from penstock.errors import StoreBusy
from penstock.mailboxes.disk import LOCKS_END, Disk

PAUSE_SECONDS = 0.0002
PAUSE_SECONDS_MAX = 0.005
PATIENCE_SECONDS = 0.002
"""A box that others use is free again sooner; what holds one longer may hold it for long."""
RECOVERY = LOCKS_END
"""The byte that no box has: whose turn it is to look for dead processes."""
RECOVERY_SECONDS_MAX = 600.0
BUSY = "Another process holds this mailbox."


class Locks:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.file = disk.open(path, os.O_RDWR | os.O_CREAT)
        self.try_take = partial(disk.try_lock, self.file)
        self.release = partial(disk.unlock, self.file)
        self._recovering = threading.Lock()

    def take(self, number: int, ends_at: float) -> bool:
        """Wait until then at most. Whoever holds a mutex makes others wait for it meanwhile."""
        pause = PAUSE_SECONDS
        while not self.try_take(number):
            if time.monotonic() > ends_at:
                return False
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
        return True

    def try_take_all(self) -> bool:
        return self._disk.try_lock_all(self.file)

    def release_all(self) -> None:
        self._disk.unlock_all(self.file)

    @contextmanager
    def recovering(self) -> Iterator[None]:
        """One thread of one process at a time; those who open the folder wait for it."""
        with self._recovering:
            if not self.take(RECOVERY, time.monotonic() + RECOVERY_SECONDS_MAX):
                raise StoreBusy("Another process is recovering the mailboxes.")
            try:
                yield
            finally:
                self.release(RECOVERY)

    def close(self) -> None:
        if self.file >= 0:
            self._disk.close(self.file)
        self.file = -1


def number_of(digest: bytes) -> int:
    """Which byte is this box's, and what it is called among arrivals."""
    return int.from_bytes(digest[:8], "little") >> 2
