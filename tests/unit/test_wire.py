"""Messages on the wire: whatever was published can be sent to everybody (D2, D6)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import codec
from penstock.client.frames import decode_frame, rebuild
from penstock.model import Message
from penstock.protocol import JSON_WIRE, MSGPACK_WIRE, MessagesPush, Wire

WIRES = pytest.mark.parametrize("wire", [JSON_WIRE, MSGPACK_WIRE], ids=["json", "msgpack"])


def message(payload: Any, format: str | None = None, **fields: Any) -> Message:
    body, encoding = codec.encode(payload, format, 1 << 20, 1000)
    return Message(7, "room", 1_000, body, encoding, "epoch", **fields)


def sent(one: Message, wire: Wire, *, with_topic: bool = False) -> dict[str, Any]:
    entry: dict[str, Any] = wire.decode_any(bytes(wire.entry(one, with_topic=with_topic)))
    return entry


def received(one: Message, wire: Wire) -> Message:
    """By way of a frame to the Python client."""
    data = wire.encode(MessagesPush("room", [wire.entry(one, with_topic=False)]))
    frame = decode_frame(data, wire.format)
    assert isinstance(frame.messages, list)
    return rebuild(frame.messages[0], "room", "epoch", wire.format)


@WIRES
def test_what_is_not_there_is_left_out(wire: Wire) -> None:
    assert sent(message({"a": 1}), wire) == {"id": 7, "at": 1_000, "payload": {"a": 1}}


@WIRES
def test_what_is_there_is_said(wire: Wire) -> None:
    full = message(
        1, type="t", key="k", expires_at=9, raw_headers=b'{"h":"v"}', message_id="not on the wire"
    )
    assert sent(full, wire, with_topic=True) == {
        "id": 7,
        "at": 1_000,
        "topic": "room",
        "type": "t",
        "key": "k",
        "headers": {"h": "v"},
        "payload": 1,
        "expires_at": 9,
    }


def test_bytes_are_base64_for_json_and_bin_for_messagepack() -> None:
    assert sent(message(b"\x00"), JSON_WIRE)["base64"] == "AA=="
    assert sent(message(b"\x00"), MSGPACK_WIRE)["payload"] == b"\x00"


def test_what_is_stored_as_messagepack_says_so() -> None:
    for wire in (JSON_WIRE, MSGPACK_WIRE):
        assert sent(message({"a": 1}, "msgpack"), wire)["format"] == "msgpack"


@WIRES
def test_a_large_payload_is_unpacked(wire: Wire) -> None:
    assert sent(message("x" * 5000), wire)["payload"] == "x" * 5000


@pytest.mark.parametrize(
    "payload",
    [msgspec.msgpack.Ext(5, b"x"), {None: 1}, {True: 1}, {(1, 2): 3}],
    ids=["extension", "null as key", "bool as key", "list as key"],
)
def test_what_json_has_no_words_for_comes_as_it_is_stored(payload: Any) -> None:
    """One client's strange message must not stop a channel for all."""
    stored = message(payload, "msgpack")
    entry = sent(stored, JSON_WIRE)
    assert entry["format"] == "msgpack"
    assert codec.from_base64(entry["base64"]) == stored.data
    back = received(stored, JSON_WIRE)
    assert (back.data, back.encoding) == (stored.data, codec.MSGPACK)


def test_numbers_that_messagepack_has_no_words_for_come_as_json_text() -> None:
    stored = message({"n": 10**30})
    assert sent(stored, JSON_WIRE)["payload"] == {"n": 10**30}
    entry = sent(stored, MSGPACK_WIRE)
    assert entry["format"] == "json"
    assert entry["payload"] == stored.data
    assert received(stored, MSGPACK_WIRE).payload == {"n": 10**30}


@WIRES
def test_a_damaged_payload_is_sent_as_bytes(wire: Wire) -> None:
    damaged = Message(7, "room", 0, b"not zstd", codec.JSON | codec.ZSTD, "epoch")
    found = sent(damaged, wire)
    data = codec.from_base64(found["base64"]) if wire.is_text else found["payload"]
    assert data == b"not zstd"


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values, st.sampled_from(["json", "msgpack"]), st.sampled_from([JSON_WIRE, MSGPACK_WIRE]))
def test_every_payload_arrives_whatever_it_is_stored_and_sent_as(
    payload: Any, format: str, wire: Wire
) -> None:
    try:
        stored = message(payload, format)
    except codec.InvalidPayload:
        return  # Such as an integer that MessagePack cannot hold.
    assert received(stored, wire).payload == stored.payload
