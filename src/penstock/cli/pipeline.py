"""`penstock pipeline …`: what Spark does with topics, jobs and the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli import figures, table
from penstock.cli.amount import show_duration, show_time
from penstock.cli.layout import LaidOutGroup
from penstock.cli.pipeline_options import (
    Checkpoint,
    Conf,
    Lake,
    Master,
    Modules,
    Set,
    Since,
    Source,
    Until,
    find_all,
    find_one,
    parse_run,
    settings_for,
)
from penstock.cli.session import Session, command, confirm
from penstock.clock import SystemClock, seconds
from penstock.hub import Hub
from penstock.ports.pipelines import PipelineStatus

if TYPE_CHECKING:
    from penstock.spark.registry import Pipeline

app = typer.Typer(
    help="Run pipelines on Spark, see how they are doing, begin anew.",
    cls=LaidOutGroup,
    no_args_is_help=True,
)

MARKS = {
    "starting": "ok",
    "running": "ok",
    "finished": "ok",
    "stopped": "ok",
    "lost": "warning",
    "failed": "critical",
}


class PipelineLine(msgspec.Struct, frozen=True):
    """A pipeline that can be run, as JSON."""

    name: str
    summary: str
    home: str
    is_continuous: bool
    options: list[dict[str, Any]]


@command(
    app,
    "list",
    examples=(
        "penstock pipeline list",
        "penstock pipeline list archive                    # its options",
        "penstock pipeline list -m shop --json",
    ),
)
def list_pipelines(
    session: Session,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME…", help="Only these, with their options."),
    ] = None,
    modules: Modules = None,
) -> None:
    """Pipelines that can be run: those that come with penstock, and those of your modules."""
    if names:
        found = [find_one(session, name, modules) for name in names]
    else:
        found = find_all(session, modules)
    if session.is_json:
        table.print_json(
            [
                PipelineLine(
                    one.name,
                    one.summary,
                    one.home,
                    one.is_continuous,
                    [
                        {
                            "name": option.name,
                            "type": option.type.__name__,
                            "default": option.default,
                            "help": option.help,
                        }
                        for option in one.options
                    ],
                )
                for one in found
            ]
        )
        return
    if names:
        for one in found:
            _print_options(one)
        return
    table.print_table(
        ("pipeline", "what it does", "from"),
        ((one.name, one.summary, one.home) for one in found),
    )


@command(
    app,
    "run",
    takes_more=True,
    examples=(
        "penstock pipeline run archive --once              # what there is, and end",
        "penstock pipeline run archive rollups             # go on until Ctrl-C",
        "penstock pipeline run shop:totals --currency USD  # one of your own, with an option",
        "penstock pipeline run -m shop all",
        "penstock pipeline run shop:totals --since 2026-01-01T00:00Z --until 2026-02-01T00:00Z",
        "penstock pipeline run archive --master spark://host:7077 --conf spark.executor.memory=2g",
    ),
)
def run_pipelines(
    session: Session,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME…",
            help="Pipelines by name, MODULE:NAME for one of your own, or all; then their own "
            "options, such as --topics orders. 'penstock pipeline list' shows both.",
        ),
    ],
    once: Annotated[
        bool,
        typer.Option("--once", help="Do what there is, and end.", show_default=False),
    ] = False,
    trigger: Annotated[
        str | None,
        typer.Option(
            "--trigger",
            metavar="DURATION",
            help="How often to look for more, such as 10s or 5m.",
            show_default="the pipeline's, then 10s",
        ),
    ] = None,
    modules: Modules = None,
    options: Set = None,
    since: Since = None,
    until: Until = None,
    source: Source = "log",
    master: Master = None,
    conf: Conf = None,
    lake: Lake = None,
    checkpoints: Checkpoint = None,
    ui: Annotated[
        bool, typer.Option("--ui", help="Serve Spark's own pages.", show_default=False)
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="Show Spark's log, which is otherwise in a file beside the database.",
            show_default=False,
        ),
    ] = False,
) -> None:
    """Run pipelines, until Ctrl-C or SIGTERM; each ends after the batch it is at.

    All of them share one Spark. A pipeline that is running elsewhere is refused.
    """
    plan = parse_run(
        session,
        names,
        modules=modules or [],
        given=options or [],
        once=once,
        trigger=trigger,
        since=since,
        until=until,
        source=source,
        master=master,
        conf=conf or [],
        lake=lake,
        checkpoints=checkpoints,
    )
    # Imported here: it takes Spark.
    from penstock.cli.pipeline_run import Conductor

    raise typer.Exit(Conductor(session, plan, ui=ui, is_verbose=verbose).run())


@command(
    app,
    "status",
    examples=("penstock pipeline status", "penstock pipeline status archive --json"),
)
def show_status(
    session: Session,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="Only these.", show_default="all")
    ] = None,
) -> None:
    """How far each pipeline has come: rows, how far behind, its last batch and last error."""
    with session.reach() as hub:
        # A server does not tell where things lie.
        found = (
            hub._open().store.pipelines.find() if isinstance(hub, Hub) else hub.metrics().pipelines
        )
    chosen = [one for one in found if not names or one.name in names]
    for name in names or []:
        if name not in {one.name for one in found}:
            raise _never_ran(name, [one.name for one in found])
    if session.is_json:
        table.print_json(chosen)
        return
    now = SystemClock().now()
    table.print_table(
        ("pipeline", "state", "rows", "in all", "behind", "last batch", "rows/s", "seen", "by"),
        (
            (
                one.name,
                table.coloured(one.state, MARKS[one.state]),
                f"{one.rows:,}",
                f"{one.rows_total:,}",
                "" if one.lag is None else f"{one.lag:,}",
                _last_batch(one),
                "" if not one.batch_seconds else f"{one.batch_rows / one.batch_seconds:,.0f}",
                f"{show_duration(max(0.0, seconds(now - one.updated_at)))} ago",
                one.runner,
            )
            for one in chosen
        ),
        right=("rows", "in all", "behind", "rows/s"),
        empty="No pipeline has run yet: 'penstock pipeline list' shows those there are.",
    )
    for one in chosen:
        if one.error and one.error_at is not None:
            when = "failed" if one.state == "failed" else "last failed"
            table.say(f"\n{one.name} {when} at {show_time(one.error_at)}: {one.error}")


@command(
    app,
    "reset",
    examples=("penstock pipeline reset totals -m shop", "penstock pipeline reset archive --yes"),
)
def reset_pipeline(
    session: Session,
    name: Annotated[str, typer.Argument(help="The pipeline: NAME or MODULE:NAME.")],
    modules: Modules = None,
    checkpoints: Checkpoint = None,
    lake: Lake = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.", show_default=False)] = False,
) -> None:
    """Let a pipeline begin anew: its checkpoint is put aside, and it reads everything again.

    What it has written to topics and queues stays, and is written a second time.
    """
    from penstock.spark.reset import reset

    settings = settings_for(session, lake=lake, checkpoints=checkpoints)
    pipeline = find_one(session, name, modules)
    confirm(
        f"{pipeline.name} will read everything again, and write it again. Go on?", is_confirmed=yes
    )
    done = reset(settings, pipeline)
    if session.is_json:
        table.print_json({"pipeline": pipeline.name, "done": done})
        return
    for sentence in done:
        table.say(sentence)


@command(
    app,
    "package",
    examples=(
        "penstock pipeline package -m shop",
        "penstock pipeline package -m shop -o shop.zip --dependencies shop-deps.tar.gz",
    ),
)
def package_pipelines(
    session: Session,
    modules: Modules = None,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="The archive, for --py-files."),
    ] = "penstock-pipelines.zip",
    dependencies: Annotated[
        str | None,
        typer.Option(
            "--dependencies",
            metavar="FILE",
            help="Also what penstock needs, as an archive for --archives: for executors of this "
            "platform and Python that have no penstock.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Build the archive that the executors of a cluster need: penstock and your modules."""
    from penstock.spark.packaging import package, package_dependencies

    packed = package(output, modules or list(session.settings().pipeline_modules))
    found = [packed]
    if dependencies is not None:
        found.append(package_dependencies(dependencies))
    if session.is_json:
        table.print_json(found)
        return
    for one in found:
        table.say(f"{one.file}: {one.files:,} files, {one.what}")
    table.say("")
    table.say(f"penstock pipeline run NAME --master MASTER {found[0].conf}")
    if dependencies is not None:
        table.say(f"    {found[1].conf}")


def _print_options(pipeline: Pipeline) -> None:
    table.say(f"{pipeline.name}: {pipeline.summary} ({pipeline.home})")
    table.print_table(
        ("option", "default", "what it says"),
        (
            (
                f"--{option.name.replace('_', '-')}",
                "" if option.default in (None, (), []) else str(option.default),
                option.help,
            )
            for option in pipeline.options
        ),
        empty="It has no options of its own.",
    )


def _last_batch(status: PipelineStatus) -> str:
    if status.batch is None:
        return ""
    took = show_duration(status.batch_seconds)
    return f"{status.batch}: {status.batch_rows:,} in {took}"


def _never_ran(name: str, known: list[str]) -> Exception:
    import difflib

    from penstock.errors import InvalidInput

    near = difflib.get_close_matches(name, known, n=1)
    return InvalidInput(
        f"The pipeline {name!r} has not run on this database.",
        hint=f"Did you mean {near[0]}?"
        if near
        else f"Those that have: {', '.join(known)}."
        if known
        else "None has: 'penstock pipeline list' shows those there are.",
    )


figures.register(app)
