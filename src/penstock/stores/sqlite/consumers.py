"""Named consumers in SQLite."""

from __future__ import annotations

from typing import Any

import apsw

from penstock.clock import Micros
from penstock.errors import ConsumerBusy, ConsumerNotFound, LeaseLost
from penstock.model import Consumer, Lease, Position, consumer_lease
from penstock.stores import queries
from penstock.stores.sqlite.connection import (
    ReaderPool,
    fetch_all,
    fetch_one,
)
from penstock.stores.sqlite.leases import SqliteLeaseWriter, find_holder
from penstock.stores.sqlite.liveness import Leasing
from penstock.stores.sqlite.topic_rows import log_state

SQL = queries.load("penstock.stores.sqlite", "consumers.sql")


class SqliteConsumerWriter:
    def __init__(
        self, connection: apsw.Connection, leases: SqliteLeaseWriter, leasing: Leasing
    ) -> None:
        self._connection = connection
        self._leases = leases
        self._leasing = leasing

    def ensure(
        self, name: str, subscription: str, *, position: int, floor: int, now: Micros
    ) -> Consumer:
        self._connection.execute(SQL["insert_consumer"], (name, subscription, position, floor, now))
        row = fetch_one(self._connection, SQL["get_consumer"], (name, subscription))
        return _consumer(self._connection, row, self._leasing)

    def advance(
        self, name: str, subscription: str, *, position: int, lease: Lease, now: Micros
    ) -> None:
        self._check(lease)
        self._connection.execute(SQL["advance_consumer"], (name, subscription, position, now))

    def note(self, name: str, subscription: str, *, position: int, now: Micros) -> None:
        self._take_from_late_holder(name, subscription)
        values = (name, subscription, position, position, now)
        self._connection.execute(SQL["insert_consumer"], values)
        self._connection.execute(SQL["advance_consumer"], (name, subscription, position, now))
        self._connection.execute(SQL["accept_loss"], (name, subscription, position))

    def accept_loss(self, name: str, subscription: str, *, floor: int, lease: Lease) -> None:
        self._check(lease)
        self._connection.execute(SQL["accept_loss"], (name, subscription, floor))

    def seek(self, name: str, subscription: str, *, position: int, floor: int, now: Micros) -> None:
        self._take_from_late_holder(name, subscription)
        row = fetch_one(
            self._connection, SQL["seek_consumer"], (name, subscription, position, floor, now)
        )
        if row is None:
            raise ConsumerNotFound(f"There is no consumer {name!r} on {subscription!r}.")

    def delete(self, name: str, subscription: str | None) -> int:
        rows = fetch_all(self._connection, SQL["list_consumers"], (name,))
        doomed = [row[1] for row in rows if subscription is None or row[1] == subscription]
        if not doomed:
            where = "" if subscription is None else f" on {subscription!r}"
            raise ConsumerNotFound(f"There is no consumer {name!r}{where}.")
        for found in doomed:
            self._take_from_late_holder(name, found)
        for found in doomed:
            self._connection.execute(SQL["delete_consumer"], (name, found))
        return len(doomed)

    def _check(self, lease: Lease) -> None:
        if not self._leases.is_held(lease):
            raise LeaseLost(f"{lease.name} was taken over by somebody else.")

    def _take_from_late_holder(self, name: str, subscription: str) -> None:
        """Refuse if it is held. A lease that has run out is void: its holder may still wake up."""
        holder = find_holder(self._connection, consumer_lease(name, subscription), self._leasing)
        if holder is not None:
            raise ConsumerBusy(
                f"The consumer {name!r} on {subscription!r} is held by {holder}.",
                hint="Stop that follower first.",
            )
        self._leases.revoke(consumer_lease(name, subscription))


class SqliteConsumerReader:
    def __init__(self, pool: ReaderPool, leasing: Leasing) -> None:
        self._pool = pool
        self._leasing = leasing

    def get(self, name: str, subscription: str) -> Consumer | None:
        with self._pool.read() as connection:
            row = fetch_one(connection, SQL["get_consumer"], (name, subscription))
            return None if row is None else _consumer(connection, row, self._leasing)

    def find(self, name: str | None = None) -> list[Consumer]:
        with self._pool.read() as connection:
            rows = fetch_all(connection, SQL["list_consumers"], (name,))
            return [_consumer(connection, row, self._leasing) for row in rows]


def _consumer(connection: apsw.Connection, row: tuple[Any, ...], leasing: Leasing) -> Consumer:
    name, subscription, position, floor, created_at, updated_at = row
    return Consumer(
        name,
        subscription,
        Position(log_state(connection).epoch, position),
        floor,
        created_at,
        updated_at,
        find_holder(connection, consumer_lease(name, subscription), leasing),
    )
