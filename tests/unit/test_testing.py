"""The helpers that users' tests get."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import FakeClock, memory_hub, override
from tests.factories import payloads


def test_a_fake_clock_moves_when_it_is_told() -> None:
    clock = FakeClock()
    now, monotonic = clock.now(), clock.monotonic()
    assert clock.now() == now

    assert clock.advance(1.5) == clock.now() == now + 1_500_000
    assert clock.monotonic() == monotonic + 1_500_000
    assert clock.set_back(60) == now - 58_500_000
    assert clock.monotonic() == monotonic + 1_500_000
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-1)


def test_a_memory_hub_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:////nowhere/hub.db")
    with memory_hub(retention_seconds=5) as hub:
        hub.topics.publish("t", 1)
        assert hub.settings.retention_seconds == 5


def test_memory_hubs_are_private() -> None:
    with memory_hub() as first, memory_hub() as second:
        first.topics.publish("t", 1)

        assert second.topics.read("t") == []


def test_a_programs_hub_is_put_on_another_store_for_a_while(hub: penstock.Hub) -> None:
    hub.topics.publish("t", "real")
    with override(hub) as same:
        assert same is hub
        assert hub.topics.read("t") == []
        hub.topics.publish("t", "test")
        assert payloads(hub.topics.read("t")) == ["test"]

    assert payloads(hub.topics.read("t")) == ["real"]
    hub.topics.publish("t", "more")
    assert payloads(hub.topics.read("t")) == ["real", "more"]


def test_an_override_before_the_first_use_opens_nothing_else(hub: penstock.Hub) -> None:
    with override(hub, follow_batch_max=1):
        hub.topics.publish("t", 1)

    assert hub.topics.read("t") == []
