"""The folder with all boxes, as one process sees it.

Any process of the machine may use any box: each operation takes the box's lock, one byte of a file
that all share, and looks at what others did. What is put is in the box's file at once, where all
see it, and durable when this process's commit log has it.
"""

from __future__ import annotations

import hashlib
import resource
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from penstock.clock import Clock, Micros
from penstock.errors import (
    HubClosed,
    InsideTransaction,
    InvalidSettings,
    MailboxesFailed,
    PenstockError,
    StoreBusy,
)
from penstock.mailboxes.arrivals import Arrivals
from penstock.mailboxes.box import Box
from penstock.mailboxes.changes import Changes
from penstock.mailboxes.commit_log import Segment
from penstock.mailboxes.counter import Counter
from penstock.mailboxes.disk import Disk, is_full_disk, translated
from penstock.mailboxes.figures import Tally
from penstock.mailboxes.files import Files
from penstock.mailboxes.journal import Journal
from penstock.mailboxes.layout import open_layout
from penstock.mailboxes.locking import (
    BUSY,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    Locks,
    number_of,
)
from penstock.mailboxes.record import ATTRIBUTES_BYTES_MAX, OVERHEAD
from penstock.mailboxes.recovery import load
from penstock.mailboxes.reserve import Reserve
from penstock.mailboxes.round import writing_to
from penstock.mailboxes.salvage import forget_logs, recover
from penstock.mailboxes.shelf import Limits, Scrub
from penstock.mailboxes.upkeep import Upkeep
from penstock.settings import Settings
from penstock.telemetry import Telemetry


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
        self.files = Files(self.disk, min(settings.mailbox_open_files_max, files_max()))
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
        self.tally = Tally()
        self.mutex = threading.RLock()
        self._boxes: dict[str, Box] = {}
        self._many_boxes = settings.mailbox_cached_max // 2
        self._failure: BaseException | None = None
        self.journal = Journal(self.disk, root, settings.mailbox_log_bytes)
        self._is_closed = False
        upkeep = Upkeep(self, is_durable=settings.mailbox_durability != "os")
        self._upkeep = upkeep
        self.note, self.discard, self.wipe = upkeep.note, upkeep.discard, upkeep.wipe
        self.promised, self.settle = upkeep.promised, upkeep.settle
        self.flush, self.checkpoint = upkeep.flush, upkeep.checkpoint
        self.sync_boxes, self.dirty = upkeep.sync_boxes, upkeep.dirty
        self.booted_at = self.disk.booted_at()
        self.depth = open_layout(self.disk, root, settings.mailbox_depth, self.journal.name)
        self.seen = 0
        with ExitStack() as opened:
            opened.callback(self.files.close)
            self.locks = Locks(self.disk, f"{root}/locks")
            opened.callback(self.locks.close)
            self._changes = Changes(self.disk, f"{root}/changes")
            opened.callback(self._changes.close)
            self._reserve = Reserve(
                self.disk, f"{root}/reserve", settings.mailbox_reserve_bytes, self._changes
            )
            self.generation = self._changes.generation
            self.changing = self._changes.begin
            self.arrivals = Arrivals(self.disk, f"{root}/arrivals", self._changes, telemetry)
            opened.callback(self.arrivals.stop)
            counter = Counter(self, upkeep, self._changes, self._reserve)
            self.post, self.put, self.try_put = counter.post, counter.put, counter.try_put
            self.sync, self.sync_later = counter.sync, counter.sync_later
            self.show, self.try_show = counter.show, counter.try_show
            self.write_one = writing_to(self)
            self.recovered = self.recover()
            opened.pop_all()

    # For boxes

    def load(self, box: Box) -> None:
        load(box, self)

    def now(self) -> Micros:
        return self._clock.now()

    def new_salt(self) -> int:
        return secrets.randbits(32)

    def report(self, event: str, **details: object) -> None:
        self._telemetry.emit(event, **details)

    def make_room(self, error: OSError) -> bool:
        return is_full_disk(error) and self._reserve.give()

    # Boxes

    def box(self, id: str) -> Box:
        """Under the mutex."""
        boxes = self._boxes
        box = boxes.get(id)
        if box is not None:
            if len(boxes) > self._many_boxes:
                # Those used last stand last, and go last; with much space left, none goes soon.
                del boxes[id]
                boxes[id] = box
        else:
            digest = hashlib.sha256(id.encode()).digest()
            box = Box(id, digest, self.folder_of(digest))
            if len(boxes) >= self.settings.mailbox_cached_max:
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
        with self._holding(lambda: self.box(id).digest):
            box = self.box(id)
            self.look_around()
            try:
                yield box
            except OSError as error:
                box.forget()
                raise translated(error) from error
            except PenstockError:
                raise
            except BaseException:
                box.forget()  # The thread was struck: what it did is in the files, and only there.
                raise

    @contextmanager
    def holding(self, digest: bytes) -> Iterator[None]:
        """Nobody else changes the files of this box, whatever its name is."""
        with self._holding(lambda: digest):
            try:
                yield
            except OSError as error:
                raise translated(error) from error

    @contextmanager
    def _holding(self, find_digest: Callable[[], bytes]) -> Iterator[None]:
        """The mutex and a box's lock. While the lock is waited for, others have the mutex."""
        self.check_outside()
        ends_at = pause = 0.0
        while True:
            with self.mutex:
                self.check()
                number = number_of(find_digest())
                try:
                    if self.locks.try_take(number):
                        yield
                        self.locks.release(number)
                        return
                except BaseException:
                    # Also of a thread that is struck while it takes the lock, or gives it back.
                    self.locks.release(number)
                    raise
            if not ends_at:
                ends_at = time.monotonic() + self.settings.lock_timeout_seconds
                pause = PAUSE_SECONDS
            elif time.monotonic() > ends_at:
                raise StoreBusy(BUSY)
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def look_around(self) -> None:
        """Whether others have changed something. Under a lock."""
        count = self._changes.look()
        if count != self.seen:
            self.seen = count
            if self._changes.generation != self.generation:
                self._start_anew()

    @property
    def latest_generation(self) -> int:
        """Which this process has perhaps not taken note of yet."""
        return self._changes.generation

    def look_again(self) -> None:
        """Files of boxes were changed by other means than their boxes: nothing known holds."""
        self._changes.count += 1

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """All boxes are replaced by others: nobody uses one meanwhile, or knows one afterwards."""
        ends_at = time.monotonic() + self.settings.lock_timeout_seconds
        with self.locks.recovering():
            recover(self)
            while True:
                with self.mutex:
                    self.check()
                    try:
                        if self.locks.try_take_all():
                            self._changes.begin_generation()
                            forget_logs(self)
                            self._start_anew()
                            yield
                            self.locks.release_all()
                            return
                    except BaseException:
                        self.locks.release_all()
                        raise
                if time.monotonic() > ends_at:
                    raise StoreBusy(BUSY)
                time.sleep(PAUSE_SECONDS_MAX)

    def _start_anew(self) -> None:
        """What was to be synced, noted or removed is of boxes that are no more."""
        self.generation = self._changes.generation
        for box in self._boxes.values():
            box.forget()
        self._upkeep.start_anew()
        self.files.close()
        self.journal.begin_anew()

    def check_outside(self) -> None:
        """A signal's handler may run in the middle of what its own thread does with a box."""
        if self.is_inside:
            raise InsideTransaction(
                "This thread is in the middle of using a mailbox.",
                hint="It was called from a signal's handler or a finalizer; use another thread.",
            )

    @property
    def is_inside(self) -> bool:
        """Whether this thread has the mutex."""
        return self.mutex._is_owned()  # type: ignore[attr-defined, no-any-return]

    def check(self) -> None:
        self.check_failure()
        if self._is_closed:
            raise HubClosed

    def check_failure(self) -> None:
        if self._failure is not None:
            raise MailboxesFailed from self._failure

    def _evict(self) -> None:
        # What is hidden must not be seen through another object.
        id = next((id for id, box in self._boxes.items() if not box.hidden), None)
        if id is not None:
            del self._boxes[id]

    def fail(self, error: BaseException) -> None:
        """What is on disk is not known any more: nothing is accepted until it is opened anew."""
        self._failure = error
        self._telemetry.emit("mailboxes_failed", error=repr(error))

    # The commit log

    def open_log(self) -> Segment:
        journal = self.journal
        if journal.segment is not None:
            return journal.segment
        try:
            segment = journal.open(self.make_room)
        except OSError as error:
            raise translated(error) from error
        try:
            journal.sync_names()
        except OSError as error:
            self.fail(error)
            raise MailboxesFailed from error
        return segment

    def log_end(self, path: str) -> tuple[int | None, bool]:
        """How far a log is written, if it is ours; and whether anything depends on it."""
        with self.mutex:
            return self.journal.end_of(path)

    @property
    def is_log_full(self) -> bool:
        return self.journal.is_full

    @property
    def log_bytes(self) -> int:
        return self.journal.end

    @property
    def failure(self) -> BaseException | None:
        """Why nothing can be put any more."""
        return self._failure

    @property
    def known(self) -> int:
        """Boxes in memory."""
        return len(self._boxes)

    def damaged(self) -> dict[str, str]:
        """Of the boxes in memory, those that are stopped, and why."""
        with self.mutex:
            return {id: box.halted for id, box in self._boxes.items() if box.halted}

    @property
    def is_log_overfull(self) -> bool:
        return self.journal.is_overfull

    # Opening and closing

    def recover(self) -> int:
        """Put what dead processes have left in their logs into the boxes. Returns how many logs."""
        with self.locks.recovering():
            return recover(self)

    def close(self) -> None:
        """Sync the boxes, and leave no log behind."""
        if self._is_closed:
            return
        try:
            if self._failure is None:
                self._upkeep.is_closing = True
                self.checkpoint()
                # Once more for the lines that say up to where they are whole.
                self.checkpoint()
                if self._failure is None:
                    self.journal.remove()
        finally:
            with self.mutex:
                self._is_closed = True
            self.arrivals.stop()
            self._close_files()

    def abandon(self) -> None:
        """In a forked child: what is open belongs to the parent, whose locks must not live on."""
        self._failure = MailboxesFailed("This hub's mailboxes belong to another process.")
        self._is_closed = True
        self.arrivals.abandon()
        self._close_files(is_own=False)

    def _close_files(self, *, is_own: bool = True) -> None:
        self.files.close()
        self._changes.close(is_own=is_own)
        self.journal.close()
        self.locks.close()


def files_max() -> int:
    """A quarter of what this process may open: others want some, too."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(4, limit // 4)
