"""`penstock lake …`: what was archived, whether it is whole, and keeping it in shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli import table
from penstock.cli.amount import parse_duration, show_size, show_time
from penstock.cli.layout import LaidOutGroup
from penstock.cli.pipeline_options import Lake, settings_for
from penstock.cli.progress import progress
from penstock.cli.session import Session, command, confirm
from penstock.clock import as_datetime
from penstock.errors import LakeDamaged
from penstock.hub import Hub
from penstock.ports import Store

if TYPE_CHECKING:
    from penstock.settings import Settings
    from penstock.spark.lake_folder import LakeFolder

SHOWN = 10

app = typer.Typer(
    help="See what was archived, check it, keep it in shape.",
    cls=LaidOutGroup,
    no_args_is_help=True,
)


class Coverage(msgspec.Struct, frozen=True):
    """How far a subscription is in the lake, as JSON."""

    subscription: str
    through: int
    behind: int
    is_held: bool
    updated_at: str


class State(msgspec.Struct, frozen=True):
    """The lake, as JSON."""

    lake: str | None
    folder: str
    files: int
    rows: int
    bytes: int
    unparsable: int
    formats: dict[str, int]
    replaced_files: int
    replaced_bytes: int
    coverage: list[Coverage]


@command(app, "show", examples=("penstock lake show", "penstock lake show --json"))
def show_lake(session: Session, lake: Lake = None) -> None:
    """What is in the lake, how far each subscription is, and what was added last."""
    with _opened(session, lake) as (store, folder, _):
        totals, log, name = store.lake.totals(), store.log(), store.lake.id()
        coverage = [
            Coverage(
                found.subscription,
                found.through,
                max(0, log.last_id - found.through) if found.is_held else 0,
                found.is_held,
                as_datetime(found.updated_at).isoformat(),
            )
            for found in store.lake.coverage()
        ]
        additions = store.lake.additions(limit=SHOWN)
    if session.is_json:
        table.print_json(
            State(name, str(folder.path), **msgspec.structs.asdict(totals), coverage=coverage)
        )
        return
    if name is None:
        table.say("Nothing was archived yet: 'penstock pipeline run archive'.")
        return
    table.print_fields(
        [
            ("folder", folder.path),
            ("messages", f"{totals.rows:,}"),
            ("files", f"{totals.files:,} ({show_size(totals.bytes)})"),
            ("formats", ", ".join(f"{n:,} {format}" for format, n in totals.formats.items())),
            ("not the JSON they say", f"{totals.unparsable:,}"),
            (
                "replaced, to be removed",
                f"{totals.replaced_files:,} files ({show_size(totals.replaced_bytes)})",
            ),
        ]
    )
    table.print_table(
        ("topics", "archived up to", "behind", "retention waits"),
        (
            (
                one.subscription,
                one.through,
                f"{one.behind:,}" if one.is_held else "",
                "yes" if one.is_held else "no",
            )
            for one in coverage
        ),
        right=("archived up to", "behind"),
        title="\nCoverage",
    )
    table.print_table(
        ("at", "ids", "messages", "files", "size"),
        (
            (
                show_time(one.at),
                f"{one.after + 1}–{one.through}",
                f"{one.rows:,}",
                one.files,
                show_size(one.bytes),
            )
            for one in additions
        ),
        right=("messages", "files", "size"),
        title="\nAdded last",
    )


@command(app, "files", examples=("penstock lake files", "penstock lake files orders --json | jq ."))
def list_files(
    session: Session,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Only of this topic.", show_default="all")
    ] = None,
    lake: Lake = None,
) -> None:
    """The files that the lake consists of, for programs that read Parquet without penstock."""
    from penstock.spark.lake_files import folders_of

    with _opened(session, lake) as (store, folder, _):
        folders = None if topic is None else folders_of(topic)
        found = store.lake.view(folders=folders).files
    if session.is_json:
        table.print_json(
            [
                {**msgspec.structs.asdict(file), "path": str(folder.path / file.path)}
                for file in found
            ]
        )
        return
    table.print_table(
        ("date", "topic", "ids", "messages", "size", "file"),
        (
            (
                file.date,
                file.folder,
                f"{file.first_id}–{file.last_id}",
                f"{file.rows:,}",
                show_size(file.bytes),
                file.path,
            )
            for file in found
        ),
        right=("messages", "size"),
        empty="The lake has no such files.",
    )


@command(app, "verify", examples=("penstock lake verify",))
def verify_lake(session: Session, lake: Lake = None) -> None:
    """Read every file of the lake and compare it with what was written. Exit code 1 if one is
    missing or damaged."""
    from penstock.spark.compaction import check_file

    with _opened(session, lake) as (store, folder, _):
        files = store.lake.view().files
        if files:
            folder.check(store.lake.id())
        wrong: list[str] = []
        with progress("Verifying", "files", total=len(files)) as update:
            for number, file in enumerate(files, 1):
                try:
                    check_file(folder.path, file)
                except LakeDamaged as error:
                    wrong.append(error.message)
                update(number)
    if session.is_json:
        table.print_json({"files": len(files), "wrong": wrong})
    elif not wrong:
        table.say(f"{table.plural(len(files), 'file')}, all as they were written.")
    if wrong:
        for sentence in wrong if not session.is_json else ():
            table.say(sentence)
        raise LakeDamaged(
            f"{len(wrong):,} of {table.plural(len(files), 'file')} are missing or damaged.",
            hint="Take them from a copy of the lake. What is still in the log can be read with "
            "source='log'.",
        )


@command(
    app,
    "compact",
    examples=("penstock lake compact", "penstock lake compact --everything"),
)
def compact_lake(
    session: Session,
    everything: Annotated[
        bool,
        typer.Option(
            "--everything",
            help="Merge small files of a topic and date as soon as there are two.",
            show_default=False,
        ),
    ] = False,
    lake: Lake = None,
) -> None:
    """Merge small files, and remove those that were merged long ago. archive does it, too."""
    from penstock.spark.compaction import Compactor

    with _opened(session, lake) as (store, folder, settings):
        folder.check(store.lake.id())
        done = Compactor(store, folder, settings).run(everything=everything)
    if session.is_json:
        table.print_json(done)
        return
    table.say(
        f"Merged {table.plural(done.merged, 'file')} into {done.made:,}, removed {done.removed:,}."
    )


@command(
    app,
    "clean",
    examples=("penstock lake clean", "penstock lake clean --older-than 7d --yes"),
)
def clean_lake(
    session: Session,
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="TIME", help="Leave younger ones: they may be new."),
    ] = "1d",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.", show_default=False)] = False,
    lake: Lake = None,
) -> None:
    """Remove files in the lake's folder that do not belong to it: of runs that were killed, or of
    the time after the backup that the database was restored from."""
    from penstock.spark.compaction import orphans, remove_empty

    with _opened(session, lake) as (store, folder, _):
        folder.check(store.lake.id())
        found = orphans(store, folder, older_than_seconds=parse_duration(older_than))
        if found:
            if not session.is_json:
                for path in found[:SHOWN]:
                    table.note(path)
            confirm(f"Remove {table.plural(len(found), 'file')}?", is_confirmed=yes)
            for path in found:
                (folder.path / path).unlink(missing_ok=True)
            remove_empty(folder.path, found)
    if session.is_json:
        table.print_json({"removed": found})
        return
    table.say(f"Removed {table.plural(len(found), 'file')}.")


@command(app, "release", examples=("penstock lake release",))
def release_lake(
    session: Session,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.", show_default=False)] = False,
    lake: Lake = None,
) -> None:
    """Let retention remove messages that are not archived. The next run of archive holds them
    again."""
    from penstock.clock import SystemClock
    from penstock.spark.lake_folder import writing

    confirm("Messages that are not archived will be removed. Go on?", is_confirmed=yes)
    with _opened(session, lake) as (store, _, _settings), writing(store) as transaction:
        released = transaction.lake.release(now=SystemClock().now())
    if session.is_json:
        table.print_json({"released": released})
        return
    table.say(f"Retention waits for {table.plural(released, 'subscription')} no longer.")


@contextmanager
def _opened(session: Session, lake: str | None) -> Iterator[tuple[Store, LakeFolder, Settings]]:
    from penstock.spark.programs import require_spark

    require_spark()
    from penstock.spark.lake_folder import LakeFolder
    from penstock.spark.runner import lake_of

    settings: Any = settings_for(session, lake=lake, checkpoints=None)
    with Hub(settings) as hub:
        yield hub._open().store, LakeFolder(lake_of(settings)), settings
