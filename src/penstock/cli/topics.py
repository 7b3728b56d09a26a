"""`penstock topics …`: what topics there are, how long they keep messages, removing by hand."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli import table
from penstock.cli.amount import (
    parse_duration,
    parse_position,
    parse_size,
    show_duration,
    show_size,
    show_time,
)
from penstock.cli.completion import complete_topic
from penstock.cli.layout import LaidOutGroup
from penstock.cli.progress import progress
from penstock.cli.session import Session, command, confirm
from penstock.clock import as_datetime
from penstock.errors import InvalidInput
from penstock.model import Pattern, Position, Retention, Topic

app = typer.Typer(
    help="List, create, configure, trim and delete topics.",
    cls=LaidOutGroup,
    no_args_is_help=True,
)

KEEPING_PANEL = "How long messages are kept"

Name = Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topic)]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", show_default=False)
]
KeepFor = Annotated[
    float | None,
    typer.Option(
        "--keep-for",
        metavar="DURATION",
        parser=parse_duration,
        help="Until they are this old: 60s, 12h, 1d.",
        rich_help_panel=KEEPING_PANEL,
        show_default=False,
    ),
]
MaxMessages = Annotated[
    int | None,
    typer.Option(
        "--max-messages",
        metavar="N",
        min=1,
        help="The last N.",
        rich_help_panel=KEEPING_PANEL,
        show_default=False,
    ),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        "--max-bytes",
        metavar="SIZE",
        parser=parse_size,
        help="So many bytes: 64kB, 10MB, 1GiB.",
        rich_help_panel=KEEPING_PANEL,
        show_default=False,
    ),
]
HoldFor = Annotated[
    list[str] | None,
    typer.Option(
        "--hold-for",
        metavar="CONSUMER",
        help="Beyond these limits, until this consumer has them; repeatable.",
        rich_help_panel=KEEPING_PANEL,
        show_default=False,
    ),
]
HoldMaxAge = Annotated[
    float | None,
    typer.Option(
        "--hold-max-age",
        metavar="DURATION",
        parser=parse_duration,
        help="But not longer than this.",
        rich_help_panel=KEEPING_PANEL,
        show_default=False,
    ),
]
HoldMaxBytes = Annotated[
    int | None,
    typer.Option(
        "--hold-max-bytes",
        metavar="SIZE",
        parser=parse_size,
        help="But not more than this.",
        rich_help_panel=KEEPING_PANEL,
        show_default=False,
    ),
]


class TopicLine(msgspec.Struct, frozen=True):
    """A topic, as JSON."""

    name: str
    created: str
    messages: int
    bytes: int
    published: int
    last_id: int
    deleted_through: int
    retention: Retention


class TopicDetails(msgspec.Struct, frozen=True):
    """A topic and how it is doing, as JSON."""

    name: str
    created: str
    messages: int
    bytes: int
    published: int
    first: str | None
    last: str | None
    oldest_age_seconds: float | None
    messages_per_second: float
    retention: Retention
    consumers: list[str]


class Removed(msgspec.Struct, frozen=True):
    """What a trim or a deletion did, as JSON."""

    topic: str
    removed: int


@command(
    app,
    "list",
    examples=("penstock topics list", "penstock topics list 'canvas-*' --json"),
)
def list_topics(
    session: Session,
    glob: Annotated[
        str | None,
        typer.Argument(
            help="Only these. Penstock's own are shown with 'penstock.*'.", show_default=False
        ),
    ] = None,
) -> None:
    """Topics by name, with size and retention."""
    with session.connect() as hub:
        topics = hub.topics.list(glob or "*")
        default = hub.settings.retention_seconds
    if session.is_json:
        table.print_json([_line(topic) for topic in topics])
        return
    table.print_table(
        ("topic", "messages", "size", "published", "last id", "keeps"),
        (
            (
                topic.name,
                f"{topic.messages:,}",
                show_size(topic.bytes),
                f"{topic.published:,}",
                f"{topic.last_id:,}" if topic.last_id else "-",
                show_retention(topic.retention, default),
            )
            for topic in topics
        ),
        right=("messages", "size", "published", "last id"),
        empty="No topics match." if glob else "No topics yet: publishing makes one.",
    )


@command(app, "show", examples=("penstock topics show orders",))
def show_topic(session: Session, name: Name) -> None:
    """One topic: size, age, rate, retention and who consumes it."""
    with session.connect() as hub:
        topic = hub.topics.get(name)
        stats = hub.topics.stats(name)
        consumers = [c for c in hub.consumers.list() if Pattern(c.subscription).matches(name)]
        default = hub.settings.retention_seconds
        lags = {c: hub.consumers.lag(c.name, c.subscription) for c in consumers}
    if session.is_json:
        table.print_json(
            TopicDetails(
                name,
                as_datetime(topic.created_at).isoformat(),
                stats.messages,
                stats.bytes,
                stats.published,
                None if stats.first is None else str(stats.first),
                None if stats.last is None else str(stats.last),
                stats.oldest_age_seconds,
                stats.messages_per_second,
                topic.retention,
                [consumer.name for consumer in consumers],
            )
        )
        return
    oldest = stats.oldest_age_seconds
    table.print_fields(
        (
            ("topic", name),
            ("created", show_time(topic.created_at)),
            ("messages", f"{stats.messages:,} ({show_size(stats.bytes)})"),
            ("published", f"{stats.published:,} in all, {stats.messages_per_second:,.1f}/s now"),
            ("oldest", "-" if oldest is None else f"{show_duration(oldest)} ago"),
            ("first", stats.first or "-"),
            ("last", stats.last or "-"),
            ("keeps", show_retention(topic.retention, default)),
        )
    )
    if consumers:
        table.say("")
        table.print_table(
            ("consumer", "subscription", "behind", "holder"),
            (
                (c.name, c.subscription, f"{lag.messages:,}", c.holder or "-")
                for c, lag in lags.items()
            ),
            right=("behind",),
        )


@command(
    app,
    "create",
    examples=(
        "penstock topics create canvas-abc --keep-for 60s",
        "penstock topics create orders --keep-for 7d --hold-for billing",
    ),
)
def create_topic(
    session: Session,
    name: Annotated[str, typer.Argument(help="The topic.")],
    keep_for: KeepFor = None,
    max_messages: MaxMessages = None,
    max_bytes: MaxBytes = None,
    hold_for: HoldFor = None,
    hold_max_age: HoldMaxAge = None,
    hold_max_bytes: HoldMaxBytes = None,
) -> None:
    """Make a topic. Publishing makes one, too, with the hub's default retention."""
    retention = _changed(
        Retention(), keep_for, max_messages, max_bytes, hold_for, hold_max_age, hold_max_bytes
    )
    with session.connect() as hub:
        topic = hub.topics.create(name, retention)
    _print_topic(session, topic, "created", hub.settings.retention_seconds)


