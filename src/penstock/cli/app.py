"""The commands, put together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from penstock.cli.layout import COMMANDS, MainGroup
from penstock.cli.session import Config, Json, Session, Token, Url, epilog

WITH_VALUE = ("--url", "--token", "--config")


def build(only: str | None = None) -> typer.Typer:
    """All commands; or those of one module, which takes half the time."""
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
    app.callback()(penstock)
    for name, panel in dict(COMMANDS.values()).items():
        if only not in (None, name):
            continue
        module = import_module(f"penstock.cli.{name}")
        if hasattr(module, "register"):
            module.register(app, panel)
        else:
            app.add_typer(module.app, name=name, rich_help_panel=panel)
    return app


def module_for(arguments: Sequence[str]) -> str | None:
    """Whose commands these arguments need. None: all, as for help, and to say what is not there."""
    if "_PENSTOCK_COMPLETE" in os.environ:
        return None
    words = iter(arguments)
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return COMMANDS[word][0] if word in COMMANDS else None
    return None


def _print_version(is_asked: bool) -> None:
    if is_asked:
        import penstock

        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


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
