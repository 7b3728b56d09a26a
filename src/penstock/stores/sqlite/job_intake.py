"""Jobs on their way in: unique keys, what they wait for, when they are due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.clock import Micros
from penstock.errors import JobExists, JobNotFound
from penstock.job import Enqueued, Kind, NewJob, State
from penstock.stores.sqlite.connection import fetch_one, fetch_value
from penstock.stores.sqlite.job_rows import SQL, JobRows, Place

ROWS_MAX = 64

_INSERTS = {
    size: f"{SQL['insert_jobs']} {', '.join([SQL['job_row']] * size)}"
    for size in (2**power for power in range(ROWS_MAX.bit_length()))
}

_OPEN = (State.PENDING, State.SCHEDULED, State.WAITING)


class JobIntake(JobRows):
    def enqueue(self, jobs: Sequence[NewJob], *, now: Micros) -> list[Enqueued]:
        added: list[Enqueued] = []
        plain: list[NewJob] = []
        for job in jobs:
            if job.is_plain:
                plain.append(job)
            else:
                added += self._enqueue_plain(plain, now)
                plain = []
                added.append(self._enqueue_special(job, now))
        added += self._enqueue_plain(plain, now)
        return added

    def _enqueue_plain(self, jobs: list[NewJob], now: Micros) -> list[Enqueued]:
        if not jobs:
            return []
        start, size = 0, ROWS_MAX
        while start < len(jobs):
            while size > len(jobs) - start:
                size //= 2
            values: list[Any] = []
            for job in jobs[start : start + size]:
                values += _values(job, now)
            self._connection.execute(_INSERTS[size], values)
            start += size
        last = self._connection.last_insert_rowid()
        first = last - len(jobs) + 1
        self._connection.execute(SQL["ready_range"], (first, last))
        self._connection.execute(SQL["enqueued_range"], (first, last, now))
        for queue, count in Counter([job.queue for job in jobs]).items():
            self._move(queue, None, State.PENDING, count)
        self.made_ready = True
        return [Enqueued(number, State.PENDING) for number in range(first, last + 1)]

    def _enqueue_special(self, job: NewJob, now: Micros) -> Enqueued:
        if job.unique_key is not None:
            found = self._meet(job, job.unique_key, now)
            if found is not None:
                return found
        # Before anything is written: an unknown one raises.
        open_parents, failed_parent = self._parents(job)
        values = (*_values(job, now), job.run_at, job.unique_key)
        number = int(fetch_value(self._connection, SQL["insert_special_job"], values))
        if job.unique_key is not None:
            self._take_key(number, job.unique_key, job, now)
        data = _expected(job.run_at, now, is_waiting=bool(open_parents))
        self._event(number, Kind.ENQUEUED, now, data=data)
        if failed_parent is not None:
            reason = {"reason": f"job {failed_parent} did not complete"}
            self._event(number, Kind.CANCELLED, now, data=reason)
            self._finish(number, job.queue, None, State.CANCELLED, 0, now)
            return Enqueued(number, State.CANCELLED)
        if not open_parents:
            return Enqueued(number, self._admit(number, job.queue, None, job.run_at, now))
        for parent in open_parents:
            self._connection.execute(SQL["add_edge"], (parent, number))
        values = (number, len(open_parents), job.on_parent_failure)
        self._connection.execute(SQL["make_waiting"], values)
        self._move(job.queue, None, State.WAITING)
        return Enqueued(number, State.WAITING)

    def _parents(self, job: NewJob) -> tuple[list[int], int | None]:
        """Those to wait for, and one for whose failure the job is cancelled."""
        still_open: list[int] = []
        failed: int | None = None
        for parent in dict.fromkeys(job.after):
            place = self._place(parent)
            if place is None:
                raise JobNotFound(f"There is no job {parent} to run after.")
            if not place.state.is_final:
                still_open.append(parent)
            elif place.state != State.COMPLETED and job.on_parent_failure == "cancel":
                failed = failed or parent
        return still_open, failed

    def _meet(self, job: NewJob, key: str, now: Micros) -> Enqueued | None:
        """What happens if another job has the key. None: nobody has it."""
        row = fetch_one(self._connection, SQL["key_holder"], (key,))
        if row is None or (row[1] is not None and row[1] <= now):
            return None
        number = row[0]
        place = self._place(number)
        assert place is not None, "a job with a taken key is not pruned"
        if job.on_conflict == "return":
            return Enqueued(number, place.state, duplicate=True)
        is_open = place.state in _OPEN
        if job.on_conflict == "reject" or not is_open or place.queue != job.queue:
            raise JobExists(
                f"The job {number} has the unique key {key!r} and is {place.state.name.lower()}.",
                job_id=number,
            )
        state = self._replace(number, job, place, now)
        self._take_key(number, key, job, now)
        return Enqueued(number, state, duplicate=True)

    def _replace(self, number: int, job: NewJob, place: Place, now: Micros) -> State:
        if place.state != State.WAITING:
            self._leave(number, place.state)
        run_at = job.run_at
        if job.on_conflict == "debounce":
            run_at = max((at for at in (place.run_at, run_at) if at is not None), default=None)
            values: tuple[Any, ...] = (number, job.encoding, job.body, run_at)
            self._connection.execute(SQL["debounce_job"], values)
        else:
            values = (
                *(number, job.type, job.priority, job.max_attempts, job.deadline, job.timeout),
                *(job.schedule, job.encoding, job.body, run_at),
            )
            self._connection.execute(SQL["replace_job"], values)
        data = _expected(run_at, now, is_waiting=place.state == State.WAITING)
        self._event(number, Kind.REPLACED, now, data=data)
        if place.state == State.WAITING:
            self._move(place.queue, State.WAITING, State.WAITING)
            return State.WAITING
        return self._admit(number, place.queue, place.state, run_at, now)

    def _take_key(self, number: int, key: str, job: NewJob, now: Micros) -> None:
        until = None if job.unique_for is None else now + job.unique_for
        self._connection.execute(SQL["take_key"], (key, number, until))


def _expected(run_at: Micros | None, now: Micros, *, is_waiting: bool) -> dict[str, Any]:
    """What its history must tell, so that how long a job was kept waiting can be known."""
    data: dict[str, Any] = {}
    if run_at is not None and run_at > now:
        data["run_at"] = run_at
    if is_waiting:
        data["waiting"] = True
    return data


def _values(job: NewJob, now: Micros) -> tuple[Any, ...]:
    # One tuple, and not several put together: this is done for each job.
    return (
        job.queue,
        job.type,
        job.priority,
        now,
        job.max_attempts,
        job.deadline,
        job.timeout,
        job.schedule,
        job.encoding,
        job.body,
    )
