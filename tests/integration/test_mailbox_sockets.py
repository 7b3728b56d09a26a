"""Mailboxes on sockets: a window of messages, acknowledged, pushed again, taken over (M6, M7)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.delivery.access import Access
from penstock.delivery.switchboard import Switchboard
from penstock.mailboxes.mailboxes import Mailbox
from penstock.protocol import JSON_WIRE, MSGPACK_WIRE, Wire
from tests.factories import hub_on
from tests.integration.conftest import Join, OpenBoard
from tests.sockets import Client, Keys, eventually

OpenHub = Callable[..., penstock.Hub]

READER = Access("ann", mailboxes_read=("ann", "ann-*"), mailboxes_put=("bob",), token_id="t1")
NARROW = Access("ann", mailboxes_read=("ann",), token_id="t2")


def mails(client: Client, mailbox: str = "ann") -> list[dict[str, Any]]:
    pushes = [push for push in client.pushes("mail") if push["mailbox"] == mailbox]
    return [entry for push in pushes for entry in push["messages"]]


def payloads(client: Client, mailbox: str = "ann") -> list[Any]:
    return [entry["payload"] for entry in mails(client, mailbox)]


async def has(client: Client, count: int, mailbox: str = "ann") -> list[dict[str, Any]]:
    """So many messages, once they are there, and no more."""
    await client.until(lambda: len(mails(client, mailbox)) >= count)
    found = mails(client, mailbox)
    assert len(found) == count, found
    return found


def put(board: Switchboard, mailbox: str, *items: Any) -> list[str]:
    box = Mailbox(lambda: board.runtime, mailbox)
    return [box.put(item).id for item in items]


def damage(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)


# Opening, pushing, acknowledging


@pytest.mark.parametrize("wire", [JSON_WIRE, MSGPACK_WIRE], ids=["json", "msgpack"])
async def test_one_message_at_a_time_until_all_are_acknowledged(
    board: Switchboard, join: Join, wire: Wire
) -> None:
    ids = put(board, "ann", {"n": 0}, {"n": 1}, b"\x02")
    client = await join(board, wire)
    assert await client.ask("mailbox.open", mailbox="ann") == {
        "mailbox": "ann",
        "window": 1,
        "messages": 3,
    }
    [first] = await has(client, 1)
    assert (first["id"], first["seq"], first["payload"]) == (ids[0], 1, {"n": 0})
    assert "kind" not in first
    assert await client.ask("mailbox.ack", mailbox="ann", message=ids[0]) == {"acked": True}
    await has(client, 2)
    await client.ask("mailbox.ack", mailbox="ann", message=ids[1])
    found = await has(client, 3)
    assert [entry["id"] for entry in found] == ids
    assert found[2]["base64" if wire is JSON_WIRE else "payload"] in ("Ag==", b"\x02")
    await client.ask("mailbox.ack", mailbox="ann", message=ids[2])
    [late] = put(board, "ann", "late")
    assert (await has(client, 4))[3]["id"] == late


async def test_a_window_of_several_and_acks_of_many_at_once(board: Switchboard, join: Join) -> None:
    ids = put(board, "ann", *range(10))
    box = Mailbox(lambda: board.runtime, "ann")
    client = await join(board)
    await client.ask("mailbox.open", mailbox="ann", window=4)
    assert [entry["payload"] for entry in await has(client, 4)] == [0, 1, 2, 3]
    await client.ask("mailbox.ack", mailbox="ann", message=ids[0])
    await has(client, 5)
    await client.ask("mailbox.ack", mailbox="ann", message=ids[3], through=True)
    await has(client, 8)
    for id in ids[4:8]:
        client.say("mailbox.ack", mailbox="ann", message=id)
    await has(client, 10)
    await client.ask("mailbox.ack", mailbox="ann", message=ids[-1], through=True)
    assert payloads(client) == list(range(10))
    await eventually(lambda: box.size() == 0)


async def test_the_window_has_a_limit_which_is_told(open_board: OpenBoard, join: Join) -> None:
    board = await open_board(mailbox_window_max=3)
    put(board, "ann", *range(5))
    client = await join(board)
    ok = await client.ask("mailbox.open", mailbox="ann", window=1_000)
    assert ok["window"] == 3
    await has(client, 3)
    for window in (0, -1, 2**40):
        assert await client.refused("mailbox.open", mailbox="b", window=window) == "invalid_input"


async def test_a_wrong_ack_changes_nothing_and_an_old_one_does_no_harm(
    board: Switchboard, join: Join
) -> None:
    ids = put(board, "ann", 1, 2)
    client = await join(board)
    await client.ask("mailbox.open", mailbox="ann")
    await has(client, 1)
    assert await client.refused("mailbox.ack", mailbox="ann", message=ids[1]) == "wrong_ack"
    assert await client.refused("mailbox.ack", mailbox="ann", message="never") == "wrong_ack"
    await client.ask("mailbox.ack", mailbox="ann", message=ids[0])
    assert await client.ask("mailbox.ack", mailbox="ann", message=ids[0]) == {"acked": False}
    assert [entry["id"] for entry in await has(client, 2)] == ids


async def test_an_ack_needs_no_open_mailbox(board: Switchboard, join: Join) -> None:
    [id] = put(board, "ann", 1)
    client = await join(board)
    assert await client.ask("mailbox.ack", mailbox="ann", message=id) == {"acked": True}
    assert await client.refused("mailbox.ack", mailbox="ann", message="x") == "wrong_ack"


async def test_what_another_process_puts_is_pushed(
    board: Switchboard, join: Join, open_hub: OpenHub
) -> None:
    client = await join(board)
    assert (await client.ask("mailbox.open", mailbox="ann"))["messages"] == 0
    other = open_hub(name="other")
    await other.aio.mailboxes.put("ann", "from elsewhere")
    assert (await has(client, 1))[0]["payload"] == "from elsewhere"


async def test_what_is_acknowledged_elsewhere_is_not_waited_for(
    board: Switchboard, join: Join, open_hub: OpenHub
) -> None:
    """Over HTTP, say: the socket's own late ack is answered, and the next message comes."""
    ids = put(board, "ann", 1, 2)
    client = await join(board)
    await client.ask("mailbox.open", mailbox="ann")
    await has(client, 1)
    other = open_hub(name="other").mailboxes.open("ann")
    assert other.ack(ids[0])
    assert await client.ask("mailbox.ack", mailbox="ann", message=ids[0]) == {"acked": False}
    assert (await has(client, 2))[1]["payload"] == 2


