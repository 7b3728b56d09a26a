"""`penstock jobs …`: enqueue, look, and find out why one does not run (J6, J7, J8)."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli import job_changes, table
from penstock.cli.amount import parse_duration, parse_moment, show_duration, show_time
from penstock.cli.completion import complete_queue
from penstock.cli.interruption import Interruption, Stopped
from penstock.cli.job_options import (
    Chosen,
    Error,
    JobId,
    JobLine,
    Queue,
    Since,
    States,
    Type,
    Until,
    readable,
)
from penstock.cli.job_tables import (
    as_text,
    attempts_of,
    print_jobs,
    print_overview,
    progress_of,
    state_of,
    what_of,
)
from penstock.cli.layout import LaidOutGroup
from penstock.cli.progress import progress
from penstock.cli.publish import parse_payload
from penstock.cli.session import Session, command
from penstock.clock import as_datetime, seconds
from penstock.errors import InvalidInput
from penstock.job import Enqueued, OnConflict, OnParentFailure, QueueStats
from penstock.jobs.overview import Pace

if TYPE_CHECKING:
    from penstock.hub import Hub

LINES_MAX = 1_000
"""Jobs of standard input that go in together."""

app = typer.Typer(
    help="Enqueue, list, explain, retry, cancel, limit and prune jobs.",
    cls=LaidOutGroup,
    no_args_is_help=True,
)

Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", help="At most so many.", min=1)]
Before = Annotated[
    int | None,
    typer.Option("--before", metavar="JOB", help="Ids below this, to read on.", show_default=False),
]


class EnqueuedLine(msgspec.Struct, frozen=True):
    """A new job, as JSON."""

    id: int
    state: str
    duplicate: bool


class EventLine(msgspec.Struct, frozen=True):
    """One line of a job's history, as JSON."""

    id: int
    kind: str
    at: str
    attempt: int
    data: dict[str, Any]


class WorkerLine(msgspec.Struct, frozen=True):
    """A process that takes jobs, as JSON."""

    name: str
    queues: dict[str, int]
    types: tuple[str, ...]
    running: int
    started: str


@command(
    app,
    "list",
    examples=(
        "penstock jobs list",
        "penstock jobs list --queue mails --state failed --since 1h",
        "penstock jobs list --error ConnectionError --json",
    ),
)
def list_jobs(
    session: Session,
    queue: Queue = None,
    type: Type = None,
    state: States = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
    before: Before = None,
    limit: Limit = 50,
) -> None:
    """Jobs, newest first."""
    chosen = Chosen.of(queue, type, state, error, since, until)
    with session.reach() as hub:
        found = hub.jobs.list(before=before, limit=limit, **chosen.arguments())
    print_jobs(session, found, limit, "No jobs match." if not chosen.is_empty else "No jobs yet.")


@command(
    app,
    "dead",
    examples=(
        "penstock jobs dead",
        "penstock jobs dead --queue mails --error Timeout",
        "penstock jobs retry --queue mails --error Timeout      # bring them back",
    ),
)
def list_dead(
    session: Session,
    queue: Queue = None,
    type: Type = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
    before: Before = None,
    limit: Limit = 50,
) -> None:
    """Dead letters: jobs that were given up, with their last failure."""
    chosen = Chosen.of(queue, type, ["failed"], error, since, until)
    with session.reach() as hub:
        found = hub.jobs.list(before=before, limit=limit, **chosen.arguments())
    print_jobs(session, found, limit, "No dead letters.")


@command(app, "show", examples=("penstock jobs show 42", "penstock jobs show 42 --json"))
def show_job(session: Session, job: JobId) -> None:
    """One job: where it is, what it is about, what came of it."""
    with session.reach() as hub:
        found = hub.jobs.get(job)
        answer = hub.jobs.explain(job).answer
    if session.is_json:
        table.print_json(JobLine.of(found))
        return
    fields: list[tuple[str, object]] = [
        ("job", found.id),
        ("queue", found.queue),
        ("type", found.type),
        ("state", state_of(found)),
        ("", answer),
        ("attempts", attempts_of(found)),
        ("priority", found.priority),
        ("enqueued", show_time(found.created_at)),
    ]
    for name, at in (
        ("due", found.run_at),
        ("deadline", found.deadline),
        ("started", found.started_at),
        ("finished", found.finished_at),
    ):
        if at is not None:
            fields.append((name, show_time(at)))
    for name, text in (
        ("worker", found.worker),
        ("unique key", found.unique_key),
        ("schedule", found.schedule),
        ("progress", progress_of(found)),
    ):
        if text:
            fields.append((name, text))
    if found.timeout is not None:
        fields.append(("timeout", show_duration(seconds(found.timeout))))
    fields.append(("payload", as_text(readable(lambda: found.payload, found.body))))
    if found.raw_result is not None:
        fields.append(("result", as_text(readable(lambda: found.result, found.raw_result or b""))))
    table.print_fields(fields)
    if found.failure is not None:
        table.say("")
        text = found.failure.traceback.rstrip()
        table.say(text or f"{found.failure.error}: {found.failure.message}")


