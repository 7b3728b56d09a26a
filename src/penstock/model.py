"""The values that travel between the rooms: frozen and typed."""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, TypeVar, get_args, overload

import msgspec

from penstock import codec
from penstock.clock import SECOND, Micros, as_datetime, micros
from penstock.errors import InvalidInput, InvalidTopic

T = TypeVar("T")

Format = Literal["json", "msgpack", "bytes"]
Start = Literal["latest", "earliest"]
OnTrimmed = Literal["raise", "skip"]
SlowPolicy = Literal["catch_up", "disconnect", "drop_oldest"]

NAME_BYTES_MAX = 255
KEY_BYTES_MAX = 1024
OFFSET_DIGITS_MAX = 19
RESERVED_PREFIX = "penstock."
CONFLATED_TYPE = "batch"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_GLOB = re.compile(r"[*?]")


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """A place in the log: everything up to and including `offset` has been seen.

    The epoch names the database and its generation, so that a position taken before a restore
    is noticed instead of silently meaning something else.
    """

    epoch: str
    offset: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        epoch, separator, offset = text.rpartition(":")
        is_number = offset.isascii() and offset.isdigit() and len(offset) <= OFFSET_DIGITS_MAX
        if not separator or not epoch or not is_number:
            raise InvalidInput(
                f"{text!r} is not a position.", hint="A position looks like 'epoch:42'."
            )
        return cls(epoch, int(offset))


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message on its way in: encoded, checked, without an id."""

    topic: str
    body: bytes
    encoding: int
    type: str | None = None
    key: str | None = None
    headers: bytes | None = None
    ttl: Micros | None = None
    idempotency_key: str | None = None


class Alike(Sequence[NewMessage]):
    """Messages that differ in their bodies alone: there may be many, and most are never looked at
    one by one."""

    __slots__ = ("bodies", "encoding", "topic", "type")

    def __init__(self, topic: str, bodies: list[bytes], encoding: int, type: str | None) -> None:
        self.topic = topic
        self.bodies = bodies
        self.encoding = encoding
        self.type = type

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, place: int) -> NewMessage: ...
    @overload
    def __getitem__(self, place: slice) -> Alike: ...
    def __getitem__(self, place: int | slice) -> NewMessage | Alike:
        if isinstance(place, slice):
            return Alike(self.topic, self.bodies[place], self.encoding, self.type)
        return NewMessage(self.topic, self.bodies[place], self.encoding, self.type)


class Publication(msgspec.Struct, frozen=True):
    """One message of a `publish_many` that needs more than a payload."""

    payload: Any
    type: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    ttl: float | None = None
    idempotency_key: str | None = None
    format: Format | None = None


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What a publisher gets back: the message is on disk, at this position.

    `durable` is false only for conflated messages, which are written with the next flush; their
    `position` is None. `duplicate` says that the idempotency key was seen before: this is the
    receipt of the first message.
    """

    topic: str
    position: Position | None
    created_at: Micros
    durable: bool = True
    duplicate: bool = False

    @property
    def id(self) -> int:
        """The message's id, which is its offset."""
        if self.position is None:
            raise InvalidInput("A conflated message has no id before it is flushed.")
        return self.position.offset


class Conflated(msgspec.Struct, frozen=True):
    """One entry of a conflated batch: the latest message under its key."""

    key: str
    payload: Any = None
    type: str | None = None


class Message(msgspec.Struct, frozen=True, dict=True):
    """A message of the log. `payload` is decoded when it is first asked for."""

    id: int
    topic: str
    created_at: Micros
    body: bytes
    encoding: int
    epoch: str
    type: str | None = None
    key: str | None = None
    expires_at: Micros | None = None
    raw_headers: bytes | None = None
    message_id: str | None = None
    producer: str | None = None

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.id)

    @property
    def time(self) -> datetime:
        return as_datetime(self.created_at)

    @property
    def data(self) -> bytes:
        """The payload's bytes as they were published: decompressed, not decoded."""
        return codec.decompress(self.body, self.encoding)

    @property
    def payload(self) -> Any:
        """The payload as plain values: dicts, lists, strings, numbers, or bytes."""
        decoded = self.__dict__
        if "payload" not in decoded:
            decoded["payload"] = codec.decode(self.body, self.encoding)
        return decoded["payload"]

    @property
    def headers(self) -> dict[str, str]:
        return codec.decode_headers(self.raw_headers)

    @property
    def content_type(self) -> str:
        return codec.content_type(self.encoding)

    @overload
    def decode(self, to: builtins.type[T]) -> T: ...
    @overload
    def decode(self, to: Any) -> Any: ...
    def decode(self, to: Any) -> Any:
        """The payload as the given type: a msgspec struct, a dataclass, a TypedDict."""
        return codec.decode(self.body, self.encoding, to)

    @property
    def conflated(self) -> list[Conflated]:
        """The entries of a conflated batch; empty for any other message."""
        return self.decode(list[Conflated]) if self.encoding & codec.CONFLATED else []


