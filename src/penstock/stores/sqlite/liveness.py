"""Which processes are alive: each holds a lock on its own byte of the `-live` file.

The kernel gives the lock back the moment the process ends, however it ends, so a crashed
process's leases can be taken over at once instead of after they have run out. The lock belongs
to the open file description, which works across containers that share a kernel and a disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path

from penstock.clock import Micros

_FLOCK = "hhqqi4x"
_IS_SUPPORTED = hasattr(fcntl, "F_OFD_SETLK")


class Liveness:
    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + "-live")
        self._descriptor = self._open()
        self._left: list[int] = []
        self._mine: set[int] = set()

    def declare(self, instance: int) -> bool:
        """Be alive under this number until the process ends. False if somebody else is, who has
        it of a database that was here before."""
        if _IS_SUPPORTED:
            self._follow()
            try:
                fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, instance))
            except BlockingIOError:
                return False
        self._mine.add(instance)
        return True

    def is_alive(self, instance: int) -> bool:
        """False only when the process has certainly ended."""
        if instance in self._mine or not _IS_SUPPORTED or self._is_locked(instance):
            return True
        return self._follow() and self._is_locked(instance)

    def _is_locked(self, instance: int) -> bool:
        try:
            answer = fcntl.fcntl(
                self._descriptor, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, instance)
            )
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOLCK, errno.ENOSYS):
                return True  # The file system cannot tell: leases run out by time alone.
            raise
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        for descriptor in (self._descriptor, *self._left):
            os.close(descriptor)

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def _follow(self) -> bool:
        """Whether another file was in the place of ours, as after a folder was emptied under us.

        Those who came later hold their locks on that one.
        """
        ours = os.fstat(self._descriptor)
        try:
            if os.path.samestat(os.stat(self._path), ours):
                return False
        except FileNotFoundError:
            return False  # Nobody can have come later.
        # Not closed: another thread may be asking it.
        self._left.append(self._descriptor)
        self._descriptor = self._open()
        for instance in self._mine:
            with contextlib.suppress(BlockingIOError):  # There, the number is somebody else's.
                fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, instance))
        return True


def _flock(kind: int, instance: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, instance, 1, 0)


def boot_id() -> str:
    """Names the running kernel: leases of an earlier boot have run out."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


class Leasing:
    """What leases are measured by: this boot's clock, and who is alive on it."""

    def __init__(self, liveness: Liveness, now: Callable[[], Micros]) -> None:
        self.liveness = liveness
        self.boot_id = boot_id()
        self.now = now
        self.instance = 0
        """This process's number, once it is registered."""
