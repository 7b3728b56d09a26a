"""Leases and instances in SQLite."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from penstock.clock import Micros, micros
from penstock.model import Instance, Lease
from penstock.stores import queries
from penstock.stores.sqlite.connection import (
    ReaderPool,
    fetch_all,
    fetch_one,
    fetch_value,
)
from penstock.stores.sqlite.liveness import Leasing

SQL = queries.load("penstock.stores.sqlite", "leases.sql")
NEXT_TOKEN = queries.load("penstock.stores.sqlite", "topics.sql")["next_token"]


class SqliteLeaseWriter:
    def __init__(self, connection: apsw.Connection, leasing: Leasing) -> None:
        self._connection = connection
        self._leasing = leasing

    def acquire(self, name: str, *, owner: str, seconds: float) -> Lease | None:
        if find_holder(self._connection, name, self._leasing) is not None:
            return None
        token = fetch_value(self._connection, NEXT_TOKEN)
        self._connection.execute(
            SQL["put_lease"],
            (
                name,
                owner,
                self._leasing.instance,
                token,
                self._leasing.boot_id,
                self._leasing.now() + micros(seconds),
            ),
        )
        return Lease(name, token, owner)

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        until = self._leasing.now() + micros(seconds)
        return [
            lease
            for lease in leases
            if fetch_one(
                self._connection,
                SQL["renew_lease"],
                (lease.name, lease.token, until, self._leasing.boot_id),
            )
        ]

    def release(self, lease: Lease) -> bool:
        row = fetch_one(self._connection, SQL["release_lease"], (lease.name, lease.token))
        return row is not None

    def revoke(self, name: str) -> None:
        self._connection.execute(SQL["revoke_lease"], (name,))

    def is_held(self, lease: Lease) -> bool:
        return (
            fetch_value(self._connection, SQL["has_token"], (lease.name, lease.token)) is not None
        )


class SqliteLeaseReader:
    def __init__(self, pool: ReaderPool, leasing: Leasing) -> None:
        self._pool = pool
        self._leasing = leasing

    def holder(self, name: str) -> str | None:
        with self._pool.read() as connection:
            return find_holder(connection, name, self._leasing)


class SqliteInstanceWriter:
    def __init__(self, connection: apsw.Connection, leasing: Leasing) -> None:
        self._connection = connection
        self._leasing = leasing

    def number(self) -> int:
        """One that no process has had before."""
        return int(fetch_value(self._connection, NEXT_TOKEN))

    def report(
        self, instance: Instance, *, position: int, poll_latency_ms: float, now: Micros
    ) -> None:
        latency_us = round(poll_latency_ms * 1000)
        row = fetch_one(
            self._connection, SQL["report_instance"], (instance.id, now, position, latency_us)
        )
        if row is None:
            # The first report, or the row was dropped while this process was suspended.
            boot, started_at = self._leasing.boot_id, instance.started_at
            self._connection.execute(
                SQL["insert_instance"],
                (instance.id, instance.name, boot, started_at, now, position, latency_us),
            )

    def forget(self, *, now: Micros, after_seconds: float) -> int:
        dead = [
            row[0]
            for row in fetch_all(self._connection, SQL["list_instances"])
            if not is_alive(row[0], row[6], self._leasing) or row[3] <= now - micros(after_seconds)
        ]
        for number in dead:
            self._connection.execute(SQL["delete_instance"], (number,))
        return len(dead)


class SqliteInstanceReader:
    def __init__(self, pool: ReaderPool, leasing: Leasing) -> None:
        self._pool = pool
        self._leasing = leasing

    def alive(self) -> list[Instance]:
        with self._pool.read() as connection:
            return [
                Instance(number, name, started_at, seen_at, position, latency_us / 1000)
                for number, name, started_at, seen_at, position, latency_us, boot in (
                    connection.execute(SQL["list_instances"])
                )
                if is_alive(number, boot, self._leasing)
            ]

    def lowest_position(self) -> int | None:
        return min((instance.position for instance in self.alive()), default=None)


def find_holder(connection: apsw.Connection, name: str, leasing: Leasing) -> str | None:
    """Who holds the lease: not one whose time is over, or whose process or boot has ended."""
    row = fetch_one(connection, SQL["get_lease"], (name,))
    if row is None:
        return None
    owner, instance, _, boot, expires_at = row
    if expires_at <= leasing.now() or not is_alive(instance, boot, leasing):
        return None
    return str(owner)


def is_alive(instance: int, boot: str, leasing: Leasing) -> bool:
    """Whether the process that wrote this number and boot has not ended."""
    return boot == leasing.boot_id and leasing.liveness.is_alive(instance)