class Retention(msgspec.Struct, frozen=True):
    """How long a topic keeps its messages. None means the hub's default, or no limit.

    A message is removed when any limit asks for it and every consumer in `hold_for` has it.
    `hold_seconds_max` and `hold_bytes_max` bound what a consumer that never comes back can keep.
    """

    age_seconds: float | None = None
    messages_max: int | None = None
    bytes_max: int | None = None
    hold_for: tuple[str, ...] = ()
    hold_seconds_max: float | None = None
    hold_bytes_max: int | None = None

    def __post_init__(self) -> None:
        for name, kind in (
            ("age_seconds", (int, float)),
            ("messages_max", int),
            ("bytes_max", int),
            ("hold_seconds_max", (int, float)),
            ("hold_bytes_max", int),
        ):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, kind) and value > 0):
                raise InvalidInput(f"{name} must be a number above 0, not {value!r}.")
        if not isinstance(self.hold_for, (tuple, list)) or not all(
            isinstance(name, str) for name in self.hold_for
        ):
            raise InvalidInput(
                f"hold_for is a tuple of consumers' names, not {self.hold_for!r}.",
                hint="For one consumer: hold_for=('billing',).",
            )

    def with_defaults(self, default: Retention) -> Retention:
        """As in force: the hub's defaults where the topic does not say.

        Asking for a number of messages or bytes alone means no limit of age.
        """
        asks_for_size = self.messages_max is not None or self.bytes_max is not None
        return Retention(
            self.age_seconds or (None if asks_for_size else default.age_seconds),
            self.messages_max,
            self.bytes_max,
            self.hold_for,
            self.hold_seconds_max or default.hold_seconds_max,
            self.hold_bytes_max or default.hold_bytes_max,
        )

    def wants_removal(self, *, age: Micros, messages: int, size: int) -> bool:
        """Whether a topic of this size should lose its oldest message, which is this old."""
        return (
            (self.age_seconds is not None and age >= micros(self.age_seconds))
            or (self.messages_max is not None and messages > self.messages_max)
            or (self.bytes_max is not None and size > self.bytes_max)
        )

    def may_hold(self, *, age: Micros, size: int) -> bool:
        """Whether consumers may still keep it."""
        return not (
            (self.hold_seconds_max is not None and age >= micros(self.hold_seconds_max))
            or (self.hold_bytes_max is not None and size > self.hold_bytes_max)
        )


class Delivery(msgspec.Struct, frozen=True):
    """How a topic's messages are sent to clients. None means the hub's setting of the name."""

    batch_max: int | None = None
    """Messages that make a batch full, so that it is sent before `batch_ms` have passed."""
    batch_ms: float | None = None
    """How long a message may wait for others after a batch was sent. 0: never."""
    slow_policy: SlowPolicy | None = None
    """What happens to a client that reads too slowly."""

    def __post_init__(self) -> None:
        count, wait, policy = self.batch_max, self.batch_ms, self.slow_policy
        if count is not None and (not _is_number(count, int) or count < 1):
            raise InvalidInput(f"batch_max must be a whole number from 1 up, not {count!r}.")
        if wait is not None and (not _is_number(wait, (int, float)) or not 0 <= wait < math.inf):
            raise InvalidInput(f"batch_ms must be a number from 0 up, not {wait!r}.")
        if policy is not None and policy not in get_args(SlowPolicy):
            raise InvalidInput(
                f"slow_policy is not {policy!r}.",
                hint=f"It is one of {', '.join(get_args(SlowPolicy))}.",
            )


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


class Topic(msgspec.Struct, frozen=True):
    """A topic and its counters, which are kept exactly."""

    name: str
    created_at: Micros
    retention: Retention
    messages: int
    bytes: int
    published: int
    last_id: int
    deleted_through: int
    """The highest id removed before its own time to live had passed."""
    delivery: Delivery = Delivery()


class Swept(msgspec.Struct, frozen=True):
    """What one step of retention removed, and how much of it against a hold."""

    removed: int
    broken: int


class TopicStats(msgspec.Struct, frozen=True):
    """What a topic looks like now."""

    topic: str
    messages: int
    bytes: int
    published: int
    first: Position | None
    last: Position | None
    oldest_age_seconds: float | None
    messages_per_second: float
    consumers: int


class Consumer(msgspec.Struct, frozen=True):
    """A named consumer's watermark on one subscription."""

    name: str
    subscription: str
    position: Position
    floor: int
    """Trims up to this id are known to the consumer and no loss to it."""
    created_at: Micros
    updated_at: Micros
    holder: str | None


class Lag(msgspec.Struct, frozen=True):
    """How far a consumer is behind."""

    consumer: str
    subscription: str
    messages: int
    seconds: float
    lost: bool
    """Retention has removed messages that this consumer had not seen."""


