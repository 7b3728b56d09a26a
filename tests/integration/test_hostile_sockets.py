"""Frames and commands that no good client sends, to a real server (D2, threat model).

Each offender gets an error or a close code. Meanwhile a well-behaved client is served, the
server's memory stays bounded and its log has nothing to tell.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.protocol import Close
from tests.raw_sockets import (
    BINARY,
    CLOSE,
    CONTINUATION,
    JSON,
    MSGPACK,
    PING,
    PONG,
    TEXT,
    RawSocket,
    command,
    frame,
    unharmed,
)
from tests.serving import HttpServer

PROTOCOL_ERROR = 1002
TOO_BIG = 1009


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    path: Path = tmp_path_factory.mktemp("hostile") / "hub.db"
    with HttpServer(path, durability="os", stats_seconds=0) as started:
        yield started


def publish(payload: bytes, id: bytes = b"7") -> bytes:
    """A command whose payload is put in as it is."""
    body = b'{"op":"publish","id":%s,"topic":"t","payload":%s}' % (id, payload)
    return frame(TEXT, body)


NOT_COMMANDS = {
    "no JSON": frame(TEXT, b"hello"),
    "nothing": frame(TEXT, b""),
    "half of it": frame(TEXT, b'{"op":"ping","id":1'),
    "two at once": frame(TEXT, b'{"op":"ping","id":1}{"op":"ping","id":2}'),
    "a list": frame(TEXT, b'[{"op":"ping","id":1}]'),
    "no id": frame(TEXT, b'{"op":"ping"}'),
    "a negative id": frame(TEXT, b'{"op":"ping","id":-1}'),
    "a broken id": frame(TEXT, b'{"op":"ping","id":1.5}'),
    "an id that JavaScript cannot hold": frame(TEXT, b'{"op":"ping","id":9007199254740992}'),
    "not a number": publish(b"NaN"),
    "infinity": publish(b"Infinity"),
    "invalid UTF-8": publish(b'"\xff\xfe"'),
    "a string cut within a character": publish(b'"\xe2\x82"'),
    "a lone surrogate": publish(b'"\\ud800"'),
    "deep lists": publish(b"[" * 500_000 + b"]" * 500_000),
    "deep lists without an end": publish(b"[" * 1_000_000),
    "deep maps": publish(b'{"a":' * 200_000 + b"1" + b"}" * 200_000),
    "a number of a million digits": publish(b"9" * 1_000_000),
    "an id of a million digits": publish(b"1", id=b"9" * 1_000_000),
}


@pytest.mark.parametrize("data", NOT_COMMANDS.values(), ids=NOT_COMMANDS)
def test_what_is_no_command_ends_the_connection(server: HttpServer, data: bytes) -> None:
    with unharmed(server), RawSocket(server.port).connected() as offender:
        offender.send(data)
        assert offender.close_code() == Close.BAD_REQUEST


BAD_COMMANDS: dict[str, dict[str, Any]] = {
    "unknown op": {"op": "fly"},
    "no op": {},
    "op of another type": {"op": 7},
    "unknown field": {"op": "ping", "sudo": True},
    "topic of another type": {"op": "subscribe", "topic": 7},
    "no topic": {"op": "subscribe"},
    "empty topic": {"op": "subscribe", "topic": ""},
    "control characters": {"op": "subscribe", "topic": "a\x00b"},
    "a topic of a megabyte": {"op": "subscribe", "topic": "x" * 1_000_000},
    "publishing to a topic of a megabyte": {"op": "publish", "topic": "x" * 10**6, "payload": 1},
    "publishing to a glob": {"op": "publish", "topic": "a*", "payload": 1},
    "publishing to a reserved topic": {"op": "publish", "topic": "penstock.x", "payload": 1},
    "no payload": {"op": "publish", "topic": "t"},
    "two payloads": {"op": "publish", "topic": "t", "payload": 1, "base64": ""},
    "no base64": {"op": "publish", "topic": "t", "base64": "%%%"},
    "an infinite ttl": {"op": "publish", "topic": "t", "payload": 1, "ttl": 1e308},
    "a negative ttl": {"op": "publish", "topic": "t", "payload": 1, "ttl": -1},
    "headers of another type": {"op": "publish", "topic": "t", "payload": 1, "headers": {"a": 1}},
    "a key of a megabyte": {"op": "publish", "topic": "t", "payload": 1, "key": "k" * 1_000_000},
    "an idempotency key of a megabyte": {
        "op": "publish",
        "topic": "t",
        "payload": 1,
        "idempotency_key": "k" * 1_000_000,
    },
    "a format of its own": {"op": "publish", "topic": "t", "payload": 1, "format": "pickle"},
    "a position that is none": {"op": "subscribe", "topic": "t", "after": "yesterday"},
    "a position of many digits": {"op": "subscribe", "topic": "t", "after": "x:" + "9" * 5000},
    "a negative count": {"op": "subscribe", "topic": "t", "last": -1},
    "a great count": {"op": "subscribe", "topic": "t", "last": 2**62},
    "a start of its own": {"op": "subscribe", "topic": "t", "start": "tomorrow"},
    "presence of a glob": {"op": "subscribe", "topic": "t*", "presence": True},
    "much to tell": {"op": "subscribe", "topic": "t", "join": {"a": "x" * 100_000}},
    "ack without a consumer": {"op": "ack", "topic": "t", "position": "x:1"},
    "unsubscribing from nothing": {"op": "unsubscribe", "topic": "nothing"},
    "nothing to publish": {"op": "publish_many", "topic": "t", "messages": []},
    "too much to publish": {
        "op": "publish_many",
        "topic": "t",
        "messages": [{"payload": 1}] * 9999,
    },
    "connecting twice": {"op": "connect"},
    "a token for nobody": {"op": "refresh", "token": None},
}


@pytest.mark.parametrize("fields", BAD_COMMANDS.values(), ids=BAD_COMMANDS)
def test_a_bad_command_gets_an_error_and_the_connection_goes_on(
    server: HttpServer, fields: dict[str, Any]
) -> None:
    with unharmed(server), RawSocket(server.port).connected() as offender:
        offender.send(frame(TEXT, json.dumps({"id": 5, **fields}).encode()))
        reply = offender.reply(5)
        assert reply["error"]["code"]
        assert len(json.dumps(reply)) < 2_000, "what was sent is not repeated at length"
        assert offender.ask("ping", 6) == {"id": 6, "ok": {}}


def test_a_payload_that_is_too_large_is_refused(server: HttpServer) -> None:
    with unharmed(server), RawSocket(server.port).connected() as offender:
        reply = offender.ask("publish", 1, topic="t", payload="x" * 1_900_000)
        assert reply["error"]["code"] == "payload_too_large"


def test_of_duplicate_keys_the_last_counts_and_nobody_sees_two(server: HttpServer) -> None:
    """A receiver that takes the first would see another message than one that takes the last."""
    with (
        unharmed(server),
        RawSocket(server.port).connected() as offender,
        RawSocket(server.port).connected() as receiver,
    ):
        assert "ok" in receiver.ask("subscribe", 1, topic="last")
        body = (
            b'{"op":"publish","id":1,"id":2,"topic":"first","topic":"last",'
            b'"payload":{"a":1,"b":{"c":1,"c":2},"a":3}}'
        )
        offender.send(frame(TEXT, body))
        assert "ok" in offender.reply(2)
        _, data = receiver.receive()
        assert data.count(b'"a"') == 1
        assert data.count(b'"c"') == 1
        assert json.loads(data)["messages"][0]["payload"] == {"a": 3, "b": {"c": 2}}


BAD_FRAMES = {
    "two gigabytes declared": (frame(TEXT, declared=2**31) + bytes(65536), {TOO_BIG}),
    "more than there is in the world": (frame(TEXT, declared=2**62), {TOO_BIG, PROTOCOL_ERROR}),
    "the highest bit of the length": (frame(TEXT, declared=2**63), {PROTOCOL_ERROR}),
    "one byte more than allowed": (frame(TEXT, declared=2 * 1024 * 1024 + 1), {TOO_BIG}),
    "a length written too long": (b"\x81\xfe\x00\x05" + bytes(9), {PROTOCOL_ERROR}),
    "binary for JSON": (frame(BINARY, b'{"op":"ping","id":1}'), {Close.BAD_REQUEST}),
    "not masked": (frame(TEXT, b'{"op":"ping","id":1}', is_masked=False), {PROTOCOL_ERROR}),
    "reserved bit 1": (frame(TEXT, b'{"op":"ping","id":1}', reserved=4), {PROTOCOL_ERROR}),
    "reserved bit 3": (frame(TEXT, b'{"op":"ping","id":1}', reserved=1), {PROTOCOL_ERROR}),
    "reserved data opcode": (frame(0x3, b"x"), {PROTOCOL_ERROR}),
    "reserved control opcode": (frame(0xB, b"x"), {PROTOCOL_ERROR}),
    "a long ping": (frame(PING, bytes(126)), {PROTOCOL_ERROR}),
    "a ping in parts": (frame(PING, b"x", fin=False), {PROTOCOL_ERROR}),
    "a close code of one byte": (frame(CLOSE, b"\x03"), {PROTOCOL_ERROR}),
    "a close code that is none": (frame(CLOSE, struct.pack("!H", 1005)), {PROTOCOL_ERROR}),
    "a continuation of nothing": (
        frame(CONTINUATION, b'{"op":"ping","id":1}'),
        {Close.BAD_REQUEST, PROTOCOL_ERROR},
    ),
    "a message within a message": (
        frame(TEXT, b'{"op":', fin=False) + frame(TEXT, b'{"op":"ping","id":1}'),
        {Close.BAD_REQUEST, PROTOCOL_ERROR},
    ),
}


@pytest.mark.parametrize(("data", "codes"), BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_bad_frame_ends_the_connection(server: HttpServer, data: bytes, codes: set[int]) -> None:
    with unharmed(server), RawSocket(server.port).connected() as offender:
        offender.send(data)
        assert offender.close_code() in codes


def test_a_declared_length_is_not_read_to_its_end(server: HttpServer) -> None:
    """It is refused by its head; whoever goes on sending is cut off."""
    with unharmed(server), RawSocket(server.port).connected() as offender:
        offender.send(frame(TEXT, declared=2**31))
        assert offender.send_while_it_listens(bytes(64 * 1024 * 1024)) < 64 * 1024 * 1024


def test_a_message_in_parts_with_pings_between_is_one_message(server: HttpServer) -> None:
    with unharmed(server), RawSocket(server.port).connected() as client:
        whole = json.dumps({"op": "ping", "id": 3}).encode()
        client.send(frame(TEXT, whole[:5], fin=False))
        client.send(frame(PING, b"still there?"))
        client.send(frame(CONTINUATION, b"", fin=False))
        client.send(frame(CONTINUATION, whole[5:]))
        assert client.receive() == (PONG, b"still there?")
        assert client.reply(3) == {"id": 3, "ok": {}}
        assert client.ask("ping", 4) == {"id": 4, "ok": {}}


def test_parts_without_end_are_not_gathered_without_end(server: HttpServer) -> None:
    with unharmed(server), RawSocket(server.port).connected() as offender:
        offender.send(frame(TEXT, b'{"', fin=False))
        offender.send_while_it_listens(frame(CONTINUATION, b"x" * 60_000, fin=False) * 200)
        assert offender.close_code() in (TOO_BIG, None)


BAD_MSGPACK = {
    "text": (frame(TEXT, b'{"op":"ping","id":1}'), {Close.BAD_REQUEST}),
    "garbage": (frame(BINARY, b"\xc1\xc1"), {Close.BAD_REQUEST}),
    "a map of four billion": (frame(BINARY, b"\xdf\xff\xff\xff\xff"), {Close.BAD_REQUEST}),
    "a list of four billion": (frame(BINARY, b"\xdd\xff\xff\xff\xff"), {Close.BAD_REQUEST}),
    "text of four billion": (frame(BINARY, b"\xdb\xff\xff\xff\xff"), {Close.BAD_REQUEST}),
    "a payload of four billion": (
        frame(
            BINARY,
            msgspec.msgpack.encode({"op": "publish", "id": 1, "topic": "t", "payload": None})[:-1]
            + b"\xdd\xff\xff\xff\xff",
        ),
        {Close.BAD_REQUEST},
    ),
    "deep lists": (frame(BINARY, b"\x91" * 1_000_000 + b"\xc0"), {Close.BAD_REQUEST}),
    "invalid UTF-8": (
        frame(BINARY, b"\x82\xa2op\xa4ping\xa2id\xa1\xff"),
        {Close.BAD_REQUEST},
    ),
}


@pytest.mark.parametrize(("data", "codes"), BAD_MSGPACK.values(), ids=BAD_MSGPACK)
def test_bad_messagepack_ends_the_connection(
    server: HttpServer, data: bytes, codes: set[int]
) -> None:
    with unharmed(server), RawSocket(server.port, subprotocol=MSGPACK) as offender:
        offender.send(frame(BINARY, msgspec.msgpack.encode({"op": "connect", "id": 0})))
        assert msgspec.msgpack.decode(offender.receive()[1])["id"] == 0
        offender.send(data)
        assert offender.close_code() in codes


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_has_not_are_refused_or_kept_but_not_changed(
    server: HttpServer, value: float
) -> None:
    """MessagePack can say them. A reader must not be told that they were null."""
    with (
        unharmed(server),
        RawSocket(server.port, subprotocol=MSGPACK) as offender,
        RawSocket(server.port).connected() as receiver,
    ):
        assert "ok" in receiver.ask("subscribe", 1, topic="numbers")
        offender.send(frame(BINARY, msgspec.msgpack.encode({"op": "connect", "id": 0})))
        offender.receive()
        fields = {"op": "publish", "id": 1, "topic": "numbers", "payload": {"x": value}}
        offender.send(frame(BINARY, msgspec.msgpack.encode(fields)))
        reply = msgspec.msgpack.decode(offender.receive()[1])
        assert reply["error"]["code"] == "invalid_payload"


def test_a_command_before_connect_ends_the_connection(server: HttpServer) -> None:
    with unharmed(server), RawSocket(server.port) as offender:
        offender.send(command("publish", 1, topic="t", payload=1))
        assert "error" in offender.reply(1)
        assert offender.close_code() == Close.BAD_TOKEN


def test_many_bad_commands_end_the_connection(server: HttpServer) -> None:
    with unharmed(server), RawSocket(server.port).connected() as offender:
        offender.send(b"".join(command("fly", n) for n in range(10_000)))
        assert offender.close_code() == Close.LIMIT


def test_a_close_frame_is_answered(server: HttpServer) -> None:
    with unharmed(server), RawSocket(server.port).connected() as client:
        client.send(frame(CLOSE, struct.pack("!H", 1000)))
        assert client.close_code() == 1000


def test_frames_behind_the_handshake_are_not_taken_for_another_clients(server: HttpServer) -> None:
    """Two connections at once, one half-way through a frame: their bytes do not mix."""
    with unharmed(server), RawSocket(server.port) as slow, RawSocket(server.port) as other:
        whole = command("connect", 1, client="slow")
        slow.send(whole[:9])
        assert other.ask("connect", 1, client="other")["ok"]["client"] == "other"
        slow.send(whole[9:])
        assert slow.reply(1)["ok"]["client"] == "slow"


@pytest.mark.parametrize("value", ["Upgrade", "upgrade", "keep-alive, Upgrade"])
def test_browsers_ask_for_the_upgrade_in_several_ways(server: HttpServer, value: str) -> None:
    with RawSocket(server.port, headers={"Connection": value}).connected() as client:
        assert client.ask("ping", 1) == {"id": 1, "ok": {}}


@pytest.mark.parametrize("subprotocol", [JSON, None])
def test_without_a_subprotocol_json_is_spoken(server: HttpServer, subprotocol: str | None) -> None:
    with RawSocket(server.port, subprotocol=subprotocol).connected() as client:
        assert client.ask("ping", 1) == {"id": 1, "ok": {}}
