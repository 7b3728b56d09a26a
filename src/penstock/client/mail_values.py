"""Mail as it comes and goes over HTTP, made into the values of a local hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock import codec
from penstock.client.job_values import COMPRESS_NEVER
from penstock.errors import Unsupported
from penstock.mail import (
    Mail,
    MailboxStats,
    MailboxSubscription,
    MailKind,
    Posted,
    check_mail_id,
    new_mail_id,
)
from penstock.mailboxes.mailboxes import Parcel
from penstock.model import Position, check_name
from penstock.settings import Settings

GROUP_MAX = 500
GROUP_BYTES_MAX = 512 * 1024
"""Of one request that puts. A server takes 1,000 messages and 2 MiB by default."""


class RemoteMail(msgspec.Struct, kw_only=True):
    id: str
    seq: int
    at: int
    kind: str = "message"
    payload: Raw | UnsetType = UNSET
    base64: str | UnsetType = UNSET
    format: Literal["json", "msgpack"] | None = None
    type: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    topic: str | None = None
    position: str | None = None
    missing: int = 0

    def as_mail(self) -> Mail:
        body, encoding = self._stored()
        return Mail(
            id=self.id,
            seq=self.seq,
            at=self.at,
            kind=MailKind(self.kind),
            body=body,
            encoding=encoding,
            type=self.type,
            topic=self.topic,
            position=None if self.position is None else Position.parse(self.position),
            key=self.key,
            headers=self.headers or {},
            missing=self.missing,
        )

    def _stored(self) -> tuple[bytes, int]:
        if isinstance(self.base64, str):
            return codec.from_base64(self.base64), codec.FORMATS[self.format or "bytes"]
        if isinstance(self.payload, UnsetType):
            return b"", codec.BYTES
        return bytes(self.payload), codec.JSON


class RemoteMails(msgspec.Struct):
    messages: list[RemoteMail]


class RemotePosted(msgspec.Struct):
    id: str
    seq: int
    was_empty: bool
    is_new: bool

    def as_posted(self, outgoing: Outgoing) -> Posted:
        # Under an id of ours, what the server had already is our own first attempt.
        return Posted(self.id, self.seq, self.was_empty, self.is_new or outgoing.is_own_id)


class RemotePostedMany(msgspec.Struct):
    messages: list[RemotePosted]


class RemoteAcked(msgspec.Struct):
    acked: bool


class RemoteStats(msgspec.Struct):
    id: str
    messages: int
    can_write: bool
    oldest_age_seconds: float | None
    bytes: int
    next_seq: int

    def as_stats(self) -> MailboxStats:
        return MailboxStats(
            self.id,
            self.messages,
            self.can_write,
            self.oldest_age_seconds,
            self.bytes,
            self.next_seq,
        )


class RemoteDeleted(msgspec.Struct):
    deleted: bool


class RemoteNames(msgspec.Struct):
    mailboxes: list[str]
    is_complete: bool


class RemoteSubscription(msgspec.Struct):
    mailbox: str
    topic: str
    position: str
    created_at: int
    updated_at: int
    id: int

    def as_subscription(self) -> MailboxSubscription:
        return MailboxSubscription(
            self.mailbox,
            self.topic,
            Position.parse(self.position),
            self.created_at,
            self.updated_at,
            self.id,
        )


class RemoteSubscriptions(msgspec.Struct):
    subscriptions: list[RemoteSubscription]
    after: int | None = None


class Outgoing(msgspec.Struct, frozen=True):
    """A message as a request has it, checked as a local hub would."""

    body: dict[str, Any]
    size: int
    is_own_id: bool

    @classmethod
    def of(cls, item: Any, settings: Settings) -> Outgoing:
        parcel = item if isinstance(item, Parcel) else Parcel(item)
        if parcel.topic is not None or parcel.position is not None:
            raise Unsupported(
                "A remote hub does not say which topic a message came from.",
                hint="Subscribe the mailbox to the topic.",
            )
        data, encoding = codec.encode(
            parcel.payload, parcel.format, settings.payload_bytes_max, COMPRESS_NEVER
        )
        # With an id, it can be sent again when the answer was lost.
        id = new_mail_id() if parcel.id is None else check_mail_id(parcel.id)
        body: dict[str, Any] = {"id": id}
        if encoding == codec.JSON:
            body["payload"] = Raw(data)
        elif encoding == codec.MSGPACK:
            body["msgpack"] = codec.to_base64(data)
        else:
            body["base64"] = codec.to_base64(data)
        if parcel.type is not None:
            body["type"] = check_name(parcel.type, "message type")
        return cls(body, len(data), parcel.id is None)


def groups(messages: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    group: list[Outgoing] = []
    size = 0
    for message in messages:
        if group and (len(group) >= GROUP_MAX or size + message.size > GROUP_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(message)
        size += message.size
    if group:
        yield group
