"""`penstock migrate …`: the schema of the database, step by step."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli import table
from penstock.cli.amount import show_time
from penstock.cli.layout import LaidOutGroup
from penstock.cli.session import Session, command, confirm
from penstock.stores import open_migrations

app = typer.Typer(
    help="Show and change the schema of the database.", cls=LaidOutGroup, no_args_is_help=True
)

To = Annotated[
    int | None,
    typer.Option(
        "--to", metavar="VERSION", min=0, help="Stop at this version.", show_default=False
    ),
]


class Migrated(msgspec.Struct, frozen=True):
    """What was done, as JSON."""

    version: int
    steps: list[str]


@command(app, "status", examples=("penstock migrate status",))
def status(session: Session) -> None:
    """Which steps the database has, and which this penstock knows."""
    found = open_migrations(session.settings()).status()
    if session.is_json:
        table.print_json(found)
        return
    table.print_fields(
        (
            ("database", found.location if found.exists else f"{found.location} (not made yet)"),
            ("schema", f"version {found.version}; this penstock knows {found.known}"),
            ("", found.advice or "up to date"),
        )
    )
    table.say("")
    table.print_table(
        ("version", "step", "applied"),
        (
            (
                step.version,
                step.name,
                "-" if step.applied_at is None else show_time(step.applied_at),
            )
            for step in found.steps
        ),
        right=("version",),
    )


@command(app, "up", examples=("penstock migrate up",))
def up(session: Session, to: To = None) -> None:
    """Apply the steps that are missing. Opening a database does so, too, unless migrate = "off"."""
    migrations = open_migrations(session.settings())
    applied = migrations.up(to)
    _print(session, migrations.status().version, applied, "Applied")


@command(app, "down", examples=("penstock migrate down", "penstock migrate down --to 0 --yes"))
def down(
    session: Session,
    to: To = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", show_default=False)
    ] = False,
) -> None:
    """Undo the last step, or all above a version. The tables of those steps go, with all in them.

    Version 0 leaves nothing of penstock's in the file; your own tables stay.
    """
    migrations = open_migrations(session.settings())
    version = migrations.status().version
    target = max(0, version - 1) if to is None else to
    if target < version:
        confirm(
            f"Go from schema version {version} down to {target}, and lose what those steps hold?",
            is_confirmed=yes,
        )
    undone = migrations.down(target)
    _print(session, migrations.status().version, undone, "Undone")


def _print(session: Session, version: int, steps: list[str], done: str) -> None:
    if session.is_json:
        table.print_json(Migrated(version, steps))
    elif steps:
        table.say(f"{done}: {', '.join(steps)}. The schema is at version {version}.")
    else:
        table.say(f"Nothing to do: the schema is at version {version}.")
