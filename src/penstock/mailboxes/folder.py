"""The folder with all boxes, as one process sees it.

Any process of the machine may use any box: each operation takes the box's lock, one byte of a file
that all share, and looks at what others did. What is put is in the box's file at once, where all
see it, and durable when this process's commit log has it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from penstock.clock import Clock, Micros
from penstock.errors import (
    InvalidSettings,
    MailboxesFailed,
    PenstockError,
    StoreBusy,
    StoreError,
    StoreFull,
)
from penstock.mail import NewMail, Posted
from penstock.mailboxes.arrivals import Arrivals
from penstock.mailboxes.box import Box, Limits, Scrub, Write, make_parents, undo
from penstock.mailboxes.changes import Changes
from penstock.mailboxes.commit_log import STATE, WRITTEN, LogEntry, Segment, read_segment
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.files import Files
from penstock.mailboxes.record import ATTRIBUTES_BYTES_MAX, OVERHEAD
from penstock.mailboxes.recovery import load
from penstock.mailboxes.replay import replay
from penstock.mailboxes.state_log import read_whole, sync_path
from penstock.settings import Settings
from penstock.telemetry import Telemetry

VERSION = 1
SYNC_EACH_MAX = 16
"""Beyond so many files, all of the file system is synced at once."""
LOG_GROWTH_MAX = 4
"""A commit log may grow to so many times its size before writers wait for it to be freed."""
LOCK_ALL_FROM = 4
"""From so many boxes on, one lock on all is taken for the moment it takes to write to them."""
LOCK_PAUSE_SECONDS = 0.0002


class Layout(msgspec.Struct, frozen=True):
    """store.json: how the folder is laid out."""

    version: int
    depth: int
    is_moving: bool = False
    """Boxes are on their way to this depth."""


class Group:
    """What was put together, and is not on disk yet."""

    def __init__(self, segment: Segment | None) -> None:
        self.segment = segment
        self.boxes: list[Box] = []
        self.answers: list[list[Posted | PenstockError]] = []


class Folder:
    """Thread-safe. A mutex holds the threads of this process apart, the boxes' locks the others."""

    def __init__(
        self,
        root: str,
        settings: Settings,
        clock: Clock,
        telemetry: Telemetry,
        disk: Disk | None = None,
    ) -> None:
        self.root = root
        self.disk = disk or Disk()
        self.settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self.files = Files(self.disk, settings.mailbox_open_files_max)
        self.limits = Limits(
            settings.mailbox_messages_max,
            settings.mailbox_file_messages_max,
            settings.payload_bytes_max + ATTRIBUTES_BYTES_MAX + OVERHEAD,
            settings.mailbox_history_min,
            settings.mailbox_history_seconds,
        )
        if settings.mailbox_messages_max >= settings.mailbox_file_messages_max:
            raise InvalidSettings(
                f"mailbox_messages_max ({settings.mailbox_messages_max}) must be less than "
                f"mailbox_file_messages_max ({settings.mailbox_file_messages_max}).",
                hint="A box has at most two files; that many messages must fit into one.",
            )
        self.scrub: Scrub = settings.mailbox_scrub
        self.mutex = threading.RLock()
        self._boxes: dict[str, Box] = {}
        self._failure: BaseException | None = None
        self._pid = os.getpid()
        self._name = secrets.token_hex(8)
        self._segment: Segment | None = None
        self._spare: Segment | None = None
        self._liveness = -1
        self._notes: list[tuple[bytes, bytes]] = []
        self._discards: list[str] = []
        self._dirty: dict[str, tuple[Box, int, int]] = {}
        self._headed: set[tuple[bytes, int]] = set()
        self._unsaved: dict[str, Box] = {}
        self._has_unsynced = False
        self._checkpointing = threading.Lock()
        self.depth = self._open_layout(settings.mailbox_depth)
        self._locks = self.disk.open(f"{root}/locks", os.O_RDWR | os.O_CREAT)
        self._changes = Changes(self.disk, f"{root}/changes")
        self.changing = self._changes.begin
        self.seen = 0
        self.arrivals = Arrivals(self.disk, f"{root}/arrivals", self._changes, telemetry)
        self.recovered = self._recover()

    # For boxes

    def load(self, box: Box) -> None:
        load(box, self)

    def now(self) -> Micros:
        return self._clock.now()

    def new_salt(self) -> int:
        return secrets.randbits(32)

    def report(self, event: str, **details: object) -> None:
        self._telemetry.emit(event, **details)

    def note(self, box: Box, line: bytes) -> None:
        self._unsaved.pop(box.id, None)
        self._dirty[box.id] = (box, box.write_file, box.write_byte)
        if self.settings.mailbox_durability != "os":
            self._notes.append((box.digest, line))

    def discard(self, box: Box, file: int) -> None:
        path = box.path(file)
        self.files.drop(path)
        self._discards.append(path)

    # Boxes

    def box(self, id: str) -> Box:
        """Under the mutex."""
        boxes = self._boxes
        box = boxes.get(id)
        if box is not None:
            if 2 * len(boxes) > self.settings.mailbox_cached_max:
                # Those used last stand last, and go last; with much space left, none goes soon.
                del boxes[id]
                boxes[id] = box
        else:
            digest = hashlib.sha256(id.encode()).digest()
            box = Box(id, digest, self.folder_of(digest))
            if len(self._boxes) >= self.settings.mailbox_cached_max:
                self._evict()
            boxes[id] = box
        return box

    def folder_of(self, digest: bytes) -> str:
        text = digest.hex()
        parts = [text[2 * level : 2 * level + 2] for level in range(self.depth)]
        return "/".join([self.root, "boxes", *parts, text[2 * self.depth :]])

    @contextmanager
    def locked(self, id: str) -> Iterator[Box]:
        """A box that nobody else changes, in this process or another."""
        with self.mutex:
            self.check()
            box = self.box(id)
            number = number_of(box.digest)
            self._lock(number)
            self.seen = self._changes.look()
            try:
                yield box
            except OSError as error:
                box.forget()
                raise translated(error) from error
            finally:
                self.disk.unlock(self._locks, number)

    @contextmanager
    def holding(self, digest: bytes) -> Iterator[None]:
        """Nobody else changes the files of this box, whatever its name is."""
        with self.mutex:
            self.check()
            number = number_of(digest)
            self._lock(number)
            try:
                yield
            except OSError as error:
                raise translated(error) from error
            finally:
                self.disk.unlock(self._locks, number)

    def look_again(self) -> None:
        """Files of boxes were changed by other means than their boxes: nothing known holds."""
        self._changes.count += 1

    def check(self) -> None:
        if self._failure is not None:
            raise MailboxesFailed from self._failure
        if self._pid != os.getpid():
            raise MailboxesFailed("This hub's mailboxes belong to the process it was forked from.")

    def _lock(self, number: int) -> None:
        if self.disk.try_lock(self._locks, number):
            return
        ends_at = time.monotonic() + self.settings.lock_timeout_seconds
        pause = LOCK_PAUSE_SECONDS
        while not self.disk.try_lock(self._locks, number):
            if time.monotonic() > ends_at:
                raise StoreBusy("Another process holds this mailbox.")
            time.sleep(pause)
            pause = min(2 * pause, 0.005)

    def _evict(self) -> None:
        id = next(iter(self._boxes))
        if id in self._unsaved:
            self._save(self._unsaved[id])
        del self._boxes[id]

    # Putting

    def put(self, requests: list[tuple[str, list[NewMail]]], *, is_logged: bool) -> Group:
        """Write them to their boxes and, if asked for, to the commit log. Not synced yet."""
        with self.mutex:
            self.check()
            now = self._clock.now()
            done: list[tuple[Box, list[Write]]] = []
            segment = self._open_log() if is_logged else None
            group = Group(segment)
            is_alone = len(requests) >= LOCK_ALL_FROM and self.disk.try_lock_all(self._locks)
            if is_alone:
                self.seen = self._changes.look()
            try:
                for id, mails in requests:
                    group.answers.append(self._put(id, mails, now, done, segment, is_alone))
            finally:
                if is_alone:
                    self.disk.unlock_all(self._locks)
            if segment is not None:
                self._log(segment, done)
            for box, writes in done:
                if writes:
                    group.boxes.append(box)
                    self._unsaved[box.id] = box
            return group

    def _put(
        self,
        id: str,
        mails: list[NewMail],
        now: Micros,
        done: list[tuple[Box, list[Write]]],
        segment: Segment | None,
        is_locked: bool,
    ) -> list[Posted | PenstockError]:
        box = self.box(id)
        number = 0
        if not is_locked:
            number = number_of(box.digest)
            try:
                self._lock(number)
            except StoreBusy as error:
                return [error for _ in mails]
            self.seen = self._changes.look()
        try:
            single = box.put_one(self, mails[0], now) if len(mails) == 1 else None
            if single is None:
                answers, writes, first = box.put(self, mails, now)
            else:
                answers, writes, first = [single[0]], [single[1]], single[0].seq
        except OSError as error:
            return [translated(error) for _ in mails]
        except PenstockError as error:
            return [error for _ in mails]
        finally:
            if not is_locked:
                self.disk.unlock(self._locks, number)
        done.append((box, writes))
        if segment is not None and writes:
            if not box.hidden_from:
                box.hidden_from = first
            for write in writes:
                if not box.durable:
                    self._log_header(box, write, segment)
                segment.add(WRITTEN, write.digest, write.file, write.salt, write.offset, write.data)
            last = writes[-1]
            self._dirty[id] = (box, last.file, last.offset + len(last.data))
        return answers

    def _log_header(self, box: Box, write: Write, segment: Segment) -> None:
        """A file of which nothing is synced can be made anew from this log alone."""
        key = (write.digest, write.file)
        if key in self._headed:
            return
        self._headed.add(key)
        if write.offset and write.file == box.write_file:
            segment.add(WRITTEN, write.digest, write.file, write.salt, 0, box.header().encode())

    def _add_notes(self, segment: Segment) -> None:
        for digest, line in self._notes:
            segment.add(STATE, digest, 0, 0, 0, line)

    def _log(self, segment: Segment, done: list[tuple[Box, list[Write]]]) -> None:
        try:
            self._add_notes(segment)
            segment.write()
        except OSError as error:
            for box, writes in done:
                self._lock(number_of(box.digest))
                try:
                    undo(box, self, writes)
                    box.hidden_from = 0
                finally:
                    self.disk.unlock(self._locks, number_of(box.digest))
            raise translated(error) from error
        self._notes.clear()
        self._has_unsynced = True

    def sync(self, group: Group) -> None:
        """Returns when the group is on disk."""
        if group.segment is None:
            return
        discards = self._take_discards()
        try:
            group.segment.sync()
        except OSError as error:
            self.fail(error)
            raise MailboxesFailed from error
        self._remove(discards)

    def show(self, group: Group) -> None:
        """Those who wait may have it."""
        with self.mutex:
            for box in group.boxes:
                box.hidden_from = 0
        if group.boxes:
            self.arrivals.tell([number_of(box.digest) for box in group.boxes])

    def fail(self, error: BaseException) -> None:
        """What is on disk is not known any more: nothing is accepted until it is opened anew."""
        self._failure = error
        self._telemetry.emit("mailboxes_failed", error=repr(error))

    # The commit log

    def _open_log(self) -> Segment:
        if self._segment is None:
            commits = f"{self.root}/commits"
            make_parents(self.disk, commits)
            path = f"{commits}/{self._name}.lock"
            self._liveness = self.disk.open(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL)
            self.disk.lock(self._liveness, 0)
            # Locked before it has its name: nobody takes its owner for dead.
            self.disk.rename(f"{path}.new", path)
            self._segment = self._new_segment("a")
            self.disk.sync_folder(commits)
        return self._segment

    def _new_segment(self, letter: str) -> Segment:
        path = f"{self.root}/commits/{self._name}.{letter}.log"
        segment = Segment(self.disk, path, self.settings.mailbox_log_bytes)
        segment.begin()
        return segment

    @property
    def is_log_full(self) -> bool:
        return self._segment is not None and self._segment.is_full

    @property
    def is_log_overfull(self) -> bool:
        limit = LOG_GROWTH_MAX * self.settings.mailbox_log_bytes
        return self._segment is not None and self._segment.end > limit

    def flush(self) -> None:
        """Sync what was acknowledged, and put without waiting; remove the files it was in."""
        with self.mutex:
            if self._failure is not None or not (self._notes or self._has_unsynced):
                return
            segment = self._open_log()
            try:
                self._add_notes(segment)
                segment.write()
            except OSError as error:
                raise translated(error) from error
            self._notes.clear()
            self._has_unsynced = False
        group = Group(segment)
        self.sync(group)

    def checkpoint(self) -> None:
        """Sync the boxes themselves; then the log begins anew."""
        with self._checkpointing:
            self.flush()
            with self.mutex:
                if self._failure is not None or self._segment is None or not self._dirty:
                    return
                if self._spare is None:
                    self._spare = self._new_segment("b")
                    self.disk.sync_folder(f"{self.root}/commits")
                else:
                    self._spare.begin()
                self._segment, self._spare = self._spare, self._segment
                dirty, self._dirty = self._dirty, {}
                self._headed.clear()
            try:
                self._sync_boxes([box for box, _, _ in dirty.values()])
            except OSError as error:
                self.fail(error)
                raise MailboxesFailed from error
            with self.mutex:
                for box, file, end in dirty.values():
                    if box.write_file == file:
                        box.durable = max(box.durable, min(end, box.write_byte))

    def _sync_boxes(self, boxes: list[Box]) -> None:
        disk = self.disk
        if len(boxes) > SYNC_EACH_MAX and disk.sync_all(self._locks):
            return
        folders: set[str] = set()
        for box in boxes:
            try:
                names = disk.list(box.folder)
            except FileNotFoundError:
                continue
            for name in names:
                if name.endswith(".log"):
                    sync_path(disk, f"{box.folder}/{name}")
            folder = box.folder
            while len(folder) >= len(self.root) and folder not in folders:
                folders.add(folder)
                folder = os.path.dirname(folder)
        for folder in sorted(folders, reverse=True):
            disk.sync_folder(folder)

    def _take_discards(self) -> list[str]:
        with self.mutex:
            discards, self._discards = self._discards, []
            return discards

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            try:
                self.disk.unlink(path)
            except FileNotFoundError:
                continue  # Another process opened the box, and found it read through.

    # Opening and closing

    def _open_layout(self, depth: int | None) -> int:
        make_parents(self.disk, self.root)
        path = f"{self.root}/store.json"
        content = read_whole(self.disk, path)
        if content is None:
            layout = Layout(VERSION, depth or 1)
            temporary = f"{path}.{self._name}"
            file = self.disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                self.disk.write(file, msgspec.json.encode(layout), 0)
                self.disk.sync(file)
            finally:
                self.disk.close(file)
            try:
                self.disk.link(temporary, path)
                self.disk.sync_folder(self.root)
            except FileExistsError:
                pass  # Another process was faster.
            self.disk.unlink(temporary)
            content = read_whole(self.disk, path)
        try:
            layout = msgspec.json.decode(content or b"", type=Layout)
        except msgspec.MsgspecError as error:
            raise StoreError(f"{path} is damaged: {error}.") from error
        if layout.version != VERSION:
            raise StoreError(f"{path} is of version {layout.version}; this is {VERSION}.")
        if layout.is_moving:
            raise StoreError(
                f"The mailboxes in {self.root} are being moved.",
                hint="Wait for 'penstock mailboxes migrate'; if it was interrupted, run it again.",
            )
        if depth is not None and depth != layout.depth:
            raise InvalidSettings(
                f"The mailboxes in {self.root} have the depth {layout.depth}, not {depth}.",
                hint="'penstock mailboxes migrate' changes it.",
            )
        make_parents(self.disk, f"{self.root}/boxes")
        return layout.depth

    def _recover(self) -> int:
        """Put what dead processes have left in their logs into the boxes. Returns how many logs."""
        commits = f"{self.root}/commits"
        try:
            names = sorted(name for name in self.disk.list(commits) if name.endswith(".lock"))
        except FileNotFoundError:
            return 0
        logs: dict[str, int] = {}
        for name in names:
            file = self.disk.open(f"{commits}/{name}", os.O_RDWR)
            if self.disk.try_lock(file, 0):
                logs[name.removesuffix(".lock")] = file
            else:
                self.disk.close(file)
        try:
            self._replay([f"{commits}/{name}" for name in logs])
            for name in logs:
                for suffix in (".a.log", ".b.log", ".lock"):
                    try:
                        self.disk.unlink(f"{commits}/{name}{suffix}")
                    except FileNotFoundError:
                        continue
        finally:
            for file in logs.values():
                self.disk.close(file)
        return len(logs)

    def _replay(self, names: list[str]) -> None:
        entries: dict[bytes, list[LogEntry]] = {}
        for name in names:
            for suffix in (".a.log", ".b.log"):
                for entry in read_segment(read_whole(self.disk, name + suffix) or b""):
                    entries.setdefault(entry.digest, []).append(entry)
        if not entries:
            return
        boxes: list[Box] = []
        with self.mutex:
            for digest, found in entries.items():
                number, folder = number_of(digest), self.folder_of(digest)
                self._lock(number)
                try:
                    replay(self, folder, found)
                finally:
                    self.disk.unlock(self._locks, number)
                boxes.append(Box("", digest, folder))
            self._boxes.clear()
        # Also what was there already may be in the page cache only.
        self._sync_boxes(boxes)
        self._telemetry.emit("mailboxes_recovered", logs=len(names), boxes=len(boxes))

    def _save(self, box: Box) -> None:
        """Write down up to where a box is whole."""
        self._lock(number_of(box.digest))
        self.seen = self._changes.look()
        try:
            box.look(self)
            box.look_at_state(self)
            if box.write_byte:
                box.durable = box.write_byte
                box.save(self)
        except PenstockError as error:
            self._telemetry.emit("mailbox_damaged", mailbox=box.id, file="", reason=str(error))
        finally:
            self.disk.unlock(self._locks, number_of(box.digest))

    def close(self) -> None:
        """Sync the boxes, and leave no log behind."""
        self.arrivals.stop()
        if self._failure is None and self._pid == os.getpid():
            self.checkpoint()
            with self.mutex:
                # After the boxes are synced: what these lines say is true.
                for box in list(self._unsaved.values()):
                    self._save(box)
                self._unsaved.clear()
            self.checkpoint()
            self._remove(self._take_discards())
            if self._segment is not None:
                for letter in ("a", "b"):
                    try:
                        self.disk.unlink(f"{self.root}/commits/{self._name}.{letter}.log")
                    except FileNotFoundError:
                        continue
                self.disk.unlink(f"{self.root}/commits/{self._name}.lock")
        self._close_files()

    def abandon(self) -> None:
        """In a forked child: what is open belongs to the parent, whose locks must not live on."""
        self._failure = MailboxesFailed("This hub's mailboxes belong to another process.")
        self._close_files()

    def _close_files(self) -> None:
        self.files.close()
        self._changes.close()
        for segment in (self._segment, self._spare):
            if segment is not None:
                segment.close()
        for file in (self._locks, self._liveness):
            if file >= 0:
                self.disk.close(file)
        self._segment = self._spare = None
        self._liveness = -1


def number_of(digest: bytes) -> int:
    """Which byte of the lock file is this box's, and what it is called among arrivals."""
    return int.from_bytes(digest[:8], "little") >> 2


def translated(error: OSError) -> PenstockError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull("The disk with the mailboxes is full; nothing was put.")
    return StoreError(f"The mailboxes cannot be used: {error.strerror or error}.")
