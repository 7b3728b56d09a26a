"""Clients that read too slowly: each policy, and nobody else waits (D5)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import penstock
from penstock.delivery.channel import Channel
from penstock.delivery.switchboard import Switchboard
from penstock.model import Delivery, Pattern
from penstock.protocol import JSON_WIRE, MSGPACK_WIRE, Close, Wire
from tests.integration.conftest import Join, OpenBoard
from tests.sockets import Client, eventually


def channel_of(board: Switchboard, topic: str = "orders") -> Channel:
    channel = board.find_channel(Pattern(topic))
    assert channel is not None
    return channel


async def subscribed(join: Join, board: Switchboard, topic: str = "orders") -> Client:
    client = await join(board)
    await client.ask("subscribe", topic=topic)
    return client


@pytest.mark.parametrize("count", [5, 3000], ids=["from memory", "from the log"])
async def test_one_that_catches_up_misses_nothing_and_nobody_waits_for_it(
    open_board: OpenBoard, join: Join, hub: penstock.Hub, count: int
) -> None:
    board = await open_board(recent_messages_max=100)
    slow, fast = await subscribed(join, board), await subscribed(join, board)
    slow.backs_up()
    hub.topics.publish_many("orders", list(range(count)))
    assert await fast.receives(count) == list(range(count))
    assert slow.payloads() == [], "nothing is added to a buffer that is full"
    slow.reads_on()
    assert await slow.receives(count) == list(range(count))
    hub.topics.publish("orders", "live")
    assert (await slow.receives(count + 1))[-1] == "live"
    assert len(slow.payloads()) == count + 1
    assert board.stats.overall()["orders"].catch_ups == 1
    assert fast.pushes("gap") == slow.pushes("gap") == []


class Narrow:
    """A socket with a buffer of so many bytes, and a client that empties it now and then."""

    def __init__(self, client: Client, size: int) -> None:
        self._client = client
        self._size = size
        self.waiting = 0
        self.most = 0
        self.largest_frame = 0
        client.socket.on_send = self._sent

    def _sent(self, data: bytes) -> None:
        self.waiting += len(data)
        self.most = max(self.most, self.waiting)
        self.largest_frame = max(self.largest_frame, len(data))
        if self.waiting > self._size and not self._client.socket.is_paused:
            self._client.backs_up()

    def empty(self) -> None:
        self.waiting = 0
        if self._client.socket.is_paused:
            self._client.reads_on()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("wire", [JSON_WIRE, MSGPACK_WIRE], ids=["json", "msgpack"])
async def test_falling_behind_and_coming_back_loses_and_repeats_nothing(
    open_board: OpenBoard, join: Join, hub: penstock.Hub, wire: Wire, seed: int
) -> None:
    """D3, D5: at every moment it may leave the live path, and join it again."""
    choose = random.Random(seed)
    board = await open_board(
        recent_messages_max=choose.choice([5, 50, 500]),
        subscriber_buffer_max=choose.choice([20, 10_000]),
        frame_messages_max=choose.choice([3, 40]),
    )
    client = await join(board, wire)
    await client.ask("subscribe", topic="orders")
    narrow = Narrow(client, 600)
    published = 0
    while published < 600:
        count = choose.randint(1, 30)
        payloads = list(range(published, published + count))
        await asyncio.to_thread(hub.topics.publish_many, "orders", payloads)
        published += count
        if choose.random() < 0.6:
            narrow.empty()
    await eventually(lambda: narrow.empty() or len(client.payloads()) >= published)
    assert client.payloads() == list(range(published))
    assert narrow.most <= 600 + 2 * narrow.largest_frame, "memory for a socket is bounded"


async def test_under_disconnect_it_is_told_where_to_resume(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    hub.topics.create("orders", delivery=Delivery(slow_policy="disconnect"))
    client = await subscribed(join, board)
    hub.topics.publish("orders", 1)
    await client.receives(1)
    client.backs_up()
    code, reason = await client.is_closed()
    assert code == Close.SLOW
    assert channel_of(board).subscriber_count == 0
    hub.topics.publish("orders", 2)
    again = await join(board)
    ok = await again.ask("subscribe", topic="orders", after=reason)
    assert ok["recovered"] is True
    assert await again.receives(1) == [2]


async def test_under_drop_oldest_it_is_told_how_many_it_missed(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    hub.topics.create("gauges", delivery=Delivery(slow_policy="drop_oldest"))
    slow, fast = await subscribed(join, board, "gauges"), await subscribed(join, board, "gauges")
    hub.topics.publish("gauges", "before")
    await slow.receives(1)
    slow.backs_up()
    receipts = hub.topics.publish_many("gauges", list(range(10)))
    await fast.receives(11)
    slow.reads_on()
    dropped = await slow.push("dropped")
    assert dropped == {
        "push": "dropped",
        "topic": "gauges",
        "messages": 10,
        "through": str(receipts[-1].position),
    }
    hub.topics.publish("gauges", "after")
    assert await slow.receives(2) == ["before", "after"]
    figures = (await board.metrics()).topics["gauges"]
    assert figures.messages_dropped == 10
    assert figures.messages_delivered == 12 + 2
    assert fast.pushes("dropped") == []


async def test_a_backlog_is_never_dropped(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    """Who asked for the last messages gets them, also slowly: the policy is about what is live."""
    hub.topics.create("gauges", delivery=Delivery(slow_policy="drop_oldest"))
    hub.topics.publish_many("gauges", list(range(100)))
    client = await join(board)
    client.socket.is_paused = True
    await client.ask("subscribe", topic="gauges", last=100)
    client.reads_on()
    assert await client.receives(100) == list(range(100))
    assert client.pushes("dropped") == []


async def test_when_retention_is_faster_than_the_client_it_is_told_the_gap(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(recent_messages_max=5)
    slow, fast = await subscribed(join, board), await subscribed(join, board)
    first = hub.topics.publish("orders", "first")
    await slow.receives(1)
    slow.backs_up()
    receipts = hub.topics.publish_many("orders", list(range(100)))
    await fast.receives(101)
    hub.topics.trim("orders", keep=2)
    slow.reads_on()
    push = await slow.push("gap")
    assert push["topic"] == "orders"
    assert push["gap"] == {
        "reason": "trimmed",
        "after": str(first.position),
        "resumes": str(receipts[97].position),
    }
    assert await slow.receives(3) == ["first", 98, 99]
    assert fast.pushes("gap") == []


async def test_topics_of_one_socket_fall_behind_together_and_all_come_back(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    topics = ["a", "b", "c"]
    client, witness = await join(board), await join(board)
    for topic in topics:
        for one in (client, witness):
            await one.ask("subscribe", topic=topic)
    client.backs_up()
    for number in range(30):
        hub.topics.publish(topics[number % 3], number)
    await witness.receives(30)
    client.reads_on()
    await client.receives(30)
    for index, topic in enumerate(topics):
        assert client.payloads(topic) == list(range(index, 30, 3))


async def test_a_slow_client_is_counted_while_it_is_slow(board: Switchboard, join: Join) -> None:
    client = await subscribed(join, board)
    events: list[dict[str, Any]] = []
    board.runtime.telemetry.attach(
        lambda name, what: events.append(dict(what)) if name == "slow" else None
    )
    client.backs_up()
    assert (await board.metrics()).slow_connections == 1
    client.reads_on()
    assert (await board.metrics()).slow_connections == 0
    assert events == [{"subscription": "orders", "policy": "catch_up"}]
