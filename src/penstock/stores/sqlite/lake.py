"""The lake's books in SQLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw
import msgspec

from penstock.clock import Micros
from penstock.errors import EpochChanged, LakeConflict
from penstock.ports.lake import (
    Addition,
    Coverage,
    LakeBatch,
    LakeFile,
    LakeTotals,
    LakeView,
    Replay,
)
from penstock.stores import queries
from penstock.stores.sqlite.connection import ReaderPool, as_json, fetch_all, fetch_one, fetch_value
from penstock.stores.sqlite.topic_rows import log_state

SQL = queries.load("penstock.stores.sqlite", "lake.sql")

# Batches are remembered to be looked at; what is in the lake is known by its files.
BATCHES_KEPT = 1_000


class SqliteLakeWriter:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def adopt(self, lake: str, *, now: Micros) -> str:
        self._connection.execute(SQL["adopt"], (lake, now))
        return str(fetch_value(self._connection, SQL["lake_id"]))

    def hold(self, subscriptions: Sequence[str], *, now: Micros) -> list[Coverage]:
        self.release(now=now)
        last_id = log_state(self._connection).last_id
        first_id = fetch_value(self._connection, SQL["first_message"])
        before = last_id if first_id is None else first_id - 1
        for subscription in subscriptions:
            self._connection.execute(SQL["hold"], (subscription, before, last_id, now))
        return [found for found in _coverage(self._connection) if found.is_held]

    def release(self, *, now: Micros) -> int:
        return len(fetch_all(self._connection, SQL["release"], (now,)))

    def add(self, batch: LakeBatch, *, epoch: str, now: Micros) -> None:
        found = log_state(self._connection).epoch
        if found != epoch:
            raise EpochChanged(
                f"The messages were read from the database {epoch}, and this one is {found}.",
                hint="The database was restored or replaced: reset the pipeline.",
            )
        values = (batch.query, batch.number, batch.after, batch.through, len(batch.files))
        self._connection.execute(
            SQL["add_batch"], (*values, batch.rows, batch.bytes, batch.digest, now)
        )
        self._connection.execute(SQL["prune_batches"], (BATCHES_KEPT,))
        self._add_files(batch.files, now)

    def advance(
        self, expected: Mapping[str, int], batch: LakeBatch, *, now: Micros
    ) -> list[Coverage]:
        held = {
            found.subscription: found.through
            for found in _coverage(self._connection)
            if found.is_held
        }
        if held != dict(expected) or not held:
            raise LakeConflict(
                f"The lake was at {_places(expected)} when batch {batch.number} was planned, and "
                f"is now at {_places(held)}."
            )
        behind = {name: through for name, through in held.items() if through < batch.after}
        if behind:
            raise LakeConflict(
                f"Batch {batch.number} begins after {batch.after}, and the lake is at "
                f"{_places(behind)}: what lies between would be missing.",
                hint="The checkpoint is not this lake's. 'penstock pipeline reset archive' starts "
                "where the lake ends.",
            )
        self._connection.execute(SQL["advance"], (batch.through, now))
        return _coverage(self._connection)

    def replace(self, paths: Sequence[str], files: Sequence[LakeFile], *, now: Micros) -> None:
        for path in paths:
            if fetch_one(self._connection, SQL["replace_file"], (path, now)) is None:
                raise LakeConflict(f"The file {path} is not in the lake any more.")
        self._add_files(files, now)

    def forget(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._connection.execute(SQL["forget_file"], (path,))

    def plan_replay(self, replay: Replay, *, now: Micros) -> Replay:
        values = (replay.id, replay.plan, replay.rows, replay.files, now)
        self._connection.execute(SQL["plan_replay"], values)
        return Replay(*fetch_one(self._connection, SQL["replay"], (replay.id,)))

    def finish_replay(self, id: str, *, now: Micros) -> None:
        self._connection.execute(SQL["finish_replay"], (id, now))

    def _add_files(self, files: Sequence[LakeFile], now: Micros) -> None:
        for file in files:
            formats = msgspec.json.encode(dict(sorted(file.formats.items()))).decode()
            values: tuple[Any, ...] = (file.path, file.folder, file.date, file.rows, file.bytes)
            values += (file.first_id, file.last_id, file.first_at, file.last_at, file.digest)
            self._connection.execute(SQL["add_file"], (*values, formats, file.unparsable, now))


class SqliteLakeReader:
    def __init__(self, pool: ReaderPool) -> None:
        self._pool = pool

    def id(self) -> str | None:
        with self._pool.read() as connection:
            found: str | None = fetch_value(connection, SQL["lake_id"])
            return found

    def coverage(self) -> list[Coverage]:
        with self._pool.read() as connection:
            return _coverage(connection)

    def view(
        self,
        *,
        folders: Sequence[str] | None = None,
        since: Micros | None = None,
        until: Micros | None = None,
    ) -> LakeView:
        wanted = None if folders is None else as_json(folders)
        values = {"folders": wanted, "since": since, "until": until}
        with self._pool.read() as connection:
            log = log_state(connection)
            rows = fetch_all(connection, SQL["files"], values)
            coverage = _coverage(connection)
        return LakeView(log.epoch, log.last_id, coverage, [_file(row) for row in rows])

    def totals(self) -> LakeTotals:
        with self._pool.read() as connection:
            files, rows, size, unparsable, *replaced = fetch_one(connection, SQL["totals"])
            formats = dict(fetch_all(connection, SQL["formats"]))
        return LakeTotals(files, rows, size, unparsable, formats, *replaced)

    def small_files(self, *, bytes_max: int) -> list[LakeFile]:
        with self._pool.read() as connection:
            return [_file(row) for row in fetch_all(connection, SQL["small_files"], (bytes_max,))]

    def newest_date(self) -> str | None:
        with self._pool.read() as connection:
            found: str | None = fetch_value(connection, SQL["newest_date"])
            return found

    def additions(self, *, limit: int) -> list[Addition]:
        with self._pool.read() as connection:
            return [Addition(*row) for row in fetch_all(connection, SQL["additions"], (limit,))]

    def replaced(self, *, before: Micros, limit: int) -> list[str]:
        with self._pool.read() as connection:
            return [path for (path,) in fetch_all(connection, SQL["replaced"], (before, limit))]

    def is_known(self, paths: Sequence[str]) -> set[str]:
        with self._pool.read() as connection:
            return {path for (path,) in fetch_all(connection, SQL["known"], (as_json(paths),))}

    def replay(self, id: str) -> Replay | None:
        with self._pool.read() as connection:
            row = fetch_one(connection, SQL["replay"], (id,))
        return None if row is None else Replay(*row)


def _coverage(connection: apsw.Connection) -> list[Coverage]:
    return [
        Coverage(subscription, through, floor, bool(is_held), updated_at)
        for subscription, through, floor, is_held, updated_at in connection.execute(SQL["coverage"])
    ]


def _file(row: tuple[Any, ...]) -> LakeFile:
    *values, formats, unparsable = row
    counts = msgspec.json.decode(formats, type=dict[str, int])
    known: tuple[Any, ...] = (*values, counts, unparsable)
    return LakeFile(*known)


def _places(coverage: Mapping[str, int]) -> str:
    return ", ".join(f"{name!r}: {through}" for name, through in sorted(coverage.items())) or "none"
