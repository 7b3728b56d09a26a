"""The status of pipelines in SQLite."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from penstock.clock import Micros
from penstock.ports.pipelines import Ending, PipelineRun, PipelineStatus, pipeline_lease
from penstock.stores import queries
from penstock.stores.sqlite.connection import ReaderPool, fetch_all, fetch_one
from penstock.stores.sqlite.leases import find_holder
from penstock.stores.sqlite.liveness import Leasing

SQL = queries.load("penstock.stores.sqlite", "pipelines.sql")


class SqlitePipelineWriter:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def begin(self, run: PipelineRun, *, token: int, now: Micros) -> None:
        self._connection.execute(
            SQL["begin"],
            (
                run.name,
                token,
                run.home,
                run.runner,
                run.is_continuous,
                run.trigger,
                run.checkpoint,
                run.options,
                now,
            ),
        )

    def report(
        self,
        name: str,
        *,
        token: int,
        rows: int,
        batch: int,
        lag: int | None,
        seconds: float,
        now: Micros,
    ) -> bool:
        values = (name, token, rows, batch, lag, seconds, now)
        return fetch_one(self._connection, SQL["report"], values) is not None

    def beat(self, name: str, *, token: int, lag: int | None, now: Micros) -> bool:
        return fetch_one(self._connection, SQL["beat"], (name, token, lag, now)) is not None

    def end(self, name: str, *, token: int, state: Ending, error: str = "", now: Micros) -> bool:
        values = (name, token, state, error, now)
        return fetch_one(self._connection, SQL["end"], values) is not None

    def forget(self, name: str) -> bool:
        return fetch_one(self._connection, SQL["forget"], (name,)) is not None


class SqlitePipelineReader:
    def __init__(self, pool: ReaderPool, leasing: Leasing) -> None:
        self._pool = pool
        self._leasing = leasing

    def find(self, name: str | None = None) -> list[PipelineStatus]:
        with self._pool.read() as connection:
            rows = fetch_all(connection, SQL["find"], (name,))
            return [self._as_of_now(connection, _status(*row)) for row in rows]

    def _as_of_now(self, connection: apsw.Connection, status: PipelineStatus) -> PipelineStatus:
        """What says it is running is lost if nobody holds its lease."""
        if not status.is_running:
            return status
        if find_holder(connection, pipeline_lease(status.name), self._leasing) is not None:
            return status
        return msgspec.structs.replace(status, state="lost")


def _status(*row: Any) -> PipelineStatus:
    values = dict(zip(PipelineStatus.__struct_fields__, row, strict=True))
    return PipelineStatus(**values | {"is_continuous": bool(values["is_continuous"])})
