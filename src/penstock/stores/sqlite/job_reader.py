"""Jobs in SQLite, the reading side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import apsw
import msgspec

from penstock.clock import Micros, micros, seconds
from penstock.job import (
    Failure,
    Job,
    JobEvent,
    JobFilter,
    Kind,
    Progress,
    QueueLimits,
    QueueStats,
    Ran,
    State,
    Worker,
)
from penstock.model import Instance
from penstock.stores.sqlite.connection import ReaderPool, as_json, fetch_all, fetch_one, fetch_value
from penstock.stores.sqlite.job_hands import RATE_STEPS, is_lost, lost_instances
from penstock.stores.sqlite.job_rows import SQL, as_array, state_of
from penstock.stores.sqlite.lane import Lane
from penstock.stores.sqlite.liveness import Leasing

_failure = msgspec.json.Decoder(Failure)
_progress = msgspec.json.Decoder(Progress)
_data = msgspec.json.Decoder(dict[str, Any])
_queues = msgspec.json.Decoder(dict[str, int])
_types = msgspec.json.Decoder(tuple[str, ...])

FEW = 10_000
"""Up to so many jobs in the states asked for are gone through by themselves; more of them are
soon met on the way through all jobs."""

JOB = f"{SQL['job']} {SQL['job_tables']} {SQL['job_worker']}"
JOB_IDS = f"SELECT j.id {SQL['job_tables']}"

# `coalesce` keeps SQLite from beginning with these tables, and sorting all they have, where the
# newest jobs are asked for: the way through all jobs has them in order.
# The words of the index of those that ended badly, so that it is taken.
_BAD = "SELECT job_id FROM penstock_job_finished WHERE state > 5"
_TABLES = {
    State.PENDING: ("coalesce(r.job_id, 0) > 0", "SELECT job_id FROM penstock_job_ready"),
    State.SCHEDULED: ("coalesce(s.job_id, 0) > 0", "SELECT job_id FROM penstock_job_scheduled"),
    State.WAITING: ("coalesce(w.job_id, 0) > 0", "SELECT job_id FROM penstock_job_waiting"),
    State.PROCESSING: ("coalesce(c.job_id, 0) > 0", "SELECT job_id FROM penstock_job_claims"),
    State.FAILED: ("coalesce(f.state, 0) = 6", f"{_BAD} AND state = 6"),
    State.CANCELLED: ("coalesce(f.state, 0) = 7", f"{_BAD} AND state = 7"),
    State.COMPLETED: ("coalesce(f.state, 0) = 5", None),
}


class SqliteJobReader:
    """`now` is the wall clock, by which results expire."""

    def __init__(
        self, pool: ReaderPool, lane: Lane, leasing: Leasing, now: Callable[[], Micros]
    ) -> None:
        self._pool = pool
        self._lane = lane
        self._leasing = leasing
        self._now = now

    def get(self, id: int) -> Job | None:
        with self._pool.read() as connection:
            row = fetch_one(connection, f"{JOB} WHERE j.id = ?", (id,))
        return None if row is None else _job(row, self._now())

    def find(self, filter: JobFilter, *, before: int | None, limit: int) -> list[Job]:
        with self._pool.read() as connection:
            where, values = _conditions(connection, filter)
            if before is not None:
                where.append("j.id < ?")
                values.append(before)
            sql = f"{JOB} WHERE {' AND '.join(where or ['1'])} ORDER BY j.id DESC LIMIT ?"
            rows = fetch_all(connection, sql, (*values, limit))
        now = self._now()
        return [_job(row, now) for row in rows]

    def find_ids(self, filter: JobFilter, *, after: int, limit: int) -> list[int]:
        with self._pool.read() as connection:
            where, values = _conditions(connection, filter)
            where.append("j.id > ?")
            sql = f"{JOB_IDS} WHERE {' AND '.join(where)} ORDER BY j.id LIMIT ?"
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
                if oldest[0] is not None:
                    age = seconds(max(0, now - oldest[0]))
                    found[queue]["oldest_pending_seconds"] = age
        return [QueueStats(queue, **found[queue]) for queue in sorted(found)]

    def limits(self, queue: str) -> QueueLimits:
        with self._pool.read() as connection:
            row = fetch_one(connection, SQL["queue"], (queue,))
        return QueueLimits() if row is None else _limits(*row)

    def look(self, queues: Sequence[str], *, now: Micros) -> bool:
        values = (_names(tuple(queues)), now, self._leasing.now())
        return bool(self._lane.fetch(SQL["look"], values)[0][0])

    def free_in(self, queues: Sequence[str]) -> Micros | None:
        now = self._leasing.now()
        until = self._pool.fetch(SQL["rate_free_at"], (as_json(queues), now))[0][0]
        return None if until is None else until - now

    def next_at(self) -> Micros | None:
        at: Micros | None = self._pool.fetch(SQL["next_at"])[0][0]
        return at

    def held(self, instance: Instance) -> dict[int, int]:
        return dict(self._pool.fetch(SQL["held"], (instance.id,)))

    def cancelling(self, instance: Instance) -> list[int]:
        return [row[0] for row in self._pool.fetch(SQL["cancelling"], (instance.id,))]

    def has_lost(self) -> bool:
        with self._pool.read() as connection:
            return bool(lost_instances(connection, self._leasing))

    def workers(self) -> list[Worker]:
        with self._pool.read() as connection:
            rows = fetch_all(connection, SQL["workers"])
        return [
            Worker(
                instance,
                name,
                _queues.decode(queues),
                started_at,
                seen_at,
                running,
                _types.decode(types),
            )
            for instance, name, boot, until, queues, started_at, seen_at, running, types in rows
            if not is_lost(instance, boot, until, self._leasing)
        ]

    def finished(self, ids: Sequence[int]) -> set[int]:
        if not ids:
            return set()
        with self._pool.read() as connection:
            rows = fetch_all(connection, SQL["unfinished"], (as_array(ids),))
        return set(ids) - {row[0] for row in rows}

    def ahead(self, id: int, *, limit: int) -> int:
        with self._pool.read() as connection:
            row = fetch_one(connection, SQL["queue_and_priority"], (id,))
            if row is None:
                return 0
            return int(fetch_value(connection, SQL["ahead"], (*row, id, limit)))

    def rate_wait(self, queue: str) -> Micros:
        limits = self.limits(queue)
        if limits.rate_max is None:
            return 0
        now = self._leasing.now()
        with self._pool.read() as connection:
            rows = fetch_all(connection, SQL["rate_spent"], (queue, now))
        # As claims count: what would count for longer than it can is of before a reboot.
        longest = now + micros(limits.rate_seconds * (1 + 1 / RATE_STEPS))
        counted = [(until, jobs) for until, jobs in rows if until <= longest]
        left = sum(jobs for _, jobs in counted)
        for until, jobs in counted:
            if left < limits.rate_max:
                return 0
            left -= jobs
            if left < limits.rate_max:
                return int(until - now)
        return 0

    def recent_runs(self, *, since: Micros, limit: int) -> tuple[list[Ran], Micros]:
        with self._pool.read() as connection:
            after = fetch_value(connection, SQL["last_event"]) - limit
            first = fetch_one(connection, SQL["event_time"], (after,))
            rows = fetch_all(connection, SQL["recent_runs"], (after, since))
        runs = [Ran(queue, at, started_at or at, ready) for queue, at, started_at, ready in rows]
        return runs, since if first is None or after <= 0 else max(since, first[0])

    def parents(self, id: int) -> list[int]:
        with self._pool.read() as connection:
            return [row[0] for row in fetch_all(connection, SQL["parents"], (id,))]


@lru_cache
def _names(queues: tuple[str, ...]) -> str:
    """As a parameter. The same few are asked for after each commit."""
    return as_json(queues)


def _conditions(connection: apsw.Connection, filter: JobFilter) -> tuple[list[str], list[Any]]:
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
        text = "CAST(j.failure AS TEXT)"
        where.append(f"(instr({text} ->> 'error', ?) OR instr({text} ->> 'message', ?))")
        values += [filter.error, filter.error]
    if filter.states:
        where.append(f"({' OR '.join(_TABLES[state][0] for state in filter.states)})")
        tables = [_TABLES[state][1] for state in filter.states]
        if None not in tables:
            states = (as_json(filter.states), filter.queue)
            if fetch_value(connection, SQL["count_in_states"], states) <= FEW:
                where.append(f"j.id IN ({' UNION ALL '.join(map(str, tables))})")
    return where, values


def _job(row: tuple[Any, ...], now: Micros) -> Job:
    id, queue, type, priority, created_at, attempts, max_attempts, crashes = row[:8]
    body, encoding, run_at, deadline, timeout, unique_key, schedule, failure = row[8:16]
    ready, scheduled, waiting = row[16:19]
    attempt, claimed_at, started_at, _, progress, is_cancelling = row[19:25]
    final, finished_at, final_attempt, final_started_at, result, result_encoding = row[25:31]
    if row[31] is not None and row[31] <= now:
        result = result_encoding = None
    state = state_of(ready, scheduled, waiting, claimed_at is not None, final)
    return Job(
        id=id,
        queue=queue,
        type=type,
        state=state,
        priority=priority,
        created_at=created_at,
        attempts=max(attempts, (attempt or 0) if started_at else 0, final_attempt or 0),
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


def _limits(
    paused_at: Micros | None,
    concurrency_max: int | None,
    rate_max: int | None,
    rate_seconds: float,
) -> QueueLimits:
    return QueueLimits(concurrency_max, rate_max, rate_seconds, paused_at is not None)
