"""Jobs in SQLite, the writing side: every change of a job's state is a method here.

A job is in exactly one of the tables ready, scheduled, waiting, claims and finished. BEGIN
IMMEDIATE admits one writer, so a look followed by a change is one step.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import apsw
import msgspec

from penstock.clock import SECOND, Micros, micros
from penstock.errors import JobExists, JobNotFound
from penstock.job import (
    Answer,
    Claim,
    Enqueued,
    Failure,
    Kind,
    NewJob,
    Progress,
    QueueLimits,
    Setback,
    State,
    Worker,
)
from penstock.model import Instance
from penstock.stores import queries
from penstock.stores.sqlite.connection import fetch_all, fetch_one, fetch_value
from penstock.stores.sqlite.leases import NEXT_TOKEN, is_alive
from penstock.stores.sqlite.liveness import Leasing

SQL = queries.load("penstock.stores.sqlite", "jobs.sql")

STAGE_MAX = 1_000
"""Scheduled jobs that one claim makes ready."""
ROWS_MAX = 64
BACKOFF_SECONDS_MAX = 3_600
CRASHED = Failure("WorkerLost", "The worker ended, or stopped answering, while it had the job.")
LATE = Failure("DeadlinePassed", "The deadline passed before a worker was free.")

_INSERTS = {
    size: f"{SQL['insert_jobs']} {', '.join([SQL['job_row']] * size)}"
    for size in (2**power for power in range(ROWS_MAX.bit_length()))
}


class SqliteJobWriter:
    """Counts are collected per transaction and written at its end."""

    def __init__(self, connection: apsw.Connection, leasing: Leasing) -> None:
        self._connection = connection
        self._leasing = leasing
        self._prune_after = 0
        self.begin()

    # The transaction's own life, called by its owner

    def begin(self) -> None:
        self._counted: Counter[tuple[str, State]] = Counter()
        self.made_ready = False

    def flush(self) -> None:
        for (queue, state), jobs in self._counted.items():
            if jobs:
                self._connection.execute(SQL["count_jobs"], (queue, state, jobs))

    def mark(self) -> tuple[Any, ...]:
        return self._counted.copy(), self.made_ready

    def return_to(self, mark: tuple[Any, ...]) -> None:
        self._counted, self.made_ready = mark

    # In

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
        for job in jobs:
            self._counted[job.queue, State.PENDING] += 1
        self.made_ready = True
        return [Enqueued(number, State.PENDING) for number in range(first, last + 1)]

    def _enqueue_special(self, job: NewJob, now: Micros) -> Enqueued:
        if job.unique_key is not None:
            found = self._meet(job, job.unique_key, now)
            if found is not None:
                return found
        values = (*_values(job, now), job.run_at, job.unique_key)
        number = int(fetch_value(self._connection, SQL["insert_special_job"], values))
        if job.unique_key is not None:
            until = None if job.unique_for is None else now + job.unique_for
            self._connection.execute(SQL["take_key"], (job.unique_key, number, until))
        self._event(number, Kind.ENQUEUED, now)
        return Enqueued(number, self._place_new(number, job, now))

    def _place_new(self, number: int, job: NewJob, now: Micros) -> State:
        open_parents = 0
        for parent in dict.fromkeys(job.after):
            place = self._place(parent)
            if place is None:
                raise JobNotFound(f"There is no job {parent} to run after.")
            state = place[1]
            if state == State.COMPLETED or (state.is_final and job.on_parent_failure == "run"):
                continue
            if state.is_final:
                self._finish(number, State.CANCELLED, job.queue, 0, now)
                self._event(number, Kind.CANCELLED, now, data={"reason": f"job {parent} failed"})
                return State.CANCELLED
            self._connection.execute(SQL["add_edge"], (parent, number))
            open_parents += 1
        if open_parents:
            values = (number, open_parents, job.on_parent_failure)
            self._connection.execute(SQL["make_waiting"], values)
            self._counted[job.queue, State.WAITING] += 1
            return State.WAITING
        return self._admit(number, job.queue, job.run_at, now)

    def _meet(self, job: NewJob, key: str, now: Micros) -> Enqueued | None:
        """What happens if another job has the key. None: nobody has it."""
        row = fetch_one(self._connection, SQL["key_holder"], (key,))
        if row is None:
            return None
        number, until = row
        place = self._place(number)
        if place is None or (until is not None and until <= now):
            return None
        queue, state = place[:2]
        if job.on_conflict == "return":
            return Enqueued(number, state, duplicate=True)
        is_open = state in (State.PENDING, State.SCHEDULED, State.WAITING)
        if job.on_conflict == "reject" or not is_open or queue != job.queue:
            raise JobExists(
                f"The job {number} has the unique key {key!r} and is {state.name.lower()}.",
                job_id=number,
            )
        self._replace(number, job, queue, state, now)
        return Enqueued(number, self._state(number), duplicate=True)

    def _replace(self, number: int, job: NewJob, queue: str, state: State, now: Micros) -> None:
        if state == State.WAITING:
            run_at = job.run_at
        else:
            self._leave(number, queue, state)
            run_at = job.run_at
        values = (
            *(number, job.type, job.priority, job.max_attempts, job.deadline, job.timeout),
            *(job.encoding, job.body, run_at),
        )
        self._connection.execute(SQL["replace_job"], values)
        self._event(number, Kind.REPLACED, now)
        if state != State.WAITING:
            self._admit(number, queue, run_at, now)

    def _admit(self, number: int, queue: str, run_at: Micros | None, now: Micros) -> State:
        """Ready, or scheduled if its time is still to come. `run_at` stands in its row."""
        if run_at is not None and run_at > now:
            self._connection.execute(SQL["make_scheduled"], (number, run_at))
            self._counted[queue, State.SCHEDULED] += 1
            # Workers wait for the next time they know of.
            self.made_ready = True
            return State.SCHEDULED
        self._connection.execute(SQL["make_ready"], (number,))
        self._counted[queue, State.PENDING] += 1
        self.made_ready = True
        return State.PENDING

    # Out to workers

    def claim(self, instance: Instance, wanted: Mapping[str, int], *, now: Micros) -> list[Claim]:
        self._stage(now)
        claims: list[Claim] = []
        token = 0
        for queue, count in wanted.items():
            allowed = self._allowance(queue, count, now)
            if allowed <= 0:
                continue
            rows = fetch_all(self._connection, SQL["next_ready"], (queue, allowed))
            if not rows:
                continue
            self._connection.execute(SQL["leave_ready_through"], (queue, rows[-1][0], rows[-1][1]))
            token = token or int(fetch_value(self._connection, NEXT_TOKEN))
            taken = [self._claim(queue, token, row) for row in rows if not _is_late(row, now)]
            for row in rows:
                if _is_late(row, now):
                    self._expire(queue, row, now)
            self._counted[queue, State.PENDING] -= len(rows)
            self._counted[queue, State.PROCESSING] += len(taken)
            ids = as_array([claim.id for claim in taken])
            self._connection.execute(SQL["claim_many"], (ids, token, instance.id, now))
            self._spend(queue, len(taken), now)
            claims += taken
        return claims

    def _claim(self, queue: str, token: int, row: Sequence[Any]) -> Claim:
        priority, number, type, body, encoding, attempts, max_attempts, crashes = row[:8]
        created_at, deadline, timeout, schedule = row[8:]
        return Claim(
            number,
            token,
            queue,
            type,
            body,
            encoding,
            attempts + 1,
            max_attempts,
            crashes,
            priority,
            created_at,
            deadline,
            timeout,
            schedule,
        )

    def _stage(self, now: Micros) -> None:
        """Jobs whose time has come."""
        rows = fetch_all(self._connection, SQL["due"], (now, STAGE_MAX))
        if not rows:
            return
        self._connection.execute(SQL["leave_scheduled_through"], rows[-1][:2])
        self._connection.execute(SQL["make_many_ready"], (as_array([row[1] for row in rows]),))
        for _, _, queue in rows:
            self._counted[queue, State.SCHEDULED] -= 1
            self._counted[queue, State.PENDING] += 1
        self.made_ready = True

    def _expire(self, queue: str, row: Sequence[Any], now: Micros) -> None:
        number, attempts = row[1], row[5]
        self._set_attempts(number, attempts, 0, LATE)
        self._finish(number, State.FAILED, queue, attempts, now)
        self._event(number, Kind.EXPIRED, now, attempts)
        self._finished([number], now, succeeded=False)

    def _allowance(self, queue: str, count: int, now: Micros) -> int:
        row = fetch_one(self._connection, SQL["queue"], (queue,))
        if row is None:
            return count
        paused_at, concurrency_max, rate_max, rate_seconds, left, at = row
        if paused_at is not None:
            return 0
        if concurrency_max is not None:
            held = fetch_value(self._connection, SQL["claimed_count"], (queue,))
            count = min(count, concurrency_max - held)
        if rate_max is not None:
            count = min(count, int(_refilled(rate_max, rate_seconds, left, at, self._now())))
        return count

    def _spend(self, queue: str, count: int, now: Micros) -> None:
        row = fetch_one(self._connection, SQL["queue"], (queue,))
        if row is not None and row[2] is not None:
            _, _, rate_max, rate_seconds, left, at = row
            monotonic = self._now()
            left = _refilled(rate_max, rate_seconds, left, at, monotonic) - count
            self._connection.execute(SQL["spend_rate"], (queue, left, monotonic))

    def _now(self) -> Micros:
        """For rates: a wall clock that jumps must not give a burst, or none for an hour."""
        return self._leasing.now()

    def start(self, claims: Sequence[Claim], *, now: Micros) -> list[int]:
        started: list[int] = []
        for token, group in _by_token(claims):
            rows = fetch_all(self._connection, SQL["start_many"], (_ids(group), token, now))
            started += [row[0] for row in rows]
        if started:
            self._connection.execute(SQL["started_many"], (as_array(started), now, None))
        return started

    # Back from workers

    def complete(
        self, answers: Sequence[Answer], *, now: Micros, result_until: Micros
    ) -> list[int]:
        held: list[int] = []
        for token, group in _by_token(answers):
            ids = _ids(group)
            self._connection.execute(SQL["finish_many"], (ids, token, now))
            self._connection.execute(SQL["completed_many"], (ids, token, now))
            for number, queue in fetch_all(self._connection, SQL["drop_claims"], (ids, token)):
                held.append(number)
                self._counted[queue, State.PROCESSING] -= 1
                self._counted[queue, State.COMPLETED] += 1
        if not held:
            return held
        kept = set(held)
        for answer in answers:
            if answer.result is not None and answer.id in kept:
                values = (answer.id, answer.result, answer.encoding, result_until)
                self._connection.execute(SQL["keep_result"], values)
        self._finished(held, now, succeeded=True)
        return held

    def set_back(self, setbacks: Sequence[Setback], *, now: Micros) -> list[int]:
        held: list[int] = []
        for setback in setbacks:
            row = fetch_one(self._connection, SQL["drop_claim"], (setback.id, setback.token))
            if row is None:
                continue
            held.append(setback.id)
            queue, attempt, started_at, is_cancelling = row
            self._counted[queue, State.PROCESSING] -= 1
            kind = Kind.CANCELLED if is_cancelling else setback.kind
            self._set_back(setback, kind, queue, attempt, started_at, now)
        return held

    def _set_back(
        self,
        setback: Setback,
        kind: Kind,
        queue: str,
        attempt: int,
        started_at: Micros | None,
        now: Micros,
    ) -> None:
        number = setback.id
        # A snooze is no attempt: the job has not been tried, it was put off.
        burned = attempt - 1 if kind == Kind.SNOOZED else attempt
        self._set_attempts(number, burned, 0, setback.failure)
        data = {} if setback.failure is None else msgspec.to_builtins(setback.failure)
        if setback.retry_at is not None:
            data["retry_at"] = setback.retry_at
        self._event(number, kind, now, attempt, data)
        if kind in (Kind.FAILED, Kind.SNOOZED):
            run_at = now if setback.retry_at is None else setback.retry_at
            self._connection.execute(SQL["set_run_at"], (number, run_at))
            self._admit(number, queue, run_at, now)
            return
        state = State.CANCELLED if kind == Kind.CANCELLED else State.FAILED
        self._finish(number, state, queue, attempt, now, started_at)
        self._finished([number], now, succeeded=False)

    def release(self, claims: Sequence[Claim], *, now: Micros) -> list[int]:
        held: list[int] = []
        for claim in claims:
            row = fetch_one(self._connection, SQL["drop_claim"], (claim.id, claim.token))
            if row is None:
                continue
            held.append(claim.id)
            self._hand_back(claim.id, row[0], row[1], row[2], bool(row[3]), now)
        return held

    def _hand_back(
        self,
        number: int,
        queue: str,
        attempt: int,
        started_at: Micros | None,
        is_cancelling: bool,
        now: Micros,
    ) -> None:
        self._counted[queue, State.PROCESSING] -= 1
        if is_cancelling:
            self._event(number, Kind.CANCELLED, now, attempt)
            self._finish(number, State.CANCELLED, queue, attempt, now, started_at)
            self._finished([number], now, succeeded=False)
            return
        if started_at is not None:
            self._event(number, Kind.RELEASED, now, attempt)
        self._connection.execute(SQL["make_ready"], (number,))
        self._counted[queue, State.PENDING] += 1
        self.made_ready = True

    def report(self, id: int, token: int, progress: Progress, *, now: Micros) -> bool:
        data = msgspec.json.encode(progress)
        row = fetch_one(self._connection, SQL["set_progress"], (id, token, data))
        if row is None:
            return False
        self._connection.execute(SQL["add_event"], (id, Kind.PROGRESS, now, row[0], data))
        return True

    # Workers that come, stay and go

    def enter(self, worker: Worker, *, lease_seconds: float, now: Micros) -> None:
        until = self._leasing.now() + micros(lease_seconds)
        values = (
            *(worker.instance, worker.name, self._leasing.boot_id, until),
            *(msgspec.json.encode(worker.queues), worker.started_at, now),
        )
        self._connection.execute(SQL["enter_worker"], values)

    def leave(self, instance: Instance) -> None:
        self._connection.execute(SQL["leave_worker"], (instance.id,))

    def rescue(self, *, now: Micros, limit: int) -> list[int]:
        rescued: list[int] = []
        for instance in lost_instances(self._connection, self._leasing):
            rows = fetch_all(self._connection, SQL["claims_of"], (instance, limit - len(rescued)))
            for (number,) in rows:
                self._rescue(number, now)
                rescued.append(number)
            if len(rescued) >= limit:
                break
        for row in fetch_all(self._connection, SQL["workers"]):
            if row[7] == 0 and is_lost(row[0], row[2], row[3], self._leasing):
                self._connection.execute(SQL["leave_worker"], (row[0],))
        return rescued

    def _rescue(self, number: int, now: Micros) -> None:
        row = fetch_one(self._connection, SQL["take_claim"], (number,))
        queue, attempt, started_at, is_cancelling, instance = row
        if started_at is None or is_cancelling:
            self._hand_back(number, queue, attempt, started_at, bool(is_cancelling), now)
            return
        self._counted[queue, State.PROCESSING] -= 1
        place = self._place(number)
        assert place is not None
        max_attempts = place[3]
        self._set_attempts(number, attempt, 1, CRASHED)
        if attempt >= max_attempts:
            self._event(number, Kind.DIED, now, attempt, {"instance": instance, **_CRASH})
            self._finish(number, State.FAILED, queue, attempt, now, started_at)
            self._finished([number], now, succeeded=False)
            return
        run_at = now + backoff(attempt)
        data = {"instance": instance, "retry_at": run_at, **_CRASH}
        self._event(number, Kind.RESCUED, now, attempt, data)
        self._connection.execute(SQL["set_run_at"], (number, run_at))
        self._admit(number, queue, run_at, now)

    # By hand

    def cancel(self, ids: Sequence[int], *, reason: str, now: Micros) -> list[int]:
        done: list[int] = []
        for number in ids:
            place = self._place(number)
            if place is None or place[1].is_final:
                continue
            queue, state, attempts, _ = place
            if state == State.PROCESSING:
                row = fetch_one(self._connection, SQL["ask_to_stop"], (number,))
                assert row is not None
                # So that its worker looks.
                self.made_ready = True
            else:
                self._leave(number, queue, state)
                self._event(number, Kind.CANCELLED, now, attempts, {"reason": reason})
                self._finish(number, State.CANCELLED, queue, attempts, now)
                self._finished([number], now, succeeded=False)
            done.append(number)
        return done

    def retry(self, ids: Sequence[int], *, now: Micros) -> list[int]:
        done: list[int] = []
        for number in ids:
            place = self._place(number)
            if place is None:
                continue
            queue, state, _, _ = place
            if state.is_final:
                self._connection.execute(SQL["unfinish"], (number,))
                self._counted[queue, state] -= 1
            elif state == State.SCHEDULED:
                self._leave(number, queue, state)
            else:
                continue
            self._connection.execute(SQL["reset_attempts"], (number,))
            self._event(number, Kind.RETRIED, now)
            self._admit(number, queue, None, now)
            done.append(number)
        return done

    def set_priority(self, id: int, priority: int) -> bool:
        place = self._place(id)
        if place is None or place[1] not in (State.PENDING, State.SCHEDULED, State.WAITING):
            return False
        if place[1] == State.PENDING:
            self._connection.execute(SQL["leave_ready"], (id,))
        self._connection.execute(SQL["set_priority"], (id, priority))
        if place[1] == State.PENDING:
            self._connection.execute(SQL["make_ready"], (id,))
        return True

    def set_limits(self, queue: str, limits: QueueLimits, *, now: Micros) -> None:
        left = float(limits.rate_max or 0)
        values = (
            *(queue, now if limits.is_paused else None, limits.concurrency_max, limits.rate_max),
            *(limits.rate_seconds, left, self._now()),
        )
        self._connection.execute(SQL["put_queue"], values)
        self.made_ready = True

    def prune(self, *, before: Mapping[int, Micros], events_before: Micros, limit: int) -> int:
        """Goes round by id, a few at a time: no index by time is needed, which every completed
        job would pay for."""
        rows = fetch_all(self._connection, SQL["prunable"], (self._prune_after, limit))
        self._prune_after = rows[-1][0] if len(rows) == limit else 0
        doomed = [row[0] for row in rows if row[2] < before.get(row[1], 0)]
        if not doomed:
            return 0
        states = {row[0]: State(row[1]) for row in rows}
        ids = as_array(doomed)
        queues = fetch_all(self._connection, SQL["remove_jobs"], (ids,))
        for name in ("remove_finished", "remove_events", "remove_keys", "remove_edges"):
            self._connection.execute(SQL[name], (ids,))
        for number, (queue,) in zip(sorted(doomed), queues, strict=True):
            self._counted[queue, states[number]] -= 1
        return len(doomed)

    # Inside

    def _place(self, number: int) -> tuple[str, State, int, int] | None:
        """Its queue, state, attempts and most attempts."""
        row = fetch_one(self._connection, SQL["place"], (number,))
        if row is None:
            return None
        return row[0], state_of(*row[3:]), row[1], row[2]

    def _state(self, number: int) -> State:
        place = self._place(number)
        assert place is not None
        return place[1]

    def _leave(self, number: int, queue: str, state: State) -> None:
        """Out of where it waits."""
        name = {
            State.PENDING: "leave_ready",
            State.SCHEDULED: "leave_scheduled",
            State.WAITING: "leave_waiting",
        }[state]
        row = fetch_one(self._connection, SQL[name], (number,))
        assert row is not None
        if state == State.WAITING:
            self._connection.execute(SQL["forget_edges"], (number,))
        self._counted[queue, state] -= 1

    def _finish(
        self,
        number: int,
        state: State,
        queue: str,
        attempt: int,
        now: Micros,
        started_at: Micros | None = None,
    ) -> None:
        self._connection.execute(SQL["finish"], (number, state, now, attempt, started_at))
        self._counted[queue, state] += 1

    def _finished(self, ids: list[int], now: Micros, *, succeeded: bool) -> None:
        """Free their keys, and tell those who waited for them."""
        numbers = as_array(ids)
        self._connection.execute(SQL["free_keys"], (numbers, now))
        for parent, child, policy in fetch_all(self._connection, SQL["children"], (numbers,)):
            self._connection.execute(SQL["cut_edge"], (parent, child))
            place = self._place(child)
            if place is None or place[1] != State.WAITING:
                continue
            queue, state, attempts, _ = place
            if not succeeded and policy == "cancel":
                self._leave(child, queue, state)
                reason = {"reason": f"job {parent} did not complete"}
                self._event(child, Kind.CANCELLED, now, attempts, reason)
                self._finish(child, State.CANCELLED, queue, attempts, now)
                self._finished([child], now, succeeded=False)
                continue
            left = fetch_value(self._connection, SQL["count_parent"], (child,))
            if left == 0:
                self._leave(child, queue, state)
                run_at = fetch_value(
                    self._connection, "SELECT run_at FROM penstock_jobs WHERE id = ?", (child,)
                )
                self._admit(child, queue, run_at, now)

    def _set_attempts(
        self, number: int, attempts: int, crashes: int, failure: Failure | None
    ) -> None:
        data = None if failure is None else msgspec.json.encode(failure)
        self._connection.execute(SQL["set_attempts"], (number, attempts, crashes, data))

    def _event(
        self,
        number: int,
        kind: Kind,
        now: Micros,
        attempt: int = 0,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        encoded = msgspec.json.encode(data) if data else None
        self._connection.execute(SQL["add_event"], (number, kind, now, attempt, encoded))


_CRASH = msgspec.to_builtins(CRASHED)


def backoff(attempt: int) -> Micros:
    """The pause before trying again after a crash: the square of the attempt, in seconds."""
    return min(BACKOFF_SECONDS_MAX, attempt * attempt) * SECOND


def state_of(ready: int, scheduled: int, waiting: int, claimed: int, finished: int | None) -> State:
    """By the one table that has it."""
    if finished is not None:
        return State(finished)
    if claimed:
        return State.PROCESSING
    if ready:
        return State.PENDING
    if scheduled:
        return State.SCHEDULED
    assert waiting, "a job is in one of the tables"
    return State.WAITING


def lost_instances(connection: apsw.Connection, leasing: Leasing) -> list[int]:
    """Processes that have jobs in hand and are gone, or have not renewed their lease."""
    return [
        instance
        for instance, boot, until in fetch_all(connection, SQL["claim_instances"])
        if is_lost(instance, boot, until, leasing)
    ]


def is_lost(instance: int, boot: str | None, until: Micros | None, leasing: Leasing) -> bool:
    if boot is None or until is None:
        return not leasing.liveness.is_alive(instance)
    return not is_alive(instance, boot, leasing) or until <= leasing.now()


def _is_late(row: Sequence[Any], now: Micros) -> bool:
    return row[9] is not None and row[9] <= now


def _values(job: NewJob, now: Micros) -> tuple[Any, ...]:
    return (
        *(job.queue, job.type, job.priority, now, job.max_attempts, job.deadline, job.timeout),
        *(job.schedule, job.encoding, job.body),
    )


def _refilled(rate_max: int, rate_seconds: float, left: float, at: Micros, now: Micros) -> float:
    passed = max(0, now - at) / SECOND
    return min(float(rate_max), left + passed * rate_max / rate_seconds)


def _by_token(items: Sequence[Claim] | Sequence[Answer]) -> Iterable[tuple[int, list[Any]]]:
    groups: defaultdict[int, list[Any]] = defaultdict(list)
    for item in items:
        groups[item.token].append(item)
    return groups.items()


def _ids(items: Sequence[Any]) -> Any:
    return as_array([item.id for item in items])


def as_array(ids: Sequence[int]) -> Any:
    """For `IN carray(?)`: a third faster than JSON."""
    return apsw.carray(array("q", ids))
