"""A job as a value: on its way in, as it stands, and what happened to it. Frozen and typed."""

from __future__ import annotations

import builtins
import enum
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar, overload

import msgspec

from penstock import codec
from penstock.clock import Micros, as_datetime
from penstock.errors import InvalidInput
from penstock.model import check_name

T = TypeVar("T")

PRIORITY_MAX = 2**31 - 1
ATTEMPTS_MAX = 10_000
LIMIT_MAX = 2**31 - 1

OnConflict = Literal["reject", "return", "replace", "debounce"]
"""What enqueueing under a unique key does while another job has it."""
OnParentFailure = Literal["cancel", "run"]
Missed = Literal["latest", "all", "skip"]
"""Which ticks that nobody was there for are made up for."""


class State(enum.IntEnum):
    """Where a job is. `docs/explain/jobs.md` draws the ways between them."""

    PENDING = 1
    """Ready: the next free worker takes it."""
    SCHEDULED = 2
    """Waits for its time."""
    WAITING = 3
    """Waits for other jobs."""
    PROCESSING = 4
    """A worker has it."""
    COMPLETED = 5
    FAILED = 6
    """Given up: a dead letter."""
    CANCELLED = 7

    @property
    def is_final(self) -> bool:
        return self >= State.COMPLETED


class Kind(enum.IntEnum):
    """What an event of a job's history tells."""

    ENQUEUED = 1
    STARTED = 2
    COMPLETED = 3
    FAILED = 4
    """An attempt failed; the job is tried again."""
    DIED = 5
    """An attempt failed, and it was the last."""
    SNOOZED = 6
    RESCUED = 7
    """Its worker is gone."""
    RELEASED = 8
    """Handed back without an attempt."""
    CANCELLED = 9
    RETRIED = 10
    """Put back by hand."""
    PROGRESS = 11
    EXPIRED = 12
    """Its deadline passed."""
    REPLACED = 13


TRANSITIONS: Mapping[tuple[State | None, State | None], frozenset[Kind]] = {
    (None, State.PENDING): frozenset({Kind.ENQUEUED}),
    (None, State.SCHEDULED): frozenset({Kind.ENQUEUED}),
    (None, State.WAITING): frozenset({Kind.ENQUEUED}),
    (None, State.CANCELLED): frozenset({Kind.ENQUEUED, Kind.CANCELLED}),
    (State.SCHEDULED, State.PENDING): frozenset({Kind.RETRIED, Kind.REPLACED}),
    (State.SCHEDULED, State.SCHEDULED): frozenset({Kind.REPLACED}),
    (State.SCHEDULED, State.CANCELLED): frozenset({Kind.CANCELLED}),
    (State.WAITING, State.PENDING): frozenset(),
    (State.WAITING, State.SCHEDULED): frozenset(),
    (State.WAITING, State.WAITING): frozenset({Kind.REPLACED}),
    (State.WAITING, State.CANCELLED): frozenset({Kind.CANCELLED}),
    (State.PENDING, State.PENDING): frozenset({Kind.REPLACED}),
    (State.PENDING, State.SCHEDULED): frozenset({Kind.REPLACED}),
    (State.PENDING, State.PROCESSING): frozenset(),
    (State.PENDING, State.FAILED): frozenset({Kind.EXPIRED}),
    (State.PENDING, State.CANCELLED): frozenset({Kind.CANCELLED}),
    (State.PROCESSING, State.PROCESSING): frozenset({Kind.STARTED, Kind.PROGRESS}),
    (State.PROCESSING, State.PENDING): frozenset({Kind.FAILED, Kind.SNOOZED, Kind.RELEASED}),
    (State.PROCESSING, State.SCHEDULED): frozenset({Kind.FAILED, Kind.SNOOZED, Kind.RESCUED}),
    (State.PROCESSING, State.COMPLETED): frozenset({Kind.COMPLETED}),
    (State.PROCESSING, State.FAILED): frozenset({Kind.DIED}),
    (State.PROCESSING, State.CANCELLED): frozenset({Kind.CANCELLED}),
    (State.COMPLETED, State.PENDING): frozenset({Kind.RETRIED}),
    (State.FAILED, State.PENDING): frozenset({Kind.RETRIED}),
    (State.CANCELLED, State.PENDING): frozenset({Kind.RETRIED}),
    (State.COMPLETED, None): frozenset(),
    (State.FAILED, None): frozenset(),
    (State.CANCELLED, None): frozenset(),
}
"""Every way a job can go, and the events that tell of it. None: before it is, and after it is
pruned. No other change of state is possible: stores assert it, and `docs/explain/jobs.md` draws
it. Where nothing is written (a time has come, a worker has taken it), the next event tells."""


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job on its way in: encoded, checked, without an id."""

    queue: str
    type: str
    body: bytes
    encoding: int
    priority: int = 0
    max_attempts: int = 3
    run_at: Micros | None = None
    deadline: Micros | None = None
    timeout: Micros | None = None
    unique_key: str | None = None
    unique_for: Micros | None = None
    """How long the key is taken, whatever the job does; None: until it has finished."""
    on_conflict: OnConflict = "reject"
    after: tuple[int, ...] = ()
    on_parent_failure: OnParentFailure = "cancel"
    schedule: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is ready at once and nothing has to be looked up for it."""
        return self.run_at is None and self.unique_key is None and not self.after


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """What whoever enqueues gets back: the job is on disk under this id."""

    id: int
    state: State
    duplicate: bool = False
    """Another job has the unique key: this is that one's id."""


