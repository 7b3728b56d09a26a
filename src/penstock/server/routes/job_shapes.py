"""What requests and replies about jobs, queues and schedules look like over HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from penstock import codec
from penstock.errors import BadRequest, PenstockError
from penstock.job import (
    Enqueued,
    Failure,
    Job,
    JobEvent,
    Missed,
    OnConflict,
    OnParentFailure,
    Progress,
    Schedule,
    State,
    Worker,
)
from penstock.jobs.explain import Explanation, Reason
from penstock.jobs.producer import PRUNE_SECONDS
from penstock.model import Format

StateName = Literal[
    "pending", "scheduled", "waiting", "processing", "completed", "failed", "cancelled"
]
FinalName = Literal["completed", "failed", "cancelled"]
PRUNE_SECONDS_MAX = 10.0
NAMES = {number: name for name, number in codec.FORMATS.items()}


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one job of many is about. At most one of `payload` and `base64`; neither: null."""

    payload: Any = UNSET
    base64: str | UnsetType = UNSET


class EnqueueRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job, or many of one kind under `jobs`, which go in together."""

    queue: str
    type: str
    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    """Bytes, instead of `payload`."""
    jobs: list[Load] | UnsetType = UNSET
    """Many: each has its own payload, and the other options are for all of them. Not with
    `deadline`, `unique_key`, `unique_seconds`, `on_conflict`, `after` or `on_parent_failure`."""
    delay: float | None = None
    """Seconds from now."""
    at: float | None = None
    """In seconds since 1970."""
    priority: int = 0
    """Lower first."""
    max_attempts: int | None = None
    deadline: float | None = None
    """In seconds since 1970: not begun after that."""
    timeout: float | None = None
    unique_key: str | None = None
    unique_seconds: float | None = None
    on_conflict: OnConflict = "reject"
    after: list[int] = []
    """Jobs that must have completed before."""
    on_parent_failure: OnParentFailure = "cancel"


class EnqueuedReply(msgspec.Struct, frozen=True):
    id: int
    state: StateName
    duplicate: bool
    """Another job has the unique key: this is that one's id."""

    @classmethod
    def of(cls, added: Enqueued) -> EnqueuedReply:
        return cls(added.id, state_name(added.state), added.duplicate)


class EnqueuedManyReply(msgspec.Struct, frozen=True):
    jobs: list[EnqueuedReply]


