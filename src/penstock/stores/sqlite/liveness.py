"""Which processes are alive: each holds a lock on its own byte of the `-live` file.

The kernel gives the lock back the moment the process ends, however it ends, so a crashed
process's leases can be taken over at once instead of after they have run out. The lock belongs
to the open file description, which works across containers that share a kernel and a disk.
"""

from __future__ import annotations

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
        self._descriptor = os.open(
            path.with_name(path.name + "-live"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
        self._mine: set[int] = set()

    def declare(self, instance: int) -> None:
        """Be alive under this number until the process ends."""
        if _IS_SUPPORTED:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, instance))
        self._mine.add(instance)

    def is_alive(self, instance: int) -> bool:
        """False only when the process has certainly ended."""
        if instance in self._mine or not _IS_SUPPORTED:
            return True
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
        os.close(self._descriptor)


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