@command(app, "history", examples=("penstock jobs history 42", "penstock jobs history 42 --json"))
def show_history(
    session: Session,
    job: JobId,
    tracebacks: Annotated[
        bool,
        typer.Option(
            "--tracebacks", help="With the traceback of each failure.", show_default=False
        ),
    ] = False,
) -> None:
    """Everything that happened to a job, oldest first."""
    with session.reach() as hub:
        events = hub.jobs.history(job)
    if session.is_json:
        table.print_json(
            [
                EventLine(
                    event.id,
                    event.kind.name.lower(),
                    as_datetime(event.at).isoformat(),
                    event.attempt,
                    event.data,
                )
                for event in events
            ]
        )
        return
    table.print_table(
        ("at", "event", "attempt", "what"),
        (
            (
                show_time(event.at),
                event.kind.name.lower(),
                event.attempt or "",
                what_of(event.kind, event.data),
            )
            for event in events
        ),
        right=("attempt",),
    )
    for event in events if tracebacks else ():
        if text := str(event.data.get("traceback", "")).rstrip():
            table.say(f"\nattempt {event.attempt}, {show_time(event.at)}\n{text}")


@command(app, "explain", examples=("penstock jobs explain 42", "penstock jobs explain 42 --json"))
def explain_job(session: Session, job: JobId) -> None:
    """Why is it not running? One line, and what is behind it."""
    with session.reach() as hub:
        found = hub.jobs.explain(job)
    if session.is_json:
        body = msgspec.to_builtins(found)
        table.print_json(body | {"state": found.state.name.lower()})
        return
    table.say(f"Job {found.id} ({found.queue}, {found.type}) is {found.state.name.lower()}.")
    for reason in found.reasons:
        table.say(f"- {reason.text}")
        if reason.hint:
            table.say(f"  {reason.hint}")


@command(
    app,
    "enqueue",
    examples=(
        'penstock jobs enqueue mails send \'{"to": "ann@example.org"}\'',
        "penstock jobs enqueue reports build --delay 10m --unique-key today",
        "penstock jobs enqueue mails send - < addresses.jsonl",
    ),
)
def enqueue_job(
    session: Session,
    queue: Annotated[str, typer.Argument(help="The queue.", autocompletion=complete_queue)],
    type: Annotated[str, typer.Argument(help="The job's type: which handler does it.")],
    payload: Annotated[
        str,
        typer.Argument(
            help="JSON, or any other text. '-' reads standard input, one job a line.",
            show_default="null",
        ),
    ] = "null",
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="DURATION", help="Not before: 60s, 10m, 12h."),
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Not before: 2026-01-31T12:00.")
    ] = None,
    priority: Annotated[
        int, typer.Option("--priority", "-p", metavar="N", help="Lower first.")
    ] = 0,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="How often it is tried.")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="How long an attempt may take."),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="Not begun after this time.")
    ] = None,
    unique_key: Annotated[
        str | None,
        typer.Option("--unique-key", metavar="TEXT", help="One unfinished job has it at a time."),
    ] = None,
    on_conflict: Annotated[
        OnConflict,
        typer.Option("--on-conflict", metavar="WHAT", help="reject, return, replace or debounce."),
    ] = "reject",
    after: Annotated[
        list[int] | None,
        typer.Option("--after", metavar="JOB", help="A job that must complete first; repeatable."),
    ] = None,
    on_parent_failure: Annotated[
        OnParentFailure,
        typer.Option("--on-parent-failure", metavar="WHAT", help="cancel, or run all the same."),
    ] = "cancel",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for it, and print its result.", show_default=False)
    ] = False,
) -> None:
    """Add a job. It is on disk when its id is printed."""
    options: dict[str, Any] = {
        "delay": None if delay is None else parse_duration(delay),
        "at": None if at is None else parse_moment(at),
        "priority": priority,
        "max_attempts": max_attempts,
        "timeout": None if timeout is None else parse_duration(timeout),
    }
    alone: dict[str, Any] = {
        "deadline": None if deadline is None else parse_moment(deadline),
        "unique_key": unique_key,
        "on_conflict": on_conflict,
        "after": after or (),
        "on_parent_failure": on_parent_failure,
    }
    with session.reach() as hub:
        if payload == "-":
            if deadline or unique_key or after or wait:
                raise InvalidInput("That is for one job, not for one a line.")
            _enqueue_lines(session, hub, queue, type, options)
            return
        value = parse_payload(payload.encode("utf-8", "surrogateescape"), None)
        added = hub.jobs.enqueue(queue, type, value, **options, **alone)
        result = hub.jobs.wait(added) if wait else None
    if wait:
        text = readable(lambda: result, b"")
        table.print_json(text)
    elif session.is_json:
        table.print_json(_added(added))
    else:
        there = "It is there already: job" if added.duplicate else "Job"
        table.say(f"{there} {added.id} is {added.state.name.lower()}.")


