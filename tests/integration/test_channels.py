"""Channels: batches, one encoding for all, one order, memory that is bounded (D1-D4, D6, T6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.delivery import switchboard as switchboards
from penstock.delivery.channel import Channel
from penstock.delivery.switchboard import Switchboard
from penstock.model import Delivery, Pattern
from penstock.protocol import JSON_WIRE, MSGPACK_WIRE, Wire
from penstock.testing import FakeClock
from tests.integration.conftest import Join, OpenBoard
from tests.sockets import Client, eventually

A_MINUTE = 60_000.0


def channel_of(board: Switchboard, topic: str = "orders") -> Channel:
    channel = board.find_channel(Pattern(topic))
    assert channel is not None
    return channel


async def subscribed(join: Join, board: Switchboard, *topics: str, **fields: Any) -> Client:
    client = await join(board, **fields)
    for topic in topics or ("orders",):
        await client.ask("subscribe", topic=topic)
    return client


async def in_thread(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """As another program would: the event loop goes on meanwhile."""
    return await asyncio.to_thread(call, *arguments, **keywords)


# Batches


async def test_the_first_message_after_a_pause_is_sent_at_once_and_the_next_waits(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    """D1: with a minute to wait, only what is sent at once arrives within this test."""
    board = await open_board(batch_ms=A_MINUTE)
    client = await subscribed(join, board)
    hub.topics.publish("orders", 1)
    assert await client.receives(1) == [1]
    hub.topics.publish("orders", 2)
    await eventually(lambda: channel_of(board).queue_depth == 1, "the second one waits")
    assert client.payloads() == [1]


async def test_a_batch_is_sent_when_it_is_full(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(batch_ms=A_MINUTE, batch_max=3)
    client = await subscribed(join, board)
    hub.topics.publish("orders", 0)
    await client.receives(1)
    hub.topics.publish_many("orders", [1, 2])
    await eventually(lambda: channel_of(board).queue_depth == 2, "two wait")
    assert client.payloads() == [0]
    hub.topics.publish("orders", 3)
    assert await client.receives(4) == [0, 1, 2, 3]
    hub.topics.publish_many("orders", [4, 5, 6])
    await client.receives(7)
    assert [len(batch) for batch in client.batches()] == [1, 3, 3]


async def test_a_batch_is_sent_when_its_time_is_up(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(batch_ms=30.0, batch_max=1000)
    client = await subscribed(join, board)
    hub.topics.publish("orders", 1)
    await client.receives(1)
    hub.topics.publish_many("orders", [2, 3])
    assert await client.receives(3) == [1, 2, 3]


async def test_without_a_batch_time_nothing_waits(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(batch_ms=0.0, batch_max=1000)
    client = await subscribed(join, board)
    for number in range(5):
        hub.topics.publish("orders", number)
        assert await client.receives(number + 1) == list(range(number + 1))
    assert [len(batch) for batch in client.batches()] == [1] * 5


async def test_while_sending_takes_long_batches_grow(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    """D1: what came during one batch goes out in the next, not in many small ones."""
    board = await open_board(batch_max=2)
    client = await subscribed(join, board)
    client.socket.on_send = lambda data: publish_once()
    left = [list(range(1, 51))]

    def publish_once() -> None:
        if left:
            hub.topics.publish_many("orders", left.pop())

    hub.topics.publish("orders", 0)
    assert await client.receives(51) == list(range(51))
    assert max(len(batch) for batch in client.batches()) > 2


async def test_a_frame_has_no_more_messages_and_bytes_than_it_may(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(frame_messages_max=20, frame_payload_bytes_max=1000)
    hub.topics.publish_many("orders", ["x" * 98] * 95)
    client = await join(board)
    await client.ask("subscribe", topic="orders", start="earliest")
    hub.topics.publish_many("orders", ["y"] * 95)
    await client.receives(190)
    assert max(len(batch) for batch in client.batches()) <= 20
    sizes = [sum(len(entry["payload"]) + 2 for entry in batch) for batch in client.batches()]
    assert max(sizes) <= 1000


async def test_a_full_frame_does_not_wait_for_a_larger_batch(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(batch_ms=A_MINUTE, batch_max=1000, frame_messages_max=5)
    client = await subscribed(join, board)
    hub.topics.publish("orders", 0)
    await client.receives(1)
    hub.topics.publish_many("orders", list(range(1, 11)))
    assert await client.receives(11) == list(range(11))


# One encoding


async def test_a_batch_is_encoded_once_for_each_format_and_shared_by_all_sockets(
    board: Switchboard, join: Join, hub: penstock.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2: the same bytes, not only equal ones."""
    counts: dict[str, int] = {"json": 0, "msgpack": 0}
    for wire in (JSON_WIRE, MSGPACK_WIRE):
        monkeypatch.setattr(wire, "entry", counting(wire, counts))
    clients = [await subscribed(join, board, wire=JSON_WIRE) for _ in range(5)]
    binary = [await subscribed(join, board, wire=MSGPACK_WIRE) for _ in range(3)]
    hub.topics.publish_many("orders", [1, 2, 3])
    for client in (*clients, *binary):
        assert await client.receives(3) == [1, 2, 3]
    assert counts == {"json": 3, "msgpack": 3}
    for group in (clients, binary):
        first = group[0].socket.frames[-1]
        assert all(client.socket.frames[-1] is first for client in group)


