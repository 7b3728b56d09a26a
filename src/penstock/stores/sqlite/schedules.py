"""Schedules in SQLite."""

from __future__ import annotations

import apsw

from penstock.clock import Micros
from penstock.job import Schedule
from penstock.stores import queries
from penstock.stores.sqlite.connection import ReaderPool, fetch_all, fetch_one

SQL = queries.load("penstock.stores.sqlite", "schedules.sql")


class SqliteScheduleWriter:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def put(self, schedule: Schedule) -> None:
        s = schedule
        self._connection.execute(
            SQL["put"],
            (
                *(s.name, s.cron, s.timezone, s.missed, s.queue, s.type, s.priority),
                *(s.max_attempts, s.timeout, s.encoding, s.body, s.created_at, s.next_at),
            ),
        )

    def due(self, *, now: Micros, limit: int) -> list[Schedule]:
        return [Schedule(*row) for row in fetch_all(self._connection, SQL["due"], (now, limit))]

    def ticked(
        self, name: str, *, next_at: Micros | None, last_at: Micros, job_id: int | None
    ) -> None:
        self._connection.execute(SQL["ticked"], (name, next_at, last_at, job_id))

    def pause(self, name: str, *, paused_at: Micros | None, next_at: Micros | None) -> bool:
        row = fetch_one(self._connection, SQL["pause"], (name, paused_at, next_at))
        return row is not None

    def remove(self, name: str) -> bool:
        return fetch_one(self._connection, SQL["remove"], (name,)) is not None


class SqliteScheduleReader:
    def __init__(self, pool: ReaderPool) -> None:
        self._pool = pool

    def all(self) -> list[Schedule]:
        with self._pool.read() as connection:
            return [Schedule(*row) for row in fetch_all(connection, SQL["all"])]

    def next_at(self) -> Micros | None:
        at: Micros | None = self._pool.fetch(SQL["next_at"])[0][0]
        return at