async def test_large_messages_come_in_several_frames(open_board: OpenBoard, join: Join) -> None:
    """Large as they are sent, however small they are stored."""
    board = await open_board(frame_payload_bytes_max=10_000)
    put(board, "ann", *(f"{n}" + "é" * 4_000 for n in range(5)), os.urandom(8_000))
    client = await join(board)
    await client.ask("mailbox.open", mailbox="ann", window=10)
    await has(client, 6)
    assert len(client.pushes("mail")) == 6


async def test_markers_and_gaps_are_told(open_board: OpenBoard, join: Join) -> None:
    board = await open_board(mailbox_messages_max=2, mailbox_file_messages_max=4)
    put(board, "ann", 1, 2)
    with pytest.raises(penstock.errors.QuotaExceeded):
        put(board, "ann", 3)
    client = await join(board)
    await client.ask("mailbox.open", mailbox="ann", window=5)
    marker = (await has(client, 3))[2]
    assert marker["kind"] == "quota"
    assert "payload" not in marker
    await client.ask("mailbox.ack", mailbox="ann", message=marker["id"], through=True)
    put(board, "ann", 3)
    assert (await has(client, 4))[3]["payload"] == 3


async def test_payloads_in_both_formats(board: Switchboard, join: Join) -> None:
    """As messages of topics: what a format has no words for comes as it is stored."""
    box = Mailbox(lambda: board.runtime, "ann")
    box.put({"a": 1}, type="t")
    box.put({"b": b"\x01"}, format="msgpack")
    box.put({1.5: None}, format="msgpack")
    text = await join(board)
    await text.ask("mailbox.open", mailbox="ann", window=5)
    plain, packed, odd = await has(text, 3)
    assert (plain["payload"], plain["type"]) == ({"a": 1}, "t")
    assert (packed["payload"], packed["format"]) == ({"b": "AQ=="}, "msgpack")
    assert odd["format"] == "msgpack"
    binary = await join(board, MSGPACK_WIRE)
    await binary.ask("mailbox.open", mailbox="ann", window=5)
    assert [entry["payload"] for entry in await has(binary, 3)] == [
        {"a": 1},
        {"b": b"\x01"},
        {1.5: None},
    ]