class JobReply(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it stands. Times are in microseconds since 1970."""

    id: int
    queue: str
    type: str
    state: StateName
    priority: int
    created_at: int
    attempts: int
    max_attempts: int
    crashes: int
    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    """The payload, where it is not JSON; `format` says what it is."""
    format: Format = "json"
    result: Any = UNSET
    """Only if there is one that has not expired."""
    result_base64: str | UnsetType = UNSET
    result_format: Format | None = None
    run_at: int | None = None
    deadline: int | None = None
    timeout: int | None = None
    """In microseconds."""
    unique_key: str | None = None
    schedule: str | None = None
    claimed_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    worker: str | None = None
    progress: Progress | None = None
    failure: Failure | None = None
    is_cancelling: bool = False

    @classmethod
    def of(cls, job: Job) -> JobReply:
        payload, base64 = as_json(job.body, job.encoding)
        result: Any = UNSET
        result_base64: str | UnsetType = UNSET
        result_format: Format | None = None
        if job.raw_result is not None:
            result, result_base64 = as_json(job.raw_result, job.result_encoding)
            result_format = format_of(job.result_encoding)
        same = {
            name: getattr(job, name)
            for name in (
                *("id", "queue", "type", "priority", "created_at", "attempts", "max_attempts"),
                *("crashes", "run_at", "deadline", "timeout", "unique_key", "schedule"),
                *("claimed_at", "started_at", "finished_at", "worker", "progress", "failure"),
                "is_cancelling",
            )
        }
        return cls(
            state=state_name(job.state),
            payload=payload,
            base64=base64,
            format=format_of(job.encoding),
            result=result,
            result_base64=result_base64,
            result_format=result_format,
            **same,
        )


class JobsReply(msgspec.Struct, frozen=True):
    jobs: list[JobReply]
    """Newest first."""
    is_complete: bool
    """False: there are more; ask again with `before` and the last id."""


class IdsReply(msgspec.Struct, frozen=True):
    ids: list[int]


class EventReply(msgspec.Struct, frozen=True):
    """One line of a job's history."""

    id: int
    kind: str
    at: int
    """In microseconds since 1970."""
    attempt: int
    data: dict[str, Any]

    @classmethod
    def of(cls, event: JobEvent) -> EventReply:
        return cls(event.id, event.kind.name.lower(), event.at, event.attempt, event.data)


class HistoryReply(msgspec.Struct, frozen=True):
    job: int
    events: list[EventReply]
    """Oldest first."""


class ExplanationReply(msgspec.Struct, frozen=True):
    id: int
    queue: str
    type: str
    state: StateName
    answer: str
    reasons: list[Reason]

    @classmethod
    def of(cls, found: Explanation) -> ExplanationReply:
        state = state_name(found.state)
        return cls(found.id, found.queue, found.type, state, found.answer, list(found.reasons))


class ChangedReply(msgspec.Struct, frozen=True):
    changed: bool
    """False: the job's state did not allow it."""
    job: JobReply


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs: by `ids`, or all that match the rest, up to 1,000 in one request. With `ids`,
    `state` still says in which states they are changed."""

    ids: list[int] | None = None
    queue: str | None = None
    type: str | None = None
    state: list[StateName] | None = None
    error: str | None = None
    """Part of the last failure's error or message."""
    since: float | None = None
    """Created from then on, in seconds since 1970."""
    until: float | None = None
    after: int = 0
    """Only above this id: to go on where the last reply ended."""


class CancelRequest(ChangeRequest, frozen=True, kw_only=True):
    reason: str = ""


class ReasonRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str = ""


class PriorityRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    priority: int


class ChangedManyReply(msgspec.Struct, frozen=True):
    jobs: list[int]
    """Those that were changed."""
    after: int | None
    """There may be more: ask again with this. None: that was all."""


class PruneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By default what the server's settings would remove by and by."""

    state: list[FinalName] | None = None
    older_than_seconds: float | None = None
    after: int = 0
    """Only above this id: to go on where the last reply ended."""
    seconds_max: Annotated[float, msgspec.Meta(ge=0, le=PRUNE_SECONDS_MAX)] = PRUNE_SECONDS
    """How long this request may take; the rest is for the next."""


class LimitsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out stays as it is. Null: no limit."""

    concurrency_max: int | UnsetType | None = UNSET
    rate_max: int | UnsetType | None = UNSET
    rate_seconds: float | UnsetType = UNSET
    is_paused: bool | UnsetType = UNSET


class WorkersReply(msgspec.Struct, frozen=True):
    workers: list[Worker]


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cron: str
    """Five fields, or six with seconds in front."""
    queue: str
    type: str
    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    timezone: str = "UTC"
    missed: Missed = "latest"
    priority: int = 0
    max_attempts: int | None = None
    timeout: float | None = None


class ScheduleReply(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in microseconds since 1970."""

    name: str
    cron: str
    timezone: str
    missed: Missed
    queue: str
    type: str
    priority: int
    max_attempts: int
    timeout: int | None
    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    format: Format = "json"
    created_at: int
    paused_at: int | None
    next_at: int | None
    last_at: int | None
    last_job_id: int | None

    @classmethod
    def of(cls, schedule: Schedule) -> ScheduleReply:
        payload, base64 = as_json(schedule.body, schedule.encoding)
        same = {
            name: getattr(schedule, name)
            for name in (
                *("name", "cron", "timezone", "missed", "queue", "type", "priority"),
                *("max_attempts", "timeout", "created_at", "paused_at", "next_at", "last_at"),
                "last_job_id",
            )
        }
        return cls(payload=payload, base64=base64, format=format_of(schedule.encoding), **same)


class SchedulesReply(msgspec.Struct, frozen=True):
    schedules: list[ScheduleReply]
    """By name."""


def payload_of(given: Load | EnqueueRequest | ScheduleRequest) -> Any:
    """What is to be enqueued. Raises `BadRequest`."""
    if given.payload is not UNSET and given.base64 is not UNSET:
        raise BadRequest("A job has either payload or base64.", hint="/docs has the shapes.")
    if isinstance(given.base64, str):
        return codec.from_base64(given.base64)
    return None if given.payload is UNSET else given.payload


def as_json(body: bytes, encoding: int) -> tuple[Any, str | UnsetType]:
    """As it stands in a reply: JSON as it is, anything else, also what is broken, as base64."""
    try:
        data = codec.decompress(body, encoding)
        if encoding & codec.FORMAT_MASK == codec.JSON:
            msgspec.json.decode(data)
            return msgspec.Raw(data), UNSET
    except (PenstockError, msgspec.MsgspecError, ValueError, RecursionError):
        data = body
    return UNSET, codec.to_base64(data)


def state_name(state: State) -> StateName:
    return cast(StateName, state.name.lower())


def format_of(encoding: int) -> Format:
    return cast(Format, NAMES.get(encoding & codec.FORMAT_MASK, "bytes"))
