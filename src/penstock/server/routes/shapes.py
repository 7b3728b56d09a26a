"""What HTTP requests and replies look like, where the wire protocol has no shape for it.

The OpenAPI document is made of these and of `penstock.protocol`'s, so that it says what is sent.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.health import Metrics, Status
from penstock.model import (
    Check,
    Consumer,
    Delivery,
    Format,
    Lag,
    Position,
    Retention,
    Topic,
    TopicStats,
)
from penstock.protocol import Entry, Outgoing, Problem


class ErrorReply(msgspec.Struct, frozen=True):
    error: Problem


class PublishRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message, or many under `messages`: decoded in one go, whichever it is."""

    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    type: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    ttl: float | None = None
    idempotency_key: str | None = None
    format: Format | None = None
    conflate: bool = False
    messages: list[Outgoing] | UnsetType = UNSET


class OutgoingOne(Outgoing, frozen=True, kw_only=True):
    """A message to publish. Exactly one of `payload` and `base64`."""

    conflate: bool = False
    """Keep only the latest message per (topic, key) and interval; acknowledged before it is on
    disk."""


class OutgoingMany(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to publish: all of them or none, in one transaction."""

    messages: list[Outgoing]


class MessagesReply(msgspec.Struct, frozen=True):
    epoch: str
    messages: list[Entry]
    """Oldest first."""
    position: str
    """Read on after this."""


class RawMessagesReply(msgspec.Struct, frozen=True):
    """The same, from entries that are encoded already."""

    epoch: str
    messages: list[msgspec.Raw]
    position: str


class RetentionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a topic keeps its messages. Null: the hub's default, or no limit."""

    age_seconds: float | None = None
    messages_max: int | None = None
    bytes_max: int | None = None
    hold_for: tuple[str, ...] = ()
    hold_seconds_max: float | None = None
    hold_bytes_max: int | None = None


class DeliveryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a topic's messages are sent to clients. Null: the hub's setting of the name."""

    batch_max: int | None = None
    batch_ms: float | None = None
    slow_policy: Literal["catch_up", "disconnect", "drop_oldest"] | None = None


class TopicRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out stays as it is, or has the hub's defaults if the topic is new."""

    retention: RetentionRequest | None = None
    delivery: DeliveryRequest | None = None

    def values(self) -> tuple[Retention | None, Delivery | None]:
        """Checked: raises `InvalidInput`."""
        keep, send = self.retention, self.delivery
        return (
            None if keep is None else Retention(**msgspec.structs.asdict(keep)),
            None if send is None else Delivery(**msgspec.structs.asdict(send)),
        )


class TopicReply(msgspec.Struct, frozen=True):
    name: str
    created_at: int
    """In microseconds since 1970."""
    messages: int
    bytes: int
    published: int
    """Messages since it was created."""
    last_id: int
    deleted_through: int
    """The highest id removed before its own time to live had passed."""
    retention: Retention
    delivery: Delivery

    @classmethod
    def of(cls, topic: Topic) -> TopicReply:
        return cls(
            topic.name,
            topic.created_at,
            topic.messages,
            topic.bytes,
            topic.published,
            topic.last_id,
            topic.deleted_through,
            topic.retention,
            topic.delivery,
        )


class TopicsReply(msgspec.Struct, frozen=True):
    topics: list[TopicReply]
    """By name."""
    is_complete: bool
    """False: there are more; ask again with `after` and the last name."""


class TopicStatsReply(msgspec.Struct, frozen=True):
    topic: str
    messages: int
    bytes: int
    published: int
    first: str | None
    last: str | None
    oldest_age_seconds: float | None
    messages_per_second: float
    consumers: int

    @classmethod
    def of(cls, stats: TopicStats) -> TopicStatsReply:
        return cls(
            stats.topic,
            stats.messages,
            stats.bytes,
            stats.published,
            _text(stats.first),
            _text(stats.last),
            stats.oldest_age_seconds,
            stats.messages_per_second,
            stats.consumers,
        )


class TrimRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of them."""

    through: str | None = None
    """Up to and including this position."""
    keep: int | None = None
    """All but the last so many."""
    older_than_seconds: float | None = None


class RemovedReply(msgspec.Struct, frozen=True):
    removed: int


class ConsumerReply(msgspec.Struct, frozen=True):
    name: str
    subscription: str
    position: str
    holder: str | None
    """The process that follows under this name now."""
    created_at: int
    updated_at: int
    lag_messages: int
    lag_seconds: float
    lost: bool
    """Messages were removed that this consumer had not seen."""

    @classmethod
    def of(cls, consumer: Consumer, lag: Lag) -> ConsumerReply:
        return cls(
            consumer.name,
            consumer.subscription,
            str(consumer.position),
            consumer.holder,
            consumer.created_at,
            consumer.updated_at,
            lag.messages,
            lag.seconds,
            lag.lost,
        )


class ConsumersReply(msgspec.Struct, frozen=True):
    consumers: list[ConsumerReply]


class ResetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    """The topic or glob of the consumer's subscription."""
    to: str
    """`latest`, `earliest` or a position."""


class HealthReply(msgspec.Struct, frozen=True):
    status: Status
    checks: list[Check]
    lags: list[Lag] = []
    metrics: Metrics | None = None


class AliveReply(msgspec.Struct, frozen=True):
    status: Literal["ok"]


class ReadyReply(msgspec.Struct, frozen=True):
    status: Literal["ok", "critical"]
    reason: str = ""


def _text(position: Position | None) -> str | None:
    return None if position is None else str(position)
