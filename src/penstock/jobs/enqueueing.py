"""What is enqueued, checked and encoded before anything is written."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, get_args

from penstock import codec
from penstock.clock import Clock, Micros, micros
from penstock.errors import InvalidInput
from penstock.job import (
    ATTEMPTS_MAX,
    PRIORITY_MAX,
    Enqueued,
    NewJob,
    OnConflict,
    OnParentFailure,
    check_queue,
    check_type,
)
from penstock.model import as_micros, check_key
from penstock.settings import Settings

REMEMBERED_MAX = 65_536
PARENTS_MAX = 1_000
# Asked for with each job, and typing takes its time to answer.
ON_CONFLICT = get_args(OnConflict)
ON_PARENT_FAILURE = get_args(OnParentFailure)

_known: set[tuple[str, str]] = set()
"""Queues and types found good: each enqueue asks."""


def encode_job(
    settings: Settings,
    clock: Clock,
    queue: str,
    type: str,
    payload: Any,
    *,
    delay: float | None = None,
    at: datetime | float | None = None,
    priority: int = 0,
    max_attempts: int | None = None,
    deadline: datetime | float | None = None,
    timeout: float | None = None,
    unique_key: str | None = None,
    unique_seconds: float | None = None,
    on_conflict: OnConflict = "reject",
    after: Iterable[int | Enqueued] = (),
    on_parent_failure: OnParentFailure = "cancel",
    schedule: str | None = None,
) -> NewJob:
    """Checked and encoded, or an error that says what is wrong. Nothing is written."""
    if (queue, type) not in _known:
        check_queue(queue)
        check_type(type)
        if len(_known) >= REMEMBERED_MAX:
            _known.clear()
        _known.add((queue, type))
    body, encoding = codec.encode(
        payload, None, settings.payload_bytes_max, settings.compress_above_bytes
    )
    if unique_key is not None:
        check_key(unique_key)
    if unique_seconds is not None and unique_key is None:
        raise InvalidInput("unique_seconds needs a unique_key.")
    if on_conflict not in ON_CONFLICT:
        raise InvalidInput(f"on_conflict is one of {', '.join(ON_CONFLICT)}.")
    if on_parent_failure not in ON_PARENT_FAILURE:
        raise InvalidInput(f"on_parent_failure is 'cancel' or 'run', not {on_parent_failure!r}.")
    return NewJob(
        queue,
        type,
        body,
        encoding,
        check_priority(priority),
        check_attempts(max_attempts, settings),
        None if delay is None and at is None else _run_at(delay, at, clock),
        None if deadline is None else as_micros(deadline),
        None if timeout is None else check_duration(timeout, "timeout"),
        unique_key,
        None if unique_seconds is None else check_duration(unique_seconds, "unique_seconds"),
        on_conflict,
        () if after == () else _parents(after),
        on_parent_failure,
        schedule,
    )


def check_priority(priority: int) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > PRIORITY_MAX:
        raise InvalidInput(f"priority is a whole number, lower first, not {priority!r}.")
    return priority


def check_attempts(max_attempts: int | None, settings: Settings) -> int:
    if max_attempts is None:
        return settings.job_attempts_max
    if not isinstance(max_attempts, int) or not 1 <= max_attempts <= ATTEMPTS_MAX:
        raise InvalidInput(f"max_attempts is 1 to {ATTEMPTS_MAX:,}, not {max_attempts!r}.")
    return max_attempts


def _run_at(delay: float | None, at: datetime | float | None, clock: Clock) -> Micros | None:
    if delay is not None and at is not None:
        raise InvalidInput("Pass either delay or at, not both.")
    if at is not None:
        return as_micros(at)
    if delay is None:
        return None
    if not isinstance(delay, (int, float)) or isinstance(delay, bool) or not 0 <= delay < 1e10:
        raise InvalidInput(f"delay is a number of seconds from 0 up, not {delay!r}.")
    return clock.now() + micros(delay) if delay else None


def check_duration(seconds: float, what: str) -> Micros:
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds < 1e10:
        raise InvalidInput(f"{what} is a number of seconds above 0, not {seconds!r}.")
    return micros(seconds)


def _parents(after: Iterable[int | Enqueued]) -> tuple[int, ...]:
    found = tuple(parent.id if isinstance(parent, Enqueued) else parent for parent in after)
    if len(found) > PARENTS_MAX:
        raise InvalidInput(f"A job waits for at most {PARENTS_MAX:,} others.")
    for parent in found:
        if not isinstance(parent, int) or isinstance(parent, bool):
            raise InvalidInput(f"after takes ids of jobs, not {parent!r}.")
    return found
