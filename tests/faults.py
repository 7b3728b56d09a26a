"""A disk that fails when a test says so: an apsw VFS between SQLite and the real files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw
import pytest

from penstock.stores.sqlite import connection


class FaultyDisk:
    """Real files, but writing or syncing can be made to fail."""

    def __init__(self) -> None:
        self.is_full = False
        self.fails_writes = False
        self.fails_syncs = False
        self.fails_reads = False


class _Files(apsw.VFS):
    def __init__(self, name: str, disk: FaultyDisk) -> None:
        self._disk = disk
        super().__init__(name, "")

    def xOpen(self, name: object, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self._disk, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: object, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._disk.is_full:
            raise apsw.FullError("no space left on the device")
        if self._disk.fails_writes:
            raise apsw.IOError("the disk does not write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._disk.fails_syncs:
            raise apsw.IOError("the disk does not sync")
        super().xSync(flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        if self._disk.fails_reads:
            raise apsw.IOError("the disk does not read")
        return super().xRead(amount, offset)


@contextmanager
def faulty_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyDisk]:
    """Every connection opened inside goes through the returned disk."""
    disk = FaultyDisk()
    name = f"faulty-{id(disk)}"
    files = _Files(name, disk)
    with monkeypatch.context() as patch:
        patch.setattr(connection, "_vfs", name)
        yield disk
    files.unregister()
