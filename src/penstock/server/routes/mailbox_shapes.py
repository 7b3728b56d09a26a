"""What requests and replies about mailboxes look like over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock import codec
from penstock.errors import BadRequest, InvalidPayload, UndecodablePayload
from penstock.mail import MailboxStats, MailboxSubscription, Posted
from penstock.mailboxes.mailboxes import Parcel
from penstock.model import Format, Start
from penstock.protocol import MailEntry


class OutgoingMail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to put. Exactly one of `payload`, `base64` and `msgpack`."""

    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    """Bytes."""
    msgpack: str | UnsetType = UNSET
    """MessagePack in base64, for what JSON has no words for. It is stored as such."""
    id: str | None = None
    """Put again under the same id, it is stored once. Default: one that the server makes up."""
    type: str | None = None
    format: Format | None = None
    """How it is stored. Default: bytes for `base64`, JSON for `payload`."""


class OutgoingMails(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to put, in order. If one does not fit, those before it are put."""

    messages: list[OutgoingMail]


class PutRequest(OutgoingMail, frozen=True, kw_only=True):
    """One message, or many under `messages`: decoded in one go, whichever it is."""

    messages: list[OutgoingMail] | UnsetType = UNSET


class PostedReply(msgspec.Struct, frozen=True):
    id: str
    seq: int
    """Counts up by one for each message of the mailbox."""
    was_empty: bool
    """Whether it is the only one in the mailbox."""
    is_new: bool
    """False: the mailbox had it already."""

    @classmethod
    def of(cls, posted: Posted) -> PostedReply:
        return cls(posted.id, posted.seq, posted.was_empty, posted.is_new)


class PostedManyReply(msgspec.Struct, frozen=True):
    messages: list[PostedReply]


class MailsReply(msgspec.Struct, frozen=True):
    messages: list[MailEntry]
    """The first ones of the mailbox; none: it is empty."""


class RawMailsReply(msgspec.Struct, frozen=True):
    """The same, from entries that are encoded already."""

    messages: list[Raw]


class AckRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    """Of the first message."""
    through: bool = False
    """All up to this one are done with."""


class AckAndNextRequest(AckRequest, frozen=True, kw_only=True):
    wait: float = 0.0
    """Seconds to wait for the next message, if there is none: up to 20."""
    limit: int = 1
    """How many of the next ones are wanted: up to 100."""


class AckedReply(msgspec.Struct, frozen=True):
    acked: bool
    """False: it was acknowledged before."""


class MailboxReply(msgspec.Struct, frozen=True):
    id: str
    messages: int
    """Unacknowledged, markers included."""
    can_write: bool
    """False: it is full until all that is in it is acknowledged."""
    oldest_age_seconds: float | None
    bytes: int
    """On disk, acknowledged ones that are not removed yet included."""
    next_seq: int

    @classmethod
    def of(cls, stats: MailboxStats) -> MailboxReply:
        return cls(
            stats.id,
            stats.messages,
            stats.can_write,
            stats.oldest_age_seconds,
            stats.bytes,
            stats.next_seq,
        )


class MailboxesReply(msgspec.Struct, frozen=True):
    mailboxes: list[str]
    """By name."""
    is_complete: bool
    """False: there are more; ask again with `after` and the last name."""


class DeletedReply(msgspec.Struct, frozen=True):
    deleted: bool
    """False: there was none."""


class ExpireRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    older_than_seconds: float | None = None
    """Default: the server's mailbox_ttl_seconds."""


class SubscribeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: Start = "latest"
    """`earliest`: with what is in the topic already."""


class SubscriptionReply(msgspec.Struct, frozen=True):
    mailbox: str
    topic: str
    """A topic or a glob."""
    position: str
    """What was published up to here is in the mailbox."""
    created_at: int
    """In microseconds since 1970."""
    updated_at: int
    id: int

    @classmethod
    def of(cls, found: MailboxSubscription) -> SubscriptionReply:
        return cls(
            found.mailbox,
            found.topic,
            str(found.position),
            found.created_at,
            found.updated_at,
            found.id,
        )


class SubscriptionsReply(msgspec.Struct, frozen=True):
    subscriptions: list[SubscriptionReply]
    after: int | None = None
    """There may be more: ask again with this. Null: that was all."""


def parcel_of(given: OutgoingMail) -> Parcel:
    """What is to be put. Raises `BadRequest`."""
    if sum(part is not UNSET for part in (given.payload, given.base64, given.msgpack)) != 1:
        raise BadRequest(
            "A message has one of payload, base64 and msgpack.", hint="/docs has the shapes."
        )
    if isinstance(given.msgpack, str):
        if given.format not in (None, "msgpack"):
            raise BadRequest("MessagePack is stored as such.", hint="Leave out format.")
        try:
            # Decoded here, so that nothing gets in that nobody can read.
            payload = codec.decode(codec.from_base64(given.msgpack), codec.MSGPACK)
        except UndecodablePayload as error:
            raise InvalidPayload(f"This is not MessagePack: {error.message}") from None
        return Parcel(payload, given.id, given.type, "msgpack")
    payload = given.payload
    if isinstance(given.base64, str):
        payload = codec.from_base64(given.base64)
    return Parcel(payload, given.id, given.type, given.format)
