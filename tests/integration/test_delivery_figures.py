"""Figures of delivery: exact in `/metrics`, and as messages for pipelines (D9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.delivery import switchboard as switchboards
from penstock.delivery.stats import STATS_TOPIC, DeliverySecond, Histogram
from penstock.delivery.switchboard import Switchboard
from penstock.model import Pattern
from penstock.protocol import MSGPACK_WIRE
from penstock.testing import FakeClock
from tests.integration.conftest import Join, OpenBoard
from tests.sockets import eventually


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep runs when a test asks for it, and at no other time."""
    monkeypatch.setattr(switchboards, "TICK_SECONDS", 3600.0)


@pytest.fixture
def tick(board: Switchboard) -> Callable[[], Any]:
    """A second has passed."""
    return board._upkeep


def seconds(hub: penstock.Hub) -> list[DeliverySecond]:
    return [message.decode(DeliverySecond) for message in hub.topics.read(STATS_TOPIC)]


async def test_the_figures_of_a_topic_are_exact(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    first, second = await join(board), await join(board, MSGPACK_WIRE)
    watcher = await join(board)
    for client, topic in ((first, "orders"), (second, "orders"), (watcher, "or*")):
        await client.ask("subscribe", topic=topic)
    await first.ask("subscribe", topic="quiet")
    hub.topics.publish("elsewhere", "nobody listens")
    hub.topics.publish_many("orders", ["12345678"] * 10)
    for client in (first, second, watcher):
        await client.receives(10)
    figures = await board.metrics()
    orders = figures.topics["orders"]
    assert orders.messages_published == 10
    assert orders.messages_delivered == 30
    assert orders.bytes_delivered == 30 * len('"12345678"')
    assert orders.messages_dropped == 0
    assert orders.subscriber_count == 2
    assert orders.queue_depth == 0
    assert orders.queue_max_size == 10_000
    batches = len(first.batches()) + len(watcher.batches())
    assert orders.batch_size_avg == pytest.approx(20 / batches)
    assert orders.latency_ms.avg > 0
    assert 0 < orders.latency_ms.p95 <= orders.latency_ms.p99
    assert figures.topics["quiet"].messages_delivered == 0
    assert figures.topics["or*"].subscriber_count == 1
    assert (figures.connections, figures.active_topics) == (3, 3)
    assert (figures.active_subscribers, figures.slow_connections) == (4, 0)
    assert (figures.total_published, figures.total_delivered) == (10, 30)
    assert figures.total_dropped == 0
    first.goes()
    figures = await board.metrics()
    assert figures.connections == 2
    assert figures.topics["orders"].subscriber_count == 1
    assert figures.topics["orders"].messages_delivered == 30


async def test_what_waits_is_the_queue_depth(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(batch_ms=60_000.0, batch_max=1000)
    client = await join(board)
    await client.ask("subscribe", topic="orders")
    hub.topics.publish("orders", 0)
    await client.receives(1)
    hub.topics.publish_many("orders", [1, 2, 3])
    channel = board.find_channel(Pattern("orders"))
    assert channel is not None
    await eventually(lambda: channel.queue_depth == 3, "three wait")
    assert (await board.metrics()).topics["orders"].queue_depth == 3


async def test_latency_is_from_publishing_to_sending(
    open_board: OpenBoard, join: Join, open_hub: Any
) -> None:
    clock = FakeClock()
    hub = open_hub(clock=clock)
    board = await open_board(hub=hub, batch_ms=0.0)
    client = await join(board)
    await client.ask("subscribe", topic="orders")
    hub.topics.publish("orders", 1)
    clock.advance(0.5)  # In this thread: the event loop has sent nothing yet.
    await client.receives(1)
    latency = (await board.metrics()).topics["orders"].latency_ms
    assert latency.avg == pytest.approx(500)
    assert latency.p99 == pytest.approx(500, rel=0.05)


async def test_one_message_per_second_and_active_topic(
    board: Switchboard, join: Join, hub: penstock.Hub, tick: Callable[[], Any]
) -> None:
    client, other = await join(board), await join(board)
    for one in (client, other):
        for topic in ("a", "b", "quiet"):
            await one.ask("subscribe", topic=topic)
    hub.topics.publish_many("a", ["xx"] * 3)
    hub.topics.publish("b", "y")
    for one in (client, other):
        await one.receives(4)
    await tick()
    found = {second.topic: second for second in seconds(hub)}
    assert set(found) == {"a", "b"}
    assert len(seconds(hub)) == 2
    assert found["a"].instance == board.runtime.name
    assert (found["a"].messages, found["a"].deliveries, found["a"].bytes) == (3, 6, 24)
    assert (found["a"].subscribers, found["a"].dropped, found["a"].catch_ups) == (2, 0, 0)
    assert found["a"].batches == len(client.batches("a"))
    assert sum(found["a"].latency_buckets.values()) == 6
    assert [message.key for message in hub.topics.read(STATS_TOPIC)] == ["a", "b"]
    await tick()
    assert len(seconds(hub)) == 2, "an idle second says nothing"
    hub.topics.publish("a", "z")
    await client.receives(5)
    await tick()
    assert [second.messages for second in seconds(hub)] == [3, 1, 1]


async def test_seconds_of_many_add_up_to_the_totals(
    board: Switchboard, join: Join, hub: penstock.Hub, tick: Callable[[], Any]
) -> None:
    """A pipeline that merges histograms finds the percentiles `/metrics` has."""
    client = await join(board)
    await client.ask("subscribe", topic="orders")
    for count in range(1, 6):
        hub.topics.publish_many("orders", list(range(10)))
        await client.receives(10 * count)
        await tick()
    merged = Histogram()
    for second in seconds(hub):
        merged.merge(second.latency_buckets, second.latency_total_ms)
    orders = (await board.metrics()).topics["orders"]
    assert sum(second.deliveries for second in seconds(hub)) == orders.messages_delivered == 50
    assert merged.percentile(0.95) == orders.latency_ms.p95
    assert merged.average == pytest.approx(orders.latency_ms.avg, rel=0.01)


async def test_statistics_of_statistics_are_not_made(
    board: Switchboard, join: Join, hub: penstock.Hub, tick: Callable[[], Any]
) -> None:
    client = await join(board)
    await client.ask("subscribe", topic=STATS_TOPIC)
    await client.ask("subscribe", topic="orders")
    hub.topics.publish("orders", 1)
    await client.receives(1, "orders")
    await tick()
    await client.receives(1, STATS_TOPIC)
    client.backs_up()
    client.reads_on()
    await tick()
    assert {second.topic for second in seconds(hub)} == {"orders"}
    assert STATS_TOPIC not in (await board.metrics()).topics


async def test_statistics_can_be_turned_off(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(stats_seconds=0.0)
    client = await join(board)
    await client.ask("subscribe", topic="orders")
    hub.topics.publish("orders", 1)
    await client.receives(1)
    await board._upkeep()
    assert seconds(hub) == []
    assert (await board.metrics()).topics["orders"].messages_delivered == 1


async def test_what_was_delivered_before_stopping_is_still_told(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    client = await join(board)
    await client.ask("subscribe", topic="orders")
    hub.topics.publish("orders", 1)
    await client.receives(1)
    assert board.find_channel(Pattern("orders")) is not None
    client.goes()
    await board.close()
    assert [second.topic for second in seconds(hub)] == ["orders"]
