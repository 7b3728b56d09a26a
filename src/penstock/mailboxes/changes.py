"""Whether other processes have changed anything: a number for each process, in shared memory.

A process counts up its own number before it writes to any box. Whoever finds all the others'
numbers as they were needs no look at the files: as long as one process works alone, it asks the
file system nothing.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct

from penstock.mailboxes.disk import Disk

SLOTS = 512
# As the machine has it: written and read in one piece.
_NUMBER = struct.Struct("@Q")
SIZE = SLOTS * _NUMBER.size
OVERFLOW = SIZE - _NUMBER.size
"""For all processes beyond the slots."""
GENERATION = SIZE + SLOTS
LOW = GENERATION + _NUMBER.size
ALL = LOW + 1


class Changes:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._file = disk.open(path, os.O_RDWR | os.O_CREAT)
        # All of it has its place on disk: a page that found none would end the process.
        try:
            disk.allocate(self._file, ALL)
        except OSError:
            disk.close(self._file)
            raise
        self._memory = mmap.mmap(self._file, ALL)
        self._place: int | None = None
        self._own = 0
        for slot in range(SLOTS - 1):
            if disk.try_lock(self._file, slot):
                self._place = slot * _NUMBER.size
                self._own = _NUMBER.unpack_from(self._memory, self._place)[0]
                break
        self.say_waiting(False)
        self._seen = b""
        self.count = 0
        """Counts up whenever others have changed something."""

    def begin(self) -> None:
        """Say that this process is about to write. Under a box's lock."""
        if self._place is None:
            self._own = secrets.randbits(64)
            _NUMBER.pack_into(self._memory, OVERFLOW, self._own)
        else:
            self._own += 1
            _NUMBER.pack_into(self._memory, self._place, self._own)

    def look(self) -> int:
        """The count, after a look at the others. Under a box's lock, and the mutex."""
        place = self._place
        if place is None:
            self.count += 1  # It cannot tell its own number from others'.
            return self.count
        seen = self._memory[:place] + self._memory[place + _NUMBER.size : SIZE]
        if seen != self._seen:
            self.count += 1
            self._seen = seen
        return self.count

    def glance(self) -> int:
        """What `look` would say. Takes no note of it: for those who hold no lock."""
        place = self._place
        if place is None:
            return self.count + 1
        seen = self._memory[:place] + self._memory[place + _NUMBER.size : SIZE]
        return self.count + (seen != self._seen)

    def say_waiting(self, is_waiting: bool) -> None:
        """Whether this process wants to be told of what arrives."""
        if self._place is not None:
            self._memory[SIZE + self._place // _NUMBER.size] = is_waiting
        elif is_waiting:
            self._memory[SIZE + SLOTS - 1] = True  # For good: there may be several of these.

    @property
    def is_awaited(self) -> bool:
        """Whether any process wants to be told."""
        return self._memory.find(b"\1", SIZE, GENERATION) >= 0

    @property
    def generation(self) -> int:
        """Another one: all boxes were replaced, and nothing that was known of them holds."""
        return int(_NUMBER.unpack_from(self._memory, GENERATION)[0])

    def begin_generation(self) -> None:
        """Under the lock of all boxes."""
        _NUMBER.pack_into(self._memory, GENERATION, secrets.randbits(63))
        self.begin()

    @property
    def is_low(self) -> bool:
        """Whether the disk's last space was given away: see `Reserve`."""
        return self._memory[LOW] != 0

    @is_low.setter
    def is_low(self, value: bool) -> None:
        self._memory[LOW] = value

    def close(self, *, is_own: bool = True) -> None:
        """Not its own: in a forked child, whose parent goes on waiting."""
        if is_own:
            self.say_waiting(False)
        self._memory.close()
        self._disk.close(self._file)
