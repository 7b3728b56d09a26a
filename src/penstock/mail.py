"""What a mailbox holds, as values."""

from __future__ import annotations

import enum
import itertools
import os
import secrets
from typing import Any

import msgspec

from penstock import codec
from penstock.clock import Micros
from penstock.errors import InvalidMailbox
from penstock.model import Position

MAILBOX_BYTES_MAX = 200
MAIL_ID_BYTES_MAX = 255


class MailKind(enum.StrEnum):
    """What a recipient finds in its box."""

    MESSAGE = "message"
    QUOTA = "quota"
    """The box was full: what came after this was refused. Acknowledged, it takes messages again."""
    GAP = "gap"
    """Messages were here that cannot be read any more; or, with a `topic`, were removed from it
    before they came here."""


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a mailbox."""

    id: str
    """Its own, or the one it was put with: the same id is taken once."""
    seq: int
    """Counts up by one for each message of the box."""
    at: Micros
    """When it was put."""
    kind: MailKind = MailKind.MESSAGE
    body: bytes = b""
    encoding: int = codec.BYTES
    type: str | None = None
    topic: str | None = None
    """The topic it was published to, if it came from one; of a gap, the topic or glob."""
    position: Position | None = None
    """Its place in that topic's log; of a gap, after which messages follow."""
    key: str | None = None
    headers: dict[str, str] = {}
    """Key and headers, if it came from a topic."""
    missing: int = 0
    """Of a gap: how many messages are missing; 0 if that is not known."""

    @property
    def payload(self) -> Any:
        return codec.decode(self.body, self.encoding)

    @property
    def data(self) -> bytes:
        """The payload's bytes as they were put."""
        return codec.decompress(self.body, self.encoding)

    def decode(self, to: Any) -> Any:
        """The payload as this type."""
        return codec.decode(self.body, self.encoding, to)


class NewMail(msgspec.Struct, frozen=True, gc=False):
    """A message on its way into a box."""

    id: str
    body: bytes
    encoding: int
    attributes: bytes = b""
    leaves_marker: bool = True
    """Whether a full box notes that it was refused. Not where it is brought again later."""
    is_original: bool = False
    """Its id was made for it: no box can have it yet."""


class Attributes(msgspec.Struct, frozen=True, omit_defaults=True, array_like=False):
    """What is kept beside a body, as MessagePack. Most have none of it."""

    type: str | None = None
    topic: str | None = None
    epoch: str | None = None
    offset: int | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    is_gap: bool = False
    """It stands for messages of the topic that are gone."""

    @property
    def position(self) -> Position | None:
        if self.epoch is None or self.offset is None:
            return None
        return Position(self.epoch, self.offset)


class Posted(msgspec.Struct, frozen=True, gc=False):
    """A message that is on disk."""

    id: str
    seq: int
    was_empty: bool
    """Whether it is the only one in the box: somebody may have to be told."""
    is_new: bool = True
    """False if the box had it already."""


class MailboxStats(msgspec.Struct, frozen=True):
    id: str
    messages: int
    """Unacknowledged, markers included."""
    can_write: bool
    oldest_age_seconds: float | None
    bytes: int
    """On disk, acknowledged ones that are not removed yet included."""
    next_seq: int


_prefix = secrets.token_hex(8)
_numbers = itertools.count(secrets.randbits(32))


class MailboxSubscription(msgspec.Struct, frozen=True):
    """A mailbox that is fed from a topic or a glob."""

    mailbox: str
    topic: str
    """A topic or a glob."""
    position: Position
    """What was published up to here is in the mailbox."""
    created_at: Micros
    updated_at: Micros
    id: int = 0
    """Rises with each subscription; one that is made again has another."""
    floor: int = 0
    """Messages removed up to this id are no loss to it."""
    told: dict[str, int] = {}
    """Nor are those of these topics, up to the id here: the recipient was told."""


def new_mail_id() -> str:
    """Like no other's: a word of this process, and a number."""
    return f"{_prefix}{next(_numbers):x}"


def _renew_prefix() -> None:
    global _prefix
    _prefix = secrets.token_hex(8)


os.register_at_fork(after_in_child=_renew_prefix)


def check_mailbox(id: object) -> str:
    if not isinstance(id, str) or not 1 <= len(id.encode(errors="replace")) <= MAILBOX_BYTES_MAX:
        raise InvalidMailbox
    try:
        id.encode()
    except UnicodeEncodeError:
        raise InvalidMailbox from None
    if any(ord(character) < 32 or ord(character) == 127 for character in id):
        raise InvalidMailbox
    return id


def check_mail_id(id: object) -> str:
    if not isinstance(id, str):
        raise InvalidMailbox(f"A message's id is text, not {type(id).__name__}.")
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        raise InvalidMailbox("A message's id is not valid Unicode.") from None
    if not 1 <= size <= MAIL_ID_BYTES_MAX:
        raise InvalidMailbox(f"A message's id has 1 to {MAIL_ID_BYTES_MAX} bytes, not {size}.")
    return id
