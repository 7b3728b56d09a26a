"""Options about topics: how long they keep messages, and how they send them to clients."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.amount import parse_duration, parse_size, show_duration, show_size
from penstock.errors import InvalidInput
from penstock.model import Delivery, Retention, SlowPolicy
from penstock.settings import Settings

KEEPING_PANEL = "How long messages are kept"
DELIVERY_PANEL = "How messages are sent to clients"

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
BatchMax = Annotated[
    int | None,
    typer.Option(
        "--batch-max",
        metavar="N",
        min=1,
        help="Send a batch when it has N messages.",
        rich_help_panel=DELIVERY_PANEL,
        show_default=False,
    ),
]
BatchMs = Annotated[
    float | None,
    typer.Option(
        "--batch-ms",
        metavar="MILLISECONDS",
        min=0,
        help="Or after this time; 0 waits for nothing.",
        rich_help_panel=DELIVERY_PANEL,
        show_default=False,
    ),
]
SlowPolicyOption = Annotated[
    SlowPolicy | None,
    typer.Option(
        "--slow-policy",
        help="What happens to a client that reads too slowly.",
        rich_help_panel=DELIVERY_PANEL,
        show_default=False,
    ),
]


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


def show_delivery(delivery: Delivery, settings: Settings) -> str:
    """In a few words; '(default)' where the topic does not say."""

    def show(value: object, default: object) -> str:
        return f"{default} (default)" if value is None else f"{value}"

    batch_max = show(delivery.batch_max, settings.batch_max)
    batch_ms = show(_short(delivery.batch_ms), _short(settings.batch_ms))
    policy = show(delivery.slow_policy, settings.slow_policy)
    return f"batches of {batch_max} or {batch_ms} ms; slow clients: {policy}"


def _short(number: float | None) -> str | None:
    return None if number is None else f"{number:g}"


def changed_delivery(
    delivery: Delivery,
    batch_max: int | None,
    batch_ms: float | None,
    slow_policy: SlowPolicy | None,
) -> Delivery:
    given = {"batch_max": batch_max, "batch_ms": batch_ms, "slow_policy": slow_policy}
    changes = {name: value for name, value in given.items() if value is not None}
    return msgspec.structs.replace(delivery, **changes)


def changed_retention(
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
