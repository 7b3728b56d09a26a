"""The rows of topics and messages as values, and the names of topics."""

from __future__ import annotations

import threading
from typing import Any

import apsw
import msgspec

from penstock.model import (
    Delivery,
    LogState,
    Message,
    Pattern,
    Retention,
    Topic,
)
from penstock.stores import queries
from penstock.stores.sqlite.connection import (
    fetch_one,
)

SQL = queries.load("penstock.stores.sqlite", "topics.sql")

_retention = msgspec.json.Decoder(Retention)
_delivery = msgspec.json.Decoder(Delivery)


class NameBook:
    """The names of the present epoch. Another generation is another database.

    While a restore comes in, some still read the state before it: each gets the names of the
    epoch that it sees, so that no number is ever taken for another database's.
    """

    def __init__(self) -> None:
        self._latest = TopicNames("")

    def of(self, epoch: str) -> TopicNames:
        names = self._latest
        if names.epoch != epoch:
            names = self._latest = TopicNames(epoch)
        return names


class TopicNames:
    """Names and numbers of topics, remembered. Rows are never deleted, so they only grow."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.ids: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self._highest = 0
        self._matches: dict[str, tuple[int, list[int]]] = {}
        self._lock = threading.Lock()

    def refresh(self, connection: apsw.Connection) -> None:
        with self._lock:
            for number, name in connection.execute(SQL["topic_names"], (self._highest,)):
                self.ids[name] = number
                self.names[number] = name
                self._highest = max(self._highest, number)

    def add(self, pending: dict[str, int]) -> None:
        with self._lock:
            for name, number in pending.items():
                self.ids[name] = number
                self.names[number] = name

    def matching(self, pattern: Pattern) -> list[int]:
        """Numbers of the topics a pattern stands for, among those refreshed."""
        if not pattern.is_glob:
            number = self.ids.get(pattern.text)
            return [] if number is None else [number]
        with self._lock:
            seen, found = self._matches.get(pattern.text, (0, []))
            if seen < self._highest:
                found = found + [
                    number
                    for number in range(seen + 1, self._highest + 1)
                    if number in self.names and pattern.matches(self.names[number])
                ]
                self._matches[pattern.text] = (self._highest, found)
            return found


def log_state(connection: apsw.Connection) -> LogState:
    epoch, last_id, last_at = fetch_one(connection, SQL["log_state"])
    return LogState(epoch, last_id, last_at)


def decode_retention(raw: bytes | None) -> Retention:
    return Retention() if raw is None else _retention.decode(raw)


def to_topic(row: tuple[Any, ...]) -> Topic:
    name, created_at, retention, messages, size, published, last_id, deleted_through = row[:8]
    delivery = row[9]
    return Topic(
        name,
        created_at,
        decode_retention(retention),
        messages,
        size,
        published,
        last_id,
        deleted_through,
        Delivery() if delivery is None else _delivery.decode(delivery),
    )


def to_message(row: tuple[Any, ...], epoch: str) -> Message:
    return Message(row[0], row[1], row[2], row[3], row[4], epoch, *row[5:])
