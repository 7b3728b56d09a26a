"""`hub.mailboxes`: a durable queue for each recipient.

What is put is on disk when `put` returns, and stays until the recipient has acknowledged it. The
first message is the one to acknowledge; peeking at it changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from penstock import codec
from penstock.clock import SECOND, Clock
from penstock.committer import inside_transaction
from penstock.errors import InsideTransaction, InvalidInput, PenstockError
from penstock.mail import (
    Attributes,
    Mail,
    MailboxStats,
    MailKind,
    NewMail,
    Posted,
    check_mail_id,
    check_mailbox,
    new_mail_id,
)
from penstock.mailboxes.box import Box, Entry, Shelf, mail_id
from penstock.mailboxes.folder import Folder, number_of
from penstock.mailboxes.mailroom import MailRoom
from penstock.mailboxes.record import Header, Type
from penstock.mailboxes.state_log import read_whole
from penstock.model import Format, Position, check_count
from penstock.settings import Settings

LIST_LIMIT = 1_000
_attributes = msgspec.msgpack.Decoder(Attributes).decode
_encode = msgspec.msgpack.Encoder().encode


class Runtime(Protocol):
    settings: Settings
    clock: Clock
    mail: MailRoom


class Parcel(msgspec.Struct, frozen=True):
    """A message for `put_many`, where more than its payload is to be said."""

    payload: Any
    id: str | None = None
    type: str | None = None
    format: Format | None = None
    topic: str | None = None
    position: Position | None = None


class Mailboxes:
    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        self._open = open_runtime

    def open(self, id: str) -> Mailbox:
        """The mailbox of a recipient. It comes to be with its first message."""
        return Mailbox(self._open, check_mailbox(id))

    def put(
        self,
        id: str,
        payload: Any,
        *,
        message_id: str | None = None,
        type: str | None = None,
        format: Format | None = None,
        timeout: float | None = None,
    ) -> Posted:
        """Put a message into a mailbox; returns when it is on disk."""
        box = self.open(id)
        return box.put(payload, id=message_id, type=type, format=format, timeout=timeout)

    def list(self, *, after: str = "", limit: int = LIST_LIMIT) -> Sequence[str]:
        """Names of mailboxes that were put into, in the order of their names."""
        check_count(limit, "limit")
        names = sorted(name for name in names_in(self._open().mail.folder) if name > after)
        return names[:limit]


class Mailbox:
    """One recipient's queue. Cheap to make; several may be open for one recipient."""

    def __init__(self, open_runtime: Callable[[], Runtime], id: str) -> None:
        self._open = open_runtime
        self.id = id

    def __repr__(self) -> str:
        return f"<penstock.Mailbox {self.id!r}>"

    # Putting

    def put(
        self,
        payload: Any,
        *,
        id: str | None = None,
        type: str | None = None,
        format: Format | None = None,
        timeout: float | None = None,
    ) -> Posted:
        """Put a message; returns when it is on disk.

        Put again under the same `id` it is stored once. Raises `QuotaExceeded` if the box is full.
        """
        runtime = self._ready()
        mail = make_mail(runtime.settings, Parcel(payload, id, type, format))
        answer = put(runtime, self.id, [mail], timeout)[0]
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def put_many(self, payloads: Iterable[Any], *, timeout: float | None = None) -> list[Posted]:
        """Put many messages, in order; returns when all are on disk.

        An item is a payload, or a `Parcel` to say more about it. If one does not fit, those before
        it are put and `QuotaExceeded` is raised.
        """
        runtime = self._ready()
        mails = [make_mail(runtime.settings, item) for item in payloads]
        if not mails:
            return []
        return checked(put(runtime, self.id, mails, timeout))

    # Reading

    def peek(self) -> Mail | None:
        """The first message, which stays where it is; None if there is none."""
        found = self.peek_many(1)
        return found[0] if found else None

    def peek_many(self, limit: int) -> list[Mail]:
        """The first so many."""
        check_count(limit, "limit")
        folder = self._ready().mail.folder
        with folder.locked(self.id) as box:
            return mails_of(box, folder, limit)

    def ack(self, id: str, *, through: bool = False) -> bool:
        """The first message is done with; it must be the one with this id.

        With `through`, all up to that one are. Raises `WrongAck` if it is not there, and changes
        nothing; False if it was acknowledged just before.
        """
        folder = self._ready().mail.folder
        with folder.locked(self.id) as box:
            look(box, folder)
            return box.ack(folder, id, is_through=through) > 0

    def ack_and_peek(self, id: str) -> Mail | None:
        """Acknowledge the first message, and get the next."""
        folder = self._ready().mail.folder
        with folder.locked(self.id) as box:
            look(box, folder)
            box.ack(folder, id, is_through=False)
            found = mails_of(box, folder, 1)
            return found[0] if found else None

    def wait(self, timeout: float | None = None) -> Mail | None:
        """The first message, once there is one; None when the time is over."""
        mail = self.peek()
        if mail is not None:
            return mail
        arrivals = self._ready().mail.folder.arrivals
        number, key, rung = number_of_id(self.id), object(), threading.Event()
        ends_at = None if timeout is None else time.monotonic() + timeout
        arrivals.wait_for(number, key, rung.set)
        try:
            while True:
                rung.clear()
                mail = self.peek()
                left = None if ends_at is None else ends_at - time.monotonic()
                if mail is not None or (left is not None and left <= 0):
                    return mail
                rung.wait(left)
        finally:
            arrivals.forget(number, key)

    def __iter__(self) -> Iterator[Mail]:
        """All messages as they come; asking for the next one acknowledges the one before."""
        while True:
            mail = self.wait()
            assert mail is not None
            yield mail
            self.ack(mail.id)

    # Looking after it

    def size(self) -> int:
        """How many messages wait, markers included."""
        folder = self._ready().mail.folder
        with folder.locked(self.id) as box:
            look(box, folder)
            return len(box.visible)

    def stats(self) -> MailboxStats:
        runtime = self._ready()
        folder = runtime.mail.folder
        with folder.locked(self.id) as box:
            look(box, folder)
            return stats_of(box, folder)

    def expire(self, older_than_seconds: float | None = None) -> int:
        """Remove messages from the beginning that are older than this. Returns how many.

        A marker that the box was full is not removed, and nothing behind it.
        """
        runtime = self._ready()
        seconds = (
            runtime.settings.mailbox_ttl_seconds
            if older_than_seconds is None
            else (older_than_seconds)
        )
        if seconds < 0:
            raise InvalidInput(f"older_than_seconds is a number of seconds, not {seconds}.")
        folder = runtime.mail.folder
        with folder.locked(self.id) as box:
            look(box, folder)
            return expire(box, folder, folder.now() - round(seconds * SECOND))

    def delete(self) -> bool:
        """Remove the mailbox and all that is in it. False if there is none."""
        folder = self._ready().mail.folder
        with folder.locked(self.id) as box:
            look(box, folder)
            return delete(box, folder)

    def _ready(self) -> Runtime:
        if inside_transaction.get():
            raise InsideTransaction(
                hint="A mailbox takes no part in it: publish to a topic that it subscribes to."
            )
        return self._open()


