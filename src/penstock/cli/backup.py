"""`penstock backup` and `penstock restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli import table
from penstock.cli.amount import show_size
from penstock.cli.progress import progress
from penstock.cli.session import Session, command, confirm
from penstock.errors import BackupFailed, StoreCorrupt, StoreUnavailable


class BackedUp(msgspec.Struct, frozen=True):
    """A backup that was made, as JSON."""

    file: str
    bytes: int


class Restored(msgspec.Struct, frozen=True):
    """A backup that was restored, as JSON."""

    file: str
    topics: int
    messages: int
    end: str


def register(app: typer.Typer, panel: str) -> None:
    command(
        app,
        "backup",
        panel=panel,
        examples=("penstock backup penstock-monday.db", "penstock backup latest.db --force"),
    )(backup)
    command(app, "restore", panel=panel, examples=("penstock restore penstock-monday.db --yes",))(
        restore
    )


def backup(
    session: Session,
    file: Annotated[Path, typer.Argument(help="Where the copy goes.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file if it exists.", show_default=False)
    ] = False,
) -> None:
    """Write a consistent copy while everybody goes on publishing and following."""
    database = session.database_file()
    if database is not None:
        if not database.is_file():
            # An empty backup, made because of a typo, is worse than none.
            raise BackupFailed(
                f"There is no database at {database}.", hint="Check --url and PENSTOCK_URL."
            )
        _refuse_same(file, database)
    if file.exists() and not force:
        raise BackupFailed(f"{file} exists.", hint="Pass --force to replace it.")
    with session.connect() as hub, progress("Backing up", "pages") as update:
        hub.backup(file, lambda done, total: update(done, total), overwrite=force)
    size = file.stat().st_size
    if session.is_json:
        table.print_json(BackedUp(str(file.absolute()), size))
    else:
        table.say(f"{file} is written, {show_size(size)}.")


def restore(
    session: Session,
    file: Annotated[Path, typer.Argument(help="A backup.")],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", show_default=False)
    ] = False,
) -> None:
    """Replace the content of the hub by a backup's.

    Processes may stay connected. Positions taken before are refused from then on (EpochChanged),
    so that nobody mistakes the restored log for the one it knew.
    """
    database = session.database_file()
    if not file.is_file():
        raise BackupFailed(f"There is no backup at {file}.")
    if database is not None and database.exists():
        _refuse_same(file, database)
        confirm(f"Replace everything in {database} by {file}?", is_confirmed=yes)
    with session.connect() as hub:
        try:
            before = hub.topics.position()
        except (StoreUnavailable, StoreCorrupt) as error:
            error.hint = (
                f"{error.hint} To restore in its place, move {database} and the files beside it "
                "that begin with its name away first."
            ).strip()
            raise
        with progress("Restoring", "pages") as update:
            hub.restore(file, lambda done, total: update(done, total))
        end = hub.topics.position()
        topics = hub.topics.list()
    assert end.epoch != before.epoch, "a restore starts a new generation"
    messages = sum(topic.messages for topic in topics)
    if session.is_json:
        table.print_json(Restored(str(file.absolute()), len(topics), messages, str(end)))
    else:
        table.say(
            f"{file} is restored: {table.plural(messages, 'message')} "
            f"in {table.plural(len(topics), 'topic')}."
        )


def _refuse_same(file: Path, database: Path) -> None:
    if file.exists() and file.samefile(database):
        raise BackupFailed(f"{file} is the database itself.", hint="Name another file.")
