"""What travels between the server and its clients: commands, replies, pushes, close codes.

One frame is one map, as JSON or MessagePack by the subprotocol. A command has an `op` and an `id`;
its reply carries the `id` and either `ok` or `error`. A frame without an `id` is a push.
`docs/reference/protocol.md` says the same for people; a test holds the two together.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from penstock import codec, errors
from penstock.model import Format, Message, Position, Start

SUBPROTOCOL_JSON: Final = "penstock.v1.json"
SUBPROTOCOL_MSGPACK: Final = "penstock.v1.msgpack"
SUBPROTOCOLS: Final = (SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK)
WEBSOCKET_PATH: Final = "/ws"

MESSAGE_MAX: Final = 1_000
"""Characters of an error's message."""

WireFormat = Literal["json", "msgpack"]

CommandId = Annotated[int, Meta(ge=0, le=2**53 - 1)]


class Close(enum.IntEnum):
    """Why the server closed a socket. Below 3500: connect again, elsewhere if possible."""

    SHUTDOWN = 3001
    """The server is stopping."""
    TOKEN_EXPIRED = 3005
    """The token has run out: connect with a fresh one."""
    SLOW = 3008
    """The client reads too slowly for its topic's policy. The reason is the position after
    which to resume."""
    NO_PONG = 3012
    """The client did not answer a ping."""
    BAD_TOKEN = 3500
    """The token is missing or not valid."""
    BAD_REQUEST = 3501
    """The client does not speak the protocol."""
    REVOKED = 3503
    """The token was revoked."""
    LIMIT = 3504
    """The client goes beyond a limit: of connections, of commands that make no sense."""

    @property
    def is_final(self) -> bool:
        """Whether connecting again would not help."""
        return self >= 3500


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error on the wire."""

    code: str
    message: str
    hint: str = ""
    retryable: bool = False
    first: str | None = None
    """For `log_trimmed`: the position of the first message that exists, if there is one."""
    resume: str | None = None
    """For `log_trimmed`: reading after this position starts with that message."""
    job_id: int | None = None
    """For `job_exists`: the job that has the unique key, if the token may see it."""

    @classmethod
    def of(cls, error: errors.PenstockError) -> Problem:
        first: str | None = None
        resume: str | None = None
        if isinstance(error, errors.LogTrimmed):
            first = None if error.first is None else str(error.first)
            resume = str(error.resume)
        # A message may quote what was sent, which may be anything.
        message = error.message[:MESSAGE_MAX]
        job_id = error.job_id or None if isinstance(error, errors.JobExists) else None
        return cls(error.code, message, error.hint, error.retryable, first, resume, job_id)

    def as_error(self) -> errors.PenstockError:
        """The error a local hub would have raised."""
        kind = _ERRORS.get(self.code, errors.PenstockError)
        if issubclass(kind, errors.LogTrimmed) and self.resume is not None:
            first = None if self.first is None else Position.parse(self.first)
            resume = Position.parse(self.resume)
            return kind(self.message, first=first, resume=resume, hint=self.hint)
        if issubclass(kind, errors.JobExists):
            return kind(self.message, job_id=self.job_id or 0, hint=self.hint)
        error = kind.__new__(kind)
        errors.PenstockError.__init__(error, self.message, hint=self.hint)
        if isinstance(error, errors.QuotaExceeded):
            error.mailbox = ""  # Whoever put it knows where.
        return error


# Commands


class Command(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="op"
):
    id: CommandId


class Connect(Command, frozen=True, kw_only=True, tag="connect"):
    """The first command on a socket."""

    token: str | None = None
    client: str | None = None
    """How this client is named in presence lists. Default: a name the server makes up."""


class Refresh(Command, frozen=True, kw_only=True, tag="refresh"):
    """Replace the token before it expires. The rights become those of the new one."""

    token: str


class Subscribe(Command, frozen=True, kw_only=True, tag="subscribe"):
    """Deliver what is published under a topic or a glob from now on, or from an earlier point."""

    topic: str
    after: str | None = None
    """Resume after this position, `epoch:offset`. With a consumer: where it begins if it does
    not exist yet."""
    last: int | None = None
    """Start with the last so many messages."""
    consumer: str | None = None
    """Start where this durable consumer is, and let `ack` move it."""
    start: Start = "latest"
    """Where to begin otherwise, also a consumer that does not exist yet."""
    join: dict[str, Any] | None = None
    """Be listed as present on the topic, with this information."""
    presence: bool = False
    """Tell who is there, and then who joins and leaves."""


class Unsubscribe(Command, frozen=True, kw_only=True, tag="unsubscribe"):
    topic: str


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to publish. Exactly one of `payload` and `base64`."""

    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    """Bytes, for clients that speak JSON."""
    type: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    ttl: float | None = None
    idempotency_key: str | None = None
    format: Format | None = None
    """How it is stored. Default: bytes for bytes, JSON for the rest."""


class Publish(Command, frozen=True, kw_only=True, tag="publish"):
    topic: str
    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    type: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    ttl: float | None = None
    idempotency_key: str | None = None
    format: Format | None = None
    """How it is stored. Default: bytes for bytes, JSON for the rest."""
    conflate: bool = False
    """Keep only the latest message per (topic, key) and interval; acknowledged before it is on
    disk."""


