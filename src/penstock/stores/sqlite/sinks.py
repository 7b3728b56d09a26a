"""Sinks and their batches in SQLite."""

from __future__ import annotations

import apsw

from penstock.clock import Micros
from penstock.errors import SinkReused
from penstock.ports.sinks import SinkBatch
from penstock.stores import queries
from penstock.stores.sqlite.connection import ReaderPool, fetch_all, fetch_one

SQL = queries.load("penstock.stores.sqlite", "sinks.sql")

# A stream brings its last batch again, never one before it; the others are kept to be looked at.
BATCHES_KEPT = 1_000


class SqliteSinkWriter:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def enter(self, batch: SinkBatch, *, now: Micros) -> SinkBatch:
        sink, number = batch.sink, batch.number
        known = fetch_one(self._connection, SQL["get_sink"], (sink,))
        if known is not None:
            query, last_number, pruned_through = known
            if query != batch.query:
                raise SinkReused(f"The sink {sink!r} belongs to another query.")
            found = fetch_one(self._connection, SQL["get_batch"], (sink, number))
            if found is not None:
                return SinkBatch(*found)
            if number <= pruned_through or (query and number < last_number):
                raise SinkReused(
                    f"The sink {sink!r} has got to batch {last_number}, and now batch {number} "
                    "has come."
                )
        self._connection.execute(SQL["put_sink"], (sink, batch.query, number, now))
        values = (sink, number, batch.rows, batch.digest, batch.chunks, now, batch.plan or None)
        self._connection.execute(SQL["insert_batch"], values)
        self._prune(sink, number - BATCHES_KEPT)
        return SinkBatch(*fetch_one(self._connection, SQL["get_batch"], (sink, number)))

    def advance(self, sink: str, number: int, *, chunk: int, now: Micros) -> None:
        row = fetch_one(self._connection, SQL["advance_batch"], (sink, number, chunk, now))
        if row is None:
            raise SinkReused(
                f"Somebody else writes batch {number} of the sink {sink!r} at the same time.",
                hint="Two queries share a name or a checkpoint; stop one of them.",
            )

    def forget(self, sink: str) -> int:
        removed = len(fetch_all(self._connection, SQL["forget_batches"], (sink,)))
        self._connection.execute(SQL["forget_sink"], (sink,))
        return removed

    def _prune(self, sink: str, through: int) -> None:
        removed = fetch_all(self._connection, SQL["prune_batches"], (sink, through))
        if removed:
            highest = max(number for (number,) in removed)
            self._connection.execute(SQL["set_pruned"], (sink, highest))


class SqliteSinkReader:
    def __init__(self, pool: ReaderPool) -> None:
        self._pool = pool

    def get(self, sink: str, number: int) -> SinkBatch | None:
        with self._pool.read() as connection:
            row = fetch_one(connection, SQL["get_batch"], (sink, number))
        return None if row is None else SinkBatch(*row)

    def last(self, sink: str) -> SinkBatch | None:
        with self._pool.read() as connection:
            row = fetch_one(connection, SQL["last_batch"], (sink,))
        return None if row is None else SinkBatch(*row)

    def unfinished(self) -> list[SinkBatch]:
        with self._pool.read() as connection:
            return [SinkBatch(*row) for row in fetch_all(connection, SQL["open_batches"])]
