"""`hub.schedules`: cron. Each tick is enqueued once, over all processes.

A tick is a point of wall time in the schedule's zone. The transaction that enqueues for it also
moves the schedule on to the next, so whoever comes second finds nothing to do; and a clock that
was set back does not repeat what was enqueued already.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from penstock import codec
from penstock.clock import SECOND, Micros, as_datetime
from penstock.errors import InvalidInput, ScheduleNotFound
from penstock.job import Enqueued, Missed, NewJob, Schedule, check_queue, check_type
from penstock.jobs.enqueueing import check_attempts, check_duration, check_priority
from penstock.jobs.runtime import Runtime
from penstock.model import check_name
from penstock.ports import Transaction
from penstock.service import Service

DUE_MAX = 100
MISSED_MAX = 64
"""Ticks that `missed="all"` makes up for at most: a machine that slept a year is no flood."""
LOOK_SECONDS = 1.0


class Schedules:
    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        self._open = open_runtime

    def put(
        self,
        name: str,
        cron: str,
        queue: str,
        type: str,
        payload: Any = None,
        *,
        timezone: str = "UTC",
        missed: Missed = "latest",
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: float | None = None,
    ) -> Schedule:
        """Make a schedule, or change it.

        `cron` has five fields, or six with seconds in front. Of the ticks that no process was
        there for, the `latest`, `all` (at most 64) or none (`skip`) are made up for.
        """
        runtime = self._open()
        settings, now = runtime.settings, runtime.clock.now()
        if missed not in get_args(Missed):
            raise InvalidInput(f"missed is one of {', '.join(get_args(Missed))}.")
        body, encoding = codec.encode(
            payload, None, settings.payload_bytes_max, settings.compress_above_bytes
        )
        schedule = Schedule(
            check_name(name, "schedule name"),
            cron,
            timezone,
            missed,
            check_queue(queue),
            check_type(type),
            check_priority(priority),
            check_attempts(max_attempts, settings),
            None if timeout is None else check_duration(timeout, "timeout"),
            encoding,
            body,
            now,
            next_at=next_tick(cron, timezone, now),
        )
        runtime.committer.run_now(lambda tx: tx.schedules.put(schedule))
        return self.get(name)

    def get(self, name: str) -> Schedule:
        for schedule in self.list():
            if schedule.name == name:
                return schedule
        raise ScheduleNotFound(f"There is no schedule {name!r}.")

    def list(self) -> list[Schedule]:
        return self._open().store.schedules.all()

    def pause(self, name: str) -> None:
        """No ticks until `resume`; those in between are not made up for."""
        now = self._open().clock.now()
        self._pause(name, now, self.get(name).next_at)

    def resume(self, name: str) -> None:
        schedule, now = self.get(name), self._open().clock.now()
        self._pause(name, None, next_tick(schedule.cron, schedule.timezone, now))

    def remove(self, name: str) -> None:
        if not self._open().committer.run_now(lambda tx: tx.schedules.remove(name)):
            raise ScheduleNotFound(f"There is no schedule {name!r}.")

    def run_now(self, name: str) -> Enqueued:
        """Enqueue its job once, beside its ticks; also while it is paused."""
        job = _job(self.get(name))
        return self._open().committer.enqueue_now([job])[0]

    def _pause(self, name: str, paused_at: Micros | None, next_at: Micros | None) -> None:
        is_there = self._open().committer.run_now(
            lambda tx: tx.schedules.pause(name, paused_at=paused_at, next_at=next_at)
        )
        if not is_there:
            raise ScheduleNotFound(f"There is no schedule {name!r}.")


class Ticker(Service):
    """Enqueues what is due. Every process with workers has one."""

    name = "ticker"

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.telemetry)
        self._runtime = runtime

    def run_once(self) -> float:
        runtime = self._runtime
        next_at = runtime.store.schedules.next_at()
        if next_at is not None and next_at <= runtime.clock.now():
            runtime.committer.run_now(lambda tx: tick(tx, runtime.clock.now()))
            next_at = runtime.store.schedules.next_at()
        if next_at is None:
            return LOOK_SECONDS
        return min(LOOK_SECONDS, max(0.001, (next_at - runtime.clock.now()) / SECOND))

    def _pause(self, seconds: float) -> None:
        # No jitter: a tick is meant at its time.
        self._alarm.sleep(seconds)


def tick(transaction: Transaction, now: Micros) -> int:
    """As an operation: enqueue for every schedule that is due. Returns how many jobs."""
    count = 0
    for schedule in transaction.schedules.due(now=now, limit=DUE_MAX):
        ticks, next_at = due_ticks(schedule, now)
        job_id = None
        if ticks:
            added = transaction.jobs.enqueue([_job(schedule) for _ in ticks], now=now)
            job_id = added[-1].id
            count += len(added)
        last_at = ticks[-1] if ticks else now
        transaction.schedules.ticked(schedule.name, next_at=next_at, last_at=last_at, job_id=job_id)
    return count


def due_ticks(schedule: Schedule, now: Micros) -> tuple[list[Micros], Micros | None]:
    """The ticks to enqueue for, and the next one."""
    assert schedule.next_at is not None
    ticks: list[Micros] = []
    at: Micros | None = schedule.next_at
    while at is not None and at <= now:
        ticks.append(at)
        if len(ticks) > MISSED_MAX:
            # Far behind: go on from now, with the last that can be known without counting all.
            del ticks[0]
            at = next_tick(schedule.cron, schedule.timezone, max(at, now - 3600 * SECOND))
            continue
        at = next_tick(schedule.cron, schedule.timezone, at)
    if schedule.missed == "all":
        return ticks, at
    is_late = now - ticks[-1] > 60 * SECOND
    if schedule.missed == "skip" and (is_late or len(ticks) > 1):
        return ([] if is_late else ticks[-1:]), at
    return ticks[-1:], at


def next_tick(cron: str, timezone: str, after: Micros) -> Micros | None:
    """The first tick after a time; None if there is none."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInput(
            f"There is no time zone {timezone!r}.", hint="Such as Europe/Vienna or UTC."
        ) from error
    try:
        found = next(CronSim(cron, as_datetime(after).astimezone(zone)))
    except CronSimError as error:
        raise InvalidInput(
            f"{cron!r} is not a cron expression: {error}.",
            hint="Five fields: minute hour day month weekday, such as '*/5 * * * *'.",
        ) from error
    except StopIteration:
        return None
    return round(_in_utc(found).timestamp() * SECOND)


def _in_utc(at: datetime) -> datetime:
    return at.astimezone(UTC)


def _job(schedule: Schedule) -> NewJob:
    return NewJob(
        schedule.queue,
        schedule.type,
        schedule.body,
        schedule.encoding,
        schedule.priority,
        schedule.max_attempts,
        timeout=schedule.timeout,
        schedule=schedule.name,
    )
