"""Mailboxes that are fed from topics, in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from penstock.clock import Micros
from penstock.errors import LeaseLost
from penstock.mail import MailboxSubscription
from penstock.model import Lease, Pattern, Position, Start
from penstock.ports.feeds import Step
from penstock.stores import queries
from penstock.stores.sqlite.connection import ReaderPool, as_json, fetch_all, fetch_one, fetch_value
from penstock.stores.sqlite.leases import SqliteLeaseWriter
from penstock.stores.sqlite.topic_rows import log_state

SQL = queries.load("penstock.stores.sqlite", "feeds.sql")
NO_LIMIT = -1


class SqliteFeedWriter:
    def __init__(self, connection: apsw.Connection, leases: SqliteLeaseWriter) -> None:
        self._connection = connection
        self._leases = leases

    def subscribe(
        self, mailbox: str, pattern: Pattern, *, start: Start, floor: int, now: Micros
    ) -> MailboxSubscription:
        # As it was before this transaction: what is written together with it comes after it.
        log = log_state(self._connection)
        position = log.last_id if start == "latest" else 0
        values = (mailbox, pattern.text, position, floor, now)
        self._connection.execute(SQL["insert"], values)
        row = fetch_one(self._connection, SQL["get"], (mailbox, pattern.text))
        return _subscription(row, log.epoch)

    def unsubscribe(self, mailbox: str, topic: str | None) -> int:
        count = len(fetch_all(self._connection, SQL["delete"], (mailbox, topic)))
        if count:
            self._connection.execute(SQL["count_ended"], (count,))
        return count

    def advance(self, steps: Sequence[Step], *, lease: Lease, now: Micros) -> None:
        if not self._leases.is_held(lease):
            raise LeaseLost("Another process feeds the mailboxes now.")
        for step in steps:
            told = msgspec.json.encode(step.told) if step.told else None
            values = (as_json(step.ids), step.position, step.floor, told, now)
            self._connection.execute(SQL["advance"], values)


class SqliteFeedReader:
    def __init__(self, pool: ReaderPool) -> None:
        self._pool = pool

    def find(
        self, mailbox: str | None = None, *, after: int = 0, limit: int | None = None
    ) -> list[MailboxSubscription]:
        values: tuple[Any, ...] = (after, NO_LIMIT if limit is None else limit)
        with self._pool.read() as connection:
            epoch = log_state(connection).epoch
            if mailbox is None:
                rows = fetch_all(connection, SQL["find"], values)
            else:
                rows = fetch_all(connection, SQL["find_of_mailbox"], (*values, mailbox))
        return [_subscription(row, epoch) for row in rows]

    def count(self) -> int:
        with self._pool.read() as connection:
            return int(fetch_value(connection, SQL["count"]))

    def ids(self) -> list[int]:
        with self._pool.read() as connection:
            return [row[0] for row in fetch_all(connection, SQL["ids"])]

    def ended(self) -> int:
        with self._pool.read() as connection:
            return int(fetch_value(connection, SQL["ended"]))


def _subscription(row: tuple[Any, ...], epoch: str) -> MailboxSubscription:
    mailbox, topic, position, created_at, updated_at, id, floor, told = row
    return MailboxSubscription(
        mailbox,
        topic,
        Position(epoch, position),
        created_at,
        updated_at,
        id,
        floor,
        msgspec.json.decode(told, type=dict[str, int]) if told else {},
    )
