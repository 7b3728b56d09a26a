"""Payloads as bytes: JSON, MessagePack or bytes as they are, zstd above a size.

Nothing is ever executed from data: no pickle, no class names. An `encoding` is a small integer
stored beside the bytes: the format in the low bits, flags above them.
"""

from __future__ import annotations

import binascii
import hashlib
import math
import threading
from typing import TYPE_CHECKING, Any, Final

import msgspec
import zstandard

from penstock.errors import InvalidPayload, PayloadTooLarge, UndecodablePayload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BYTES: Final = 0
JSON: Final = 1
MSGPACK: Final = 2
FORMAT_MASK: Final = 0x07
ZSTD: Final = 0x08
CONFLATED: Final = 0x10
"""The payload is a list of conflated entries, not one publisher's message."""

FORMATS: Final = {"bytes": BYTES, "json": JSON, "msgpack": MSGPACK}
CONTENT_TYPES: Final = {
    BYTES: "application/octet-stream",
    JSON: "application/json",
    MSGPACK: "application/msgpack",
}

_json = msgspec.json.Encoder()
_encode_json = _json.encode
_encode_msgpack = msgspec.msgpack.Encoder().encode
_decode_json = msgspec.json.Decoder().decode
_decode_msgpack = msgspec.msgpack.Decoder().decode
_zstd = threading.local()


def encode(
    payload: Any, format: str | None, bytes_max: int, compress_above: int
) -> tuple[bytes, int]:
    """The payload's bytes and encoding. Bytes stay bytes; anything else is JSON unless told."""
    # The usual cases are told without asking further.
    if format is None and payload.__class__ is dict:
        encoding = JSON
    elif format is None and payload.__class__ is bytes:
        encoding = BYTES
    else:
        encoding = _encoding(payload, format)
    try:
        if encoding == JSON:
            body = _encode_json(payload)
            if b"null" in body:
                _refuse_not_finite(payload)
        elif encoding == MSGPACK:
            body = _encode_msgpack(payload)
        else:
            body = payload if payload.__class__ is bytes else bytes(memoryview(payload))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidPayload(f"The payload cannot be encoded: {error}.") from error
    size = len(body)
    if size > bytes_max:
        raise PayloadTooLarge(f"The payload has {size:,} bytes; the limit is {bytes_max:,}.")
    if size > compress_above:
        packed = _compressor().compress(body)
        if len(packed) < size:
            return packed, encoding | ZSTD
    return body, encoding


def encode_dicts(payloads: Sequence[Any], bytes_max: int) -> list[bytes] | None:
    """As JSON, all at once, if they are dicts without any difficulty; else None."""
    if set(map(type, payloads)) != {dict}:
        return None
    try:
        lines = _json.encode_lines(payloads)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None  # One by one, it is told which and why.
    if b"null" in lines:
        return None
    bodies = lines.split(b"\n")
    bodies.pop()
    is_plain = len(bodies) == len(payloads) and max(map(len, bodies)) <= bytes_max
    return bodies if is_plain else None


def _refuse_not_finite(payload: Any) -> None:
    """JSON has no NaN and no infinity; the encoder writes null for them, which is a change."""
    waiting = [msgspec.to_builtins(payload)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"JSON cannot say {value}; use the format 'msgpack'")


def _encoding(payload: Any, format: str | None) -> int:
    if format is None:
        return BYTES if isinstance(payload, (bytes, bytearray, memoryview)) else JSON
    try:
        return FORMATS[format]
    except KeyError:
        raise InvalidPayload(
            f"{format!r} is not a payload format.", hint="Use 'json', 'msgpack' or 'bytes'."
        ) from None


def decompress(body: bytes, encoding: int) -> bytes:
    if not encoding & ZSTD:
        return body
    try:
        return _decompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise UndecodablePayload(f"The payload cannot be decompressed: {error}.") from error


def size_of(body: bytes, encoding: int) -> int:
    """How large it is without compression, as far as it says."""
    if not encoding & ZSTD:
        return len(body)
    try:
        return max(len(body), zstandard.frame_content_size(body))
    except zstandard.ZstdError:
        return len(body)


def decode(body: bytes, encoding: int, to: Any = Any) -> Any:
    """The payload as plain values, or as the type `to`."""
    data = decompress(body, encoding)
    format = encoding & FORMAT_MASK
    try:
        if format == JSON:
            return _decode_json(data) if to is Any else msgspec.json.decode(data, type=to)
        if format == MSGPACK:
            return _decode_msgpack(data) if to is Any else msgspec.msgpack.decode(data, type=to)
        if format == BYTES:
            return data if to is Any or to is bytes else msgspec.convert(data, to)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UndecodablePayload(f"The payload cannot be decoded: {error}.") from error
    raise UndecodablePayload(
        f"The payload has the unknown format {format}.", hint="Upgrade penstock here."
    )


def content_type(encoding: int) -> str:
    return CONTENT_TYPES.get(encoding & FORMAT_MASK, "application/octet-stream")


def encode_headers(headers: Mapping[str, str] | None, *, bytes_max: int) -> bytes | None:
    if not headers:
        return None
    try:
        for name, value in headers.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidPayload(
                    f"The header {name!r} is not text.", hint="Headers are str: str."
                )
        body = _encode_json(dict(headers))
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidPayload(
            f"The headers cannot be encoded: {error}.", hint="Headers are str: str."
        ) from error
    if len(body) > bytes_max:
        raise PayloadTooLarge(
            f"The headers have {len(body):,} bytes; the limit is {bytes_max:,}.",
            hint="Headers are for routing and tracing; put data into the payload.",
        )
    return body


def decode_headers(raw: bytes | None) -> dict[str, str]:
    return msgspec.json.decode(raw, type=dict[str, str]) if raw else {}


def to_base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def from_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError as error:
        raise InvalidPayload(f"The base64 text is not valid: {error}.") from error


def digest(*parts: bytes | str | None) -> bytes:
    """Tells whether two messages under one idempotency key are the same."""
    summary = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = b"" if part is None else part.encode() if isinstance(part, str) else part
        # The length keeps ("a", "bc") apart from ("ab", "c"), and None apart from "".
        summary.update(b"%d:" % (-1 if part is None else len(data)))
        summary.update(data)
    return summary.digest()


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_zstd, "compressor"):
        _zstd.compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
    compressor: zstandard.ZstdCompressor = _zstd.compressor
    return compressor


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_zstd, "decompressor"):
        _zstd.decompressor = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _zstd.decompressor
    return decompressor
