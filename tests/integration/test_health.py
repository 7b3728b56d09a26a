"""Metrics and health: judged on consumers' lag (T11, T12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import penstock
from penstock import Retention
from penstock.testing import FakeClock, memory_hub

OpenHub = Callable[..., penstock.Hub]


@pytest.fixture
def hub(clock: FakeClock) -> Iterator[penstock.Hub]:
    with memory_hub(clock=clock) as hub:
        hub.topics.follow("t", consumer="c", start="earliest").close()
        yield hub


def test_without_consumers_all_is_well(memory: penstock.Hub) -> None:
    memory.topics.publish_many("t", range(5_001))
    health = memory.health()

    assert (health.status, health.lags) == ("ok", [])
    assert health.metrics.queue_size == 5_001


@pytest.mark.parametrize(
    ("messages", "status"),
    [(999, "ok"), (1_000, "warning"), (5_000, "warning"), (5_001, "critical")],
)
def test_lag_in_messages_is_judged(hub: penstock.Hub, messages: int, status: str) -> None:
    hub.topics.publish_many("t", [b""] * messages)
    health = hub.health()

    assert health.status == status
    assert health.lags[0].messages == messages
    assert bool(health.checks[0].advice) == (status != "ok")


@pytest.mark.parametrize(
    ("seconds", "status"),
    [(9.9, "ok"), (10.0, "warning"), (30.0, "warning"), (30.1, "critical")],
)
def test_lag_in_seconds_is_judged(
    hub: penstock.Hub, clock: FakeClock, seconds: float, status: str
) -> None:
    hub.topics.publish("t", 1)
    clock.advance(seconds)
    health = hub.health()

    assert health.status == status
    assert health.lags[0].seconds == pytest.approx(seconds)


def test_the_thresholds_are_settings(clock: FakeClock) -> None:
    with memory_hub(clock=clock, lag_warning_messages=1, lag_critical_messages=2) as hub:
        hub.topics.follow("t", consumer="c").close()
        found = []
        for _ in range(3):
            hub.topics.publish("t", 1)
            found.append(hub.health().status)

    assert found == ["warning", "warning", "critical"]


def test_a_consumer_that_caught_up_is_well(hub: penstock.Hub, clock: FakeClock) -> None:
    hub.topics.publish("t", 1)
    clock.advance(100)
    assert hub.health().status == "critical"
    with hub.topics.follow("t", consumer="c") as follower:
        follower.take()
        follower.commit()

    assert hub.health().status == "ok"


def test_messages_of_other_topics_are_no_lag(hub: penstock.Hub, clock: FakeClock) -> None:
    hub.topics.publish_many("other", range(6_000))
    clock.advance(100)

    assert hub.health().status == "ok"


def test_a_loss_is_critical_whatever_the_lag(hub: penstock.Hub) -> None:
    hub.topics.publish_many("t", range(3))
    hub.topics.trim("t", keep=1)
    health = hub.health()

    assert health.status == "critical"
    assert health.lags[0].lost
    assert "skip" in health.checks[0].advice


def test_a_broken_hold_is_critical(clock: FakeClock) -> None:
    with memory_hub(clock=clock, retention_seconds=5, hold_seconds_max=20) as hub:
        hub.topics.create("t", Retention(hold_for=("c",)))
        hub.topics.follow("t", consumer="c").close()
        hub.topics.publish("t", 1)
        clock.advance(20)
        hub._open().sweeper.sweep()

        assert hub.health().status == "critical"


def test_metrics_are_the_queue_in_figures(hub: penstock.Hub, clock: FakeClock) -> None:
    hub.topics.publish_many("t", [b"12345"] * 120)
    clock.advance(30)
    hub.topics.publish("u", b"1")
    metrics = hub.metrics()

    assert (metrics.queue_size, metrics.queue_bytes, metrics.topics) == (121, 601, 2)
    assert metrics.oldest_message_age_seconds == 30
    assert metrics.messages_per_second == pytest.approx(121 / 60)
    assert (metrics.last_id, metrics.waiting_writes) == (121, 0)
    assert (metrics.max_lag_messages, metrics.max_lag_seconds) == (120, 30)


def test_live_processes_are_counted_as_pollers(open_hub: OpenHub) -> None:
    first, second = open_hub(), open_hub()
    first.topics.publish("t", 1)
    assert first.metrics().active_pollers == 0
    with first.topics.subscribe("t"), second.topics.subscribe("t"):
        assert first.metrics().active_pollers == 2
    second.close()

    assert first.metrics().active_pollers == 1


def test_an_empty_hub_has_metrics_too(memory: penstock.Hub) -> None:
    metrics = memory.metrics()

    assert (metrics.queue_size, metrics.oldest_message_age_seconds) == (0, 0.0)
    assert metrics.lowest_position is None


def test_a_healthy_hub_passes_its_examination(hub: penstock.Hub) -> None:
    checks = {check.name: check.status for check in hub.diagnose()}

    assert set(checks.values()) == {"ok"}
    assert {"file", "sqlite", "schema", "content", "write", "wake"} <= set(checks)


def test_expired_messages_are_no_lag(clock: FakeClock) -> None:
    """T12: nobody will ever get them."""
    with memory_hub(clock=clock) as hub:
        hub.topics.follow("t", consumer="c").close()
        hub.topics.publish("t", 1, ttl=5)
        clock.advance(60)
        hub.topics.publish("t", 2)

        lag = hub.consumers.lag("c", "t")
        assert (lag.messages, lag.seconds) == (1, 0)
