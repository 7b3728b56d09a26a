"""The commands of one socket, each with all that can go wrong (D1, D2, D6)."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest

import penstock
from penstock.delivery import session as sessions
from penstock.delivery.access import Access
from penstock.delivery.switchboard import Switchboard
from penstock.errors import LimitReached
from penstock.protocol import JSON_WIRE, MSGPACK_WIRE, Close
from penstock.testing import FakeClock
from tests.integration.conftest import Join, OpenBoard
from tests.sockets import Client, Keys, eventually

READER = Access("ann", publish=("room-*",), subscribe=("room-*",), token_id="t1")
NARROW = Access("ann", publish=("room-1",), subscribe=("room-1",), token_id="t2")
STRANGER = Access("bob", subscribe=("*",), token_id="t3")


# connect and refresh


async def test_connect_tells_who_where_and_how_often_it_is_pinged(board: Switchboard) -> None:
    ok = await Client(board).ask("connect", client="ann")
    log = board.runtime.store.log()
    assert ok == {
        "client": "ann",
        "epoch": log.epoch,
        "instance": board.runtime.name,
        "version": penstock.__version__,
        "ping_seconds": 25.0,
        "idempotency_seconds": 300.0,
        "expires_in_seconds": None,
    }


async def test_a_client_without_a_name_is_given_one_of_its_own(
    board: Switchboard, join: Join
) -> None:
    first, second = await join(board), await join(board)
    assert first.session.client
    assert first.session.client != second.session.client


async def test_the_first_command_must_be_connect(board: Switchboard) -> None:
    client = Client(board)
    assert await client.refused("subscribe", topic="orders") == "unauthorized"
    assert client.socket.closed is not None
    assert client.socket.closed[0] == Close.BAD_TOKEN


async def test_connecting_twice_is_refused_and_harms_nothing(
    board: Switchboard, join: Join
) -> None:
    client = await join(board, client="ann")
    assert await client.refused("connect", client="bob") == "bad_request"
    assert client.session.client == "ann"
    assert await client.ask("ping") == {}


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_a_bad_token_is_refused_and_the_socket_closed(
    open_board: OpenBoard, token: str | None
) -> None:
    board = await open_board(Keys(good=READER))
    client = Client(board)
    assert await client.refused("connect", token=token) == "unauthorized"
    assert (await client.is_closed())[0] == Close.BAD_TOKEN


async def test_the_token_may_come_with_the_handshake(open_board: OpenBoard) -> None:
    board = await open_board(Keys(good=READER))
    assert await Client(board, token="good").ask("connect")


async def test_under_a_token_nobody_takes_the_name_of_another(open_board: OpenBoard) -> None:
    """T9: a presence list can be believed."""
    board = await open_board(Keys(good=READER))
    ok = await Client(board).ask("connect", token="good", client="bob")
    assert ok["client"] == "ann/bob"
    ok = await Client(board).ask("connect", token="good", client="ann")
    assert ok["client"] == "ann"


async def test_a_name_that_is_none_is_refused(board: Switchboard) -> None:
    client = Client(board)
    assert await client.refused("connect", client="a\nb") == "invalid_input"


async def test_a_client_beyond_the_limit_is_not_admitted(board: Switchboard) -> None:
    def admit(access: Access) -> Any:
        raise LimitReached

    client = Client(board, admit=admit)
    assert await client.refused("connect") == "limit_reached"
    assert (await client.is_closed())[0] == Close.LIMIT


async def test_a_token_that_expires_closes_the_socket(open_board: OpenBoard, open_hub: Any) -> None:
    clock = FakeClock()
    short = Access("ann", subscribe=("*",), expires_at=clock.now() + 5_000_000, token_id="t1")
    hub = open_hub(clock=clock)
    board = await open_board(Keys(good=short), hub=hub)
    client = Client(board)
    ok = await client.ask("connect", token="good")
    assert ok["expires_in_seconds"] == 5.0
    client.session.check(board.loop.time())
    assert client.socket.closed is None
    clock.advance(5)
    client.session.check(board.loop.time())
    assert (await client.is_closed())[0] == Close.TOKEN_EXPIRED
    late = Client(board)
    assert await late.refused("connect", token="good") == "unauthorized"


async def test_a_token_that_is_revoked_closes_the_socket(open_board: OpenBoard, join: Join) -> None:
    keys = Keys(good=READER)
    client = await join(await open_board(keys), token="good")
    keys.revoked.add("t1")
    assert (await client.is_closed())[0] == Close.REVOKED


async def test_a_fresh_token_with_fewer_rights_ends_what_it_does_not_allow(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(Keys(wide=READER, narrow=NARROW))
    client = await join(board, token="wide")
    for topic in ("room-1", "room-2", "room-*"):
        await client.ask("subscribe", topic=topic)
    await client.ask("refresh", token="narrow")
    ended = {push["topic"]: push["error"]["code"] for push in client.pushes("unsubscribed")}
    assert ended == {"room-2": "forbidden", "room-*": "forbidden"}
    hub.topics.publish("room-2", "secret")
    hub.topics.publish("room-1", "hello")
    assert await client.receives(1) == ["hello"]
    assert await client.refused("publish", topic="room-2", payload=1) == "forbidden"


async def test_a_fresh_token_must_be_for_the_same_subject(
    open_board: OpenBoard, join: Join
) -> None:
    board = await open_board(Keys(wide=READER, other=STRANGER))
    client = await join(board, token="wide")
    assert await client.refused("refresh", token="other") == "unauthorized"
    assert await client.refused("refresh", token="none") == "unauthorized"
    assert await client.refused("subscribe", topic="elsewhere") == "forbidden"


async def test_refreshing_while_a_subscription_opens_still_ends_it(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(Keys(wide=READER, narrow=NARROW))
    client = await join(board, token="wide")
    opening = client.say("subscribe", topic="room-2")
    await client.ask("refresh", token="narrow")
    reply = await client.reply(opening)
    assert reply["error"]["code"] == "invalid_input"
    assert client.pushes("unsubscribed")[0]["topic"] == "room-2"
    channel = board.find_channel(penstock.model.Pattern("room-2"))
    assert channel is None or channel.subscriber_count == 0


# subscribe and unsubscribe


async def test_subscribing_starts_after_the_position_of_the_reply(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    before = hub.topics.publish("orders", "before")
    client = await join(board)
    ok = await client.ask("subscribe", topic="orders")
    assert ok == {"topic": "orders", "position": str(before.position)}
    hub.topics.publish("orders", {"n": 1}, type="placed", key="k", headers={"h": "v"}, ttl=60)
    await client.receives(1)
    [entry] = client.batches("orders")[0]
    assert entry["payload"] == {"n": 1}
    assert (entry["type"], entry["key"], entry["headers"]) == ("placed", "k", {"h": "v"})
    assert entry["id"] == before.id + 1
    assert entry["expires_at"] == entry["at"] + 60_000_000
    assert "topic" not in entry


async def test_a_glob_says_of_each_message_which_topic_it_is_from(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    client = await join(board)
    await client.ask("subscribe", topic="room-*")
    for topic in ("room-1", "hall", "room-2"):
        hub.topics.publish(topic, topic)
    await client.receives(2)
    found = [(e["topic"], e["payload"]) for batch in client.batches("room-*") for e in batch]
    assert found == [("room-1", "room-1"), ("room-2", "room-2")]


async def test_the_last_so_many_come_first_and_then_what_is_new(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    hub.topics.publish_many("orders", list(range(5)))
    client = await join(board)
    await client.ask("subscribe", topic="orders", last=2)
    hub.topics.publish("orders", 5)
    assert await client.receives(3) == [3, 4, 5]


async def test_from_the_earliest_on(board: Switchboard, join: Join, hub: penstock.Hub) -> None:
    hub.topics.publish_many("orders", list(range(700)))
    client = await join(board)
    await client.ask("subscribe", topic="orders", start="earliest")
    assert await client.receives(700) == list(range(700))


async def test_resuming_gives_what_was_missed_and_says_that_nothing_is_missing(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    """D6: from the log, and from memory."""
    first = hub.topics.publish("orders", 0)
    hub.topics.publish_many("orders", [1, 2])
    from_log = await join(board)
    ok = await from_log.ask("subscribe", topic="orders", after=str(first.position))
    assert ok == {"topic": "orders", "position": str(first.position), "recovered": True}
    assert await from_log.receives(2) == [1, 2]
    third = hub.topics.publish("orders", 3)
    hub.topics.publish("orders", 4)
    await from_log.receives(4)
    from_memory = await join(board)
    ok = await from_memory.ask("subscribe", topic="orders", after=str(third.position))
    assert ok["recovered"] is True
    hub.topics.publish("orders", 5)
    assert await from_memory.receives(2) == [4, 5]
    kinds = [frame.get("push", "reply") for frame in from_memory.heard]
    assert kinds[:3] == ["reply", "reply", "messages"], "no message before the reply"


async def test_resuming_after_messages_were_trimmed_tells_the_gap(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    """D6: a trimmed gap is told, never hidden."""
    first = hub.topics.publish("orders", 0)
    hub.topics.publish_many("orders", [1, 2, 3])
    hub.topics.trim("orders", keep=1)
    client = await join(board)
    ok = await client.ask("subscribe", topic="orders", after=str(first.position))
    assert ok["recovered"] is False
    assert ok["gap"]["reason"] == "trimmed"
    assert ok["gap"]["after"] == str(first.position)
    assert ok["gap"]["resumes"] == ok["position"]
    assert await client.receives(1) == [3]


@pytest.mark.parametrize("ahead", [False, True], ids=["another epoch", "ahead of the log"])
async def test_a_position_of_another_file_is_an_epoch_changed_gap(
    board: Switchboard, join: Join, hub: penstock.Hub, ahead: bool
) -> None:
    last = hub.topics.publish("orders", 0)
    client = await join(board)
    assert last.position is not None
    after = f"{last.position.epoch}:999" if ahead else "elsewhere:1"
    ok = await client.ask("subscribe", topic="orders", after=after)
    assert ok["recovered"] is False
    assert ok["gap"] == {"reason": "epoch_changed", "after": after, "resumes": ok["position"]}
    hub.topics.publish("orders", 1)
    assert await client.receives(1) == [1]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": ""}, "invalid_topic"),
        ({"topic": "a\x00b"}, "invalid_topic"),
        ({"topic": "x" * 256}, "invalid_topic"),
        ({"topic": "t", "after": "e:1", "last": 1}, "invalid_input"),
        ({"topic": "t", "consumer": "c", "last": 1}, "invalid_input"),
        ({"topic": "t", "after": "e:1", "start": "earliest"}, "invalid_input"),
        ({"topic": "t", "last": 0}, "invalid_input"),
        ({"topic": "t", "last": 1_001}, "invalid_input"),
        ({"topic": "t", "after": "42"}, "invalid_input"),
        ({"topic": "t", "after": "e:-1"}, "invalid_input"),
        ({"topic": "t", "start": "yesterday"}, "bad_request"),
        ({"topic": "t", "consumer": ""}, "invalid_input"),
        ({"topic": "t-*", "join": {}}, "invalid_input"),
        ({"topic": "t-*", "presence": True}, "invalid_input"),
        ({"topic": "t", "join": {"x": "y" * 2000}}, "invalid_input"),
        ({}, "bad_request"),
        ({"topic": 7}, "bad_request"),
        ({"topic": "t", "form": 1}, "bad_request"),
    ],
)
async def test_a_subscription_that_makes_no_sense_is_refused(
    board: Switchboard, join: Join, fields: dict[str, Any], code: str
) -> None:
    client = await join(board)
    assert await client.refused("subscribe", **fields) == code
    assert client.session.subscriptions == {}


@pytest.mark.parametrize("info", [{"x": msgspec.msgpack.Ext(1, b"")}, {"x": {None: 1}}])
async def test_information_to_join_with_that_is_no_json_is_refused(
    board: Switchboard, join: Join, info: dict[str, Any]
) -> None:
    client = await join(board, MSGPACK_WIRE)
    assert await client.refused("subscribe", topic="t", join=info) == "invalid_input"


async def test_subscribing_twice_is_refused(board: Switchboard, join: Join) -> None:
    client = await join(board)
    opening = client.say("subscribe", topic="orders")
    assert await client.refused("subscribe", topic="orders") == "invalid_input"
    assert "ok" in await client.reply(opening)
    assert await client.refused("subscribe", topic="orders") == "invalid_input"


async def test_subscriptions_of_a_socket_are_limited(open_board: OpenBoard, join: Join) -> None:
    client = await join(await open_board(subscriptions_max=2))
    await client.ask("subscribe", topic="a")
    await client.ask("subscribe", topic="b")
    assert await client.refused("subscribe", topic="c") == "limit_reached"
    await client.ask("unsubscribe", topic="a")
    await client.ask("subscribe", topic="c")


async def test_after_unsubscribing_nothing_comes_and_one_can_subscribe_again(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    client, witness = await join(board), await join(board)
    for one in (client, witness):
        await one.ask("subscribe", topic="orders")
    await client.ask("unsubscribe", topic="orders")
    missed = hub.topics.publish("orders", 1)
    await witness.receives(1)
    assert client.payloads() == []
    await client.ask("subscribe", topic="orders")
    hub.topics.publish("orders", 2)
    assert await client.receives(1) == [2]
    assert missed.durable


async def test_unsubscribing_from_what_one_has_not_is_refused(
    board: Switchboard, join: Join
) -> None:
    client = await join(board)
    assert await client.refused("unsubscribe", topic="orders") == "invalid_input"


async def test_unsubscribing_while_it_opens_leaves_nothing_behind(
    board: Switchboard, join: Join
) -> None:
    client = await join(board)
    opening = client.say("subscribe", topic="orders")
    await client.ask("unsubscribe", topic="orders")
    assert (await client.reply(opening))["error"]["code"] == "invalid_input"
    assert client.session.subscriptions == {}


async def test_changing_ones_mind_twice_while_it_opens_makes_one_subscription(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    """D3: each message once, also for those who are in a hurry."""
    client = await join(board)
    first = client.say("subscribe", topic="orders")
    client.say("unsubscribe", topic="orders")
    second = client.say("subscribe", topic="orders")
    assert "error" in await client.reply(first)
    assert "ok" in await client.reply(second)
    hub.topics.publish("orders", 1)
    hub.topics.publish("orders", 2)
    assert await client.receives(2) == [1, 2]
    channel = board.find_channel(penstock.model.Pattern("orders"))
    assert channel is not None
    assert channel.subscriber_count == 1


async def test_a_client_that_goes_while_it_opens_is_not_kept(
    board: Switchboard, join: Join
) -> None:
    client = await join(board)
    client.say("subscribe", topic="orders")
    client.goes()
    pattern = penstock.model.Pattern("orders")
    channel = await eventually(lambda: board.find_channel(pattern), "the channel opened")
    await eventually(lambda: channel.subscriber_count == 0, "nobody is on it")


# publish


async def test_publishing_is_acknowledged_with_its_place_in_the_log(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    client = await join(board)
    ok = await client.ask(
        "publish", topic="orders", payload={"n": 1}, type="placed", key="k", headers={"a": "b"}
    )
    [message] = hub.topics.read("orders")
    assert ok == {"position": str(message.position), "at": message.created_at}
    assert (message.payload, message.type, message.key) == ({"n": 1}, "placed", "k")
    assert message.headers == {"a": "b"}


async def test_null_is_a_payload(board: Switchboard, join: Join, hub: penstock.Hub) -> None:
    await (await join(board)).ask("publish", topic="orders", payload=None)
    assert [m.payload for m in hub.topics.read("orders")] == [None]


async def test_bytes_are_base64_in_json_and_bin_in_messagepack(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    text, binary = await join(board), await join(board, MSGPACK_WIRE)
    for client in (text, binary):
        await client.ask("subscribe", topic="blobs")
    await text.ask("publish", topic="blobs", base64=base64.b64encode(b"\x00\xff").decode())
    await binary.ask("publish", topic="blobs", payload=b"\xff\x00")
    assert [m.payload for m in hub.topics.read("blobs")] == [b"\x00\xff", b"\xff\x00"]
    assert await binary.receives(2) == [b"\x00\xff", b"\xff\x00"]
    await text.until(lambda: sum(map(len, text.batches())) == 2)
    shown = [entry["base64"] for batch in text.batches() for entry in batch]
    assert shown == ["AP8=", "/wA="]


async def test_the_same_idempotency_key_gives_the_first_receipt(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    client = await join(board)
    first = await client.ask("publish", topic="orders", payload=1, idempotency_key="k")
    again = await client.ask("publish", topic="orders", payload=1, idempotency_key="k")
    assert again == {**first, "duplicate": True}
    code = await client.refused("publish", topic="orders", payload=2, idempotency_key="k")
    assert code == "idempotency_conflict"
    assert len(hub.topics.read("orders")) == 1


async def test_conflated_messages_are_acknowledged_before_they_are_on_disk(
    board: Switchboard, join: Join
) -> None:
    client = await join(board)
    await client.ask("subscribe", topic="cursors")
    for x in range(50):
        ok = await client.ask("publish", topic="cursors", payload=x, key="ann", conflate=True)
        assert ok["position"] is None
        assert ok["durable"] is False
    await client.ask("publish", topic="cursors", payload="dropped")
    await client.until(lambda: "dropped" in client.payloads())
    entries = [entry for batch in client.batches() for entry in batch]
    assert entries[-2]["conflated"] is True
    assert entries[-2]["payload"][-1] == {"key": "ann", "payload": 49, "type": None}
    assert "conflated" not in entries[-1]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "orders"}, "bad_request"),
        ({"topic": "orders", "payload": 1, "base64": "AA=="}, "bad_request"),
        ({"topic": "orders", "base64": "?"}, "invalid_payload"),
        ({"topic": "orders", "payload": "x" * 1_100_000}, "payload_too_large"),
        ({"topic": "orders", "payload": 1, "format": "bytes"}, "invalid_payload"),
        ({"topic": "orders", "payload": 1, "format": "xml"}, "bad_request"),
        ({"topic": "orders-*", "payload": 1}, "invalid_topic"),
        ({"topic": "penstock.delivery", "payload": 1}, "invalid_topic"),
        ({"topic": "orders", "payload": 1, "ttl": -1}, "invalid_input"),
        ({"topic": "orders", "payload": 1, "key": "k" * 1025}, "invalid_input"),
        ({"topic": "orders", "payload": 1, "type": "a\n"}, "invalid_input"),
        ({"topic": "orders", "payload": 1, "headers": {"a": 1}}, "bad_request"),
        ({"topic": "orders", "payload": 1, "conflate": True}, "invalid_input"),
        (
            {"topic": "orders", "payload": 1, "key": "k", "conflate": True, "ttl": 1},
            "invalid_input",
        ),
        ({"topic": "penstock.x", "payload": 1, "key": "k", "conflate": True}, "invalid_topic"),
    ],
)
async def test_a_message_that_cannot_be_published_is_refused(
    board: Switchboard, join: Join, hub: penstock.Hub, fields: dict[str, Any], code: str
) -> None:
    client = await join(board)
    assert await client.refused("publish", **fields) == code
    assert hub.topics.list() == []


async def test_publishing_many_is_all_or_nothing(
    board: Switchboard, join: Join, hub: penstock.Hub
) -> None:
    client = await join(board)
    code = await client.refused(
        "publish_many", topic="orders", messages=[{"payload": 1}, {"payload": 2, "ttl": 0}]
    )
    assert code == "invalid_input"
    assert hub.topics.list() == []
    ok = await client.ask(
        "publish_many", topic="orders", messages=[{"payload": 1}, {"base64": "AA==", "type": "b"}]
    )
    found = hub.topics.read("orders")
    assert [m.payload for m in found] == [1, b"\x00"]
    assert [m["position"] for m in ok["messages"]] == [str(m.position) for m in found]


@pytest.mark.parametrize("count", [0, 501])
async def test_publishing_none_or_too_many_at_once_is_refused(
    open_board: OpenBoard, join: Join, count: int
) -> None:
    client = await join(await open_board(commit_group_max=500))
    messages = [{"payload": 1}] * count
    assert await client.refused("publish_many", topic="t", messages=messages) == "invalid_input"


async def test_who_publishes_too_fast_is_told_to_slow_down(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    """D4: a limit per client, so that one cannot take everybody's disk."""
    client = await join(await open_board(publish_rate_max=2))
    for _ in range(6):
        client.say("publish", topic="orders", payload=1)
    reply = await client.reply(client.say("publish", topic="orders", payload=1))
    assert reply["error"]["code"] == "rate_limited"
    assert reply["error"]["retryable"] is True
    await eventually(lambda: len(hub.topics.read("orders")) == 6)


