"""`penstock jobs retry|cancel|pause|resume|limit|prune`: into one's own hands (J7, J8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli import table
from penstock.cli.amount import parse_duration, show_duration
from penstock.cli.job_options import (
    Chosen,
    Error,
    JobIds,
    Queue,
    QueueName,
    Since,
    States,
    Type,
    Until,
    Yes,
)
from penstock.cli.progress import progress
from penstock.cli.session import Session, command, confirm
from penstock.errors import InvalidInput
from penstock.job import QueueLimits

if TYPE_CHECKING:
    from penstock.hub import Hub

OPEN = ("pending", "scheduled", "waiting", "processing")

All = Annotated[
    bool, typer.Option("--all", help="All there are, without a filter.", show_default=False)
]


class Changed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was done to how many, as JSON."""

    changed: int
    jobs: list[int] = []
    unchanged: list[int] = []


class Pruned(msgspec.Struct, frozen=True):
    """As JSON."""

    removed: int


class LimitsLine(msgspec.Struct, frozen=True):
    """What holds for a queue, as JSON."""

    queue: str
    limits: QueueLimits


def register(app: typer.Typer) -> None:
    for name, function, examples in (
        (
            "retry",
            retry_jobs,
            (
                "penstock jobs retry 42 43",
                "penstock jobs retry --queue mails --error ConnectionError",
                "penstock jobs retry --all --yes",
            ),
        ),
        (
            "cancel",
            cancel_jobs,
            (
                "penstock jobs cancel 42 --reason 'ordered twice'",
                "penstock jobs cancel --queue mails --type send --yes",
            ),
        ),
        ("pause", pause_queue, ("penstock jobs pause mails",)),
        ("resume", resume_queue, ("penstock jobs resume mails",)),
        (
            "limit",
            limit_queue,
            (
                "penstock jobs limit mails --concurrency 5",
                "penstock jobs limit mails --rate 100 --per 1m",
                "penstock jobs limit mails --none",
            ),
        ),
        (
            "prune",
            prune_jobs,
            (
                "penstock jobs prune",
                "penstock jobs prune --state completed --older-than 1d --yes",
            ),
        ),
    ):
        command(app, name, examples=examples)(function)


def retry_jobs(
    session: Session,
    jobs: JobIds = None,
    queue: Queue = None,
    type: Type = None,
    state: States = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
    everything: All = False,
    yes: Yes = False,
) -> None:
    """Make jobs ready again, with fresh attempts; their history stays.

    By their ids, or all that match: failed ones, unless --state says otherwise.
    """
    chosen = Chosen.of(queue, type, state, error, since, until)
    with session.reach() as hub:
        _change(
            session,
            hub,
            jobs,
            chosen,
            ("failed",),
            everything,
            yes,
            verb=("Retry", "Retrying", "ready again"),
            one=lambda ids: hub.jobs.retry(*ids),
            many=lambda chosen, update: hub.jobs.retry_all(progress=update, **chosen.arguments()),
        )


def cancel_jobs(
    session: Session,
    jobs: JobIds = None,
    queue: Queue = None,
    type: Type = None,
    state: States = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
    everything: All = False,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Kept in their history.")
    ] = "",
    yes: Yes = False,
) -> None:
    """Cancel jobs that have not finished; those that run are asked to stop.

    By their ids, or all that match.
    """
    chosen = Chosen.of(queue, type, state, error, since, until)
    with session.reach() as hub:
        _change(
            session,
            hub,
            jobs,
            chosen,
            OPEN,
            everything,
            yes,
            verb=("Cancel", "Cancelling", "cancelled, or asked to stop"),
            one=lambda ids: hub.jobs.cancel(*ids, reason=reason),
            many=lambda chosen, update: hub.jobs.cancel_all(
                reason=reason, progress=update, **chosen.arguments()
            ),
        )


def pause_queue(session: Session, queue: QueueName) -> None:
    """No worker takes jobs of this queue until it is resumed. What runs goes on."""
    with session.reach() as hub:
        hub.jobs.pause(queue)
    _say(session, {"queue": queue, "is_paused": True}, f"{queue} is paused.")


