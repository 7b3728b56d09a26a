"""What dead processes have left in their logs goes into the boxes it belongs to.

One process at a time does this, and whoever opens the folder waits for it: nobody may put where
something promised is yet to be written. A log goes when all that it has is on disk in the boxes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import MailboxCorrupt, StoreBusy
from penstock.mailboxes.commit_log import LogEntry, forget_segment, read_segment
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.journal import LETTERS, remove_log
from penstock.mailboxes.replay import replay
from penstock.mailboxes.state import NOTHING, Whole
from penstock.mailboxes.state_log import read_whole

if TYPE_CHECKING:
    from penstock.mailboxes.folder import Folder


def recover(folder: Folder) -> int:
    """Returns how many logs there were. By one at a time: see `Locks.recovering`."""
    disk, commits = folder.disk, f"{folder.root}/commits"
    dead: dict[str, int] = {}
    try:
        for name in sorted({name.partition(".")[0] for name in _found_in(disk, commits)}):
            file = disk.open(f"{commits}/{name}.lock", os.O_RDWR | os.O_CREAT)
            if disk.try_lock(file, 0):
                dead[name] = file
            else:
                disk.close(file)
        with _after_power_loss(folder, dead):
            _replay(folder, [f"{commits}/{name}" for name in dead])
        for name in dead:
            remove_log(disk, commits, name)
    except StoreBusy:
        # Whoever holds a box has it as it is, so nothing is lost yet. The next one does it.
        return 0
    finally:
        for file in dead.values():
            disk.close(file)
    return len(dead)


def forget_logs(folder: Folder) -> None:
    """The boxes are to be others: what the living have in their logs must never come into them."""
    commits = f"{folder.root}/commits"
    for name in _found_in(folder.disk, commits):
        if name.endswith(".log"):
            forget_segment(folder.disk, f"{commits}/{name}")


def _found_in(disk: Disk, commits: str) -> list[str]:
    try:
        return disk.list(commits)
    except FileNotFoundError:
        return []


@contextmanager
def _after_power_loss(folder: Folder, logs: dict[str, int]) -> Iterator[None]:
    """A log from before this machine was started: the boxes in it were cut off with it."""
    times = [folder.disk.stat(file).st_mtime_ns // 1000 for file in logs.values()]
    booted_at = folder.booted_at
    if times and min(times) < booted_at:
        folder.booted_at = sys.maxsize
    try:
        yield
    finally:
        folder.booted_at = booted_at


def _replay(folder: Folder, names: list[str]) -> None:
    entries: dict[bytes, list[LogEntry]] = {}
    for name in names:
        for letter in LETTERS:
            content = read_whole(folder.disk, f"{name}.{letter}.log") or b""
            for entry in read_segment(content):
                entries.setdefault(entry.digest, []).append(entry)
    if not entries:
        return
    boxes, generation = [], folder.generation
    for digest, found in entries.items():
        with folder.holding(digest):
            id = replay(folder, folder.folder_of(digest), found)
        if id is not None:
            boxes.append((id, _mend(folder, id)))
    # Also what was there already may be in the page cache only.
    folder.sync_boxes([folder.folder_of(digest) for digest in entries])
    for id, whole in boxes:
        folder.settle(id, whole, generation)
    folder.report("mailboxes_recovered", logs=len(names), boxes=len(entries))


def _mend(folder: Folder, id: str) -> Whole:
    """Before it is synced, so that all of it is known to be whole then."""
    with folder.locked(id) as box:
        try:
            box.look(folder)
        except MailboxCorrupt:
            return NOTHING
        return box.write_file, box.write_byte, box.next_seq
