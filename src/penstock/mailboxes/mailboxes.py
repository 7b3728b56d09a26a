"""`hub.mailboxes`: a durable queue for each recipient.

What is put is on disk when `put` returns, and stays until the recipient has acknowledged it. The
first message is the one to acknowledge; peeking at it changes nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from penstock import codec
from penstock.alarm import Alarm
from penstock.clock import SECOND, Clock
from penstock.committer import Committer, inside_transaction
from penstock.errors import InsideTransaction, InvalidInput, PayloadTooLarge, PenstockError
from penstock.mail import (
    Attributes,
    Mail,
    MailboxStats,
    MailboxSubscription,
    NewMail,
    Posted,
    check_mail_id,
    check_mailbox,
    new_mail_id,
)
from penstock.mailboxes import transfer
from penstock.mailboxes.contents import delete, expire, look, mails_of, stats_of
from penstock.mailboxes.expiry import expire_all
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.inspection import Inspection, verify
from penstock.mailboxes.listing import names_in
from penstock.mailboxes.locking import PATIENCE_SECONDS, PAUSE_SECONDS_MAX, number_of
from penstock.mailboxes.mailroom import MailRoom
from penstock.mailboxes.record import ATTRIBUTES_BYTES_MAX
from penstock.mailboxes.repair import Repaired, repair
from penstock.mailboxes.subscriptions import find, subscribing, unsubscribing
from penstock.model import Format, Position, Start, check_count, check_name
from penstock.ports import Store
from penstock.settings import Settings

LIST_LIMIT = 1_000
AGE_SECONDS_MAX = 1e11
Subscriptions_ = list[MailboxSubscription]
Progress = Callable[[int, int], None]
_encode = msgspec.msgpack.Encoder().encode


class Runtime(Protocol):
    settings: Settings
    clock: Clock
    store: Store
    committer: Committer
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

    def expire(
        self, older_than_seconds: float | None = None, progress: Progress | None = None
    ) -> int:
        """Remove messages that waited longer than this, from every mailbox. Returns how many."""
        folder = self._open().mail.folder
        seconds = seconds_or_ttl(self._open().settings, older_than_seconds)
        return expire_all(folder, folder.now() - round(seconds * SECOND), progress)

    def export_lines(
        self, ids: Iterable[str] | None = None, progress: Progress | None = None
    ) -> Iterator[bytes]:
        """All that waits in these mailboxes, or in all, as lines of JSON."""
        names = None if ids is None else [check_mailbox(id) for id in ids]
        return transfer.export(self._open().mail.folder, names, progress or _silent)

    def import_lines(
        self,
        lines: Iterable[bytes],
        progress: Progress | None = None,
        *,
        on_bad: Callable[[int, str], None] | None = None,
    ) -> transfer.Imported:
        """Put in what was exported. Messages keep their ids, numbers and times.

        A line that is no message is an error; with `on_bad`, which gets its number and the reason,
        it is left out. Put in again, nothing is there twice.
        """
        return transfer.import_lines(
            self._open().mail.folder, transfer.read_lines(lines, on_bad), progress or _silent
        )

    # Damage

    def verify(self, id: str | None = None, progress: Progress | None = None) -> Inspection:
        """Look for damage in one mailbox, or in all of them and their logs. Changes nothing."""
        name = None if id is None else check_mailbox(id)
        return verify(self._open().mail.folder, name, progress or _silent)

    def repair(self, id: str) -> Repaired:
        """Keep what can be read of a damaged mailbox.

        Where messages are gone, its recipient gets a gap. The files as they were found are in its
        quarantine. Nothing happens to one that is not damaged.
        """
        return repair(self._open().mail.folder, check_mailbox(id))

    # Topics

    def subscribe(self, id: str, topic: str, start: Start = "latest") -> MailboxSubscription:
        """Put into a mailbox what is published under a topic or a glob, from now on.

        With `start="earliest"`, also what is there already. It is there until `unsubscribe`, and
        fed by `penstock serve`, or any process that called `hub.start_feeding()`. A message's id
        in the mailbox is its position. Subscribed again, it goes on as it is.
        """
        runtime = self._open()
        found = runtime.committer.run_now(subscribing(runtime, id, topic, start))
        runtime.store.ring()
        return found

    def unsubscribe(self, id: str, topic: str | None = None) -> int:
        """End a subscription, or all of the mailbox. Returns how many that were.

        Nothing that is published later comes into the mailbox; what is in it stays.
        """
        return self._open().committer.run_now(unsubscribing(id, topic))

    def subscriptions(
        self, id: str | None = None, *, after: int = 0, limit: int = LIST_LIMIT
    ) -> Subscriptions_:
        """Of one mailbox, or of all; `after` the id of one, to read on."""
        return find(self._open(), id, after, limit)


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
        mail = mail_of(runtime.settings, payload, id, type, format)
        if runtime.settings.mailbox_durability == "os":
            posted = runtime.mail.folder.post(self.id, mail)
            if posted is not None:
                return posted
        return checked(put(runtime, self.id, [mail], timeout))[0]

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
            count = box.ack(folder, id, is_through=through)
            folder.tally.acks += count
            return count > 0

    def ack_and_peek(self, id: str) -> Mail | None:
        """Acknowledge the first message, and get the next."""
        folder = self._ready().mail.folder
        with folder.locked(self.id) as box:
            look(box, folder)
            folder.tally.acks += box.ack(folder, id, is_through=False)
            found = mails_of(box, folder, 1)
            return found[0] if found else None

    def wait(self, timeout: float | None = None) -> Mail | None:
        """The first message, once there is one; None when the time is over."""
        mail = self.peek()
        if mail is not None:
            return mail
        arrivals = self._ready().mail.folder.arrivals
        number, key, rung = number_of_id(self.id), object(), Alarm()
        ends_at = None if timeout is None else time.monotonic() + timeout
        arrivals.wait_for(number, key, rung.ring)
        try:
            while True:
                rung.clear()
                mail = self.peek()
                left = None if ends_at is None else ends_at - time.monotonic()
                if mail is not None or (left is not None and left <= 0):
                    return mail
                rung.sleep(left)
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
        seconds = seconds_or_ttl(runtime.settings, older_than_seconds)
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
    runtime.mail.folder.check_outside()
    return runtime.mail.postman.put(id, mails).wait(timeout)


def put_now(folder: Folder, id: str, mails: list[NewMail]) -> list[Posted | PenstockError]:
    """Without a commit log, and so without a thread that others wait for, too."""
    ends_at = time.monotonic() + folder.settings.lock_timeout_seconds
    while True:
        group = folder.put([(id, mails)], is_logged=False, patience_seconds=PATIENCE_SECONDS)
        if not group.left or time.monotonic() > ends_at:
            break
        time.sleep(PAUSE_SECONDS_MAX)  # While others go on.
    folder.show(group)
    return group.answers


def checked(answers: list[Posted | PenstockError]) -> list[Posted]:
    posted: list[Posted] = []
    for answer in answers:
        if isinstance(answer, PenstockError):
            raise answer
        posted.append(answer)
    return posted


def mail_of(
    settings: Settings, payload: Any, id: str | None, type: str | None, format: Format | None
) -> NewMail:
    if id is not None or type is not None:
        return make_mail(settings, Parcel(payload, id, type, format))
    body, encoding = codec.encode(
        payload, format, settings.payload_bytes_max, settings.compress_above_bytes
    )
    return NewMail(new_mail_id(), body, encoding, is_original=True)


def make_mail(settings: Settings, item: Any) -> NewMail:
    parcel = item if isinstance(item, Parcel) else Parcel(item)
    id = new_mail_id() if parcel.id is None else check_mail_id(parcel.id)
    body, encoding = codec.encode(
        parcel.payload, parcel.format, settings.payload_bytes_max, settings.compress_above_bytes
    )
    is_original = parcel.id is None
    if parcel.type is None and parcel.topic is None:
        return NewMail(id, body, encoding, is_original=is_original)
    for name, what in ((parcel.type, "message type"), (parcel.topic, "topic")):
        if name is not None:
            check_name(name, what)
    position = parcel.position
    attributes = Attributes(
        parcel.type,
        parcel.topic,
        None if position is None else position.epoch,
        None if position is None else position.offset,
    )
    return NewMail(id, body, encoding, encode_attributes(attributes), is_original=is_original)


def encode_attributes(attributes: Attributes) -> bytes:
    """Raises `PayloadTooLarge` if a record has no room for them."""
    encoded = _encode(attributes)
    if len(encoded) > ATTRIBUTES_BYTES_MAX:
        raise PayloadTooLarge(
            f"What goes beside the payload has {len(encoded):,} bytes; the limit is "
            f"{ATTRIBUTES_BYTES_MAX:,}.",
            hint="Put data into the payload.",
        )
    return encoded


def seconds_or_ttl(settings: Settings, seconds: float | None) -> float:
    if seconds is None:
        return settings.mailbox_ttl_seconds
    if not 0 <= seconds <= AGE_SECONDS_MAX:
        raise InvalidInput(f"older_than_seconds is a number of seconds, not {seconds}.")
    return seconds


def _silent(done: int, total: int) -> None:
    return


def number_of_id(id: str) -> int:
    return number_of(hashlib.sha256(id.encode()).digest())
