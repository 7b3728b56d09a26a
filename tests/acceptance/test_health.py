"""`penstock health` (T11, T12)."""

from __future__ import annotations

import pytest

import penstock
from tests.acceptance.terminal import Terminal


def test_a_new_hub_is_healthy(terminal: Terminal) -> None:
    """T12"""
    result = terminal.done("health")

    assert result.lines[0].split() == ["status", "✔", "healthy"]


def test_health_has_the_metrics(terminal: Terminal, hub: penstock.Hub) -> None:
    """T11"""
    hub.topics.publish_many("orders", [1, 2, 3])
    with hub.topics.subscribe("orders"):
        found = terminal.done("health", "--json").json

    assert found["status"] == "ok"
    assert found["metrics"]["queue_size"] == 3
    assert found["metrics"]["active_pollers"] == 1
    assert {"oldest_message_age_seconds", "messages_per_second", "average_poll_latency_ms"} <= set(
        found["metrics"]
    )


@pytest.mark.parametrize(
    ("messages", "code", "status"), [(1, 0, "ok"), (2, 1, "warning"), (4, 2, "critical")]
)
def test_the_exit_code_of_health_is_the_worst_lag(
    terminal: Terminal, hub: penstock.Hub, messages: int, code: int, status: str
) -> None:
    """T12"""
    hub.topics.follow("orders", consumer="indexer").close()
    hub.topics.publish_many("orders", list(range(messages)))

    result = terminal.run(
        "health",
        "--json",
        PENSTOCK_LAG_WARNING_MESSAGES="2",
        PENSTOCK_LAG_CRITICAL_MESSAGES="3",
        PENSTOCK_LAG_WARNING_SECONDS="600",
        PENSTOCK_LAG_CRITICAL_SECONDS="900",
    )

    assert (result.code, result.json["status"]) == (code, status)
    assert result.json["lags"][0]["messages"] == messages


def test_health_names_the_consumer_and_what_to_do(terminal: Terminal, hub: penstock.Hub) -> None:
    """T12"""
    hub.topics.follow("orders", consumer="indexer").close()
    hub.topics.publish_many("orders", [1, 2])

    result = terminal.run(
        "health", PENSTOCK_LAG_WARNING_MESSAGES="1", PENSTOCK_LAG_CRITICAL_MESSAGES="1"
    )

    assert result.code == 2
    assert "✘   indexer" in result.out
    assert "Is its follower running" in result.out


def test_a_hub_that_cannot_be_reached_is_critical(terminal: Terminal) -> None:
    result = terminal.run("health", "--url", "sqlite:////no/such/folder/hub.db")

    assert result.code == 2
    assert result.err.startswith("error: The folder /no/such/folder does not exist.\nhint: ")
