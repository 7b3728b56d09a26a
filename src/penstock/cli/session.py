"""One run of a command: which hub it is about, how it prints, and how it ends.

Every command gets `--url`, `--token`, `--config` and `--json`, which can also stand before its
name. Errors that penstock knows end it with one line and a hint on standard error and exit code
1; Ctrl-C with 130 and a closed pipe with 141, both without a word.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.cli import INTERRUPTED, table
from penstock.cli.layout import LaidOutCommand
from penstock.errors import InvalidInput, PenstockError

if TYPE_CHECKING:
    from penstock.hub import Hub
    from penstock.settings import Settings

FAILED = 1
BROKEN_PIPE = 141
OPTIONS_PANEL = "Options for every command"
SERVERS = ("http://", "https://", "ws://", "wss://")

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The hub: sqlite:///file.db, sqlite:////absolute/file.db, memory:, or a server such "
        "as http://host:8400. Default: $PENSTOCK_URL, then sqlite:///penstock.db.",
        rich_help_panel=OPTIONS_PANEL,
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A TOML file with settings. Default: $PENSTOCK_CONFIG, then penstock.toml here.",
        rich_help_panel=OPTIONS_PANEL,
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        help="For a server that asks for one. Default: $PENSTOCK_TOKEN, which other users of "
        "the machine cannot see.",
        rich_help_panel=OPTIONS_PANEL,
        show_default=False,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON for programs: one document, or one line for each message.",
        rich_help_panel=OPTIONS_PANEL,
        show_default=False,
    ),
]

Command = Callable[..., None]


class Session:
    """What was asked for, before the command's own arguments."""

    def __init__(
        self,
        url: str | None = None,
        config: Path | None = None,
        is_json: bool = False,
        token: str | None = None,
    ) -> None:
        self.url = url
        self.config = config
        self.is_json = is_json
        self.token = token

    def settings(self, **arguments: Any) -> Settings:
        from penstock.settings import load

        return load(self.url, file=self.config, **arguments)

    def connect(self, *, shows_warnings: bool = False, **arguments: Any) -> Hub:
        """The hub, to be used in a `with`. Commands that stay may show what goes wrong meanwhile;
        for the others, the error that ends them says it all."""
        from penstock.hub import Hub

        self._log(shows_warnings)
        return Hub(self.settings(**arguments))

    def reach(self, *, shows_warnings: bool = False) -> Hub:
        """The same, also for the URL of a server: then a remote hub, which has the names that
        commands for messages, topics, consumers, jobs and the ledger use."""
        if not self.is_remote:
            return self.connect(shows_warnings=shows_warnings)
        # Imported here: commands on a file start faster without it.
        from penstock.client import connect

        self._log(shows_warnings)
        return cast("Hub", connect(self.url, token=self.token, config=self.config))

    @property
    def is_remote(self) -> bool:
        """Whether the URL is a server's."""
        return self.settings().url.startswith(SERVERS)

    def _log(self, shows_warnings: bool) -> None:
        handler: logging.Handler = logging.NullHandler()
        if shows_warnings:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("warning: %(message)s"))
        logger = logging.getLogger("penstock")
        logger.addHandler(handler)
        logger.propagate = False

    def database_file(self) -> Path | None:
        """The file behind the URL, whether or not it exists; None if it has none."""
        from penstock.stores import check_url

        _, path = check_url(self.settings().url)
        return Path(path).absolute() if path else None


def command(
    app: typer.Typer,
    name: str,
    *,
    panel: str | None = None,
    examples: Sequence[str] = (),
    takes_more: bool = False,
) -> Callable[[Command], Command]:
    """Register a function as a command. It gets a `Session` before its own arguments.

    With `takes_more`, options that are not known are among its arguments.
    """

    def register(function: Command) -> Command:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()

        def run(
            context: typer.Context,
            url: str | None,
            token: str | None,
            config: Path | None,
            json: bool,
            **values: Any,
        ) -> None:
            before = context.find_object(Session) or Session()
            session = Session(
                url or before.url,
                config or before.config,
                json or before.is_json,
                token or before.token,
            )
            with ending_well():
                function(session, **values)

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("context", keyword, annotation=typer.Context),
            *(parameter.replace(kind=keyword) for parameter in own),
            inspect.Parameter("url", keyword, default=None, annotation=Url),
            inspect.Parameter("token", keyword, default=None, annotation=Token),
            inspect.Parameter("config", keyword, default=None, annotation=Config),
            inspect.Parameter("json", keyword, default=False, annotation=Json),
        ]
        run.__name__ = function.__name__
        run.__doc__ = function.__doc__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        app.command(
            name,
            cls=LaidOutCommand,
            rich_help_panel=panel,
            epilog=epilog(examples),
            context_settings={"ignore_unknown_options": True} if takes_more else None,
        )(run)
        return function

    return register


def epilog(examples: Sequence[str]) -> str | None:
    """Examples as they stand below a command's help."""
    if not examples:
        return None
    lines = [example.replace("[", r"\[") for example in examples]
    return "\n".join(["[bold]Examples[/bold]", *(f"  [cyan]{line}[/cyan]" for line in lines)])


@contextmanager
def ending_well() -> Iterator[None]:
    """Turns what can go wrong into a line, a hint and an exit code."""
    try:
        yield
        sys.stdout.flush()
    except PenstockError as error:
        table.print_error(error)
        raise typer.Exit(FAILED) from None
    except BrokenPipeError:
        drop_output()
        raise typer.Exit(BROKEN_PIPE) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def drop_output() -> None:
    """Nobody reads standard output any more: the interpreter must not fail on it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def confirm(question: str, *, is_confirmed: bool) -> None:
    """Ask before something is lost. Where nobody can answer, `--yes` must have been given."""
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(
            "This needs a confirmation, and standard input is no terminal.",
            hint="Pass --yes if you mean it.",
        )
    typer.confirm(question, abort=True, err=True)
