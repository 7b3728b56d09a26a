"""`penstock ledger …`: what has been processed, who is at what, and taking it back by hand."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import table
from penstock.cli.amount import show_duration, show_time
from penstock.cli.layout import LaidOutGroup
from penstock.cli.progress import progress
from penstock.cli.session import Session, command, confirm
from penstock.clock import as_datetime
from penstock.entry import Entry, EntryState, ScopeStats
from penstock.errors import LedgerError, UndecodablePayload

app = typer.Typer(
    help="See what has been processed, and let it be processed again.",
    cls=LaidOutGroup,
    no_args_is_help=True,
)

Scope = Annotated[str, typer.Argument(help="The scope, such as a consumer's name.")]
Keys = Annotated[list[str], typer.Argument(metavar="KEY…", help="The keys.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", show_default=False)
]


class EntryLine(msgspec.Struct, frozen=True):
    """An entry, as JSON."""

    scope: str
    key: str
    state: str
    held: bool
    at: str
    attempts: int
    expires: str | None
    token: int | None
    result: Any = None


class ScopeLine(msgspec.Struct, frozen=True):
    """A scope, as JSON."""

    scope: str
    completed: int
    failed: int
    in_progress: int
    keep_seconds: float | None
    """None: as long as the setting ledger_seconds says. -1: for ever."""


class Counted(msgspec.Struct, frozen=True):
    scope: str | None
    processed: int


class Removed(msgspec.Struct, frozen=True):
    removed: int


@command(
    app,
    "list",
    examples=("penstock ledger list billing", "penstock ledger list billing --after evt-41"),
)
def list_entries(
    session: Session,
    scope: Scope,
    after: Annotated[
        str, typer.Option("--after", metavar="KEY", help="Go on after this key.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="So many at most.")] = 100,
) -> None:
    """A scope's entries, by key."""
    with session.reach() as hub:
        found = hub.ledger.list(scope, after=after, limit=limit)
    if session.is_json:
        table.print_json([_line(entry) for entry in found])
        return
    table.print_table(
        ("key", "state", "since", "attempts", "expires"),
        (
            (
                entry.key,
                _state(entry),
                show_time(entry.at),
                entry.attempts,
                "never" if entry.expires_at is None else show_time(entry.expires_at),
            )
            for entry in found
        ),
        right=("attempts",),
        empty=f"Nothing in {scope!r}" + (f" after {after!r}." if after else "."),
    )


@command(app, "show", examples=("penstock ledger show billing evt-42",))
def show_entry(
    session: Session, scope: Scope, key: Annotated[str, typer.Argument(help="The key.")]
) -> None:
    """What the ledger says about one key. Exit code 1 if that is nothing."""
    with session.reach() as hub:
        found = hub.ledger.get(scope, key)
    if found is None:
        raise LedgerError(
            f"The ledger has nothing about {key!r} in {scope!r}.",
            hint="It was never processed, was given back, or has expired.",
        )
    if session.is_json:
        table.print_json(_line(found))
        return
    fields = [
        ("scope", found.scope),
        ("key", found.key),
        ("state", _state(found)),
        ("since", show_time(found.at)),
        ("attempts", found.attempts),
        ("expires", "never" if found.expires_at is None else show_time(found.expires_at)),
    ]
    if found.token is not None:
        fields.append(("token", found.token))
    if found.raw_result is not None:
        fields.append(("result", _result_text(found)))
    table.print_fields(fields)


@command(app, "count", examples=("penstock ledger count", "penstock ledger count billing"))
def count_entries(
    session: Session,
    scope: Annotated[
        str | None, typer.Argument(metavar="SCOPE", help="Only this scope.", show_default="all")
    ] = None,
) -> None:
    """How many keys are processed."""
    with session.reach() as hub:
        found = hub.ledger.count(scope)
    if session.is_json:
        table.print_json(Counted(scope, found))
    else:
        table.say(f"{found:,}")


@command(app, "stats", examples=("penstock ledger stats", "penstock ledger stats --json"))
def show_stats(session: Session) -> None:
    """Every scope: what is processed, what is in progress, how long it is kept."""
    with session.reach() as hub:
        found = hub.ledger.stats()
        # What holds for the other scopes is a setting of whoever has the file.
        default = "default" if session.is_remote else _kept(hub.settings.ledger_seconds)
    if session.is_json:
        table.print_json([_scope_line(stats) for stats in found])
        return
    table.print_table(
        ("scope", "completed", "failed", "in progress", "kept for"),
        (
            (
                stats.scope,
                f"{stats.completed:,}",
                f"{stats.failed:,}",
                f"{stats.in_progress:,}",
                default if stats.keep_seconds is None else _kept(stats.keep_seconds),
            )
            for stats in found
        ),
        right=("completed", "failed", "in progress", "kept for"),
        empty="The ledger is empty.",
    )


@command(app, "forget", examples=("penstock ledger forget billing evt-42 --yes",))
def forget_entries(session: Session, scope: Scope, keys: Keys, yes: Yes = False) -> None:
    """Remove entries, so that they can be processed again. One in progress loses its claim."""
    with session.reach() as hub:
        confirm(
            f"Forget {table.plural(len(keys), 'key')} of {scope!r}? They can be processed again.",
            is_confirmed=yes,
        )
        removed = hub.ledger.forget(scope, *keys)
    if session.is_json:
        table.print_json(Removed(removed))
    else:
        table.say(f"{_entries(removed)} forgotten.")


@command(app, "prune", examples=("penstock ledger prune",))
def prune_entries(session: Session) -> None:
    """Remove what has expired now. Running processes do it by themselves from time to time."""
    with session.reach() as hub, progress("pruning", "entries") as update:
        removed = hub.ledger.prune(update)
    if session.is_json:
        table.print_json(Removed(removed))
    else:
        table.say(f"{_entries(removed)} removed.")


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _state(entry: Entry) -> str:
    if entry.state != EntryState.IN_PROGRESS:
        return entry.state.name.lower()
    return "in progress" if entry.is_held else "abandoned"


def _kept(seconds: float) -> str:
    return "ever" if seconds == float("inf") else show_duration(seconds)


def _scope_line(stats: ScopeStats) -> ScopeLine:
    keep = stats.keep_seconds
    # JSON has no infinity.
    return ScopeLine(
        stats.scope,
        stats.completed,
        stats.failed,
        stats.in_progress,
        -1.0 if keep == float("inf") else keep,
    )


def _result(entry: Entry) -> Any:
    try:
        return entry.result
    except UndecodablePayload as error:
        return str(error)


def _result_text(entry: Entry) -> str:
    return msgspec.json.encode(_result(entry)).decode()


def _line(entry: Entry) -> EntryLine:
    return EntryLine(
        entry.scope,
        entry.key,
        entry.state.name.lower(),
        entry.is_held,
        as_datetime(entry.at).isoformat(),
        entry.attempts,
        None if entry.expires_at is None else as_datetime(entry.expires_at).isoformat(),
        entry.token,
        _result(entry),
    )