def resume_queue(session: Session, queue: QueueName) -> None:
    """Workers take jobs of this queue again."""
    with session.reach() as hub:
        hub.jobs.resume(queue)
    _say(session, {"queue": queue, "is_paused": False}, f"{queue} goes on.")


def limit_queue(
    session: Session,
    queue: QueueName,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", metavar="N", help="At most so many at once.", show_default=False
        ),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(
            "--rate",
            metavar="N",
            help="At most so many begin in the time of --per.",
            show_default=False,
        ),
    ] = None,
    per: Annotated[
        str, typer.Option("--per", metavar="DURATION", help="The time of the rate.")
    ] = "1s",
    none: Annotated[
        bool, typer.Option("--none", help="Without limits from now on.", show_default=False)
    ] = False,
) -> None:
    """What holds for a queue over all processes. Limits that are not named are lifted."""
    if none == (concurrency is not None or rate is not None):
        raise typer.BadParameter("say --concurrency, --rate or both; or --none.")
    with session.reach() as hub:
        limits = hub.jobs.limit(
            queue, concurrency=concurrency, rate=rate, per_seconds=parse_duration(per)
        )
    said = []
    if limits.concurrency_max is not None:
        said.append(f"{limits.concurrency_max} at once")
    if limits.rate_max is not None:
        said.append(f"{limits.rate_max} in {show_duration(limits.rate_seconds)}")
    text = f"{queue}: {', '.join(said) or 'no limits'}{', paused' if limits.is_paused else ''}."
    _say(session, LimitsLine(queue, limits), text)


def prune_jobs(
    session: Session,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", metavar="STATE", help="completed, failed or cancelled; repeatable."
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Those that finished longer ago than this. Default: the settings "
            "job_keep_…_seconds, by which the hub itself prunes.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Remove finished jobs now, with their history."""
    age = None if older_than is None else parse_duration(older_than)
    with session.reach() as hub:
        if age is not None:
            what = " or ".join(state) if state else "finished"
            confirm(f"Remove {what} jobs older than {show_duration(age)}?", is_confirmed=yes)
        total = sum(one.completed + one.failed + one.cancelled for one in hub.jobs.stats())
        with progress("Pruning", "jobs", total) as update:
            removed = hub.jobs.prune(state=state, older_than_seconds=age, progress=update)
    _say(session, Pruned(removed), f"{table.plural(removed, 'job')} removed.")


def _change(
    session: Session,
    hub: Hub,
    ids: list[int] | None,
    chosen: Chosen,
    states: tuple[str, ...],
    everything: bool,
    yes: bool,
    *,
    verb: tuple[str, str, str],
    one: Callable[[list[int]], list[int]],
    many: Callable[[Chosen, Callable[[int], None]], int],
) -> None:
    """By ids at once; by a filter after a question, which says how many, and with progress."""
    if ids:
        if not chosen.is_empty or everything:
            raise InvalidInput("Pass ids, or a filter, not both.")
        for number in ids:
            hub.jobs.get(number)
        done = one(ids)
        rest = [number for number in ids if number not in done]
        text = f"{table.plural(len(done), 'job')} {verb[2]}."
        if rest:
            listed = ", ".join(map(str, rest))
            text += f" Not in a state for that: {listed}."
        _say(session, Changed(len(done), done, rest), text)
        if rest:
            raise typer.Exit(1)
        return
    if chosen.is_empty and not everything:
        raise InvalidInput("Which jobs?", hint="Pass ids, a filter such as --queue, or --all.")
    if not chosen.state:
        chosen = msgspec.structs.replace(chosen, state=states)
    total = chosen.count(hub)
    if total:
        confirm(f"{verb[0]} {table.plural(total, 'job')}?", is_confirmed=yes)
    with progress(verb[1], "jobs", total) as update:
        changed = many(chosen, update) if total else 0
    _say(session, Changed(changed), f"{table.plural(changed, 'job')} {verb[2]}.")


def _say(session: Session, value: Any, text: str) -> None:
    if session.is_json:
        table.print_json(value)
    else:
        table.say(text)
