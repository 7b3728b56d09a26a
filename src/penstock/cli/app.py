"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import (
    backup,
    consumers,
    doctor,
    follow,
    health,
    jobs,
    lake,
    ledger,
    mailboxes,
    migrate,
    pipeline,
    publish,
    schedules,
    serve,
    tokens,
    topics,
    work,
)
from penstock.cli.layout import MainGroup
from penstock.cli.session import Config, Json, Session, Token, Url, epilog

MESSAGES = "Messages"
JOBS = "Jobs"
PLACES = "Topics and consumers"
PIPELINES = "Pipelines"
OPERATING = "Operating"

app = typer.Typer(
    name="penstock",
    cls=MainGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    # A bug shows Python's own traceback, whole and without the values of variables.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=epilog(
        (
            "penstock follow orders                      # in one terminal",
            "penstock publish orders '{\"id\": 1}'         # in another",
            "penstock doctor                             # is all well?",
        )
    ),
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        import penstock

        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    context: typer.Context,
    url: Url = None,
    token: Token = None,
    config: Config = None,
    json: Json = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and end.",
            callback=_print_version,
            is_eager=True,
            show_default=False,
        ),
    ] = False,
) -> None:
    """A durable messaging hub in one file: processes share topics without a server."""
    context.obj = Session(url, config, json, token)


publish.register(app, MESSAGES)
follow.register(app, MESSAGES)
serve.register(app, MESSAGES)
work.register(app, JOBS)
app.add_typer(jobs.app, name="jobs", rich_help_panel=JOBS)
app.add_typer(schedules.app, name="schedules", rich_help_panel=JOBS)
app.add_typer(topics.app, name="topics", rich_help_panel=PLACES)
app.add_typer(consumers.app, name="consumers", rich_help_panel=PLACES)
app.add_typer(ledger.app, name="ledger", rich_help_panel=PLACES)
app.add_typer(mailboxes.app, name="mailboxes", rich_help_panel=PLACES)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=PIPELINES)
app.add_typer(lake.app, name="lake", rich_help_panel=PIPELINES)
health.register(app, OPERATING)
doctor.register(app, OPERATING)
backup.register(app, OPERATING)
app.add_typer(migrate.app, name="migrate", rich_help_panel=OPERATING)
app.add_typer(tokens.app, name="tokens", rich_help_panel=OPERATING)
