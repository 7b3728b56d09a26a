"""Jobs in SQLite, the reading side."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.clock import Micros, seconds
from penstock.job import (
    Failure,
    Job,
    JobEvent,
    JobFilter,
    Kind,
    Progress,
    QueueLimits,
    QueueStats,
    State,
    Worker,
)
from penstock.model import Instance
from penstock.stores.sqlite.connection import ReaderPool, fetch_all, fetch_one
from penstock.stores.sqlite.job_writer import SQL, is_lost, lost_instances, state_of
from penstock.stores.sqlite.liveness import Leasing

_failure = msgspec.json.Decoder(Failure)
_progress = msgspec.json.Decoder(Progress)
_data = msgspec.json.Decoder(dict[str, Any])
_queues = msgspec.json.Decoder(dict[str, int])

BAD = frozenset({State.FAILED, State.CANCELLED})


class SqliteJobReader:
    def __init__(self, pool: ReaderPool, leasing: Leasing) -> None:
        self._pool = pool
        self._leasing = leasing

    def get(self, id: int) -> Job | None:
        with self._pool.read() as connection:
            row = fetch_one(connection, f"{SQL['job']} WHERE j.id = ?", (id,))
        return None if row is None else _job(row)

    def find(self, filter: JobFilter, *, before: int | None, limit: int) -> list[Job]:
        where, values = _conditions(filter)
        if before is not None:
            where.append("j.id < ?")
            values.append(before)
        sql = f"{SQL['job']} WHERE {' AND '.join(where or ['1'])} ORDER BY j.id DESC LIMIT ?"
        with self._pool.read() as connection:
            return [_job(row) for row in fetch_all(connection, sql, (*values, limit))]

    def find_ids(self, filter: JobFilter, *, after: int, limit: int) -> list[int]:
        where, values = _conditions(filter)
        where.append("j.id > ?")
        sql = f"{SQL['job']} WHERE {' AND '.join(where)} ORDER BY j.id LIMIT ?"
        with self._pool.read() as connection:
            return [row[0] for row in fetch_all(connection, sql, (*values, after, limit))]

    def events(self, *, after: int, limit: int, job_id: int | None = None) -> list[JobEvent]:
        name = "events" if job_id is None else "events_of_job"
        values = (after, limit) if job_id is None else (after, limit, job_id)
        with self._pool.read() as connection:
            rows = fetch_all(connection, SQL[name], values)
        return [
            JobEvent(id, job, Kind(kind), at, attempt, {} if data is None else _data.decode(data))
            for id, job, kind, at, attempt, data in rows
        ]

    def stats(self, *, now: Micros) -> list[QueueStats]:
        found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        with self._pool.read() as connection:
            for queue, state, jobs in connection.execute(SQL["counts"]):
                found[queue][State(state).name.lower()] = jobs
            for name, *limits in fetch_all(connection, SQL["all_queues"]):
                found[name]["limits"] = _limits(*limits)
            for queue in [name for name, counts in found.items() if counts.get("pending")]:
                oldest = fetch_one(connection, SQL["oldest_ready"], (queue,))
                if oldest is not None:
                    age = seconds(max(0, now - oldest[0]))
                    found[queue]["oldest_pending_seconds"] = age
        return [QueueStats(queue, **found[queue]) for queue in sorted(found)]

    def limits(self, queue: str) -> QueueLimits:
        with self._pool.read() as connection:
            row = fetch_one(connection, SQL["queue"], (queue,))
        return QueueLimits() if row is None else _limits(*row[:4])

    def look(self, queues: Sequence[str], *, now: Micros) -> bool:
        return bool(self._pool.fetch(SQL["look"], (json.dumps(list(queues)), now))[0][0])

    def next_at(self) -> Micros | None:
        at: Micros | None = self._pool.fetch(SQL["next_at"])[0][0]
        return at

    def cancelling(self, instance: Instance) -> list[int]:
        return [row[0] for row in self._pool.fetch(SQL["cancelling"], (instance.id,))]

    def has_lost(self) -> bool:
        with self._pool.read() as connection:
            return bool(lost_instances(connection, self._leasing))

    def workers(self) -> list[Worker]:
        with self._pool.read() as connection:
            rows = fetch_all(connection, SQL["workers"])
        return [
            Worker(instance, name, _queues.decode(queues), started_at, seen_at, running)
            for instance, name, boot, until, queues, started_at, seen_at, running in rows
            if not is_lost(instance, boot, until, self._leasing)
        ]

    def parents(self, id: int) -> list[int]:
        with self._pool.read() as connection:
            return [row[0] for row in fetch_all(connection, SQL["parents"], (id,))]


def _conditions(filter: JobFilter) -> tuple[list[str], list[Any]]:
    where: list[str] = []
    values: list[Any] = []
    for column in ("queue", "type", "unique_key", "schedule"):
        value = getattr(filter, column)
        if value is not None:
            where.append(f"j.{column} = ?")
            values.append(value)
    if filter.created_after is not None:
        where.append("j.created_at >= ?")
        values.append(filter.created_after)
    if filter.created_before is not None:
        where.append("j.created_at < ?")
        values.append(filter.created_before)
    if filter.error is not None:
        where.append("instr(j.failure, CAST(? AS BLOB)) > 0")
        values.append(filter.error)
    if filter.states:
        where.append(f"({' OR '.join(_state_condition(state) for state in filter.states)})")
        if BAD.issuperset(filter.states):
            # By the index of those that ended badly, not through all that went well.
            states = ", ".join(str(int(state)) for state in filter.states)
            where.append(
                "j.id IN (SELECT job_id FROM penstock_job_finished"
                f" WHERE state > 5 AND state IN ({states}))"
            )
    return where, values


def _state_condition(state: State) -> str:
    if state.is_final:
        return f"f.state = {int(state)}"
    table = {
        State.PENDING: "r.job_id",
        State.SCHEDULED: "s.job_id",
        State.WAITING: "w.job_id",
        State.PROCESSING: "c.job_id",
    }[state]
    return f"{table} IS NOT NULL"


def _job(row: tuple[Any, ...]) -> Job:
    id, queue, type, priority, created_at, attempts, max_attempts, crashes = row[:8]
    body, encoding, run_at, deadline, timeout, unique_key, schedule, failure = row[8:16]
    ready, scheduled, waiting = row[16:19]
    attempt, claimed_at, started_at, _, progress, is_cancelling = row[19:25]
    final, finished_at, final_attempt, final_started_at, result, result_encoding = row[25:31]
    state = state_of(ready, scheduled, waiting, claimed_at is not None, final)
    return Job(
        id=id,
        queue=queue,
        type=type,
        state=state,
        priority=priority,
        created_at=created_at,
        attempts=_attempts(attempts, attempt if started_at else None, final_attempt),
        max_attempts=max_attempts,
        crashes=crashes,
        body=body,
        encoding=encoding,
        run_at=run_at,
        deadline=deadline,
        timeout=timeout,
        unique_key=unique_key,
        schedule=schedule,
        claimed_at=claimed_at,
        started_at=started_at or final_started_at,
        finished_at=finished_at,
        worker=row[32] if claimed_at is not None else None,
        progress=None if progress is None else _progress.decode(progress),
        failure=None if failure is None else _failure.decode(failure),
        raw_result=result,
        result_encoding=result_encoding or 0,
        is_cancelling=bool(is_cancelling),
    )


def _attempts(stored: int, running: int | None, final: int | None) -> int:
    return max(stored, running or 0, final or 0)


def _limits(
    paused_at: Micros | None,
    concurrency_max: int | None,
    rate_max: int | None,
    rate_seconds: float,
) -> QueueLimits:
    return QueueLimits(concurrency_max, rate_max, rate_seconds, paused_at is not None)