async def test_publishing_without_the_right_is_refused_in_the_same_words(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    """The error does not tell which topics exist."""
    hub.topics.publish("secret-1", 1)
    client = await join(await open_board(Keys(good=READER)), token="good")
    words = []
    for topic in ("secret-1", "secret-2"):
        reply = await client.reply(client.say("publish", topic=topic, payload=1))
        words.append(str(reply["error"]).replace(topic, "it"))
    assert words[0] == words[1]
    assert await client.refused("publish_many", topic="secret-1", messages=[]) == "forbidden"
    for op in ("subscribe", "presence"):
        assert await client.refused(op, topic="secret-1") == "forbidden"
    assert await client.refused("subscribe", topic="*") == "forbidden"


async def test_one_who_sends_more_than_the_disk_takes_is_not_read_meanwhile(
    board: Switchboard, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4: bytes that wait for the disk are bounded, for each client and in all."""
    monkeypatch.setattr(sessions, "INFLIGHT_BYTES_MAX", 1000)
    client = await join(board)
    sent = client.say("publish", topic="orders", payload="x" * 2000)
    assert client.socket.is_held
    await client.reply(sent)
    assert not client.socket.is_held
    assert board.take_room(board._room)
    assert await client.refused("publish", topic="orders", payload=1) == "queue_full"


# presence, ping and what is no command


async def test_presence_is_of_one_topic(board: Switchboard, join: Join) -> None:
    client = await join(board)
    assert await client.ask("presence", topic="room") == {
        "topic": "room",
        "members": [],
        "is_complete": True,
    }
    assert await client.refused("presence", topic="room-*") == "invalid_topic"
    assert await client.refused("presence", topic="") == "invalid_topic"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"[]",
        b'"ping"',
        b'{"op":"ping"}',
        b'{"op":"ping","id":-1}',
        b'{"op":"ping","id":1.5}',
        b'{"op":"ping","id":true}',
        b'{"op":"ping","id":9007199254740992}',
        b'\xff\xfe{"op":"ping","id":1}',
        b'{"op":"ping","id":1',
        b"[" * 100_000,
        b'{"op":"publish","topic":"t","payload":' + b"[" * 100_000,
    ],
)
async def test_what_is_no_command_closes_the_socket(
    board: Switchboard, join: Join, data: bytes
) -> None:
    client = await join(board)
    client.session.receive(data)
    assert (await client.is_closed())[0] == Close.BAD_REQUEST


async def test_an_unknown_command_is_answered_with_what_was_meant(
    board: Switchboard, join: Join
) -> None:
    client = await join(board)
    reply = await client.reply(client.say("subscibe", topic="orders"))
    assert reply["error"]["code"] == "bad_request"
    assert "subscribe" in reply["error"]["hint"]
    assert await client.ask("ping") == {}


async def test_too_many_commands_that_make_no_sense_close_the_socket(
    board: Switchboard, join: Join
) -> None:
    client = await join(board)
    for _ in range(sessions.STRIKES_MAX):
        client.say("nonsense")
    assert (await client.is_closed())[0] == Close.LIMIT
    client.session.receive(b'{"op":"ping","id":99}')
    assert not [frame for frame in client.heard if frame.get("id") == 99]


async def test_a_close_reason_fits_into_a_close_frame(board: Switchboard, join: Join) -> None:
    client = await join(board)
    client.session.close(Close.BAD_REQUEST, "é" * 200)
    _, reason = await client.is_closed()
    assert len(reason.encode()) <= 123


# The life of a socket


async def test_a_socket_that_never_connects_is_closed(open_board: OpenBoard) -> None:
    board = await open_board()
    client = Client(board)
    now = board.loop.time()
    client.session.check(now + 9)
    assert client.socket.closed is None
    client.session.check(now + 11)
    assert (await client.is_closed())[0] == Close.BAD_TOKEN


async def test_a_silent_socket_is_pinged_and_closed_if_it_stays_silent(
    board: Switchboard, join: Join
) -> None:
    client = await join(board)
    now = board.loop.time()
    client.session.check(now + 26)
    assert client.socket.pings == 1
    client.session.check(now + 30)
    assert client.socket.closed is None
    client.session.heard()
    client.session.check(board.loop.time() + 26)
    assert client.socket.pings == 2
    client.session.check(board.loop.time() + 37)
    assert (await client.is_closed())[0] == Close.NO_PONG


async def test_one_who_reads_slowly_is_not_taken_for_dead(board: Switchboard, join: Join) -> None:
    """D5: its pong comes after what is queued before the ping."""
    client = await join(board)
    now = board.loop.time()
    client.socket.unsent_bytes = 1000
    client.session.check(now + 26)
    client.socket.unsent_bytes = 500
    client.session.check(now + 37)
    assert client.socket.closed is None
    client.session.check(now + 48)
    assert (await client.is_closed())[0] == Close.NO_PONG


async def test_stopping_sends_what_waits_and_then_says_where_to_go(
    open_board: OpenBoard, join: Join
) -> None:
    """D8: batches are flushed, and the code says: connect elsewhere."""
    board = await open_board(batch_ms=60_000.0, batch_max=10_000)
    client = await join(board)
    await client.ask("subscribe", topic="orders")
    for number in range(20):
        await client.ask("publish", topic="orders", payload=number)
    channel = board.find_channel(penstock.model.Pattern("orders"))
    assert channel is not None
    await eventually(lambda: channel.queue_depth + len(client.payloads()) == 20)
    assert len(client.payloads()) < 20
    draining = asyncio.ensure_future(board.drain(5))
    code, _ = await client.is_closed()
    assert code == Close.SHUTDOWN
    assert client.payloads() == list(range(20))
    client.goes()
    await draining


async def test_ids_and_formats_do_not_mix_between_sockets(board: Switchboard, join: Join) -> None:
    first, second = await join(board, JSON_WIRE), await join(board, MSGPACK_WIRE)
    await first.ask("publish", topic="a", payload=1)
    assert [frame["id"] for frame in second.heard] == [1]
