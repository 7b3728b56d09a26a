"""The counter, where messages are handed in: into their boxes, where all see them, into the commit
log, and with it to the disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.clock import Micros
from penstock.errors import MailboxesFailed
from penstock.mail import NewMail, Posted
from penstock.mailboxes.changes import Changes
from penstock.mailboxes.commit_log import Segment
from penstock.mailboxes.disk import translated
from penstock.mailboxes.reserve import Reserve
from penstock.mailboxes.round import Group, Request, leave, note_each, note_one, put_each

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
                now = folder.now()
                written = folder.write_one(box, mail, now)
                posted = None if written is None else note_one(written, now)
                locks.release(number)
            except BaseException as error:
                if isinstance(error, OSError):
                    locks.release(number)
                    raise translated(error) from error
                box.forget()  # The thread was struck, and others may have seen the message.
                locks.release(number)
                raise
            if posted is None:
                return None
            folder.tally.puts += 1
        if changes.is_awaited:
            folder.arrivals.tell((number,))
        return posted

    def put(
        self,
        requests: Sequence[Request],
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

    def try_put(
        self,
        requests: Sequence[Request],
        group: Group,
        *,
        log_bytes: int,
        begin_sync: Callable[[Segment], None],
    ) -> bool:
        """As `put`, with a log, by one who must not wait: an event loop. False if it would have to.

        Boxes that take more than a few steps, or that others hold, are in `left`. The group is the
        caller's, who has it also when its thread is struck. What is to be synced is told as soon
        as it is in the log.
        """
        self._folder.check_outside()
        return self._without_waiting(lambda: self._try_put(requests, group, log_bytes, begin_sync))

    def _without_waiting(self, do: Callable[[], bool]) -> bool:
        """Under the mutex, if that is free; else False."""
        folder, mutex = self._folder, self._folder.mutex
        is_done = False
        try:
            if mutex.acquire(blocking=False):
                is_done = do()
                mutex.release()
        except BaseException:
            # Also of a thread that is struck while it takes the mutex, or gives it back.
            if folder.is_inside:
                mutex.release()
            raise
        return is_done

    def _try_put(
        self,
        requests: Sequence[Request],
        group: Group,
        log_bytes: int,
        begin_sync: Callable[[Segment], None],
    ) -> bool:
        folder, segment = self._folder, self._folder.journal.segment
        if segment is None or folder.is_log_overfull or self._changes.is_low:
            return False
        folder.check()
        self._check_space(segment, requests, log_bytes)
        group.segment, group.is_quick = segment, True
        self._put(requests, group, 0.0, begin_sync)
        return True

    def _put(
        self,
        requests: Sequence[Request],
        group: Group,
        ends_at: float,
        begin_sync: Callable[[Segment], None] | None = None,
    ) -> None:
        now = self._folder.now()
        try:
            if len(requests) < LOCK_ALL_FROM or not self._put_at_once(requests, now, group):
                self._put_in_turn(requests, now, group, ends_at)
            if group.segment is not None:
                self._log(group.segment, group)
                if begin_sync is not None and group.boxes:
                    begin_sync(group.segment)
            note_each(self._folder, now, group)
        except BaseException:
            # Nobody waits for it to be on disk any more. Others see it anyway.
            for box in group.boxes:
                box.show(group)
            for _, written in group.unnoted:
                written[0].forget()
            raise

    def _put_at_once(self, requests: Sequence[Request], now: Micros, group: Group) -> bool:
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
        self, requests: Sequence[Request], now: Micros, group: Group, ends_at: float
    ) -> None:
        """One box after the other: others are using some of them."""
        folder = self._folder
        for request in requests:
            id, mails = request[0], request[1]
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
        self, segment: Segment | None, requests: Sequence[Request], log_bytes: int | None
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
        group.write = segment.writes
        if not group.is_quick:
            # What was read is in the log: once that is synced, its files may go.
            group.discards, self._upkeep.discards = self._upkeep.discards, []

    def sync(self, *groups: Group) -> None:
        """Returns when these are on disk."""
        if not all(group.is_synced for group in groups):
            # One at a time: of those who sync a file together, only one is told that it failed.
            with self._syncing:
                self._folder.check_failure()
                try:
                    for group in groups:
                        if not group.is_synced and group.segment is not None:
                            group.segment.sync()
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
        with self._folder.mutex:
            self._show(group)
        self._tell(group)

    def try_show(self, group: Group) -> bool:
        """By one who must not wait. False if it would have to."""
        if not self._without_waiting(lambda: self._show(group)):
            return False
        self._tell(group)
        return True

    def _show(self, group: Group) -> bool:
        """Once more does no harm."""
        tally = self._folder.tally
        tally.puts += group.puts
        tally.refused += group.refused
        group.puts = group.refused = 0
        for box in group.boxes:
            box.show(group)
        return True

    def _tell(self, group: Group) -> None:
        if group.boxes:
            self._folder.arrivals.tell(box.number for box in group.boxes)


def log_bytes_max(requests: int, mails: int, size: int) -> int:
    """What requests may take in the log, with all that may be written for them."""
    return LOG_BYTES_PER_REQUEST * requests + LOG_BYTES_PER_MAIL * mails + size


def _log_bytes(requests: Sequence[Request]) -> int:
    mails = [mail for request in requests for mail in request[1]]
    size = sum([len(mail.body) + len(mail.attributes) for mail in mails])
    return log_bytes_max(len(requests), len(mails), size)