def counting(wire: Wire, counts: dict[str, int]) -> Any:
    encode = wire.entry

    def entry(message: penstock.Message, *, with_topic: bool) -> Any:
        counts[wire.format] += 1
        return encode(message, with_topic=with_topic)

    return entry


async def test_a_client_that_leaves_while_a_batch_is_sent_disturbs_nobody(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    clients = [await subscribed(join, board) for _ in range(4)]

    def all_others_go(data: bytes) -> None:
        for client in clients[2:]:
            client.goes()

    clients[0].socket.on_send = all_others_go
    hub.topics.publish("orders", 1)
    hub.topics.publish("orders", 2)
    for client in clients[:2]:
        assert await client.receives(2) == [1, 2]
    assert channel_of(board).subscriber_count == 2


async def test_a_strange_message_does_not_stop_the_channel(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    text = await subscribed(join, board, wire=JSON_WIRE)
    binary = await subscribed(join, board, wire=MSGPACK_WIRE)
    hub.topics.publish("orders", {None: 1}, format="msgpack")
    hub.topics.publish("orders", 10**30)
    hub.topics.publish("orders", "after")
    await binary.until(lambda: "after" in binary.payloads())
    await text.until(lambda: b"after" in text.socket.frames[-1])


# One order


async def test_everybody_sees_one_order_whatever_the_instance(
    open_board: OpenBoard, join: Join
) -> None:
    """D3: publishers and subscribers on two instances, one topic and a glob over two."""
    boards = [await open_board(), await open_board()]
    readers = [await subscribed(join, board, "orders", "or*") for board in boards]

    async def publish(board: Switchboard, topic: str) -> None:
        client = await join(board)
        for number in range(100):
            await client.ask("publish", topic=topic, payload=number)

    await asyncio.gather(
        *(publish(board, topic) for board in boards for topic in ("orders", "oranges"))
    )
    seen: dict[str, list[list[int]]] = {"orders": [], "or*": []}
    for reader in readers:
        for topic, count in (("orders", 200), ("or*", 400)):
            await reader.receives(count, topic)
            ids = [entry["id"] for batch in reader.batches(topic) for entry in batch]
            assert ids == sorted(set(ids))
            seen[topic].append(ids)
    assert seen["orders"][0] == seen["orders"][1]
    assert seen["or*"][0] == seen["or*"][1]
    assert len(seen["or*"][0]) == 400


async def test_a_message_is_durable_before_it_is_sent(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    """T6: straight after the commit, never before. Another hub can read what a socket was sent."""
    client = await subscribed(join, board)
    readable: list[bool] = []

    def look(data: bytes) -> None:
        frame = JSON_WIRE.decode_any(data)
        if frame.get("push") == "messages":
            stored = {message.id for message in hub.topics.read("orders")}
            readable.append({entry["id"] for entry in frame["messages"]} <= stored)

    client.socket.on_send = look
    for number in range(20):
        await client.ask("publish", topic="orders", payload=number)
    await client.receives(20)
    assert readable
    assert all(readable)


# Bounded


async def test_what_is_too_much_for_the_queue_is_read_from_the_log(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    """D4: publishers are not held up, the queue is bounded, nothing is lost."""
    board = await open_board(subscriber_buffer_max=50)
    client = await subscribed(join, board)
    # In this thread, so that the event loop cannot take anything meanwhile.
    for start in range(0, 1000, 100):
        hub.topics.publish_many("orders", list(range(start, start + 100)))
        assert channel_of(board).queue_depth <= 50
    assert await client.receives(1000) == list(range(1000))


async def test_a_channel_keeps_so_many_for_those_who_resume_and_the_log_has_the_rest(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    """D6: from memory or from the log, the client cannot tell."""
    board = await open_board(recent_messages_max=10)
    client = await subscribed(join, board)
    receipts = hub.topics.publish_many("orders", list(range(100)))
    await client.receives(100)
    recent = channel_of(board).recent
    assert len(recent.after(recent.start)) <= 20
    for resume_at in (0, 50, 95, 99):
        late = await join(board)
        after = str(receipts[resume_at].position)
        ok = await late.ask("subscribe", topic="orders", after=after)
        assert ok["recovered"] is True
        assert await late.receives(99 - resume_at) == list(range(resume_at + 1, 100))


async def test_memory_of_all_channels_together_is_bounded(
    board: Switchboard, join: Join, hub: penstock.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await subscribed(join, board, "a", "b", "c")
    for topic in ("a", "b", "c"):
        hub.topics.publish_many(topic, ["x" * 100] * 10)
    await client.receives(30)
    monkeypatch.setattr(switchboards, "RECENT_BYTES_MAX", 2_500)
    await board._bound_recent()
    sizes = [channel_of(board, topic).recent.size for topic in ("a", "b", "c")]
    assert 0 < sum(sizes) <= 2_500


async def test_an_expired_message_is_not_given_to_one_who_resumes(
    open_board: OpenBoard, join: Join, open_hub: Any
) -> None:
    clock = FakeClock()
    hub = open_hub(clock=clock)
    board = await open_board(hub=hub)
    client = await subscribed(join, board)
    start = hub.topics.publish("orders", "start")
    hub.topics.publish("orders", "mortal", ttl=5)
    await client.receives(2)
    clock.advance(6)
    late = await join(board)
    await late.ask("subscribe", topic="orders", after=str(start.position))
    hub.topics.publish("orders", "later")
    assert await late.receives(1) == ["later"]


async def test_what_was_trimmed_is_not_given_from_memory(
    board: Switchboard, join: Join, hub: penstock.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await subscribed(join, board)
    start = hub.topics.publish("orders", "start")
    hub.topics.publish("orders", "secret")
    await client.receives(2)
    hub.topics.trim("orders", keep=0)
    monkeypatch.setattr(switchboards, "CONFIGURE_TICKS", 1)
    await board._configure()
    late = await join(board)
    ok = await late.ask("subscribe", topic="orders", after=str(start.position))
    assert ok["recovered"] is False
    hub.topics.publish("orders", "later")
    assert await late.receives(1) == ["later"]


# Changes while running


async def test_a_topics_own_choices_are_taken_over_while_it_runs(
    open_board: OpenBoard, join: Join, hub: penstock.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: both limits are configurable per topic; nobody has to subscribe again."""
    monkeypatch.setattr(switchboards, "CONFIGURE_TICKS", 1)
    hub.topics.create("orders", delivery=Delivery(batch_ms=A_MINUTE))
    board = await open_board()
    client = await subscribed(join, board)
    hub.topics.publish("orders", 1)
    await client.receives(1)
    hub.topics.publish("orders", 2)
    channel = channel_of(board)
    await eventually(lambda: channel.queue_depth == 1)
    hub.topics.configure("orders", delivery=Delivery(batch_max=3, slow_policy="drop_oldest"))
    await eventually(lambda: channel.slow_policy == "drop_oldest", "the policy is in force")
    hub.topics.publish_many("orders", [3, 4])
    assert await client.receives(4) == [1, 2, 3, 4]


async def test_a_restored_database_ends_subscriptions_which_can_be_made_again(
    board: Switchboard, join: Join, hub: penstock.Hub, tmp_path: Any
) -> None:
    """D6: nobody reads on in another log without being told."""
    client = await subscribed(join, board)
    before = hub.topics.publish("orders", 1)
    await client.receives(1)
    await in_thread(hub.backup, tmp_path / "copy.db")
    await in_thread(hub.restore, tmp_path / "copy.db")
    await in_thread(hub.topics.publish, "orders", 2)
    ended = await client.push("unsubscribed")
    assert (ended["topic"], ended["error"]["code"]) == ("orders", "epoch_changed")
    ok = await client.ask("subscribe", topic="orders", after=str(before.position))
    assert ok["gap"]["reason"] == "epoch_changed"
    assert ok["position"] == ok["gap"]["resumes"]
    await in_thread(hub.topics.publish, "orders", 3)
    assert (await client.receives(2))[-1] == 3


async def test_a_channel_is_shared_opened_once_and_closed_when_nobody_came_back(
    board: Switchboard, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [await join(board) for _ in range(5)]
    ids = [client.say("subscribe", topic="orders") for client in clients]
    for client, id in zip(clients, ids, strict=True):
        assert "ok" in await client.reply(id)
    channel = channel_of(board)
    assert channel.subscriber_count == 5
    for client in clients:
        client.goes()
    assert channel_of(board) is channel
    monkeypatch.setattr(switchboards, "LINGER_SECONDS", 0.0)
    await eventually(lambda: channel.is_closed, "it has lingered long enough")
    assert board.find_channel(Pattern("orders")) is None
