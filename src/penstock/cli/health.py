"""`penstock health`: one answer for a person or a monitor (T11, T12)."""

from __future__ import annotations

import typer

from penstock.cli import table
from penstock.cli.amount import show_duration, show_size
from penstock.cli.session import Session, command
from penstock.errors import PenstockError
from penstock.health import Health

EXIT_CODES = {"ok": 0, "warning": 1, "critical": 2}


def register(app: typer.Typer, panel: str) -> None:
    command(
        app,
        "health",
        panel=panel,
        examples=(
            "penstock health",
            "penstock health --json | jq .metrics.queue_size",
            "penstock health > /dev/null || alert",
        ),
    )(health)


def health(session: Session) -> None:
    """Is it well? Metrics and how far consumers are behind.

    The exit code is 0 if all is well, 1 for a warning and 2 if something is critical, also when
    the hub cannot be reached.
    """
    try:
        with session.reach() as hub:
            found = hub.health()
    except PenstockError as error:
        table.print_error(error)
        raise typer.Exit(EXIT_CODES["critical"]) from None
    if session.is_json:
        table.print_json(found)
    else:
        _print(found)
    if found.status != "ok":
        raise typer.Exit(EXIT_CODES[found.status])


def _print(found: Health) -> None:
    metrics = found.metrics
    word = {"ok": "healthy", "warning": "warning", "critical": "critical"}[found.status]
    queue = f"{table.plural(metrics.queue_size, 'message')} in "
    queue += f"{table.plural(metrics.topics, 'topic')}, {show_size(metrics.queue_bytes)}"
    table.print_fields(
        (
            ("status", table.coloured(f"{table.MARKS[found.status][0]} {word}", found.status)),
            ("queue", queue),
            ("oldest", show_duration(metrics.oldest_message_age_seconds)),
            ("rate", f"{metrics.messages_per_second:,.1f} messages/s over the last minute"),
            (
                "pollers",
                f"{metrics.active_pollers}, {metrics.average_poll_latency_ms:.2f} ms a look",
            ),
            ("last id", f"{metrics.last_id:,}"),
        )
    )
    if found.checks:
        table.say("")
    lags = {f"consumer {lag.consumer} on {lag.subscription}": lag for lag in found.lags}
    checks = {check.name: check for check in found.checks}
    table.print_table(
        ("", "consumer", "follows", "behind", "for", "advice"),
        (
            (
                table.mark(checks[name].status),
                lag.consumer,
                lag.subscription,
                f"{lag.messages:,}",
                show_duration(lag.seconds) if lag.messages else "-",
                checks[name].advice,
            )
            for name, lag in lags.items()
        ),
        right=("behind", "for"),
    )
    table.print_table(
        ("", "check", "found", "advice"),
        (
            (table.mark(check.status), check.name, check.found, check.advice)
            for check in found.checks
            if check.name not in lags
        ),
    )