@command(
    app,
    "stats",
    examples=("penstock jobs stats", "penstock jobs stats --queue mails --json"),
)
def show_stats(session: Session, queue: Queue = None) -> None:
    """Queues in figures, and their sums: by state, how old, how fast."""
    with session.reach() as hub:
        found = hub.jobs.overview()
    if queue is not None:
        queues = [one for one in found.queues if one.queue == queue] or [QueueStats(queue)]
        found = msgspec.structs.replace(
            found, overall=queues[0], queues=queues, pace=found.paces.get(queue, Pace())
        )
    if session.is_json:
        table.print_json(found)
    else:
        print_overview(found)


@command(app, "workers", examples=("penstock jobs workers", "penstock jobs workers --json"))
def list_workers(session: Session) -> None:
    """The processes that take jobs: queues, handlers, what runs."""
    with session.reach() as hub:
        workers = hub.jobs.workers()
    if session.is_json:
        table.print_json(
            [
                WorkerLine(
                    one.name,
                    one.queues,
                    one.types,
                    one.running,
                    as_datetime(one.started_at).isoformat(),
                )
                for one in workers
            ]
        )
        return
    table.print_table(
        ("worker", "running", "queues", "handlers", "since"),
        (
            (
                one.name,
                one.running,
                ", ".join(f"{name}:{slots}" for name, slots in sorted(one.queues.items())),
                ", ".join(one.types),
                show_time(one.started_at),
            )
            for one in workers
        ),
        right=("running",),
        empty="No workers: 'penstock work MODULE:hub' starts some.",
    )


@command(
    app,
    "watch",
    examples=("penstock jobs watch", "penstock jobs watch --every 5s --json"),
)
def watch_jobs(
    session: Session,
    every: Annotated[
        str, typer.Option("--every", metavar="DURATION", help="How often to look.")
    ] = "1s",
    count: Annotated[
        int | None,
        typer.Option("--count", metavar="N", help="Look so often, then end.", min=1),
    ] = None,
) -> None:
    """The queues, live, until Ctrl-C. With --json, a line for each look."""
    pause = parse_duration(every)
    looks = 0
    with session.reach() as hub, Interruption() as interruption:
        is_live = sys.stdout.isatty() and not session.is_json
        try:
            while True:
                found = hub.jobs.overview()
                if session.is_json:
                    table.write_line(msgspec.json.encode(found))
                else:
                    if is_live:
                        table.console().clear()
                    print_overview(found)
                looks += 1
                if looks == count:
                    return
                with interruption.wait():
                    time.sleep(pause)
        except Stopped:
            raise typer.Exit(interruption.exit_code or 0) from None


def _enqueue_lines(
    session: Session, hub: Hub, queue: str, type: str, options: dict[str, Any]
) -> None:
    count, waiting = 0, []
    with progress(f"Enqueueing into {queue}", "jobs") as update:
        for line in sys.stdin.buffer:
            if not line.strip():
                continue
            waiting.append(parse_payload(line.rstrip(b"\r\n"), None))
            if len(waiting) == LINES_MAX:
                count += len(hub.jobs.enqueue_many(queue, type, waiting, **options))
                waiting = []
                update(count)
        if waiting:
            count += len(hub.jobs.enqueue_many(queue, type, waiting, **options))
    if session.is_json:
        table.print_json({"enqueued": count})
    else:
        table.say(f"{table.plural(count, 'job')} enqueued.")


def _added(added: Enqueued) -> EnqueuedLine:
    return EnqueuedLine(added.id, added.state.name.lower(), added.duplicate)


job_changes.register(app)
