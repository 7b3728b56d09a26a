"""Durable consumers over a socket: at least once, one at a time, kept over restarts (D6, T5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.delivery.switchboard import Switchboard
from penstock.protocol import Close
from tests.integration.conftest import Join, OpenBoard
from tests.sockets import Client

BILLING = {"topic": "orders", "consumer": "billing", "start": "earliest"}


def position_of(client: Client, number: int) -> str:
    """That of the n-th message the client was sent."""
    entries = [entry for batch in client.batches() for entry in batch]
    epoch = next(f["ok"]["position"] for f in client.heard if "position" in f.get("ok", {}))
    return f"{epoch.rpartition(':')[0]}:{entries[number]['id']}"


async def test_an_ack_moves_the_consumer_and_is_on_disk(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    hub.topics.publish_many("orders", list(range(5)))
    client = await join(board)
    await client.ask("subscribe", **BILLING)
    assert await client.receives(5) == list(range(5))
    third = position_of(client, 2)
    assert await client.ask("ack", topic="orders", position=third) == {"position": third}
    [consumer] = hub.consumers.list()
    assert (consumer.name, consumer.subscription) == ("billing", "orders")
    assert str(consumer.position) == third
    assert hub.consumers.lag("billing", "orders").messages == 2


async def test_what_was_not_acknowledged_comes_again(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    hub.topics.publish_many("orders", list(range(4)))
    client = await join(board)
    await client.ask("subscribe", **BILLING)
    await client.receives(4)
    done = position_of(client, 1)
    await client.ask("ack", topic="orders", position=done)
    client.goes()
    again = await join(board)
    ok = await once_it_is_free(again)
    assert ok["position"] == done
    assert await again.receives(2) == [2, 3]


async def once_it_is_free(client: Client) -> dict[str, Any]:
    """Subscribe as the consumer, again for as long as it is said to be busy."""
    async with asyncio.timeout(60):
        while True:
            reply = await client.reply(client.say("subscribe", **BILLING))
            if "ok" in reply:
                ok: dict[str, Any] = reply["ok"]
                return ok
            assert reply["error"]["code"] == "consumer_busy", reply
            await asyncio.sleep(0.01)


async def test_one_subscription_at_a_time_is_the_consumer_over_all_instances(
    open_board: OpenBoard, join: Join
) -> None:
    first, second = await open_board(name="one"), await open_board(name="two")
    holder = await join(first)
    await holder.ask("subscribe", **BILLING)
    for board in (first, second):
        rival = await join(board)
        reply = await rival.reply(rival.say("subscribe", **BILLING))
        assert reply["error"]["code"] == "consumer_busy"
        assert reply["error"]["retryable"] is True
        assert rival.session.subscriptions == {}
    await holder.ask("unsubscribe", topic="orders")
    await once_it_is_free(rival)


@pytest.mark.parametrize("end", ["goes", "is closed"])
async def test_when_its_socket_is_gone_another_takes_over(
    open_board: OpenBoard, join: Join, hub: penstock.Hub, end: str
) -> None:
    first, second = await open_board(name="one"), await open_board(name="two")
    hub.topics.publish("orders", 1)
    holder, rival = await join(first), await join(second)
    await holder.ask("subscribe", **BILLING)
    await holder.receives(1)
    if end == "goes":
        holder.goes()
    else:
        holder.session.close(Close.SHUTDOWN)
    await once_it_is_free(rival)
    assert await rival.receives(1) == [1]


async def test_it_is_kept_over_a_restart(
    open_board: OpenBoard, open_hub: Callable[..., penstock.Hub], join: Join, hub: penstock.Hub
) -> None:
    own = open_hub()
    board = await open_board(hub=own)
    hub.topics.publish_many("orders", [0, 1, 2])
    client = await join(board)
    await client.ask("subscribe", **BILLING)
    await client.receives(3)
    await client.ask("ack", topic="orders", position=position_of(client, 0))
    client.goes()
    await board.close()
    own.close()
    again = await join(await open_board())
    await again.ask("subscribe", **BILLING)
    assert await again.receives(2) == [1, 2]


async def test_an_older_ack_does_no_harm_and_the_reply_says_where_it_is(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    hub.topics.publish_many("orders", [0, 1, 2])
    client = await join(board)
    await client.ask("subscribe", **BILLING)
    await client.receives(3)
    first, last = position_of(client, 0), position_of(client, 2)
    await client.ask("ack", topic="orders", position=last)
    assert await client.ask("ack", topic="orders", position=first) == {"position": last}
    assert str(hub.consumers.list()[0].position) == last


async def test_what_was_not_sent_cannot_be_acknowledged(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    hub.topics.publish("orders", 0)
    client = await join(board)
    await client.ask("subscribe", **BILLING)
    await client.receives(1)
    client.backs_up()
    later = hub.topics.publish("orders", 1)
    assert later.position is not None
    elsewhere = f"elsewhere:{later.position.offset}"
    for position in (str(later.position), elsewhere, "nonsense"):
        assert await client.refused("ack", topic="orders", position=position) == "invalid_input"
    assert hub.consumers.lag("billing", "orders").messages == 2
    client.reads_on()
    await client.receives(2)
    await client.ask("ack", topic="orders", position=str(later.position))
    assert hub.consumers.lag("billing", "orders").messages == 0


async def test_without_a_consumer_there_is_nothing_to_acknowledge(
    board: Switchboard, join: Join
) -> None:
    client = await join(board)
    await client.ask("subscribe", topic="orders")
    for topic in ("orders", "elsewhere"):
        assert await client.refused("ack", topic=topic, position="e:1") == "invalid_input"


async def test_a_consumer_of_a_glob_is_one_of_its_own(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    hub.topics.publish("orders", 1)
    hub.topics.publish("oranges", 2)
    client = await join(board)
    await client.ask("subscribe", **BILLING)
    await client.ask("subscribe", topic="or*", consumer="billing", start="earliest")
    assert await client.receives(2, "or*") == [1, 2]
    assert {c.subscription for c in hub.consumers.list()} == {"orders", "or*"}


async def test_trimmed_messages_are_a_gap_to_a_consumer_once(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    """What is lost is told; once it was acknowledged, it is not told again."""
    hub.topics.publish_many("orders", list(range(10)))
    client = await join(board)
    await client.ask("subscribe", **BILLING)
    await client.receives(10)
    await client.ask("ack", topic="orders", position=position_of(client, 0))
    client.goes()
    hub.topics.trim("orders", keep=2)
    again = await join(board)
    await once_it_is_free(again)
    assert (await again.push("gap"))["gap"]["reason"] == "trimmed"
    assert await again.receives(2) == [8, 9]
    await again.ask("ack", topic="orders", position=position_of(again, 0))
    again.goes()
    third = await join(board)
    await once_it_is_free(third)
    assert await third.receives(1) == [9]
    assert third.pushes("gap") == []
