"""`penstock follow`: a topic or a glob, live, or for a named consumer that resumes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli import line, table
from penstock.cli.amount import parse_duration, parse_moment, parse_position
from penstock.cli.completion import complete_consumer, complete_topic
from penstock.cli.interruption import Interruption, Stopped
from penstock.cli.session import BROKEN_PIPE, Session, command, drop_output
from penstock.errors import LogTrimmed, PenstockError
from penstock.model import Message, OnTrimmed, Position

if TYPE_CHECKING:
    from penstock.hub import Hub
    from penstock.topics.followers import Follower
    from penstock.topics.subscription import Live

    Source = Follower | Live

CONSUMER_PANEL = "For a named consumer"
LIVE_PANEL = "Without a consumer"
WAIT_SECONDS = 1.0


def register(app: typer.Typer, panel: str) -> None:
    command(
        app,
        "follow",
        panel=panel,
        examples=(
            "penstock follow orders",
            "penstock follow 'canvas-*' --last 20",
            "penstock follow orders --since 10m --json | jq .payload",
            "penstock follow orders --consumer indexer --start earliest",
            "penstock follow orders --count 1 --timeout 5s",
        ),
    )(follow)


def follow(
    session: Session,
    topic: Annotated[
        str,
        typer.Argument(
            help="A topic, or a glob over topics such as 'canvas-*'.",
            autocompletion=complete_topic,
        ),
    ],
    consumer: Annotated[
        str | None,
        typer.Option(
            "--consumer",
            metavar="NAME",
            help="Be this durable consumer: each message is committed after it was printed, "
            "and the next follower of this name goes on after it.",
            rich_help_panel=CONSUMER_PANEL,
            autocompletion=complete_consumer,
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        Literal["latest", "earliest"] | None,
        typer.Option(
            "--start",
            help="Where a name that is used first begins.",
            rich_help_panel=CONSUMER_PANEL,
            show_default="latest",
        ),
    ] = None,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="If another follower has the name, wait until it ends.",
            rich_help_panel=CONSUMER_PANEL,
            show_default=False,
        ),
    ] = False,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            min=1,
            help="First the last N messages.",
            rich_help_panel=LIVE_PANEL,
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        Position | None,
        typer.Option(
            "--after",
            metavar="POSITION",
            parser=parse_position,
            help="First the messages after this position.",
            rich_help_panel=LIVE_PANEL,
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        float | None,
        typer.Option(
            "--since",
            metavar="TIME",
            parser=parse_moment,
            help="First the messages since an ISO time, or the last 10m, 2h, 1d.",
            rich_help_panel=LIVE_PANEL,
            show_default=False,
        ),
    ] = None,
    skip_trimmed: Annotated[
        bool,
        typer.Option(
            "--skip-trimmed",
            help="Go on with what exists when messages were removed unseen, instead of ending.",
            show_default=False,
        ),
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            metavar="N",
            min=1,
            help="End after N messages.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            parser=parse_duration,
            help="End when no message came for so long. With --count, fewer messages are a "
            "failure.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print messages as they come, in order, until Ctrl-C."""
    _check_options(consumer, start, standby, last, after, since)
    printer = _printer(session)
    seen = 0
    with session.reach(shows_warnings=True) as hub, Interruption() as interruption:
        try:
            with interruption.wait():
                source = _open(
                    hub, topic, consumer, start, standby, last, after, since, skip_trimmed
                )
            with source:
                while count is None or seen < count:
                    message = _get(source, interruption, timeout)
                    if message is None:
                        break
                    printer(message)
                    seen += 1
                    if consumer is not None:
                        source.commit()  # type: ignore[union-attr]
        except Stopped:
            pass
        except LogTrimmed as error:
            error.hint = (
                "Pass --skip-trimmed to go on with what exists, or keep messages longer "
                "('penstock topics configure')."
            )
            raise
    if interruption.exit_code is not None and seen != count:
        _end(interruption.exit_code)
    if count is not None and seen < count:
        raise PenstockError(
            f"{seen:,} of {count:,} messages came in time.", hint="--timeout says how long to wait."
        )


def _check_options(
    consumer: str | None,
    start: str | None,
    standby: bool,
    last: int | None,
    after: Position | None,
    since: float | None,
) -> None:
    begins = {"--last": last, "--after": after, "--since": since}
    given = [name for name, value in begins.items() if value is not None]
    if len(given) > 1:
        raise typer.BadParameter("give only one of them.", param_hint=" and ".join(given))
    if consumer is not None and given:
        raise typer.BadParameter(
            "a named consumer knows where it was; 'penstock consumers seek' moves it.",
            param_hint=given[0],
        )
    if consumer is None and (start is not None or standby):
        raise typer.BadParameter(
            "this is for a named consumer: add --consumer NAME.",
            param_hint="--standby" if standby else "--start",
        )


def _open(
    hub: Hub,
    topic: str,
    consumer: str | None,
    start: Literal["latest", "earliest"] | None,
    standby: bool,
    last: int | None,
    after: Position | None,
    since: float | None,
    skip_trimmed: bool,
) -> Source:
    on_trimmed: OnTrimmed = "skip" if skip_trimmed else "raise"
    if consumer is not None:
        return hub.topics.follow(
            topic,
            consumer=consumer,
            start=start or "latest",
            on_trimmed=on_trimmed,
            standby=standby,
        )
    if since is None:
        return hub.topics.subscribe(topic, after=after, last=last, on_trimmed=on_trimmed)
    # Taken before the look at the log, so that nothing falls between the two. A time asks for what
    # there is since then; that more has been removed is no surprise.
    end = hub.topics.position()
    found = hub.topics.read(topic, since=since, limit=1)
    begin = Position(end.epoch, found[0].id - 1) if found else end
    return hub.topics.subscribe(topic, after=begin, on_trimmed="skip")


def _get(source: Source, interruption: Interruption, timeout: float | None) -> Message | None:
    """The next message, or None after `timeout` seconds.

    In short waits: a signal that comes in the moment before a wait does not end that one.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = WAIT_SECONDS if deadline is None else deadline - time.monotonic()
        with interruption.wait():
            message = source.get(max(0.0, min(WAIT_SECONDS, left)))
        if message is not None or (deadline is not None and time.monotonic() >= deadline):
            return message


def _printer(session: Session) -> Callable[[Message], None]:
    if session.is_json:
        return lambda message: table.write_line(line.as_json(message))
    console = table.console()
    return lambda message: console.print(line.as_text(message), soft_wrap=True)


def _end(exit_code: int) -> None:
    if exit_code == BROKEN_PIPE:
        drop_output()
    raise typer.Exit(exit_code)
