"""Jobs in workers' hands: out to them, back from them, and out of the hands of the dead."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import apsw
import msgspec

from penstock.clock import SECOND, Micros, micros
from penstock.job import (
    Answer,
    Claim,
    Failure,
    Kind,
    Progress,
    Setback,
    State,
    Worker,
)
from penstock.model import Instance
from penstock.stores.sqlite.connection import fetch_all, fetch_one, fetch_value
from penstock.stores.sqlite.job_rows import SQL, JobRows
from penstock.stores.sqlite.leases import NEXT_TOKEN, is_alive
from penstock.stores.sqlite.liveness import Leasing

STAGE_MAX = 1_000
"""Scheduled jobs that one claim makes ready."""
LATE_MAX = 1_000
"""Jobs past their deadline that one claim gets out of the way."""
RATE_STEPS = 64
"""Into so many pieces the time of a rate is cut: what is handed out counts for at most one piece
longer than it must, and a queue needs no more rows than that."""
BACKOFF_SECONDS_MAX = 3_600
NOBODY = 0
"""The number that no process has. After a restore, the claims in the backup are in its hands."""
CRASHED = Failure("WorkerLost", "The worker ended, or stopped answering, while it had the job.")
LATE = Failure("DeadlinePassed", "The deadline passed before a worker was free.")

_CRASH = msgspec.to_builtins(CRASHED)


class JobHands(JobRows):
    # Out

    def claim(
        self,
        instance: Instance,
        wanted: Mapping[str, int],
        *,
        now: Micros,
        begins: Callable[[Claim], bool] | None = None,
    ) -> list[Claim]:
        until, is_due = fetch_one(self._connection, SQL["lease_and_due"], (instance.id, now))
        if until is not None and until <= self._leasing.now():
            return []
        if is_due:
            self._stage(now)
        claims: list[Claim] = []
        token = 0
        for queue, count in wanted.items():
            rows = self._take_ready(queue, count, now)
            if not rows:
                continue
            token = token or int(fetch_value(self._connection, NEXT_TOKEN))
            taken = [_claim(queue, token, row) for row in rows]
            self._hand_out(taken, instance, now, begins)
            self._move(queue, State.PENDING, State.PROCESSING, len(rows))
            claims += taken
        return claims

    def _hand_out(
        self,
        claims: list[Claim],
        instance: Instance,
        now: Micros,
        begins: Callable[[Claim], bool] | None,
    ) -> None:
        token = claims[0].token
        begun: list[int] = []
        waiting: list[int] = []
        for claim in claims:
            (begun if begins is not None and begins(claim) else waiting).append(claim.id)
        if waiting:
            self._for(waiting, "claim_many", token, instance.id, now, None)
        if begun:
            self._for(begun, "claim_many", token, instance.id, now, now)
            self._for(begun, "begun_many", now)

    def _take_ready(self, queue: str, count: int, now: Micros) -> list[Any]:
        """Up to so many as the limits allow, without those that are too late."""
        limits = fetch_one(self._connection, SQL["queue"], (queue,))
        rate = None
        if limits is not None:
            paused_at, concurrency_max, rate_max, rate_seconds = limits
            if paused_at is not None:
                return []
            if concurrency_max is not None:
                held = fetch_value(self._connection, SQL["claimed_count"], (queue,))
                count = min(count, concurrency_max - held)
            if rate_max is not None:
                rate = micros(rate_seconds)
                count = min(count, rate_max - self._spent(queue, rate))
        taken: list[Any] = []
        late = 0
        while count > len(taken) and late < LATE_MAX:
            rows = fetch_all(self._connection, SQL["next_ready"], (queue, count - len(taken)))
            if not rows:
                break
            self._connection.execute(SQL["leave_ready_through"], (queue, *rows[-1][:2]))
            in_time = [row for row in rows if row[9] is None or row[9] > now]
            taken += in_time
            if len(in_time) == len(rows):
                break
            late += len(rows) - len(in_time)
            for row in rows:
                if row[9] is not None and row[9] <= now:
                    self._expire(queue, row[1], row[5], now)
        if rate is not None and taken:
            self._spend(queue, len(taken), rate)
        return taken

    def _stage(self, now: Micros) -> None:
        """Jobs whose time has come."""
        rows = fetch_all(self._connection, SQL["due"], (now, STAGE_MAX))
        if not rows:
            return
        self._connection.execute(SQL["leave_scheduled_through"], rows[-1][:2])
        self._for([row[1] for row in rows], "make_many_ready")
        for queue, jobs in Counter([row[2] for row in rows]).items():
            self._move(queue, State.SCHEDULED, State.PENDING, jobs)
        self.made_ready = True

    def _expire(self, queue: str, number: int, attempts: int, now: Micros) -> None:
        self._set_attempts(number, attempts, 0, LATE)
        self._event(number, Kind.EXPIRED, now, attempts, msgspec.to_builtins(LATE))
        self._finish(number, queue, State.PENDING, State.FAILED, attempts, now)

    def _spent(self, queue: str, rate: Micros) -> int:
        """What counts against the rate, by monotonic time: a wall clock that jumps must not give
        a burst, or nothing for an hour."""
        now = self._leasing.now()
        # What would count for longer than it can was handed out before a reboot, or under
        # another rate.
        self._connection.execute(SQL["forget_spent"], (queue, now, now + rate + _step(rate)))
        return int(fetch_value(self._connection, SQL["spent"], (queue,)))

    def _spend(self, queue: str, jobs: int, rate: Micros) -> None:
        step = _step(rate)
        until = (self._leasing.now() // step + 1) * step + rate
        self._connection.execute(SQL["spend"], (queue, until, jobs))

    def start(self, claims: Sequence[Claim], *, now: Micros) -> list[int]:
        started: list[int] = []
        for token, ids in _by_token(claims):
            self._for(ids, "started_many", token, now)
            started += [row[0] for row in self._for(ids, "start_many", token, now)]
        return started

    # Back

    def complete(
        self, answers: Sequence[Answer], *, now: Micros, result_until: Micros
    ) -> list[int]:
        held: list[int] = []
        for token, ids in _by_token(answers):
            self._for(ids, "finish_many", token, now)
            count = self._connection.changes()
            if not count:
                continue
            if count < len(ids):
                ids = [row[0] for row in self._for(ids, "started_of", token)]
            held += ids
            self._for(ids, "completed_many", token, now)
            self._count_completed(token, ids)
            self._for(ids, "drop_claims", token)
        if not held:
            return held
        kept = set(held)
        for answer in answers:
            if answer.result is not None and answer.id in kept:
                own = answer.result_for
                until = result_until if own is None else now + own
                values = (answer.id, answer.result, answer.encoding, until)
                self._connection.execute(SQL["keep_result"], values)
        self._finished(held, now, succeeded=True)
        return held

    def _count_completed(self, token: int, ids: list[int]) -> None:
        ((queue, last),) = self._for(ids, "queues_of", token)
        counts = [(queue, len(ids))]
        if queue != last:
            counts = self._for(ids, "count_by_queue", token)
        for name, jobs in counts:
            self._move(name, State.PROCESSING, State.COMPLETED, jobs)

    def set_back(self, setbacks: Sequence[Setback], *, now: Micros) -> list[int]:
        held: list[int] = []
        for setback in setbacks:
            row = fetch_one(self._connection, SQL["drop_started"], (setback.id, setback.token))
            if row is not None:
                held.append(setback.id)
                self._set_back(setback, row, now)
        return held

    def _set_back(self, setback: Setback, row: Sequence[Any], now: Micros) -> None:
        number = setback.id
        queue, attempt, started_at, is_cancelling, reason, max_attempts = row
        kind = setback.kind
        if is_cancelling:
            kind = Kind.CANCELLED
        elif kind == Kind.FAILED and attempt >= max_attempts:
            kind = Kind.DIED
        # A snooze is no attempt: the job has not been tried, it was put off.
        burned = attempt - 1 if kind == Kind.SNOOZED else attempt
        self._set_attempts(number, burned, 0, setback.failure)
        data = {} if setback.failure is None else msgspec.to_builtins(setback.failure)
        if is_cancelling:
            data["reason"] = reason or ""
        if kind in (Kind.FAILED, Kind.SNOOZED):
            run_at = now if setback.retry_at is None else setback.retry_at
            data["retry_at"] = run_at
            self._event(number, kind, now, attempt, data)
            self._connection.execute(SQL["set_run_at"], (number, run_at))
            self._admit(number, queue, State.PROCESSING, run_at, now)
            return
        self._event(number, kind, now, attempt, data)
        state = State.CANCELLED if kind == Kind.CANCELLED else State.FAILED
        self._finish(number, queue, State.PROCESSING, state, attempt, now, started_at)

    def release(self, claims: Sequence[Claim | Answer], *, now: Micros) -> list[int]:
        held: list[int] = []
        for claim in claims:
            row = fetch_one(self._connection, SQL["drop_claim"], (claim.id, claim.token))
            if row is not None:
                held.append(claim.id)
                self._hand_back(claim.id, row, now)
        return held

    def report(self, id: int, token: int, progress: Progress, *, now: Micros) -> bool:
        data = msgspec.json.encode(progress)
        row = fetch_one(self._connection, SQL["set_progress"], (id, token, data))
        if row is None:
            return False
        self._connection.execute(SQL["add_event"], (id, Kind.PROGRESS, now, row[0], data))
        return True

    # Workers that come, stay and go

    def enter(self, worker: Worker, *, lease_seconds: float, now: Micros) -> None:
        until = fetch_value(self._connection, SQL["lease"], (worker.instance,))
        if until is None or until <= self._leasing.now():
            # It may claim now.
            self.made_ready = True
        until = self._leasing.now() + micros(lease_seconds)
        values = (
            *(worker.instance, worker.name, self._leasing.boot_id, until),
            *(msgspec.json.encode(worker.queues), worker.started_at, now),
            msgspec.json.encode(worker.types),
        )
        self._connection.execute(SQL["enter_worker"], values)
        self._forget_lost()

    def leave(self, instance: Instance, *, now: Micros) -> list[int]:
        held: list[int] = []
        for (number,) in fetch_all(self._connection, SQL["claims_of"], (instance.id, -1)):
            row = fetch_one(self._connection, SQL["take_claim"], (number,))
            self._hand_back(number, row, now)
            held.append(number)
        self._connection.execute(SQL["leave_worker"], (instance.id,))
        return held

    def rescue(self, *, now: Micros, limit: int) -> list[int]:
        rescued: list[int] = []
        for instance in lost_instances(self._connection, self._leasing):
            rows = fetch_all(self._connection, SQL["claims_of"], (instance, limit - len(rescued)))
            for (number,) in rows:
                self._rescue(number, instance, now)
                rescued.append(number)
            if len(rescued) >= limit:
                break
        self._forget_lost()
        return rescued

    def _rescue(self, number: int, instance: int, now: Micros) -> None:
        row = fetch_one(self._connection, SQL["take_claim"], (number,))
        queue, attempt, started_at, is_cancelling, _, max_attempts = row
        if started_at is None or is_cancelling:
            self._hand_back(number, row, now)
            return
        self._set_attempts(number, attempt, 1, CRASHED)
        if attempt >= max_attempts:
            self._event(number, Kind.DIED, now, attempt, {"instance": instance, **_CRASH})
            self._finish(number, queue, State.PROCESSING, State.FAILED, attempt, now, started_at)
            return
        run_at = now + backoff(attempt)
        data = {"instance": instance, "retry_at": run_at, **_CRASH}
        self._event(number, Kind.RESCUED, now, attempt, data)
        self._connection.execute(SQL["set_run_at"], (number, run_at))
        self._admit(number, queue, State.PROCESSING, run_at, now)

    def _forget_lost(self) -> None:
        """Workers that are gone and have nothing any more."""
        for row in fetch_all(self._connection, SQL["workers"]):
            if row[7] == 0 and is_lost(row[0], row[2], row[3], self._leasing):
                self._connection.execute(SQL["leave_worker"], (row[0],))


def backoff(attempt: int) -> Micros:
    """The pause before trying again after a crash: the square of the attempt, in seconds."""
    return min(BACKOFF_SECONDS_MAX, attempt * attempt) * SECOND


def lost_instances(connection: apsw.Connection, leasing: Leasing) -> list[int]:
    """Processes that have jobs in hand and are gone, or have not renewed their lease."""
    return [
        instance
        for instance, boot, until in fetch_all(connection, SQL["claim_instances"])
        if is_lost(instance, boot, until, leasing)
    ]


def is_lost(instance: int, boot: str | None, until: Micros | None, leasing: Leasing) -> bool:
    if boot is None or until is None:
        return instance == NOBODY or not leasing.liveness.is_alive(instance)
    return not is_alive(instance, boot, leasing) or until <= leasing.now()


def _step(rate: Micros) -> Micros:
    return max(1, rate // RATE_STEPS)


def _claim(queue: str, token: int, row: Sequence[Any]) -> Claim:
    priority, number, type, body, encoding, attempts, max_attempts, crashes = row[:8]
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
        *row[8:],
    )


def _by_token(items: Sequence[Claim] | Sequence[Answer]) -> Iterable[tuple[int, list[int]]]:
    groups: defaultdict[int, dict[int, None]] = defaultdict(dict)
    for item in items:
        groups[item.token][item.id] = None
    return [(token, list(ids)) for token, ids in groups.items()]