class Lease(msgspec.Struct, frozen=True):
    """A right that runs out. Every answer given under it carries the token."""

    name: str
    token: int
    owner: str


def consumer_lease(consumer: str, subscription: str) -> str:
    """The lease under which one process at a time is this consumer."""
    return f"consumer\x1f{consumer}\x1f{subscription}"


class Instance(msgspec.Struct, frozen=True):
    """A live process, and how far it has read the log, if it does."""

    id: int
    name: str
    started_at: Micros
    seen_at: Micros = 0
    position: int = 0
    poll_latency_ms: float = 0.0


class Presence(msgspec.Struct, frozen=True):
    """Somebody who is present on a topic, by way of one process."""

    topic: str
    client: str
    info: dict[str, Any] = {}
    """What the client says of itself: JSON values."""
    joined_at: Micros = 0
    instance: int = 0
    """The process the client is connected to; the store fills it in."""


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at, what was found, and what to do about it."""

    name: str
    status: Literal["ok", "warning", "critical"]
    found: str
    advice: str = ""


class LogState(msgspec.Struct, frozen=True, gc=False):
    """Where the log ends."""

    epoch: str
    last_id: int
    last_at: Micros


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Part of the log: the matching messages among all ids up to `through`."""

    messages: list[Message]
    through: int
    epoch: str
    trimmed: tuple[str, ...] = ()
    """Topics that lost messages in this part before they could be read."""


def check_count(count: int, what: str) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InvalidInput(f"{what} is a number from 1 up, not {count!r}.")
    return count


def as_micros(at: datetime | float) -> Micros:
    """A point in time, from a datetime with a time zone or seconds since 1970."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidInput(
                f"The time {at.isoformat()} has no time zone.",
                hint="Use datetime.now(timezone.utc), for example.",
            )
        return round(at.timestamp() * SECOND)
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at < 1e11:
        raise InvalidInput(f"{at!r} is not a time.", hint="Use a datetime or seconds since 1970.")
    return round(at * SECOND)


def check_topic(name: str) -> str:
    """The name, if it may be a topic's."""
    if not isinstance(name, str):
        raise InvalidTopic(f"A topic name is text, not {type(name).__name__}.")
    if not name:
        raise InvalidTopic("The topic name is empty.")
    if _CONTROL.search(name):
        raise InvalidTopic(f"The topic name {name!r} has control characters.")
    if _GLOB.search(name):
        raise InvalidTopic(f"The topic name {name!r} has '*' or '?', which stand for many topics.")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidTopic(
            f"The topic name has {len(name.encode())} bytes; the limit is {NAME_BYTES_MAX}."
        )
    return name


def check_name(name: str, what: str) -> str:
    """The name, if it may be that of a consumer or a lease."""
    if not isinstance(name, str) or not name or _CONTROL.search(name):
        raise InvalidInput(
            f"The {what} {name!r} is not valid.", hint="Use text without control characters."
        )
    if len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidInput(
            f"The {what} is longer than {NAME_BYTES_MAX} bytes.",
            hint="A name is for looking things up; put data into the payload.",
        )
    return name


def check_key(key: str) -> str:
    """The key, if it may be a message's."""
    if not isinstance(key, str):
        raise InvalidInput(f"A key is text, not {type(key).__name__}.", hint="Pass str(key).")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"The key {key!r} is not valid text.", hint="It has half of a surrogate pair."
        ) from error
    if size > KEY_BYTES_MAX:
        raise InvalidInput(
            f"The key has {size:,} bytes; the limit is {KEY_BYTES_MAX:,}.",
            hint="A key says what the message is about; put data into the payload.",
        )
    return key


class Pattern(msgspec.Struct, frozen=True):
    """One topic's name, or a glob over names: `*` for any text, `?` for one character.

    A glob does not match topics under `penstock.` unless it says so.
    """

    text: str

    @property
    def is_glob(self) -> bool:
        return bool(_GLOB.search(self.text))

    def matches(self, topic: str) -> bool:
        return bool(_matcher(self.text)(topic))

    @classmethod
    def parse(cls, text: str) -> Pattern:
        if isinstance(text, str) and _GLOB.search(text):
            check_topic(_GLOB.sub("x", text))
        else:
            check_topic(text)
        return cls(text)


@lru_cache(maxsize=4096)
def _matcher(text: str) -> Any:
    if not _GLOB.search(text):
        return text.__eq__
    pieces = [".*" if c == "*" else "." if c == "?" else re.escape(c) for c in text]
    match = re.compile("".join(pieces), re.DOTALL).fullmatch
    if text.startswith(RESERVED_PREFIX):
        return lambda topic: match(topic) is not None
    return lambda topic: not topic.startswith(RESERVED_PREFIX) and match(topic) is not None