# Putting


async def test_put_is_durable_and_idempotent_by_id(board: Switchboard, join: Join) -> None:
    client = await join(board)
    first = await client.ask(
        "mailbox.put", mailbox="bob", payload={"n": 1}, message="m-1", type="t"
    )
    assert first == {"id": "m-1", "seq": 1, "was_empty": True, "is_new": True}
    again = await client.ask("mailbox.put", mailbox="bob", payload={"n": 1}, message="m-1")
    assert again["is_new"] is False
    made = await client.ask("mailbox.put", mailbox="bob", base64="AP8=")
    assert made["seq"] == 2
    assert made["id"]
    await client.ask("mailbox.open", mailbox="bob", window=5)
    found = await has(client, 2, "bob")
    assert [entry.get("payload", entry.get("base64")) for entry in found] == [{"n": 1}, "AP8="]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "bad_request"),
        ({"payload": 1, "base64": "AA=="}, "bad_request"),
        ({"base64": "!"}, "invalid_payload"),
        ({"payload": 1, "message": ""}, "invalid_mailbox"),
        ({"payload": 1, "type": ""}, "invalid_input"),
        ({"payload": 1, "mailbox": ""}, "invalid_mailbox"),
        ({"payload": 1, "mailbox": "x" * 201}, "invalid_mailbox"),
        ({"payload": 1, "mailbox": "a\nb"}, "invalid_mailbox"),
        ({"payload": 1, "format": "xml"}, "bad_request"),
    ],
)
async def test_a_put_that_makes_no_sense_is_refused(
    board: Switchboard, join: Join, fields: dict[str, Any], code: str
) -> None:
    client = await join(board)
    assert await client.refused("mailbox.put", **{"mailbox": "bob", **fields}) == code


async def test_a_full_box_refuses_and_rates_hold(open_board: OpenBoard, join: Join) -> None:
    board = await open_board(
        mailbox_messages_max=2, mailbox_file_messages_max=4, publish_rate_max=2
    )
    client = await join(board)
    for number in range(2):
        await client.ask("mailbox.put", mailbox="bob", payload=number)
    assert await client.refused("mailbox.put", mailbox="bob", payload=2) == "quota_exceeded"
    codes = [await client.refused("mailbox.put", mailbox="bob", payload=n) for n in range(4)]
    assert codes[-1] == "rate_limited"


# Who may


async def test_rights_go_by_name_and_tell_nothing(open_board: OpenBoard, join: Join) -> None:
    board = await open_board(Keys(t=READER))
    put(board, "secret", 1)
    client = await join(board, token="t")
    for op in ("mailbox.open", "mailbox.ack", "mailbox.put"):
        fields = {"mailbox.ack": {"message": "x"}, "mailbox.put": {"payload": 1}}.get(op, {})
        replies = [
            await client.reply(client.say(op, mailbox=name, **fields))
            for name in ("secret", "nobody")
        ]
        texts = [reply["error"]["message"].replace("secret", "nobody") for reply in replies]
        assert texts[0] == texts[1]
        assert {reply["error"]["code"] for reply in replies} == {"forbidden"}
    assert await client.ask("mailbox.put", mailbox="bob", payload=1)
    assert await client.refused("mailbox.open", mailbox="bob") == "forbidden"
    assert await client.refused("mailbox.put", mailbox="ann", payload=1) == "forbidden"
    assert await client.ask("mailbox.open", mailbox="ann-2")


