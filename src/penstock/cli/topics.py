"""`penstock topics …`: what topics there are, how long they keep messages, removing by hand."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli import table
from penstock.cli.amount import (
    parse_duration,
    parse_position,
    show_duration,
    show_size,
    show_time,
)
from penstock.cli.completion import complete_topic
from penstock.cli.layout import LaidOutGroup
from penstock.cli.progress import progress
from penstock.cli.session import Session, command, confirm
from penstock.cli.topic_options import (
    BatchMax,
    BatchMs,
    HoldFor,
    HoldMaxAge,
    HoldMaxBytes,
    KeepFor,
    MaxBytes,
    MaxMessages,
    SlowPolicyOption,
    changed_delivery,
    changed_retention,
    show_delivery,
    show_retention,
)
from penstock.clock import as_datetime
from penstock.model import Delivery, Pattern, Position, Retention, Topic
from penstock.settings import Settings

app = typer.Typer(
    help="List, create, configure, trim and delete topics.",
    cls=LaidOutGroup,
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topic)]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", show_default=False)
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
    delivery: Delivery


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
    delivery: Delivery
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
    with session.reach() as hub:
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
    """One topic: size, age, rate, retention, delivery and who consumes it."""
    with session.reach() as hub:
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
                topic.delivery,
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
            ("sends", show_delivery(topic.delivery, hub.settings)),
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
        "penstock topics create cursors --keep-for 60s --slow-policy drop_oldest",
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
    batch_max: BatchMax = None,
    batch_ms: BatchMs = None,
    slow_policy: SlowPolicyOption = None,
) -> None:
    """Make a topic. Publishing makes one, too, with the hub's settings."""
    retention = changed_retention(
        Retention(), keep_for, max_messages, max_bytes, hold_for, hold_max_age, hold_max_bytes
    )
    delivery = changed_delivery(Delivery(), batch_max, batch_ms, slow_policy)
    with session.reach() as hub:
        topic = hub.topics.create(name, retention, delivery=delivery)
    _print_topic(session, topic, "created", hub.settings)


@command(
    app,
    "configure",
    examples=(
        "penstock topics configure orders --max-messages 100000",
        "penstock topics configure orders --batch-ms 50 --slow-policy disconnect",
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
    batch_max: BatchMax = None,
    batch_ms: BatchMs = None,
    slow_policy: SlowPolicyOption = None,
    reset: Annotated[
        bool,
        typer.Option(
            "--reset",
            help="Begin with the hub's settings instead of what is set now.",
            show_default=False,
        ),
    ] = False,
) -> None:
    """Change how long a topic keeps its messages, and how they are sent to clients.

    What is not named stays as it is.
    """
    keeping = (keep_for, max_messages, max_bytes, hold_for, hold_max_age, hold_max_bytes)
    sending = (batch_max, batch_ms, slow_policy)
    if not reset and all(option is None for option in (*keeping, *sending)):
        raise typer.BadParameter("say what to change.", param_hint="configure")
    with session.reach() as hub:
        now = hub.topics.get(name)
        if reset:
            now = msgspec.structs.replace(now, retention=Retention(), delivery=Delivery())
        retention = changed_retention(now.retention, *keeping)
        delivery = changed_delivery(now.delivery, *sending)
        topic = hub.topics.configure(name, retention, delivery=delivery)
    _print_topic(session, topic, "configured", hub.settings)


@command(app, "delete", examples=("penstock topics delete canvas-abc --yes",))
def delete_topic(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete a topic and all its messages."""
    with session.reach() as hub:
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
    with session.reach() as hub:
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
        topic.delivery,
    )


def _print_topic(session: Session, topic: Topic, done: str, settings: Settings) -> None:
    if session.is_json:
        table.print_json(_line(topic))
        return
    text = f"{topic.name} is {done}; it keeps "
    text += show_retention(topic.retention, settings.retention_seconds)
    if topic.delivery != Delivery():
        text += f"; it sends {show_delivery(topic.delivery, settings)}"
    table.say(f"{text}.")


def _print_removed(session: Session, name: str, removed: int, text: str) -> None:
    if session.is_json:
        table.print_json(Removed(name, removed))
    else:
        table.say(text.format(topic=name, messages=table.plural(removed, "message")))