def put(
    runtime: Runtime, id: str, mails: list[NewMail], timeout: float | None
) -> list[Posted | PenstockError]:
    if runtime.settings.mailbox_durability == "os":
        return put_now(runtime.mail.folder, id, mails)
    return runtime.mail.postman.put(id, mails).wait(timeout)


def put_now(folder: Folder, id: str, mails: list[NewMail]) -> list[Posted | PenstockError]:
    """Without a commit log, and so without a thread that others wait for, too."""
    group = folder.put([(id, mails)], is_logged=False)
    folder.show(group)
    return group.answers[0]


def checked(answers: list[Posted | PenstockError]) -> list[Posted]:
    posted: list[Posted] = []
    for answer in answers:
        if isinstance(answer, PenstockError):
            raise answer
        posted.append(answer)
    return posted


def make_mail(settings: Settings, item: Any) -> NewMail:
    parcel = item if isinstance(item, Parcel) else Parcel(item)
    id = new_mail_id() if parcel.id is None else check_mail_id(parcel.id)
    body, encoding = codec.encode(
        parcel.payload, parcel.format, settings.payload_bytes_max, settings.compress_above_bytes
    )
    if parcel.type is None and parcel.topic is None:
        return NewMail(id, body, encoding)
    position = parcel.position
    attributes = Attributes(
        parcel.type,
        parcel.topic,
        None if position is None else position.epoch,
        None if position is None else position.offset,
    )
    return NewMail(id, body, encoding, _encode(attributes))