async def test_a_new_token_without_the_right_ends_the_pushes(
    open_board: OpenBoard, join: Join
) -> None:
    board = await open_board(Keys(wide=READER, narrow=NARROW))
    client = await join(board, token="wide")
    await client.ask("mailbox.open", mailbox="ann")
    await client.ask("mailbox.open", mailbox="ann-2")
    await client.ask("refresh", token="narrow")
    push = await client.push("mailbox_closed")
    assert (push["mailbox"], push["error"]["code"]) == ("ann-2", "forbidden")
    put(board, "ann", "still")
    await has(client, 1)


# Closing, going, coming back


async def test_closed_it_pushes_nothing_and_opened_again_it_begins_with_what_is_unacknowledged(
    board: Switchboard, join: Join
) -> None:
    ids = put(board, "ann", *range(4))
    client = await join(board)
    await client.ask("mailbox.open", mailbox="ann", window=2)
    await has(client, 2)
    await client.ask("mailbox.ack", mailbox="ann", message=ids[0])
    await has(client, 3)
    assert await client.ask("mailbox.close", mailbox="ann") == {}
    assert await client.refused("mailbox.close", mailbox="ann") == "invalid_input"
    put(board, "ann", "more")
    await client.ask("mailbox.open", mailbox="ann", window=10)
    found = await has(client, 7)
    assert [entry["payload"] for entry in found[3:]] == [1, 2, 3, "more"]
    assert await client.refused("mailbox.open", mailbox="ann") == "invalid_input"


async def test_closing_while_it_is_being_opened(board: Switchboard, join: Join) -> None:
    client = await join(board)
    opening = client.say("mailbox.open", mailbox="ann")
    closing = client.say("mailbox.close", mailbox="ann")
    assert (await client.reply(opening))["error"]["code"] == "invalid_input"
    assert (await client.reply(closing))["ok"] == {}
    assert await client.ask("mailbox.open", mailbox="ann")
    assert len(board.mailboxes) == 1


async def test_after_a_lost_connection_what_was_not_acknowledged_comes_again(
    board: Switchboard, join: Join
) -> None:
    ids = put(board, "ann", *range(6))
    first = await join(board)
    await first.ask("mailbox.open", mailbox="ann", window=3)
    await has(first, 3)
    await first.ask("mailbox.ack", mailbox="ann", message=ids[0])
    first.goes()
    assert len(board.mailboxes) == 0
    second = await join(board)
    await second.ask("mailbox.open", mailbox="ann", window=3)
    assert [entry["id"] for entry in await has(second, 3)] == ids[1:4]


async def test_a_socket_that_is_full_is_pushed_nothing_and_holds_nobody(
    board: Switchboard, join: Join
) -> None:
    """Others read and write the same box, and other boxes, meanwhile."""
    slow, quick = await join(board), await join(board)
    await slow.ask("mailbox.open", mailbox="ann", window=10)
    await quick.ask("mailbox.open", mailbox="bob", window=10)
    slow.backs_up()
    put(board, "ann", *range(5))
    put(board, "bob", *range(5))
    await has(quick, 5, "bob")
    assert mails(slow) == []
    slow.reads_on()
    assert [entry["payload"] for entry in await has(slow, 5)] == list(range(5))


async def test_the_newer_socket_has_the_box_and_the_older_is_told(
    board: Switchboard, join: Join
) -> None:
    """Its late acknowledgement counts all the same."""
    ids = put(board, "ann", 1, 2)
    old, new = await join(board), await join(board)
    await old.ask("mailbox.open", mailbox="ann")
    await has(old, 1)
    await new.ask("mailbox.open", mailbox="ann")
    push = await old.push("mailbox_closed")
    assert (push["mailbox"], push["error"]["code"]) == ("ann", "mailbox_taken")
    assert (await has(new, 1))[0]["id"] == ids[0]
    assert await old.ask("mailbox.ack", mailbox="ann", message=ids[0]) == {"acked": True}
    assert await new.ask("mailbox.ack", mailbox="ann", message=ids[0]) == {"acked": False}
    assert (await has(new, 2))[1]["id"] == ids[1]
    await has(old, 1)
    await old.ask("mailbox.open", mailbox="ann")
    assert (await new.push("mailbox_closed"))["error"]["code"] == "mailbox_taken"
    assert [entry["id"] for entry in await has(old, 2)] == ids