class PublishMany(Command, frozen=True, kw_only=True, tag="publish_many"):
    """All of them or none, in one transaction."""

    topic: str
    messages: list[Outgoing]


class Ack(Command, frozen=True, kw_only=True, tag="ack"):
    """Everything up to this position was processed: the consumer of the subscription moves on."""

    topic: str
    position: str


class Presence(Command, frozen=True, kw_only=True, tag="presence"):
    """Who is present on a topic."""

    topic: str


class OpenMailbox(Command, frozen=True, kw_only=True, tag="mailbox.open"):
    """Push what is in a mailbox, and what comes. Whoever had it open until now is told."""

    mailbox: str
    window: int = 1
    """So many messages are pushed before one of them is acknowledged."""


class CloseMailbox(Command, frozen=True, kw_only=True, tag="mailbox.close"):
    mailbox: str


class PutMail(Command, frozen=True, kw_only=True, tag="mailbox.put"):
    """Put a message into a mailbox. Exactly one of `payload` and `base64`."""

    mailbox: str
    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    message: str | None = None
    """The message's id: put again under the same one, it is stored once."""
    type: str | None = None
    format: Format | None = None
    """How it is stored. Default: bytes for bytes, JSON for the rest."""


class AckMail(Command, frozen=True, kw_only=True, tag="mailbox.ack"):
    """The first message of a mailbox is done with. It need not be open."""

    mailbox: str
    message: str
    through: bool = False
    """All up to this message are."""


class Ping(Command, frozen=True, kw_only=True, tag="ping"):
    """Is the server there?"""


AnyCommand: TypeAlias = (
    Connect
    | Refresh
    | Subscribe
    | Unsubscribe
    | Publish
    | PublishMany
    | Ack
    | Presence
    | OpenMailbox
    | CloseMailbox
    | PutMail
    | AckMail
    | Ping
)


# Replies


class Connected(msgspec.Struct, frozen=True):
    client: str
    """This client's name in presence lists."""
    epoch: str
    instance: str
    """The server process that answered."""
    version: str
    ping_seconds: float
    """How often the server pings."""
    idempotency_seconds: float
    """How long an idempotency key is remembered: repeating a publish later may store it twice."""
    expires_in_seconds: float | None = None
    """When the token has to be refreshed."""


class Gap(msgspec.Struct, frozen=True):
    """Messages between the position asked for and the one that is served are gone."""

    reason: Literal["trimmed", "epoch_changed"]
    after: str
    """The position that was asked for."""
    resumes: str
    """The position after which messages follow."""