@command(
    app,
    "configure",
    examples=(
        "penstock topics configure orders --max-messages 100000",
        "penstock topics configure orders --reset",
    ),
)
def configure_topic(
    session: Session,
    name: Name,
    keep_for: KeepFor = None,
    max_messages: MaxMessages = None,
    max_bytes: MaxBytes = None,
    hold_for: HoldFor = None,
    hold_max_age: HoldMaxAge = None,
    hold_max_bytes: HoldMaxBytes = None,
    reset: Annotated[
        bool,
        typer.Option(
            "--reset",
            help="Begin with the hub's defaults instead of what is set now.",
            rich_help_panel=KEEPING_PANEL,
            show_default=False,
        ),
    ] = False,
) -> None:
    """Change how long a topic keeps its messages. What is not named stays as it is."""
    options = (keep_for, max_messages, max_bytes, hold_for, hold_max_age, hold_max_bytes)
    if not reset and all(option is None for option in options):
        raise typer.BadParameter("say what to change.", param_hint="configure")
    with session.connect() as hub:
        now = Retention() if reset else hub.topics.get(name).retention
        topic = hub.topics.configure(name, _changed(now, *options))
    _print_topic(session, topic, "configured", hub.settings.retention_seconds)


@command(app, "delete", examples=("penstock topics delete canvas-abc --yes",))
def delete_topic(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete a topic and all its messages."""
    with session.connect() as hub:
        topic = hub.topics.get(name)
        confirm(
            f"Delete {name!r} and its {table.plural(topic.messages, 'message')}?",
            is_confirmed=yes,
        )
        with progress(f"Deleting {name}", "messages", topic.messages) as update:
            removed = hub.topics.delete(name, lambda done: update(done))
    _print_removed(session, name, removed, "Deleted {topic} and its {messages}.")


@command(
    app,
    "trim",
    examples=(
        "penstock topics trim orders --keep 1000",
        "penstock topics trim orders --older-than 12h",
    ),
)
def trim_topic(
    session: Session,
    name: Name,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", metavar="N", min=0, help="Remove all but the last N.", show_default=False
        ),
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            parser=parse_duration,
            help="Remove what is older than this: 60s, 12h, 1d.",
            show_default=False,
        ),
    ] = None,
    through: Annotated[
        Position | None,
        typer.Option(
            "--through",
            metavar="POSITION",
            parser=parse_position,
            help="Remove up to and including this position.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Remove old messages now, whatever retention and holds say."""
    if sum(option is not None for option in (keep, older_than, through)) != 1:
        raise typer.BadParameter(
            "give one of them.", param_hint="--keep, --older-than and --through"
        )
    with session.connect() as hub:
        total = None if keep is None else max(0, hub.topics.get(name).messages - keep)
        with progress(f"Trimming {name}", "messages", total) as update:
            removed = hub.topics.trim(
                name,
                keep=keep,
                older_than_seconds=older_than,
                through=through,
                progress=lambda done: update(done),
            )
    _print_removed(session, name, removed, "Removed {messages} from {topic}.")


def show_retention(retention: Retention, default_seconds: float) -> str:
    """In a few words; '(default)' where the topic does not say."""
    limits = []
    if retention.age_seconds is not None:
        limits.append(show_duration(retention.age_seconds))
    if retention.messages_max is not None:
        limits.append(f"{retention.messages_max:,} messages")
    if retention.bytes_max is not None:
        limits.append(show_size(retention.bytes_max))
    text = ", ".join(limits) or f"{show_duration(default_seconds)} (default)"
    if retention.hold_for:
        text += f"; until {', '.join(retention.hold_for)} has them"
    return text


def _changed(
    retention: Retention,
    keep_for: float | None,
    max_messages: int | None,
    max_bytes: int | None,
    hold_for: list[str] | None,
    hold_max_age: float | None,
    hold_max_bytes: int | None,
) -> Retention:
    given = {
        "age_seconds": keep_for,
        "messages_max": max_messages,
        "bytes_max": max_bytes,
        "hold_for": None if hold_for is None else tuple(hold_for),
        "hold_seconds_max": hold_max_age,
        "hold_bytes_max": hold_max_bytes,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if hold_for is not None and "" in hold_for:
        raise InvalidInput("The name of a consumer is empty.")
    return msgspec.structs.replace(retention, **changes)


def _line(topic: Topic) -> TopicLine:
    return TopicLine(
        topic.name,
        as_datetime(topic.created_at).isoformat(),
        topic.messages,
        topic.bytes,
        topic.published,
        topic.last_id,
        topic.deleted_through,
        topic.retention,
    )


def _print_topic(session: Session, topic: Topic, done: str, default: float) -> None:
    if session.is_json:
        table.print_json(_line(topic))
    else:
        table.say(f"{topic.name} is {done}; it keeps {show_retention(topic.retention, default)}.")


def _print_removed(session: Session, name: str, removed: int, text: str) -> None:
    if session.is_json:
        table.print_json(Removed(name, removed))
    else:
        table.say(text.format(topic=name, messages=table.plural(removed, "message")))
