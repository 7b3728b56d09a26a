"""`penstock pipeline figures`: what pipelines have found, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer

from penstock.cli import table
from penstock.cli.amount import parse_moment, show_duration, show_size
from penstock.cli.session import Session, command
from penstock.errors import InvalidInput
from penstock.figures import (
    DEDUP_TOPIC,
    JOB_HEALTH_TOPIC,
    Audit,
    JobHealth,
    Newest,
    Reads,
    Resolution,
    Rollup,
    Rollups,
)

Which = Literal["rollups", "job_health", "dedup"]
LIMIT = 50


def register(app: typer.Typer) -> None:
    """Add the command to those of pipelines."""
    command(
        app,
        "figures",
        examples=(
            "penstock pipeline figures rollups",
            "penstock pipeline figures rollups --topic 'canvas-*' --resolution hour --since 24h",
            "penstock pipeline figures job_health --json",
            "penstock pipeline figures dedup",
        ),
    )(show_figures)


def show_figures(
    session: Session,
    which: Annotated[Which, typer.Argument(metavar="NAME", help="rollups, job_health or dedup.")],
    topic: Annotated[
        str, typer.Option("--topic", metavar="GLOB", help="Roll-ups of these topics.")
    ] = "*",
    resolution: Annotated[
        Resolution, typer.Option("--resolution", help="Roll-ups of this length.")
    ] = "minute",
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Roll-ups from this time on, or of so long ago.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="How many, the newest of them.")
    ] = LIMIT,
) -> None:
    """What a pipeline has found: the newest figures, as far as its topic goes back."""
    with session.reach() as hub:
        topics: Reads = hub.topics
        if which == "rollups":
            _show_rollups(session, topics, topic, resolution, since, limit)
            return
        if since is not None or topic != "*" or resolution != "minute":
            raise InvalidInput(
                f"{which} has neither topics nor times to choose.",
                hint="--topic, --resolution and --since are for rollups.",
            )
        if which == "job_health":
            reports = Newest(topics, JOB_HEALTH_TOPIC, JobHealth)
            reports.refresh()
            _show_health(session, reports.values()[-limit:])
        else:
            audits = Newest(topics, DEDUP_TOPIC, Audit)
            audits.refresh()
            _show_audits(session, audits.values()[-limit:])


def _show_rollups(
    session: Session,
    topics: Reads,
    pattern: str,
    resolution: Resolution,
    since: str | None,
    limit: int,
) -> None:
    rollups = Rollups(topics)
    rollups.refresh()
    begin = None if since is None else datetime.fromtimestamp(parse_moment(since), UTC)
    found = rollups.find(pattern, resolution=resolution, since=begin)[-limit:]
    if session.is_json:
        table.print_json([_whole(one) for one in found])
        return
    numbers = (
        *("messages", "bytes", "publishers", "p99 size", "deliveries", "p50", "p95", "p99"),
        *("dropped", "broken"),
    )
    table.print_table(
        (resolution, "topic", *numbers),
        ((_time(one), *_rollup(one)) for one in found),
        right=numbers,
        empty="There are none: 'penstock pipeline run rollups' makes them.",
    )


def _time(rollup: Rollup) -> str:
    formats: dict[Resolution, str] = {
        "minute": "%Y-%m-%d %H:%M",
        "hour": "%Y-%m-%d %H:00",
        "day": "%Y-%m-%d",
    }
    return rollup.start.astimezone(UTC).strftime(formats[rollup.resolution])


def _rollup(one: Rollup) -> tuple[object, ...]:
    return (
        one.topic,
        f"{one.messages:,}",
        show_size(one.bytes),
        one.publishers or "",
        "" if one.size_p99 is None else show_size(one.size_p99),
        f"{one.deliveries:,}" if one.deliveries else "",
        *(
            "" if latency is None else f"{latency:.2f} ms"
            for latency in (one.latency_p50_ms, one.latency_p95_ms, one.latency_p99_ms)
        ),
        f"{one.dropped:,}" if one.dropped else "",
        one.broken or "",
    )


def _show_health(session: Session, found: list[JobHealth]) -> None:
    if session.is_json:
        table.print_json([_whole(one) for one in found])
        return
    numbers = ("jobs", "attempts", "failed", "died", "wait p95", "run p95", "run p99", "timeout")
    table.print_table(
        ("queue", "type", *numbers, "mostly"),
        (
            (
                one.queue or "",
                one.type or "",
                f"{one.jobs:,}",
                f"{one.attempts:,}",
                _share(one.failure_rate),
                _share(one.death_rate),
                _duration(one.wait_p95_seconds),
                _duration(one.run_p95_seconds),
                _duration(one.run_p99_seconds),
                _duration(one.suggested_timeout_seconds),
                "" if not one.failures else one.failures[0].error,
            )
            for one in sorted(found, key=lambda one: (one.queue or "", one.type or ""))
        ),
        right=numbers,
        empty="There are none: 'penstock pipeline run job_health' makes them.",
    )


def _show_audits(session: Session, found: list[Audit]) -> None:
    if session.is_json:
        table.print_json([_whole(one) for one in found])
        return
    numbers = (
        *("messages", "repeated", "once", "twice", "never", "open", "failed", "unmatched"),
        "unknown",
    )
    table.print_table(
        ("topic", "scope", "by", *numbers, "findings"),
        (
            (
                *(one.topic, one.scope or "", one.by),
                *(
                    "" if one.scope is None and name not in ("messages", "repeated") else value
                    for name in numbers
                    for value in (f"{getattr(one, name):,}",)
                ),
                one.findings or "",
            )
            for one in found
        ),
        right=numbers,
        empty="There are none: 'penstock pipeline run dedup --topic TOPIC' makes one.",
    )


def _whole(one: Rollup | JobHealth | Audit) -> dict[str, Any]:
    """With what is nothing, too: a program should not have to know what that is."""
    return {name: getattr(one, name) for name in one.__struct_fields__}


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else show_duration(seconds)
