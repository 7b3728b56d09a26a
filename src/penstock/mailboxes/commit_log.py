"""One log per process: what was put into any box is durable when it is in here.

It is synced once for all that waits, whatever the number of boxes, and is the truth until the
boxes' own files are synced; then its segment is written over. A process that died left its log
behind; whoever opens the folder next puts what it has into the boxes.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterator

import msgspec
from crc32c import crc32c

from penstock.mailboxes.disk import Disk
from penstock.mailboxes.kernel_sync import Done, KernelSync
from penstock.mailboxes.record import DIGEST_SIZE

MAGIC = b"PMCL"
VERSION = 1
_HEAD = struct.Struct("<4sB3xII")  # magic, version, salt, checksum
HEAD_SIZE = 64
_ENTRY = struct.Struct(f"<IIB3x{DIGEST_SIZE}sQIQ")  # checksum, length, kind, box, file, salt, at
ENTRY_SIZE = _ENTRY.size
_pack_check = struct.Struct("<I").pack
_pack_checked = struct.Struct(f"<IB3x{DIGEST_SIZE}sQIQ").pack  # An entry without its checksum
_KIND_AT = 8

GROWTH_BYTES = 64 * 1024
ZEROS = bytes(256 * 1024)
"""Written ahead, so that to sync an entry is to write its bytes, and nothing about the file."""

WRITTEN = 1
"""Bytes at a place of a message file."""
STATE = 2
"""A line of a state log."""


Added = tuple[int, bytes, int, int, int, bytes]
"""What a `LogEntry` has, in its order."""


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    kind: int
    digest: bytes
    file: int
    salt: int
    offset: int
    data: bytes


class Write(msgspec.Struct, frozen=True, gc=False):
    """Bytes that were written to a message file, and are to be in the commit log."""

    digest: bytes
    file: int
    salt: int
    offset: int
    data: bytes


class Segment:
    """A file that is filled from the beginning, over and over."""

    def __init__(self, disk: Disk, path: str, size: int) -> None:
        self._disk = disk
        self.path = path
        self._size = size
        self._file = disk.open(path, os.O_RDWR | os.O_CREAT)
        self._salt = 0
        self.end = 0
        self.added: list[Added] = []
        """To be written with the next `write`."""
        self.writes = 0
        """How often something was written, in all."""
        self.synced_writes = 0
        """How many of these are on disk."""
        self._other_file = -1
        self._allocated = 0
        self._zeroed = 0
        try:
            self.reserve(size)
        except OSError:
            pass  # Whoever puts something is told; acknowledgements need less.

    def reserve(self, size: int) -> None:
        """See to it that so much more fits. Raises `OSError` if the disk is full."""
        needed = self.end + size
        if needed > self._allocated:
            try:
                self._allocate(max(needed, self._allocated + GROWTH_BYTES))
            except OSError:
                self._allocate(needed)
        # From the first message on: whoever opens a log to acknowledge writes little of it.
        if self.end and needed > self._zeroed:
            self._zeroed = max(self._zeroed, self.end)
            zeros = ZEROS[: self._allocated - self._zeroed]
            self._disk.write(self._file, zeros, self._zeroed)
            self._zeroed += len(zeros)

    def _allocate(self, size: int) -> None:
        self._disk.allocate(self._file, size)
        self._allocated = size

    @property
    def is_full(self) -> bool:
        return self.end >= self._size

    @property
    def is_empty(self) -> bool:
        return self.end <= HEAD_SIZE

    def begin(self) -> None:
        """Forget what is in it: the boxes have it."""
        self._salt = secrets.randbits(32)
        self._disk.write(self._file, _head_of(self._salt), 0)
        self.end = HEAD_SIZE
        self.added = []

    def write(self) -> None:
        """What was added. If that fails, or the thread is struck in the middle of it, it is not in
        the log, and what comes next is written in its place."""
        added, self.added = self.added, []
        if not added:
            return
        parts: list[bytes] = []
        place, salt = self.end, self._salt
        for kind, digest, file, file_salt, offset, data in added:
            entry = _pack_checked(len(data), kind, digest, file, file_salt, offset) + data
            parts += (_pack_check(crc32c(entry, (salt ^ place) & 0xFFFFFFFF)), entry)
            place += 4 + len(entry)
        self._disk.write(self._file, b"".join(parts), self.end)
        self.end = place
        self.writes += 1

    def sync(self) -> None:
        writes = self.writes
        self._disk.sync(self._file)
        self._note_synced(writes)

    def begin_sync(self, kernel: KernelSync, done: Done) -> bool:
        """As `sync`, by the kernel, which then calls `done`. False if that is not possible."""
        if self._other_file < 0:
            # Of those who sync one open file at the same time, only one is told that it failed.
            self._other_file = self._disk.open(self.path, os.O_RDWR)
        writes = self.writes

        def note(error: OSError | None) -> None:
            if error is None:
                self._note_synced(writes)
            done(error)

        return kernel.begin(self._other_file, note)

    def _note_synced(self, writes: int) -> None:
        self.synced_writes = max(self.synced_writes, writes)

    @property
    def is_synced(self) -> bool:
        """Whether all that was written is on disk."""
        return self.synced_writes >= self.writes

    def close(self) -> None:
        self._disk.close(self._file)
        if self._other_file >= 0:
            self._disk.close(self._other_file)


def forget_segment(disk: Disk, path: str) -> None:
    """What is in it counts no more, whatever its owner goes on to write until it begins anew."""
    try:
        file = disk.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        disk.write(file, _head_of(secrets.randbits(32)), 0)
        disk.sync(file)
    finally:
        disk.close(file)


def read_segment(content: bytes) -> Iterator[LogEntry]:
    """The entries up to the first that is not whole: behind it, nobody was answered."""
    salt = _salt_of(content)
    if salt is None:
        return
    place = HEAD_SIZE
    while True:
        found = _entry_at(content, place, salt)
        if found is None:
            return
        yield found
        place += ENTRY_SIZE + len(found.data)


def damage_of(content: bytes, end: int | None) -> tuple[int, int, str] | None:
    """From where to where the log of a living process is damaged, and how; None if it is not.

    `end`: how much was written, where that is known. Else it is damaged where more follows.
    """
    salt = _salt_of(content)
    if salt is None or content[:HEAD_SIZE] != _head_of(salt):
        return 0, HEAD_SIZE, "the head is damaged"
    place = HEAD_SIZE
    while (found := _entry_at(content, place, salt)) is not None:
        place += ENTRY_SIZE + len(found.data)
    if end is None:
        end = _next_entry(content, place + 1, salt)
    if end is None or place >= end:
        return None
    return place, end, "an entry is damaged"


def _head_of(salt: int) -> bytes:
    head = _HEAD.pack(MAGIC, VERSION, salt, crc32c(salt.to_bytes(4, "little")))
    return head.ljust(HEAD_SIZE, b"\0")


def _salt_of(content: bytes) -> int | None:
    if len(content) < HEAD_SIZE:
        return None
    magic, version, salt, check = _HEAD.unpack_from(content)
    if magic != MAGIC or version != VERSION or check != crc32c(salt.to_bytes(4, "little")):
        return None
    return int(salt)


def _entry_at(content: bytes, place: int, salt: int) -> LogEntry | None:
    if place + ENTRY_SIZE > len(content):
        return None
    check, size, kind, digest, file, file_salt, offset = _ENTRY.unpack_from(content, place)
    end = place + ENTRY_SIZE + size
    if end > len(content):
        return None
    head = content[place + 4 : place + ENTRY_SIZE]
    data = content[place + ENTRY_SIZE : end]
    if check != crc32c(data, crc32c(head, (salt ^ place) & 0xFFFFFFFF)):
        return None
    return LogEntry(kind, digest, file, file_salt, offset, data)


def _next_entry(content: bytes, place: int, salt: int) -> int | None:
    """Where the next entry is, found by its kind."""
    for kind in (WRITTEN, STATE):
        mark = kind.to_bytes(4, "little")
        at = content.find(mark, place + _KIND_AT)
        while at >= 0:
            if _entry_at(content, at - _KIND_AT, salt) is not None:
                return at - _KIND_AT
            at = content.find(mark, at + 1)
    return None
