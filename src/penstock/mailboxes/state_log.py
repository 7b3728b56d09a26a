"""The state log as a file: read from the end, compacted, kept for a while."""

from __future__ import annotations

import os

from penstock.clock import SECOND, Micros
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.state import NAME, State, last_state


def read_state(disk: Disk, folder: str) -> tuple[State | None, bool]:
    """The last valid line of the state log, or of an older one; and whether all is well."""
    content = read_whole(disk, f"{folder}/{NAME}")
    state, is_whole = (None, True) if content is None else last_state(content)
    if state is not None:
        return state, is_whole
    for name in reversed(_history(disk, folder)):
        older = read_whole(disk, f"{folder}/{name}")
        state = None if older is None else last_state(older)[0]
        if state is not None:
            return state, False
    return None, not content


def compact(
    disk: Disk, folder: str, line: bytes, now: Micros, history_min: int, history_seconds: float
) -> tuple[int, int]:
    """One line again. There is a state log at every moment, and the old one is kept for a while.

    Returns the new file's number and size.
    """
    path = f"{folder}/{NAME}"
    file = disk.open(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        disk.write(file, line, 0)
        disk.sync(file)
        found = disk.stat(file)
    finally:
        disk.close(file)
    try:
        disk.link(path, f"{folder}/queue.{now:020d}.log")
    except FileExistsError:
        pass
    disk.rename(f"{path}.new", path)
    disk.sync_folder(folder)
    names = _history(disk, folder)
    for name in names[: max(0, len(names) - history_min)]:
        if now - int(name[6:26]) > history_seconds * SECOND:
            disk.unlink(f"{folder}/{name}")
    return found.st_ino, found.st_size


def read_whole(disk: Disk, path: str) -> bytes | None:
    """None if there is no such file."""
    return read_beginning(disk, path)


def read_beginning(disk: Disk, path: str, size: int | None = None) -> bytes | None:
    """So many bytes, or all."""
    try:
        file = disk.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return disk.read(file, disk.stat(file).st_size if size is None else size, 0)
    finally:
        disk.close(file)


def sync_path(disk: Disk, path: str) -> None:
    try:
        file = disk.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        disk.sync(file)
    finally:
        disk.close(file)


def _history(disk: Disk, folder: str) -> list[str]:
    """Older state logs, the oldest first."""
    try:
        names = disk.list(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if name.startswith("queue.") and name[6:26].isdigit())
