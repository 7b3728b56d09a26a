"""The log of this process: what is put and acknowledged is on disk when it is in here.

There are two segments. While the boxes of one are synced, the other is written; then the first is
begun anew. A file beside them, locked as long as this process lives, says that they are its own.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack

from penstock.mailboxes.box import Box
from penstock.mailboxes.commit_log import STATE, WRITTEN, Segment
from penstock.mailboxes.disk import Disk, make_parents
from penstock.mailboxes.shelf import Shelf

LETTERS = ("a", "b")
GROWTH_MAX = 4
"""A segment may grow to so many times its size before writers wait for it to be freed."""


class Journal:
    """Under the folder's mutex, but for syncing."""

    def __init__(self, disk: Disk, root: str, size: int) -> None:
        self._disk = disk
        self._folder = f"{root}/commits"
        self._size = size
        self.name = secrets.token_hex(8)
        self.segment: Segment | None = None
        self._spare: Segment | None = None
        self._liveness = -1
        self.headed: set[tuple[bytes, int]] = set()
        """Files whose header the segment has, or the disk, with their boxes."""
        self.notes: list[tuple[bytes, bytes]] = []
        """Lines of state that are not in the log yet, with their boxes."""

    def open(self, make_room: Callable[[OSError], bool]) -> Segment:
        make_parents(self._disk, self._folder)
        while self._liveness < 0:
            self._liveness = self._try_to_live()
        with ExitStack() as opened:
            segment, spare = [self._new(letter, make_room, opened) for letter in LETTERS]
            opened.pop_all()
        self.segment, self._spare = segment, spare
        return segment

    def _try_to_live(self) -> int:
        """Who looks for the logs of the dead may have found this one's file before it was locked,
        and have removed it: then the next one has another name."""
        disk = self._disk
        with ExitStack() as opened:
            file = disk.open(f"{self._folder}/{self.name}.lock", os.O_RDWR | os.O_CREAT)
            opened.callback(disk.close, file)
            if disk.try_lock(file, 0) and disk.stat(file).st_nlink:
                opened.pop_all()
                return file
        self.name = secrets.token_hex(8)
        return -1

    def _new(self, letter: str, make_room: Callable[[OSError], bool], opened: ExitStack) -> Segment:
        segment = Segment(self._disk, f"{self._folder}/{self.name}.{letter}.log", self._size)
        opened.callback(segment.close)
        try:
            segment.begin()
        except OSError as error:
            if not make_room(error):
                raise
            segment.begin()
        return segment

    def sync_names(self) -> None:
        """Also of the folders above, which another process may have made and not come to sync."""
        root = os.path.dirname(self._folder)
        for folder in (self._folder, root, os.path.dirname(root)):
            self._disk.sync_folder(folder)

    def add_header(self, shelf: Shelf, box: Box, file: int, salt: int) -> None:
        """Before what is written to this file: one of which nothing is synced can be made anew
        from this log alone."""
        key = (box.digest, file)
        if key in self.headed:
            return
        self.headed.add(key)
        if box.whole[0] >= file and box.whole[1]:
            return
        try:
            header = box.header_of(shelf, file)
        except FileNotFoundError:
            return  # Another process has read it through and removed it.
        assert self.segment is not None, "it was opened before anything was put"
        self.segment.added.append((WRITTEN, box.digest, file, salt, 0, header))

    def write(self, segment: Segment) -> None:
        """What was added, and the notes. Raises `OSError`, and then nothing is in the log."""
        for digest, line in self.notes:
            segment.added.append((STATE, digest, 0, 0, 0, line))
        segment.write()
        self.notes.clear()

    def swap(self) -> Segment:
        """From now on the other segment is written. Returns the one that was, to be begun anew when
        the boxes are synced."""
        assert self.segment is not None
        assert self._spare is not None, "they are opened together"
        self.segment, self._spare = self._spare, self.segment
        self.headed.clear()
        return self._spare

    def begin_anew(self) -> None:
        """Nothing that is in it matters any more."""
        self.notes.clear()
        self.headed.clear()
        for segment in (self.segment, self._spare):
            if segment is not None:
                segment.begin()

    @property
    def end(self) -> int:
        return 0 if self.segment is None else self.segment.end

    @property
    def is_synced(self) -> bool:
        """Whether all that is known to it is on disk."""
        return not self.notes and (self.segment is None or self.segment.is_synced)

    @property
    def is_full(self) -> bool:
        return self.segment is not None and self.segment.is_full

    @property
    def is_overfull(self) -> bool:
        return self.end > GROWTH_MAX * self._size

    def end_of(self, path: str) -> tuple[int | None, bool]:
        """How far a log is written, if it is ours; and whether anything depends on it."""
        if self.segment is not None and self.segment.path == path:
            return self.segment.end, True
        return None, self._spare is None or self._spare.path != path

    def remove(self) -> None:
        """The boxes have all of it."""
        if self._liveness >= 0:
            remove_log(self._disk, self._folder, self.name)

    def close(self) -> None:
        for segment in (self.segment, self._spare):
            if segment is not None:
                segment.close()
        if self._liveness >= 0:
            self._disk.close(self._liveness)
        self.segment = self._spare = None
        self._liveness = -1


def remove_log(disk: Disk, folder: str, name: str) -> None:
    """The file that says whose they are goes last."""
    for suffix in (*[f"{letter}.log" for letter in LETTERS], "lock"):
        try:
            disk.unlink(f"{folder}/{name}.{suffix}")
        except FileNotFoundError:
            continue