class Claim(msgspec.Struct, frozen=True):
    """A job in a worker's hands. Every answer carries the token."""

    id: int
    token: int
    queue: str
    type: str
    body: bytes
    encoding: int
    attempt: int
    """The one that begins when the job is started; from 1."""
    max_attempts: int
    crashes: int
    priority: int
    created_at: Micros
    deadline: Micros | None = None
    timeout: Micros | None = None
    schedule: str | None = None


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A worker's word on a job it has: done, with a result if there is one."""

    id: int
    token: int
    result: bytes | None = None
    encoding: int = 0
    result_for: Micros | None = None
    """How long the result is kept, where it is not as for all."""


class Failure(msgspec.Struct, frozen=True):
    """An attempt that went wrong, as it is kept."""

    error: str
    message: str = ""
    traceback: str = ""


class Setback(msgspec.Struct, frozen=True):
    """A worker's word on a job that is not done: when to try again, if at all."""

    id: int
    token: int
    kind: Kind
    """FAILED, DIED, SNOOZED or CANCELLED."""
    retry_at: Micros | None = None
    failure: Failure | None = None


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    done: float
    total: float | None = None
    note: str = ""

    @property
    def percent(self) -> float | None:
        return None if not self.total else min(100.0, 100.0 * self.done / self.total)


class Job(msgspec.Struct, frozen=True, dict=True):
    """A job as it stands. `payload` and `result` are decoded when they are first asked for."""

    id: int
    queue: str
    type: str
    state: State
    priority: int
    created_at: Micros
    attempts: int
    max_attempts: int
    crashes: int
    body: bytes
    encoding: int
    run_at: Micros | None = None
    deadline: Micros | None = None
    timeout: Micros | None = None
    unique_key: str | None = None
    schedule: str | None = None
    claimed_at: Micros | None = None
    started_at: Micros | None = None
    finished_at: Micros | None = None
    worker: str | None = None
    progress: Progress | None = None
    failure: Failure | None = None
    """Of the last attempt that failed."""
    raw_result: bytes | None = None
    result_encoding: int = 0
    is_cancelling: bool = False
    """Asked to stop; its worker is told with the next heartbeat."""

    @property
    def payload(self) -> Any:
        return self._decoded("payload", self.body, self.encoding)

    @property
    def result(self) -> Any:
        """What the handler returned; None if nothing was, or it has expired."""
        if self.raw_result is None:
            return None
        return self._decoded("result", self.raw_result, self.result_encoding)

    @overload
    def decode(self, to: builtins.type[T]) -> T: ...
    @overload
    def decode(self, to: Any) -> Any: ...
    def decode(self, to: Any) -> Any:
        """The payload as the given type."""
        return codec.decode(self.body, self.encoding, to)

    @property
    def time(self) -> datetime:
        return as_datetime(self.created_at)

    def _decoded(self, name: str, body: bytes, encoding: int) -> Any:
        if name not in self.__dict__:
            self.__dict__[name] = codec.decode(body, encoding)
        return self.__dict__[name]


class JobEvent(msgspec.Struct, frozen=True):
    """One line of a job's history."""

    id: int
    job_id: int
    kind: Kind
    at: Micros
    attempt: int
    data: dict[str, Any] = {}


class QueueLimits(msgspec.Struct, frozen=True):
    """What holds for a queue over all processes. None: no limit."""

    concurrency_max: int | None = None
    rate_max: int | None = None
    """Jobs handed out in any `rate_seconds`."""
    rate_seconds: float = 1.0
    is_paused: bool = False

    def __post_init__(self) -> None:
        for name in ("concurrency_max", "rate_max"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or not 1 <= value <= LIMIT_MAX):
                raise InvalidInput(f"{name} is a number from 1 up, not {value!r}.")
        if not 0 < self.rate_seconds < 1e10:
            raise InvalidInput(f"rate_seconds is above 0, not {self.rate_seconds!r}.")


class QueueStats(msgspec.Struct, frozen=True):
    """A queue in figures."""

    queue: str
    pending: int = 0
    scheduled: int = 0
    waiting: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    limits: QueueLimits = QueueLimits()
    oldest_pending_seconds: float | None = None

    @property
    def total(self) -> int:
        return (
            self.pending
            + self.scheduled
            + self.waiting
            + self.processing
            + self.completed
            + self.failed
            + self.cancelled
        )


class Ran(msgspec.Struct, frozen=True, gc=False):
    """When a job that completed was ready, started and done."""

    queue: str
    at: Micros
    started_at: Micros
    ready_at: Micros


class Worker(msgspec.Struct, frozen=True):
    """A process that takes jobs."""

    instance: int
    name: str
    queues: dict[str, int]
    """Queue and how many at once."""
    started_at: Micros
    seen_at: Micros = 0
    running: int = 0
    types: tuple[str, ...] = ()
    """Which jobs it has handlers for."""


class Schedule(msgspec.Struct, frozen=True):
    """A job that is enqueued by the clock."""

    name: str
    cron: str
    timezone: str
    missed: Missed
    queue: str
    type: str
    priority: int
    max_attempts: int
    timeout: Micros | None
    encoding: int
    body: bytes
    created_at: Micros
    paused_at: Micros | None = None
    next_at: Micros | None = None
    last_at: Micros | None = None
    last_job_id: int | None = None

    @property
    def payload(self) -> Any:
        return codec.decode(self.body, self.encoding)


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs are meant. Empty: all."""

    queue: str | None = None
    type: str | None = None
    states: tuple[State, ...] = ()
    error: str | None = None
    """Part of the last failure's error or message."""
    created_before: Micros | None = None
    created_after: Micros | None = None
    unique_key: str | None = None
    schedule: str | None = None


def check_queue(name: str) -> str:
    return check_name(name, "queue name")


def check_type(name: str) -> str:
    return check_name(name, "job type")
