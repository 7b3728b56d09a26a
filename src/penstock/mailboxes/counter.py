"""The counter, where messages are handed in: into their boxes, where all see them, into the commit
log, and with it to the disk."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from penstock.clock import Micros
from penstock.errors import MailboxesFailed
from penstock.mail import NewMail, Posted
from penstock.mailboxes.changes import Changes
from penstock.mailboxes.commit_log import Segment
from penstock.mailboxes.disk import translated
from penstock.mailboxes.reserve import Reserve
from penstock.mailboxes.round import Group, Request, leave, put_each

if TYPE_CHECKING:
    from penstock.mailboxes.folder import Folder
    from penstock.mailboxes.upkeep import Upkeep

LOG_BYTES_PER_REQUEST = 4096
LOG_BYTES_PER_MAIL = 1024
LOCK_ALL_FROM = 4
"""From so many boxes on, one lock on all is taken for the moment it takes to write to them."""


class Counter:
    def __init__(self, folder: Folder, upkeep: Upkeep, changes: Changes, reserve: Reserve) -> None:
        self._folder = folder
        self._upkeep = upkeep
        self._changes = changes
        self._reserve = reserve
        self._syncing = threading.Lock()

    def post(self, id: str, mail: NewMail) -> Posted | None:
        """One that is not synced, in few steps. None if it takes more, or longer: `put` does it."""
        folder, changes, locks = self._folder, self._changes, self._folder.locks
        folder.check_outside()
        with folder.mutex:
            folder.check()
            box = folder.box(id)
            number = box.number
            try:
                if changes.is_low or not locks.try_take(number):
                    return None
                folder.look_around()
                changes.begin()
                posted = folder.put_one(box, mail, folder.now(), None)
                locks.release(number)
            except BaseException as error:
                locks.release(number)
                if isinstance(error, OSError):
                    raise translated(error) from error
                raise
            if posted is None:
                return None
            folder.tally.puts += 1
        if changes.is_awaited:
            folder.arrivals.tell((number,))
        return posted

    def put(
        self,
        requests: list[Request],
        *,
        is_logged: bool,
        log_bytes: int | None = None,
        patience_seconds: float | None = None,
    ) -> Group:
        """Write them to their boxes and, if asked for, to the commit log. Not synced yet.

        `log_bytes`: what they may take in it, by whoever knows that already.

        Boxes that another process holds for longer than it is waited for are in `left`.
        """
        folder = self._folder
        patience = folder.settings.lock_timeout_seconds
        if patience_seconds is not None:
            patience = patience_seconds
        ends_at = time.monotonic() + patience
        folder.check_outside()
        with folder.mutex:
            folder.check()
            group = Group(folder.open_log() if is_logged else None)
            self._check_space(group.segment, requests, log_bytes)
            self._put(requests, group, ends_at)
            return group

    def try_put(self, requests: list[Request], group: Group, *, log_bytes: int) -> bool:
        """As `put`, with a log, by one who must not wait: an event loop. False if it would have to.

        Boxes that take more than a few steps, or that others hold, are in `left`. The group is the
        caller's, who has it also when its thread is struck.
        """
        folder, mutex = self._folder, self._folder.mutex
        folder.check_outside()
        is_put = False
        try:
            if mutex.acquire(blocking=False):
                is_put = self._try_put(requests, group, log_bytes)
                mutex.release()
        except BaseException:
            # Also of a thread that is struck while it takes the mutex, or gives it back.
            if folder.is_inside:
                mutex.release()
            raise
        return is_put

    def _try_put(self, requests: list[Request], group: Group, log_bytes: int) -> bool:
        folder, segment = self._folder, self._folder.journal.segment
        if segment is None or folder.is_log_overfull or self._changes.is_low:
            return False
        folder.check()
        self._check_space(segment, requests, log_bytes)
        group.segment, group.is_quick = segment, True
        self._put(requests, group, ends_at=0.0)
        return True

    def _put(self, requests: list[Request], group: Group, ends_at: float) -> None:
        now = self._folder.now()
        try:
            if len(requests) < LOCK_ALL_FROM or not self._put_at_once(requests, now, group):
                self._put_in_turn(requests, now, group, ends_at)
            if group.segment is not None:
                self._log(group.segment, group)
        except BaseException:
            # Nobody waits for it to be on disk any more. Others see it anyway.
            for box in group.boxes:
                box.show(group)
            raise

    def _put_at_once(self, requests: list[Request], now: Micros, group: Group) -> bool:
        """False if others are using some of the boxes."""
        folder = self._folder
        try:
            if not folder.locks.try_take_all():
                return False
            folder.look_around()
            folder.changing()
            put_each(folder, requests, now, group)
            folder.locks.release_all()
        except BaseException:
            folder.locks.release_all()
            raise
        return True

    def _put_in_turn(
        self,
        requests: list[Request],
        now: Micros,
        group: Group,
        ends_at: float,
    ) -> None:
        """One box after the other: others are using some of them."""
        folder = self._folder
        for request in requests:
            id, mails = request
            number = folder.box(id).number
            try:
                if not folder.locks.take(number, ends_at):
                    leave(id, mails, group)
                    continue
                folder.look_around()
                folder.changing()
                put_each(folder, [request], now, group)
                folder.locks.release(number)
            except BaseException:
                folder.locks.release(number)
                raise

    def _check_space(
        self, segment: Segment | None, requests: list[Request], log_bytes: int | None
    ) -> None:
        """Nothing is put where it would not fit into the log, or take the last space of all."""
        try:
            self._reserve.check()
            if segment is not None:
                segment.reserve(log_bytes or _log_bytes(requests))
        except OSError as error:
            raise translated(error) from error

    def _log(self, segment: Segment, group: Group) -> None:
        try:
            self._folder.journal.write(segment)
        except OSError as error:
            # There was space for it. What is in the boxes may be read and written behind by now.
            self._folder.fail(error)
            raise MailboxesFailed from error
        # What was read is in the log: once that is synced, its files may go.
        group.discards, self._upkeep.discards = self._upkeep.discards, []

    def sync(self, *groups: Group) -> None:
        """Returns when these are on disk."""
        segments = dict.fromkeys(group.segment for group in groups)
        if segments.keys() != {None}:
            # One at a time: of those who sync a file together, only one is told that it failed.
            with self._syncing:
                self._folder.check_failure()
                try:
                    for segment in segments:
                        if segment is not None:
                            segment.sync()
                except OSError as error:
                    self._folder.fail(error)
                    raise MailboxesFailed from error
        for group in groups:
            self._upkeep.remove(group.discards)

    def sync_later(self, *groups: Group) -> None:
        """Whoever syncs next does it for these."""
        with self._folder.mutex:
            for group in groups:
                self._upkeep.discards += group.discards

    def show(self, group: Group) -> None:
        """Those who wait may have it."""
        folder = self._folder
        with folder.mutex:
            folder.tally.puts += group.puts
            folder.tally.refused += group.refused
            for box in group.boxes:
                box.show(group)
        if group.boxes:
            folder.arrivals.tell(box.number for box in group.boxes)


def log_bytes_max(requests: int, mails: int, size: int) -> int:
    """What requests may take in the log, with all that may be written for them."""
    return LOG_BYTES_PER_REQUEST * requests + LOG_BYTES_PER_MAIL * mails + size


def _log_bytes(requests: list[Request]) -> int:
    mails = [mail for _, some in requests for mail in some]
    size = sum([len(mail.body) + len(mail.attributes) for mail in mails])
    return log_bytes_max(len(requests), len(mails), size)
