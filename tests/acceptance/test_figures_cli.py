"""`penstock pipeline figures`: what pipelines have found, on a terminal, without Spark (S4-S6)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

import penstock
from penstock import codec
from penstock.figures import (
    DEDUP_TOPIC,
    JOB_HEALTH_TOPIC,
    ROLLUPS_TOPIC,
    Audit,
    FailureClass,
    JobHealth,
    Rollup,
)
from penstock.model import NewMessage
from tests.acceptance.terminal import Terminal

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def publish(hub: penstock.Hub, topic: str, found: Mapping[str, msgspec.Struct]) -> None:
    messages = [
        NewMessage(topic, msgspec.json.encode(value), codec.JSON, key=key)
        for key, value in found.items()
    ]
    runtime = hub._open()
    runtime.committer.run(
        lambda tx: tx.topics.append(messages, producer="spark", now=runtime.clock.now())
    ).wait()


@pytest.fixture
def filled(terminal: Terminal, hub: penstock.Hub) -> Terminal:
    later = NOON + timedelta(minutes=1)
    publish(
        hub,
        ROLLUPS_TOPIC,
        {
            "1": Rollup("minute", "orders", NOON, messages=1_500, bytes=2_000, publishers=2),
            "2": Rollup("minute", "canvas-1", later, dropped=3, latency_p99_ms=9.126, broken=1),
            "3": Rollup("day", "orders", NOON.replace(hour=0), messages=7),
        },
    )
    health = JobHealth(
        NOON,
        "mail",
        "send",
        jobs=10,
        attempts=12,
        failure_rate=0.25,
        run_p99_seconds=90.0,
        suggested_timeout_seconds=180.0,
        failures=[FailureClass("ConnectionError", 3)],
    )
    publish(hub, JOB_HEALTH_TOPIC, {"mail/send": health})
    publish(
        hub,
        DEDUP_TOPIC,
        {
            "a": Audit(NOON, "orders", "billing", "key", messages=21, twice=1, findings="/f"),
            "b": Audit(NOON, "events", None, "message_id", messages=5, repeated=2, once=9),
        },
    )
    return terminal


def figures(terminal: Terminal, *arguments: str) -> list[list[str]]:
    """The table's rows, as words."""
    return [line.split() for line in terminal.done("pipeline", "figures", *arguments).lines[2:]]


def test_rollups_are_a_table_by_time(filled: Terminal) -> None:
    assert figures(filled, "rollups") == [
        ["2026-01-31", "12:00", "orders", "1,500", "2.0", "kB", "2"],
        ["2026-01-31", "12:01", "canvas-1", "0", "0", "B", "9.13", "ms", "3", "1"],
    ]
    assert figures(filled, "rollups", "--limit", "1")[0][2] == "canvas-1"
    assert figures(filled, "rollups", "--topic", "ord*")[0][2] == "orders"
    assert figures(filled, "rollups", "--resolution", "day") == [
        ["2026-01-31", "orders", "7", "0", "B"]
    ]
    assert filled.done("pipeline", "figures", "rollups", "--since", "1m", "--json").json == []


def test_programs_get_every_field(filled: Terminal) -> None:
    [found] = filled.done("pipeline", "figures", "rollups", "--topic", "canvas-1", "--json").json
    assert set(found) == set(Rollup.__struct_fields__)
    assert (found["start"], found["messages"], found["dropped"]) == ("2026-01-31T12:01:00Z", 0, 3)


def test_jobs_and_audits_are_tables_too(filled: Terminal) -> None:
    assert figures(filled, "job_health") == [
        [*("mail", "send", "10", "12", "25.0%", "1.5", "min", "3", "min"), "ConnectionError"]
    ]
    assert figures(filled, "dedup") == [
        ["orders", "billing", "key", "21", "0", "0", "1", *["0"] * 5, "/f"],
        ["events", "message_id", "5", "2"],
    ]


def test_nothing_yet_and_what_makes_no_sense_is_said(terminal: Terminal) -> None:
    for name in ("rollups", "job_health", "dedup"):
        said = terminal.done("pipeline", "figures", name).out
        assert f"penstock pipeline run {name}" in said
    wrong = terminal.run("pipeline", "figures", "dedup", "--since", "1h")
    assert wrong.code == 1
    assert "for rollups" in wrong.err
