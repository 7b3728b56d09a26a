"""`penstock consumers …`: who has read how far, and moving them by hand."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli import table
from penstock.cli.amount import parse_position, show_duration, show_time
from penstock.cli.completion import complete_consumer, complete_topic
from penstock.cli.layout import LaidOutGroup
from penstock.cli.session import Session, command, confirm
from penstock.clock import as_datetime
from penstock.errors import ConsumerNotFound
from penstock.model import Consumer, Lag, Position, Start

app = typer.Typer(
    help="List, move and forget named consumers.", cls=LaidOutGroup, no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="The consumer.", autocompletion=complete_consumer)]
Subscription = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="The topic or glob it follows, as it was given to follow.",
        autocompletion=complete_topic,
    ),
]


class ConsumerLine(msgspec.Struct, frozen=True):
    """A consumer on one subscription, as JSON."""

    name: str
    subscription: str
    position: str
    holder: str | None
    lag_messages: int
    lag_seconds: float
    lost: bool
    created: str
    updated: str


class Forgotten(msgspec.Struct, frozen=True):
    """What a deletion did, as JSON."""

    consumer: str
    deleted: int


@command(app, "list", examples=("penstock consumers list", "penstock consumers list --json"))
def list_consumers(session: Session) -> None:
    """All named consumers: how far behind they are, and who holds them."""
    found = _find(session, None)
    if session.is_json:
        table.print_json([_line(consumer, lag) for consumer, lag in found])
    else:
        _print(found)


@command(app, "show", examples=("penstock consumers show indexer",))
def show_consumer(session: Session, name: Name) -> None:
    """One consumer, on each topic or glob it follows."""
    found = _find(session, name)
    if not found:
        raise ConsumerNotFound(f"There is no consumer {name!r}.")
    if session.is_json:
        table.print_json([_line(consumer, lag) for consumer, lag in found])
        return
    for number, (consumer, lag) in enumerate(found):
        if number:
            table.say("")
        table.print_fields(
            (
                ("consumer", consumer.name),
                ("follows", consumer.subscription),
                ("position", consumer.position),
                ("behind", _behind(lag)),
                ("holder", consumer.holder or "nobody follows under this name now"),
                ("created", show_time(consumer.created_at)),
                ("moved", show_time(consumer.updated_at)),
            )
        )


@command(
    app,
    "seek",
    examples=(
        "penstock consumers seek indexer orders --to earliest",
        "penstock consumers seek indexer 'canvas-*' --to latest",
    ),
)
def seek_consumer(
    session: Session,
    name: Name,
    topic: Subscription,
    to: Annotated[
        str,
        typer.Option("--to", metavar="WHERE", help="latest, earliest or a position."),
    ],
) -> None:
    """Set where a consumer goes on, also back. Nobody may be following under its name."""
    where: Position | Start
    if to == "latest":
        where = "latest"
    elif to == "earliest":
        where = "earliest"
    else:
        where = parse_position(to)
    with session.reach() as hub:
        hub.consumers.get(name, topic)
        consumer = hub.consumers.seek(name, topic, where)
        lag = hub.consumers.lag(name, topic)
    if session.is_json:
        table.print_json(_line(consumer, lag))
    else:
        table.say(f"{name} goes on after {consumer.position}: {_behind(lag)}.")


@command(app, "delete", examples=("penstock consumers delete indexer --yes",))
def delete_consumer(
    session: Session,
    name: Name,
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="Only on this topic or glob.", show_default="all of them"
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", show_default=False)
    ] = False,
) -> None:
    """Forget a consumer. Under its name, a new one can begin."""
    with session.reach() as hub:
        if not [c for c in hub.consumers.list(name) if topic in (None, c.subscription)]:
            on = "" if topic is None else f" on {topic!r}"
            raise ConsumerNotFound(f"There is no consumer {name!r}{on}.")
        confirm(f"Forget where {name!r} was?", is_confirmed=yes)
        deleted = hub.consumers.delete(name, topic)
    if session.is_json:
        table.print_json(Forgotten(name, deleted))
    else:
        table.say(f"{name} is forgotten ({table.plural(deleted, 'subscription')}).")


def _find(session: Session, name: str | None) -> list[tuple[Consumer, Lag]]:
    with session.reach() as hub:
        return [(c, hub.consumers.lag(c.name, c.subscription)) for c in hub.consumers.list(name)]


def _print(found: list[tuple[Consumer, Lag]]) -> None:
    table.print_table(
        ("consumer", "follows", "behind", "for", "position", "holder"),
        (
            (
                consumer.name,
                consumer.subscription,
                f"{lag.messages:,}",
                show_duration(lag.seconds) if lag.messages else "-",
                consumer.position,
                consumer.holder or "-",
            )
            for consumer, lag in found
        ),
        right=("behind", "for"),
        empty="No consumers yet: 'penstock follow TOPIC --consumer NAME' makes one.",
    )


def _behind(lag: Lag) -> str:
    if not lag.messages:
        return "messages were removed unseen" if lag.lost else "up to date"
    lost = "; messages were removed unseen" if lag.lost else ""
    return f"{table.plural(lag.messages, 'message')}, {show_duration(lag.seconds)}{lost}"


def _line(consumer: Consumer, lag: Lag) -> ConsumerLine:
    return ConsumerLine(
        consumer.name,
        consumer.subscription,
        str(consumer.position),
        consumer.holder,
        lag.messages,
        lag.seconds,
        lag.lost,
        as_datetime(consumer.created_at).isoformat(),
        as_datetime(consumer.updated_at).isoformat(),
    )
