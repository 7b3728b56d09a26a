"""`penstock schedules …`: jobs that are enqueued by the clock."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock import codec
from penstock.cli import table
from penstock.cli.amount import parse_duration, show_time
from penstock.cli.completion import complete_queue, complete_schedule
from penstock.cli.job_options import FORMATS, Yes, moment, readable
from penstock.cli.layout import LaidOutGroup
from penstock.cli.publish import parse_payload
from penstock.cli.session import Session, command, confirm
from penstock.job import Missed, Schedule

app = typer.Typer(
    help="List, add, pause, run and remove schedules (cron).",
    cls=LaidOutGroup,
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="The schedule.", autocompletion=complete_schedule)]


class ScheduleLine(msgspec.Struct, frozen=True):
    """A schedule, as JSON."""

    name: str
    cron: str
    timezone: str
    missed: str
    queue: str
    type: str
    payload: Any
    format: str
    is_paused: bool
    next: str | None
    last: str | None
    last_job: int | None


@command(app, "list", examples=("penstock schedules list", "penstock schedules list --json"))
def list_schedules(session: Session) -> None:
    """Schedules by name: when they tick next, and what they enqueue."""
    with session.reach() as hub:
        found = hub.schedules.list()
    if session.is_json:
        table.print_json([_line(one) for one in found])
        return
    table.print_table(
        ("schedule", "cron", "zone", "queue", "type", "next", "last", "last job"),
        (
            (
                one.name,
                one.cron,
                one.timezone,
                one.queue,
                one.type,
                _next(one),
                "-" if one.last_at is None else show_time(one.last_at),
                "" if one.last_job_id is None else one.last_job_id,
            )
            for one in found
        ),
        right=("last job",),
        empty="No schedules yet: 'penstock schedules add' makes one.",
    )


@command(
    app,
    "add",
    examples=(
        "penstock schedules add nightly '0 3 * * *' reports build --timezone Europe/Vienna",
        "penstock schedules add tick '*/10 * * * * *' beats beat '{\"n\": 1}' --missed skip",
    ),
)
def add_schedule(
    session: Session,
    name: Annotated[str, typer.Argument(help="The schedule; one of this name is changed.")],
    cron: Annotated[
        str,
        typer.Argument(help="Minute, hour, day, month, weekday; or six, with seconds in front."),
    ],
    queue: Annotated[str, typer.Argument(help="The queue.", autocompletion=complete_queue)],
    type: Annotated[str, typer.Argument(help="The job's type.")],
    payload: Annotated[
        str, typer.Argument(help="JSON, or any other text.", show_default="null")
    ] = "null",
    timezone: Annotated[
        str, typer.Option("--timezone", metavar="ZONE", help="Such as Europe/Vienna.")
    ] = "UTC",
    missed: Annotated[
        Missed,
        typer.Option(
            "--missed",
            metavar="WHICH",
            help="Ticks that no process was there for: make up for the latest, all or none (skip).",
        ),
    ] = "latest",
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
) -> None:
    """Make a schedule, or change it."""
    with session.reach() as hub:
        made = hub.schedules.put(
            name,
            cron,
            queue,
            type,
            parse_payload(payload.encode("utf-8", "surrogateescape"), None),
            timezone=timezone,
            missed=missed,
            priority=priority,
            max_attempts=max_attempts,
            timeout=None if timeout is None else parse_duration(timeout),
        )
    _say(session, made, f"{name} ticks next at {_next(made)}.")


@command(app, "pause", examples=("penstock schedules pause nightly",))
def pause_schedule(session: Session, name: Name) -> None:
    """No ticks until it is resumed; those in between are not made up for."""
    with session.reach() as hub:
        hub.schedules.pause(name)
        found = hub.schedules.get(name)
    _say(session, found, f"{name} is paused.")


@command(app, "resume", examples=("penstock schedules resume nightly",))
def resume_schedule(session: Session, name: Name) -> None:
    """Go on with the next tick."""
    with session.reach() as hub:
        hub.schedules.resume(name)
        found = hub.schedules.get(name)
    _say(session, found, f"{name} ticks next at {_next(found)}.")


@command(app, "remove", examples=("penstock schedules remove nightly --yes",))
def remove_schedule(session: Session, name: Name, yes: Yes = False) -> None:
    """Remove a schedule. Jobs it has enqueued stay."""
    with session.reach() as hub:
        hub.schedules.get(name)
        confirm(f"Remove the schedule {name!r}?", is_confirmed=yes)
        hub.schedules.remove(name)
    if session.is_json:
        table.print_json({"removed": name})
    else:
        table.say(f"{name} is removed.")


@command(app, "run-now", examples=("penstock schedules run-now nightly",))
def run_schedule(session: Session, name: Name) -> None:
    """Enqueue its job once, beside its ticks; also while it is paused."""
    with session.reach() as hub:
        added = hub.schedules.run_now(name)
    if session.is_json:
        table.print_json({"id": added.id, "state": added.state.name.lower()})
    else:
        table.say(f"Job {added.id} is {added.state.name.lower()}.")


def _next(schedule: Schedule) -> str:
    if schedule.paused_at is not None:
        return "paused"
    return "never" if schedule.next_at is None else show_time(schedule.next_at)


def _say(session: Session, schedule: Schedule, text: str) -> None:
    if session.is_json:
        table.print_json(_line(schedule))
    else:
        table.say(text)


def _line(schedule: Schedule) -> ScheduleLine:
    return ScheduleLine(
        schedule.name,
        schedule.cron,
        schedule.timezone,
        schedule.missed,
        schedule.queue,
        schedule.type,
        readable(lambda: schedule.payload, schedule.body),
        FORMATS.get(schedule.encoding & codec.FORMAT_MASK, "unknown"),
        schedule.paused_at is not None,
        moment(schedule.next_at),
        moment(schedule.last_at),
        schedule.last_job_id,
    )
