"""The file system as mailboxes see it: one method a system call, so that tests can take its place.

A short write is an error here: nobody above has to think of it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import sys
import time

from penstock.clock import Micros
from penstock.errors import PenstockError, StoreError, StoreFull
from penstock.mailboxes.kernel_sync import KernelSync

_pack_lock = struct.Struct("hhqqi4x").pack
_UNLOCKED = fcntl.F_UNLCK
_LOCKED = fcntl.F_WRLCK
_FROM_START = os.SEEK_SET
# Locks of an open file, not of a process: several hubs of one process exclude each other, too.
_SET = getattr(fcntl, "F_OFD_SETLK", 37)
LOCKS_END = 1 << 62
"""Boxes have the bytes below it."""


class Disk:
    """The real one."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def close(self, file: int) -> None:
        os.close(file)

    def read(self, file: int, size: int, offset: int) -> bytes:
        return os.pread(file, size, offset)

    def write(self, file: int, data: bytes, offset: int) -> None:
        written = os.pwrite(file, data, offset)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def append(self, file: int, data: bytes) -> None:
        written = os.write(file, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def allocate(self, file: int, size: int) -> None:
        os.posix_fallocate(file, 0, size)

    def stat(self, file: int) -> os.stat_result:
        return os.fstat(file)

    def stat_path(self, path: str) -> os.stat_result:
        return os.stat(path, follow_symlinks=False)

    def list(self, path: str) -> list[str]:
        return os.listdir(path)

    def make_folder(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def booted_at(self) -> Micros:
        """When this machine was started: what was written before may have been lost in part."""
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return (time.time_ns() - time.clock_gettime_ns(clock)) // 1000

    def sync(self, file: int) -> None:
        """Data, and of the metadata what is needed to find it."""
        os.fdatasync(file)

    def kernel_sync(self) -> KernelSync | None:
        """Who does the same beside an event loop, without a thread; None if nobody does."""
        try:
            return KernelSync()
        except OSError:
            return None

    def sync_folder(self, path: str) -> None:
        """Names that came, went or changed in it."""
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def sync_all(self, file: int) -> bool:
        """Everything of the file system that this file is on. False where there is no such call."""
        if _syncfs is None:
            return False
        if _syncfs(file) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return True

    def try_lock(self, file: int, offset: int) -> bool:
        try:
            fcntl.fcntl(file, _SET, _pack_lock(_LOCKED, _FROM_START, offset, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def try_lock_all(self, file: int) -> bool:
        """All bytes at once, if nobody has any of them. What lies beyond is no box's."""
        try:
            fcntl.fcntl(file, _SET, _pack_lock(_LOCKED, _FROM_START, 0, LOCKS_END, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def unlock_all(self, file: int) -> None:
        fcntl.fcntl(file, _SET, _pack_lock(_UNLOCKED, _FROM_START, 0, LOCKS_END, 0))

    def unlock(self, file: int, offset: int) -> None:
        fcntl.fcntl(file, _SET, _pack_lock(_UNLOCKED, _FROM_START, offset, 1, 0))


def make_parents(disk: Disk, folder: str) -> None:
    missing = []
    while True:
        try:
            disk.make_folder(folder)
            break
        except FileExistsError:
            break
        except FileNotFoundError:
            missing.append(folder)
            folder = os.path.dirname(folder)
    for name in reversed(missing):
        try:
            disk.make_folder(name)
        except FileExistsError:
            continue


def is_full_disk(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def translated(error: OSError) -> PenstockError:
    if is_full_disk(error):
        return StoreFull("The disk with the mailboxes is full; nothing was put.")
    return StoreError(f"The mailboxes cannot be used: {error.strerror or error}.")


def _find_syncfs() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int]
    return function


_syncfs = _find_syncfs()
