"""Which jobs are meant, as options; and a job as a line of JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock import codec
from penstock.cli.amount import parse_moment
from penstock.cli.completion import complete_queue
from penstock.clock import as_datetime
from penstock.errors import PenstockError
from penstock.job import Failure, Job, Progress, State

if TYPE_CHECKING:
    from penstock.hub import Hub

FORMATS = {number: name for name, number in codec.FORMATS.items()}
STATES = ", ".join(state.name.lower() for state in State)

JobId = Annotated[int, typer.Argument(help="The job's id.", min=1)]
JobIds = Annotated[
    list[int] | None,
    typer.Argument(help="Ids of jobs.", show_default=False),
]
Queue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="QUEUE",
        help="Only this queue's.",
        autocompletion=complete_queue,
        show_default=False,
    ),
]
QueueName = Annotated[str, typer.Argument(help="The queue.", autocompletion=complete_queue)]
Type = Annotated[
    str | None,
    typer.Option("--type", "-t", metavar="TYPE", help="Only of this type.", show_default=False),
]
States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help=f"Only in this state; repeatable: {STATES}."),
]
Error = Annotated[
    str | None,
    typer.Option(
        "--error",
        metavar="TEXT",
        help="Only those whose last failure has this text.",
        show_default=False,
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only those enqueued from then on: 10m (ago), 2026-01-31T12:00.",
        show_default=False,
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Only those enqueued before.", show_default=False),
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", show_default=False)
]


class Chosen(msgspec.Struct, frozen=True):
    """What the options say."""

    queue: str | None = None
    type: str | None = None
    state: tuple[str, ...] = ()
    error: str | None = None
    since: float | None = None
    until: float | None = None

    @classmethod
    def of(
        cls,
        queue: str | None,
        type: str | None,
        state: list[str] | None,
        error: str | None,
        since: str | None,
        until: str | None,
    ) -> Chosen:
        return cls(
            queue,
            type,
            tuple(state or ()),
            error,
            None if since is None else parse_moment(since),
            None if until is None else parse_moment(until),
        )

    @property
    def is_empty(self) -> bool:
        return self == Chosen()

    def arguments(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)

    def count(self, hub: Hub) -> int:
        """How many jobs that are now."""
        total, after = 0, 0
        while ids := hub.jobs.ids(after=after, **self.arguments()):
            total, after = total + len(ids), ids[-1]
        return total


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """A job, as JSON."""

    id: int
    queue: str
    type: str
    state: str
    priority: int
    attempts: int
    max_attempts: int
    crashes: int
    created: str
    run_at: str | None
    started: str | None
    finished: str | None
    deadline: str | None
    worker: str | None
    is_cancelling: bool
    unique_key: str | None
    schedule: str | None
    progress: Progress | None
    failure: Failure | None
    payload: Any
    format: str
    result: Any

    @classmethod
    def of(cls, job: Job) -> JobLine:
        return cls(
            id=job.id,
            queue=job.queue,
            type=job.type,
            state=job.state.name.lower(),
            priority=job.priority,
            attempts=job.attempts,
            max_attempts=job.max_attempts,
            crashes=job.crashes,
            created=as_datetime(job.created_at).isoformat(),
            run_at=moment(job.run_at),
            started=moment(job.started_at),
            finished=moment(job.finished_at),
            deadline=moment(job.deadline),
            worker=job.worker,
            is_cancelling=job.is_cancelling,
            unique_key=job.unique_key,
            schedule=job.schedule,
            progress=job.progress,
            failure=job.failure,
            payload=readable(lambda: job.payload, job.body),
            format=FORMATS.get(job.encoding & codec.FORMAT_MASK, "unknown"),
            result=readable(lambda: job.result, job.raw_result or b""),
        )


def moment(at: int | None) -> str | None:
    return None if at is None else as_datetime(at).isoformat()


def readable(read: Callable[[], Any], body: bytes) -> Any:
    """The value if JSON has words for it; bytes, and what cannot be decoded, as base64."""
    try:
        value = read()
        if not isinstance(value, bytes):
            msgspec.json.encode(value)
            return value
        body = value
    except (PenstockError, TypeError, ValueError):
        pass
    return base64.b64encode(body).decode()