class Subscribed(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: str
    position: str
    """Messages after this position follow."""
    recovered: bool | None = None
    """After resuming: whether nothing is missing. If not, `gap` says what is."""
    gap: Gap | None = None


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    position: str | None
    """None for a conflated message, which has no place in the log yet."""
    at: int
    """When, in microseconds since 1970."""
    durable: bool = True
    duplicate: bool = False


class PublishedMany(msgspec.Struct, frozen=True):
    messages: list[Published]


class Acked(msgspec.Struct, frozen=True):
    position: str
    """Where the consumer is now. Never moved back."""


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody who is present on a topic."""

    client: str
    info: dict[str, Any] = {}
    joined_at: int = 0


class Members(msgspec.Struct, frozen=True):
    topic: str
    members: list[Member]
    is_complete: bool
    """False: there are more than the server lists."""


class MailboxOpened(msgspec.Struct, frozen=True):
    mailbox: str
    window: int
    """The one in force: the server has a limit."""
    messages: int
    """How many are in it now."""


class MailAcked(msgspec.Struct, frozen=True):
    acked: bool
    """False: it was acknowledged before."""


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    id: int
    ok: Any = UNSET
    error: Problem | UnsetType = UNSET


# Pushes


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message as it is pushed."""

    id: int
    at: int
    """When it was published, in microseconds since 1970."""
    topic: str | None = None
    """Left out where the subscription names one topic."""
    type: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    """Bytes, for clients that speak JSON; on MessagePack they are a `payload` of type bin."""
    expires_at: int | None = None
    format: Literal["json", "msgpack"] | None = None
    """`msgpack`: stored as MessagePack, which has more types than JSON. Where this connection's
    format cannot say the payload at all, it comes as stored: as `base64` of MessagePack, or with
    `json` as JSON text in a `payload` of type bin. Left out otherwise."""
    conflated: bool = False
    """The payload is a list of `{key, payload, type}`: the latest under each key."""


class MessagesPush(msgspec.Struct, frozen=True, tag_field="push", tag="messages"):
    """Messages, oldest first. The position after them is the last id in the reply's epoch."""

    topic: str
    """The topic or glob of the subscription."""
    messages: list[Any]


class GapPush(msgspec.Struct, frozen=True, tag_field="push", tag="gap"):
    """Messages were removed before this client had read them."""

    topic: str
    gap: Gap


class DroppedPush(msgspec.Struct, frozen=True, tag_field="push", tag="dropped"):
    """The client was too slow, and by the topic's policy these messages were left out."""

    topic: str
    messages: int
    through: str
    """The position of the last one left out."""


class PresencePush(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="push", tag="presence"
):
    """Who joined and who left; or, first of all and after a time of slowness, everybody."""

    topic: str
    joined: list[Member] = []
    left: list[str] = []
    members: list[Member] | None = None
    """All who are present: what was known before is replaced."""


class UnsubscribedPush(msgspec.Struct, frozen=True, tag_field="push", tag="unsubscribed"):
    """The server ended a subscription: the rights are gone, or the consumer is another's."""

    topic: str
    error: Problem


class MailEntry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message of a mailbox."""

    id: str
    seq: int
    """Counts up by one for each message of the mailbox."""
    at: int
    """When it was put, in microseconds since 1970."""
    kind: Literal["message", "quota", "gap"] = "message"
    """`quota`: the mailbox was full, and what came next was refused. `gap`: some are missing."""
    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    """Bytes, for clients that speak JSON; on MessagePack they are a `payload` of type bin."""
    format: Literal["json", "msgpack"] | None = None
    """As in an entry of a topic."""
    type: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    topic: str | None = None
    """Where it was published, if it came from a topic. Of a gap: what the mailbox subscribes to."""
    position: str | None = None
    """Its place there. Of a gap: after which messages follow."""
    missing: int = 0
    """Of a gap: how many; 0 if that is not known."""


class MailPush(msgspec.Struct, frozen=True, tag_field="push", tag="mail"):
    """Messages of a mailbox, in order, to be acknowledged in this order."""

    mailbox: str
    messages: list[Any]


class MailboxClosedPush(msgspec.Struct, frozen=True, tag_field="push", tag="mailbox_closed"):
    """No more of a mailbox is pushed: another socket has opened it, or the right is gone."""

    mailbox: str
    error: Problem


AnyPush: TypeAlias = (
    MessagesPush
    | GapPush
    | DroppedPush
    | PresencePush
    | UnsubscribedPush
    | MailPush
    | MailboxClosedPush
)


class Wire:
    """Encodes and decodes frames of one format. Stateless, so there is one for each format."""

    def __init__(self, format: WireFormat) -> None:
        self.format: WireFormat = format
        self.is_text = format == "json"
        module = msgspec.json if format == "json" else msgspec.msgpack
        self.encode: Callable[[Any], bytes] = module.Encoder().encode
        self.decode_command: Callable[[bytes], AnyCommand] = module.Decoder(AnyCommand).decode
        self.decode_any: Callable[[bytes], Any] = module.Decoder().decode
        self._own = codec.JSON if format == "json" else codec.MSGPACK

    def entry(self, message: Message, *, with_topic: bool) -> Raw:
        """A message, encoded on its own: frames are put together from such pieces."""
        format = message.encoding & codec.FORMAT_MASK
        try:
            if format == self._own:
                return self._entry(message, with_topic, Raw(message.data))
            if format == codec.BYTES and self.is_text:
                return self._entry(message, with_topic, base64=codec.to_base64(message.data))
            return self._entry(message, with_topic, message.payload)
        except (errors.PenstockError, TypeError, ValueError, OverflowError, RecursionError):
            return self._entry_as_stored(message, with_topic)

    def _entry_as_stored(self, message: Message, with_topic: bool) -> Raw:
        """One message that this format has no words for must not hold up all that follow."""
        try:
            data = message.data
        except errors.PenstockError:
            data = message.body
        if self.is_text:
            return self._entry(message, with_topic, base64=codec.to_base64(data))
        is_json = message.encoding & codec.FORMAT_MASK == codec.JSON
        return self._entry(message, with_topic, data, format="json" if is_json else None)

    def _entry(
        self,
        message: Message,
        with_topic: bool,
        payload: Any = UNSET,
        base64: str | UnsetType = UNSET,
        format: Literal["json"] | None = None,
    ) -> Raw:
        is_msgpack = message.encoding & codec.FORMAT_MASK == codec.MSGPACK
        return Raw(
            self.encode(
                Entry(
                    id=message.id,
                    at=message.created_at,
                    topic=message.topic if with_topic else None,
                    type=message.type,
                    key=message.key,
                    headers=message.headers if message.raw_headers is not None else None,
                    payload=payload,
                    base64=base64,
                    expires_at=message.expires_at,
                    format="msgpack" if is_msgpack else format,
                    conflated=bool(message.encoding & codec.CONFLATED),
                )
            )
        )


JSON_WIRE: Final = Wire("json")
MSGPACK_WIRE: Final = Wire("msgpack")
WIRES: Final = {SUBPROTOCOL_JSON: JSON_WIRE, SUBPROTOCOL_MSGPACK: MSGPACK_WIRE}


def _all_errors(root: type[errors.PenstockError]) -> dict[str, type[errors.PenstockError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        for code, kind in _all_errors(child).items():
            found.setdefault(code, kind)
    return found


_ERRORS = _all_errors(errors.PenstockError)