async def test_over_two_instances_the_newer_socket_has_the_box(
    open_board: OpenBoard, join: Join
) -> None:
    """Whoever of two opens it last; each time exactly one has it."""
    boards = [await open_board(name="one"), await open_board(name="two")]
    clients = [await join(board) for board in boards]
    for turn in range(6):
        new, old = clients[turn % 2], clients[(turn + 1) % 2]
        told = len(old.pushes("mailbox_closed"))
        await new.ask("mailbox.open", mailbox="ann")
        if turn:
            await old.push("mailbox_closed", told)
            assert len(old.pushes("mailbox_closed")) == told + 1
        put(boards[turn % 2], "ann", turn)
        await new.until(lambda: turn in payloads(new))  # noqa: B023 - waited for at once
        assert turn not in payloads(old)
        await new.ask("mailbox.ack", mailbox="ann", message=mails(new)[-1]["id"])
    assert sum(len(board.mailboxes) for board in boards) == 1


async def test_many_boxes_of_many_sockets(board: Switchboard, join: Join) -> None:
    """More than are looked into at once; each gets its own."""
    clients = [await join(board) for _ in range(10)]
    for number, client in enumerate(clients):
        for box in range(20):
            client.say("mailbox.open", mailbox=f"box-{number}-{box}")
    await asyncio.to_thread(
        lambda: [put(board, f"box-{n}-{box}", f"{n}/{box}") for n in range(10) for box in range(20)]
    )
    for number, client in enumerate(clients):
        for box in range(20):
            name = f"box-{number}-{box}"
            assert (await has(client, 1, name))[0]["payload"] == f"{number}/{box}"
    assert len(board.mailboxes) == 200


async def test_a_socket_has_a_limit_of_open_mailboxes(open_board: OpenBoard, join: Join) -> None:
    board = await open_board(subscriptions_max=2)
    client = await join(board)
    for name in ("a", "b"):
        await client.ask("mailbox.open", mailbox=name)
    assert await client.refused("mailbox.open", mailbox="c") == "limit_reached"


async def test_a_damaged_box_is_refused_and_ends_what_is_open(
    board: Switchboard, join: Join
) -> None:
    put(board, "ann", "x" * 50, "y" * 50, "z" * 50)
    client, other = await join(board), await join(board)
    await client.ask("mailbox.open", mailbox="ann")
    [first] = await has(client, 1)
    folder = board.runtime.mail.folder
    with folder.locked("ann") as box:
        damage(Path(box.path(box.pending[1].file)), box.pending[1].offset + 60)
    assert await client.ask("mailbox.ack", mailbox="ann", message=first["id"]) is not None
    push = await client.push("mailbox_closed")
    assert push["error"]["code"] == "mailbox_corrupt"
    assert await other.refused("mailbox.open", mailbox="ann") == "mailbox_corrupt"


async def test_a_topic_reaches_a_socket_by_way_of_a_mailbox(
    path: Path, open_board: OpenBoard, join: Join
) -> None:
    """D12: nobody is there when it is published."""
    with hub_on(path, name="feeder") as hub:
        hub.mailboxes.subscribe("ann", "news")
        hub.start_feeding()
        receipt = hub.topics.publish("news", {"n": 1}, key="k", headers={"h": "v"})
        board = await open_board(name="server")
        client = await join(board)
        await client.ask("mailbox.open", mailbox="ann")
        [mail] = await has(client, 1)
    assert mail["id"] == mail["position"] == str(receipt.position)
    assert (mail["topic"], mail["key"], mail["headers"]) == ("news", "k", {"h": "v"})
