"""What comes over the wire, as the values of a hub: frames, messages, receipts."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock import codec
from penstock.errors import PenstockError
from penstock.model import Format, Message, NewMessage, Position, Receipt
from penstock.protocol import Gap, Member, Outgoing, Problem, Published, WireFormat

_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode
_from_msgpack = msgspec.msgpack.Decoder().decode


class ReceivedEntry(msgspec.Struct, frozen=True):
    """`protocol.Entry`, its payload not decoded yet."""

    id: int
    at: int
    topic: str | None = None
    type: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    payload: Raw | UnsetType = UNSET
    base64: str | None = None
    expires_at: int | None = None
    format: str | None = None
    conflated: bool = False


class Frame(msgspec.Struct, frozen=True):
    """Any frame a server sends: a reply if it has an `id`, otherwise a push."""

    id: int | None = None
    ok: Raw | UnsetType = UNSET
    error: Problem | None = None
    push: str | None = None
    topic: str = ""
    messages: list[ReceivedEntry] | int = 0
    gap: Gap | None = None
    through: str | None = None
    joined: list[Member] = []
    left: list[str] = []


_DECODERS: Final[dict[WireFormat, Any]] = {
    "json": msgspec.json.Decoder(Frame).decode,
    "msgpack": msgspec.msgpack.Decoder(Frame).decode,
}
_REPLY_DECODERS: Final[dict[WireFormat, Any]] = {
    "json": msgspec.json.decode,
    "msgpack": msgspec.msgpack.decode,
}


def decode_frame(data: bytes, format: WireFormat) -> Frame:
    frame: Frame = _DECODERS[format](data)
    return frame


def decode_reply(ok: Raw | UnsetType, to: Any, format: WireFormat) -> Any:
    return None if ok is UNSET else _REPLY_DECODERS[format](ok, type=to)


def rebuild(entry: ReceivedEntry, topic: str, epoch: str, format: WireFormat) -> Message:
    """The message as a local hub would have read it."""
    body, encoding, value = _body(entry, format)
    message = Message(
        entry.id,
        entry.topic or topic,
        entry.at,
        body,
        encoding | codec.CONFLATED if entry.conflated else encoding,
        epoch,
        entry.type,
        entry.key,
        entry.expires_at,
        _to_json(entry.headers) if entry.headers else None,
    )
    if value is not UNSET:
        message.__dict__["payload"] = value
    return message


def _body(entry: ReceivedEntry, format: WireFormat) -> tuple[bytes, int, Any]:
    """The stored bytes, their encoding, and the value if it was decoded on the way."""
    if entry.base64 is not None:
        stored = codec.MSGPACK if entry.format == "msgpack" else codec.BYTES
        return codec.from_base64(entry.base64), stored, UNSET
    if isinstance(entry.payload, UnsetType):
        return b"null", codec.JSON, UNSET
    raw = bytes(entry.payload)
    if format == "json":
        return raw, codec.JSON, UNSET
    if entry.format == "msgpack":
        return raw, codec.MSGPACK, UNSET
    # What was published as JSON travels as MessagePack here, and is JSON again to the reader.
    try:
        value = _from_msgpack(raw)
        if isinstance(value, bytes):
            return value, codec.JSON if entry.format == "json" else codec.BYTES, UNSET
        return _to_json(value), codec.JSON, value
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return raw, codec.MSGPACK, UNSET


def outgoing(message: NewMessage, *, idempotency_key: str | None, format: WireFormat) -> Outgoing:
    """A message that was checked and encoded as a local hub does it."""
    kind = message.encoding & codec.FORMAT_MASK
    data = codec.decompress(message.body, message.encoding)
    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    stored: Format | None = None
    if kind == codec.BYTES and format == "json":
        base64 = codec.to_base64(data)
    elif kind == codec.BYTES:
        payload = data
    elif kind == codec.JSON:
        payload = Raw(data) if format == "json" else _from_json(data)
    else:
        payload = Raw(data) if format == "msgpack" else _from_msgpack(data)
        stored = "msgpack"
    headers = None if message.headers is None else codec.decode_headers(message.headers)
    return Outgoing(
        payload=payload,
        base64=base64,
        type=message.type,
        key=message.key,
        headers=headers,
        ttl=None if message.ttl is None else message.ttl / 1_000_000,
        idempotency_key=idempotency_key,
        format=stored,
    )


def receipt(topic: str, published: Published, *, is_own_key: bool) -> Receipt:
    """`is_own_key`: the client made the key up, so a duplicate is its own retry and no news."""
    position = None if published.position is None else Position.parse(published.position)
    is_duplicate = published.duplicate and not is_own_key
    return Receipt(topic, position, published.at, published.durable, is_duplicate)


def as_error(problem: Problem) -> PenstockError:
    return problem.as_error()
