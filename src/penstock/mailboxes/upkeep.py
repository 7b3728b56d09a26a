"""What is done behind the callers' backs: acknowledgements are synced soon, the boxes themselves
now and then, and what was read through is removed.

Until a box is synced, the log is the truth about it; then the log begins anew.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from penstock.errors import MailboxesFailed, PenstockError
from penstock.mailboxes.box import Box
from penstock.mailboxes.disk import translated
from penstock.mailboxes.locking import PATIENCE_SECONDS
from penstock.mailboxes.round import Group
from penstock.mailboxes.shelf import Entry, Gone, Wipe
from penstock.mailboxes.state import NOTHING, Whole
from penstock.mailboxes.state_log import sync_path

if TYPE_CHECKING:
    from penstock.mailboxes.folder import Folder

SYNC_EACH_MAX = 16
"""Beyond so many files, all of the file system is synced at once."""


class Upkeep:
    def __init__(self, folder: Folder, *, is_durable: bool) -> None:
        self._folder = folder
        self._is_durable = is_durable
        self.dirty: dict[bytes, tuple[Box, Whole]] = {}
        """Boxes that are not synced, and how far they were written."""
        self._syncing: dict[bytes, tuple[Box, Whole]] = {}
        self.discards: list[Gone | Wipe] = []
        """What goes once the log is synced."""
        self.is_closing = False
        self._checkpointing = threading.Lock()
        self._syncing_boxes = threading.Lock()

    def start_anew(self) -> None:
        """All boxes are others now."""
        self.dirty.clear()
        self._syncing.clear()
        self.discards.clear()

    def note(self, box: Box, line: bytes) -> None:
        if self._is_durable:
            self.dirty[box.digest] = (box, (box.write_file, box.write_byte, box.next_seq))
            self._folder.journal.notes.append((box.digest, line))

    def discard(self, box: Box, file: int) -> None:
        path = box.path(file)
        self._folder.files.drop(path)
        self.discards.append(Gone(box.number, path, self._folder.generation))

    def promised(self, digest: bytes) -> Whole:
        """What this process has written to a box and not synced: nothing of it can be missing."""
        found = self.dirty.get(digest) or self._syncing.get(digest)
        return NOTHING if found is None else found[1]

    def wipe(self, box: Box, entries: list[Entry]) -> None:
        self.discards += [Wipe(box.id, entry) for entry in entries]

    def flush(self) -> None:
        """Sync what was acknowledged, and put without waiting; remove the files it was in."""
        folder = self._folder
        with folder.mutex:
            if folder.failure is not None:
                return
            group = Group(None)
            if not folder.journal.is_synced:
                group.segment = folder.open_log()
                try:
                    folder.journal.write(group.segment)
                except OSError as error:
                    raise translated(error) from error
                group.write = group.segment.writes
            group.discards, self.discards = self.discards, []
        folder.sync(group)

    def checkpoint(self) -> None:
        """Sync the boxes themselves; then the log begins anew."""
        folder = self._folder
        with self._checkpointing:
            self.flush()
            with folder.mutex:
                if folder.failure is not None or folder.journal.segment is None or not self.dirty:
                    return
                written = folder.journal.swap()
                self._syncing = dirty = self.dirty.copy()
                self.dirty.clear()
                generation = folder.generation
            try:
                self.sync_boxes([box.folder for box, _ in dirty.values()])
            except OSError as error:
                raise MailboxesFailed from error
            with folder.mutex:
                # At once: who idles from here on must not leave a log of what is long gone.
                written.begin()
            for digest, (box, whole) in list(dirty.items()):
                self.settle(box.id, whole, generation)
                dirty.pop(digest, None)

    def settle(self, id: str, whole: Whole, generation: int) -> None:
        """Up to here a box is on disk, if it was not replaced by another since this `generation`.

        Written down where that would not be done soon anyway.
        """
        folder = self._folder
        with folder.mutex:
            if folder.failure is not None:
                return
            box = folder.box(id)
            number = box.number
            if not folder.locks.take(number, time.monotonic() + PATIENCE_SECONDS):
                return  # It is being used: the next line says it.
            try:
                folder.look_around()
                if folder.generation != generation:
                    return
                box.look(folder)
                box.look_at_state(folder)
                box.whole = max(box.whole, whole)
                is_quiet = (box.write_file, box.write_byte) == whole[:2]
                if is_quiet and box.saved < box.whole:
                    box.save(folder, is_noted=self.is_closing)
            except OSError as error:
                box.forget()
                folder.report("service_failed", service="janitor", error=repr(error))
            except PenstockError:
                return  # Damaged: that was told when it was found.
            finally:
                folder.locks.release(number)

    def sync_boxes(self, boxes: list[str]) -> None:
        """All files in these folders, and the folders' own names."""
        # One at a time, as in `Counter.sync`: the file system's failure is told once.
        with self._syncing_boxes:
            self._folder.check_failure()
            try:
                self._sync_boxes(boxes)
            except OSError as error:
                self._folder.fail(error)
                raise

    def _sync_boxes(self, boxes: list[str]) -> None:
        disk, root = self._folder.disk, self._folder.root
        if len(boxes) > SYNC_EACH_MAX and disk.sync_all(self._folder.locks.file):
            return
        folders: set[str] = set()
        for folder in boxes:
            try:
                names = disk.list(folder)
            except FileNotFoundError:
                continue
            for name in names:
                if name.endswith(".log"):
                    sync_path(disk, f"{folder}/{name}")
            while len(folder) >= len(root) and folder not in folders:
                folders.add(folder)
                folder = os.path.dirname(folder)
        for folder in sorted(folders, reverse=True):
            disk.sync_folder(folder)

    def remove(self, discards: list[Gone | Wipe]) -> None:
        for discard in discards:
            if isinstance(discard, Wipe):
                self._wipe(discard)
            else:
                self._unlink(discard)

    def _unlink(self, gone: Gone) -> None:
        folder = self._folder
        with folder.mutex:
            if not folder.locks.try_take(gone.number):
                self.discards.append(gone)  # Another process is using the box.
                return
            try:
                # A file of a box that was replaced has the name of one that nobody has read.
                if gone.generation == folder.latest_generation:
                    folder.disk.unlink(gone.path)
            except FileNotFoundError:
                return  # Another process opened the box, and found it read through.
            finally:
                folder.locks.release(gone.number)

    def _wipe(self, wipe: Wipe) -> None:
        folder = self._folder
        try:
            with folder.locked(wipe.id) as box:
                box.look(folder)
                box.wipe(folder, wipe.entry)
        except PenstockError as error:
            # It is tried again when the box is opened the next time.
            folder.report("service_failed", service="janitor", error=repr(error))