def look(box: Box, shelf: Shelf) -> None:
    box.look(shelf)
    box.look_at_state(shelf)


def mails_of(box: Box, shelf: Shelf, limit: int) -> list[Mail]:
    look(box, shelf)
    return [mail_of(box, shelf, entry) for entry in box.visible[:limit]]


def mail_of(box: Box, shelf: Shelf, entry: Entry) -> Mail:
    if entry.type == Type.GAP:
        return Mail(
            id=mail_id(entry),
            seq=entry.seq,
            at=entry.at,
            kind=MailKind.GAP,
            missing=entry.last_seq - entry.seq + 1,
        )
    if entry.type == Type.QUOTA:
        return Mail(id=entry.id, seq=entry.seq, at=entry.at, kind=MailKind.QUOTA)
    record = box.read(shelf, entry)
    if not record.attributes:
        return Mail(
            id=record.id,
            seq=record.seq,
            at=record.at,
            body=record.body,
            encoding=record.encoding,
        )
    attributes = _attributes(record.attributes)
    return Mail(
        id=record.id,
        seq=record.seq,
        at=record.at,
        body=record.body,
        encoding=record.encoding,
        type=attributes.type,
        topic=attributes.topic,
        position=attributes.position,
    )


def expire(box: Box, shelf: Shelf, before: int) -> int:
    """Acknowledge what is older, up to the first marker."""
    count = 0
    for entry in box.visible:
        if entry.type == Type.QUOTA or entry.at >= before:
            break
        count += 1
    if count:
        box.drop(shelf, count)
    return count


def delete(box: Box, folder: Folder) -> bool:
    """Its numbers go on where they were, should it come to be again."""
    if not box.write_byte and not box.pending:
        return False
    files = range(box.read_file, box.write_file + 1)
    box.pending.clear()
    box.acked.clear()
    box.read_seq = box.next_seq
    box.read_file, box.read_msg, box.read_byte = box.write_file + 1, 0, 0
    box.write_byte = box.write_msg = box.durable = 0
    box.save(folder, is_deleted=True)
    for file in files:
        folder.discard(box, file)
    return True


def stats_of(box: Box, folder: Folder) -> MailboxStats:
    oldest = box.visible[0].at if box.visible else None
    age = None if oldest is None else max(0.0, (folder.now() - oldest) / SECOND)
    size = 0
    for file in range(box.read_file, box.write_file + 1):
        try:
            size += folder.disk.stat_path(box.path(file)).st_size
        except FileNotFoundError:
            continue
    return MailboxStats(box.id, len(box.visible), box.can_write, age, size, box.next_seq)


def names_in(folder: Folder) -> Iterator[str]:
    """The names of all boxes that have a message file."""
    for path in box_folders(f"{folder.root}/boxes", folder.depth):
        name = name_of(folder, path)
        if name is not None:
            yield name


def name_of(folder: Folder, path: str) -> str | None:
    try:
        files = sorted(name for name in os.listdir(path) if name.startswith("messages."))
    except (FileNotFoundError, NotADirectoryError):
        return None
    for file in reversed(files):
        header = Header.decode(read_whole(folder.disk, f"{path}/{file}") or b"")
        if header is not None:
            return header.id
    return None


def box_folders(path: str, depth: int) -> Iterator[str]:
    try:
        found = sorted(entry.path for entry in os.scandir(path) if entry.is_dir())
    except FileNotFoundError:
        return
    for name in found:
        if depth == 0:
            yield name
        else:
            yield from box_folders(name, depth - 1)


def number_of_id(id: str) -> int:
    return number_of(hashlib.sha256(id.encode()).digest())
