"""What a recipient is shown of its box: the first few messages, until they are acknowledged.

Many recipients are served in one go, on one thread: what is asked for in the same moment costs
one wake of the threads, not one for each box.
"""

from __future__ import annotations

import os
import secrets
import struct

import msgspec

from penstock import codec
from penstock.errors import PenstockError
from penstock.mail import Mail
from penstock.mailboxes.contents import look, mail_of
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.shelf import mail_id

FILE_BYTES_MAX = 1024 * 1024
_RECORD = struct.Struct("<QQ")


Mark = tuple[int, int, int]


class Ask(msgspec.Struct, frozen=True):
    """What one recipient wants to be done and to know."""

    mailbox: str
    size: int
    """So many messages are shown at once; 0: none now."""
    shown: frozenset[str]
    """The ids of those that it has."""
    acks: list[tuple[str, bool]]
    """What it is done with: an id, and whether all before it are, too."""


class View(msgspec.Struct, frozen=True):
    """What came of it."""

    messages: list[Mail] = []
    """Those that it has not been shown yet."""
    ids: list[str] = []
    """All that are in its window now."""
    waiting: int = 0
    """How many are in the box."""
    is_cut: bool = False
    """There are more to show: they were too large for one go."""
    acked: list[bool | PenstockError] = []
    """For each acknowledgement: whether it was one, or why not."""
    error: PenstockError | None = None
    """Why nothing could be read."""
    mark: Mark | None = None
    """As long as it stays, there is nothing new."""


def look_in(folder: Folder, asks: list[Ask], bytes_max: int) -> list[View]:
    """Acknowledge, and read on, box by box."""
    return [_look_in(folder, ask, bytes_max) for ask in asks]


def _look_in(folder: Folder, ask: Ask, bytes_max: int) -> View:
    acked: list[bool | PenstockError] = []
    try:
        with folder.locked(ask.mailbox) as box:
            look(box, folder)
            for id, is_through in ask.acks:
                try:
                    count = box.ack(folder, id, is_through=is_through)
                    folder.tally.acks += count
                    acked.append(count > 0)
                except PenstockError as error:
                    acked.append(error)
            visible = box.visible
            window = visible[: ask.size]
            messages: list[Mail] = []
            size = 0
            is_cut = False
            for entry in window:
                if mail_id(entry) in ask.shown:
                    continue
                mail = mail_of(box, folder, entry)
                size += codec.size_of(mail.body, mail.encoding)
                if messages and size > bytes_max:
                    is_cut = True
                    break
                messages.append(mail)
            ids = [mail_id(entry) for entry in window]
            mark = (folder.seen, box.next_seq, box.hidden_from)
            return View(messages, ids, len(visible), is_cut, acked, mark=mark)
    except PenstockError as error:
        # What was acknowledged before it went wrong is acknowledged.
        acked += [error] * (len(ask.acks) - len(acked))
        return View(acked=acked, error=error)


def mark_of(folder: Folder, mailbox: str) -> Mark:
    """Another one whenever something may have come into a box. Takes no lock, and no look at
    files: all who wait are woken now and then, and nearly always for nothing."""
    box = folder._boxes.get(mailbox)
    count = folder._changes.glance()
    return (count, 0, 0) if box is None else (count, box.next_seq, box.hidden_from)


class Readers:
    """Who has opened which box last, over all processes: a file to which each appends.

    The order in the file is that in which they came. The file begins anew when it is large; who
    was so late as to miss something goes on reading beside the newer one, which does no harm.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._seen = os.fstat(self._file).st_size

    def announce(self, number: int) -> int:
        """Somebody reads this box from now on. Returns a token, by which it is known."""
        token = secrets.randbits(64)
        os.write(self._file, _RECORD.pack(number, token))
        if os.fstat(self._file).st_size > FILE_BYTES_MAX:
            os.ftruncate(self._file, 0)
        return token

    def news(self) -> list[tuple[int, int]]:
        """Who came since the last time, in order: a box's number and a token. For one thread."""
        size = os.fstat(self._file).st_size
        if size == self._seen:
            return []
        if size < self._seen:
            self._seen = 0
        data = os.pread(self._file, size - self._seen, self._seen)
        data = data[: len(data) - len(data) % _RECORD.size]
        self._seen += len(data)
        return list(_RECORD.iter_unpack(data))

    def close(self) -> None:
        os.close(self._file)
