"""What a server answers over HTTP, and the hub's values made of it."""

from __future__ import annotations

import msgspec

from penstock.client.frames import ReceivedEntry
from penstock.health import Metrics, Status
from penstock.model import Check, Consumer, Delivery, Lag, Position, Retention, Topic


class ReadReply(msgspec.Struct):
    epoch: str
    messages: list[ReceivedEntry]
    position: str


class TopicReply(msgspec.Struct):
    name: str
    created_at: int
    messages: int
    bytes: int
    published: int
    last_id: int
    retention: Retention
    delivery: Delivery = Delivery()
    deleted_through: int = 0

    def as_topic(self) -> Topic:
        return Topic(
            name=self.name,
            created_at=self.created_at,
            retention=self.retention,
            messages=self.messages,
            bytes=self.bytes,
            published=self.published,
            last_id=self.last_id,
            deleted_through=self.deleted_through,
            delivery=self.delivery,
        )


class TopicsReply(msgspec.Struct):
    topics: list[TopicReply]
    is_complete: bool = True


class StatsReply(msgspec.Struct):
    topic: str
    messages: int
    bytes: int
    published: int
    first: str | None
    last: str | None
    oldest_age_seconds: float | None
    messages_per_second: float
    consumers: int


class RemovedReply(msgspec.Struct):
    removed: int


class ConsumerReply(msgspec.Struct):
    name: str
    subscription: str
    position: str
    holder: str | None
    created_at: int
    updated_at: int
    lag_messages: int
    lag_seconds: float
    lost: bool

    def as_consumer(self) -> Consumer:
        position = Position.parse(self.position)
        return Consumer(
            self.name,
            self.subscription,
            position,
            position.offset,
            self.created_at,
            self.updated_at,
            self.holder,
        )

    def as_lag(self) -> Lag:
        return Lag(self.name, self.subscription, self.lag_messages, self.lag_seconds, self.lost)


class ConsumersReply(msgspec.Struct):
    consumers: list[ConsumerReply]


class HealthReply(msgspec.Struct):
    status: Status
    checks: list[Check]
    lags: list[Lag] = []
    metrics: Metrics | None = None
