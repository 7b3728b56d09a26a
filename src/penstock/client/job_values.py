"""Jobs and schedules as they come over HTTP, made into the values of a local hub."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock import codec
from penstock.job import (
    Enqueued,
    Failure,
    Job,
    JobEvent,
    Kind,
    Missed,
    Progress,
    Schedule,
    State,
    Worker,
)
from penstock.jobs.explain import Explanation, Reason
from penstock.model import Format, as_micros
from penstock.settings import Settings

COMPRESS_NEVER = 2**62


class RemoteJob(msgspec.Struct, kw_only=True):
    id: int
    queue: str
    type: str
    state: str
    priority: int
    created_at: int
    attempts: int
    max_attempts: int
    crashes: int
    payload: Raw | UnsetType = UNSET
    base64: str | UnsetType = UNSET
    format: Format = "json"
    result: Raw | UnsetType = UNSET
    result_base64: str | UnsetType = UNSET
    result_format: Format | None = None
    run_at: int | None = None
    deadline: int | None = None
    timeout: int | None = None
    unique_key: str | None = None
    schedule: str | None = None
    claimed_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    worker: str | None = None
    progress: Progress | None = None
    failure: Failure | None = None
    is_cancelling: bool = False

    def as_job(self) -> Job:
        body, encoding = stored(self.payload, self.base64, self.format)
        result, result_encoding = None, 0
        if self.result_format is not None:
            result, result_encoding = stored(self.result, self.result_base64, self.result_format)
        return Job(
            id=self.id,
            queue=self.queue,
            type=self.type,
            state=State[self.state.upper()],
            priority=self.priority,
            created_at=self.created_at,
            attempts=self.attempts,
            max_attempts=self.max_attempts,
            crashes=self.crashes,
            body=body,
            encoding=encoding,
            run_at=self.run_at,
            deadline=self.deadline,
            timeout=self.timeout,
            unique_key=self.unique_key,
            schedule=self.schedule,
            claimed_at=self.claimed_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            worker=self.worker,
            progress=self.progress,
            failure=self.failure,
            raw_result=result,
            result_encoding=result_encoding,
            is_cancelling=self.is_cancelling,
        )


class RemoteJobList(msgspec.Struct):
    jobs: list[RemoteJob]
    is_complete: bool


class RemoteEnqueued(msgspec.Struct):
    id: int
    state: str
    duplicate: bool

    def as_enqueued(self) -> Enqueued:
        return Enqueued(self.id, State[self.state.upper()], self.duplicate)


class RemoteEnqueuedMany(msgspec.Struct):
    jobs: list[RemoteEnqueued]


class RemoteEvent(msgspec.Struct):
    id: int
    kind: str
    at: int
    attempt: int
    data: dict[str, Any]


class RemoteHistory(msgspec.Struct):
    job: int
    events: list[RemoteEvent]

    def as_events(self) -> list[JobEvent]:
        return [
            JobEvent(one.id, self.job, Kind[one.kind.upper()], one.at, one.attempt, one.data)
            for one in self.events
        ]


class RemoteExplanation(msgspec.Struct):
    id: int
    queue: str
    type: str
    state: str
    answer: str
    reasons: tuple[Reason, ...]

    def as_explanation(self) -> Explanation:
        state = State[self.state.upper()]
        return Explanation(self.id, self.queue, self.type, state, self.answer, self.reasons)


class RemoteChanged(msgspec.Struct):
    changed: bool


class RemoteChangedMany(msgspec.Struct):
    jobs: list[int]
    after: int | None


class RemoteIds(msgspec.Struct):
    ids: list[int]


class RemoteWorkers(msgspec.Struct):
    workers: list[Worker]


class RemoteSchedule(msgspec.Struct, kw_only=True):
    name: str
    cron: str
    timezone: str
    missed: Missed
    queue: str
    type: str
    priority: int
    max_attempts: int
    timeout: int | None
    payload: Raw | UnsetType = UNSET
    base64: str | UnsetType = UNSET
    format: Format = "json"
    created_at: int
    paused_at: int | None
    next_at: int | None
    last_at: int | None
    last_job_id: int | None

    def as_schedule(self) -> Schedule:
        body, encoding = stored(self.payload, self.base64, self.format)
        return Schedule(
            self.name,
            self.cron,
            self.timezone,
            self.missed,
            self.queue,
            self.type,
            self.priority,
            self.max_attempts,
            self.timeout,
            encoding,
            body,
            self.created_at,
            self.paused_at,
            self.next_at,
            self.last_at,
            self.last_job_id,
        )


class RemoteScheduleList(msgspec.Struct):
    schedules: list[RemoteSchedule]


def stored(payload: Raw | UnsetType, base64: str | UnsetType, format: Format) -> tuple[bytes, int]:
    """As the store has it: body and encoding."""
    if isinstance(base64, str):
        return codec.from_base64(base64), codec.FORMATS[format]
    return (b"null" if payload is UNSET else bytes(payload)), codec.JSON


def load_of(payload: Any, settings: Settings) -> dict[str, Any]:
    """A payload as a request has it, checked as a local hub would."""
    body, encoding = codec.encode(payload, None, settings.payload_bytes_max, COMPRESS_NEVER)
    if encoding == codec.BYTES:
        return {"base64": codec.to_base64(body)}
    return {"payload": Raw(body)}


def seconds_of(at: datetime | float | None) -> float | None:
    """A time as requests have it. Raises `InvalidInput`."""
    return None if at is None else as_micros(at) / 1_000_000


def names_of(state: State | str | Iterable[State | str] | None) -> list[str]:
    states = [state] if isinstance(state, (State, str)) else list(state or ())
    return [one.name.lower() if isinstance(one, State) else one for one in states]


def given(**values: Any) -> dict[str, Any]:
    """What is to be said: without those that were left out."""
    return {name: value for name, value in values.items() if value is not None and value != []}
