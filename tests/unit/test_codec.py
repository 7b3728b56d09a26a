"""Payloads as bytes and back (T16)."""

from __future__ import annotations

import dataclasses
import os

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from penstock import codec
from penstock.errors import InvalidPayload, PayloadTooLarge, UndecodablePayload

LIMIT = 1024 * 1024

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20
)


def encode(payload: object, format: str | None = None, above: int = LIMIT) -> tuple[bytes, int]:
    return codec.encode(payload, format, LIMIT, above)


@given(values, st.sampled_from([None, "json", "msgpack"]), st.sampled_from([0, LIMIT]))
def test_plain_values_come_back(payload: object, format: str | None, above: int) -> None:
    assert codec.decode(*encode(payload, format, above)) == payload


@given(st.binary(), st.sampled_from([None, "bytes", "msgpack"]), st.sampled_from([0, LIMIT]))
def test_bytes_come_back(payload: bytes, format: str | None, above: int) -> None:
    assert codec.decode(*encode(payload, format, above)) == payload


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_whatever_holds_bytes_is_stored_as_bytes(make: type) -> None:
    body, encoding = encode(make(b"\x00\x01"))

    assert (body, encoding) == (b"\x00\x01", codec.BYTES)


def test_payloads_above_a_size_are_compressed() -> None:
    small, large = encode("x" * 50, above=100), encode("x" * 5_000, above=100)

    assert small[1] == codec.JSON
    assert large[1] == codec.JSON | codec.ZSTD
    assert len(large[0]) < 100
    assert codec.decompress(*large) == b'"' + b"x" * 5_000 + b'"'


def test_what_compression_does_not_shrink_stays_as_it_is() -> None:
    noise = os.urandom(5_000)

    assert encode(noise, above=100) == (noise, codec.BYTES)


def test_the_limit_counts_before_compression() -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        codec.encode(b"x" * 101, None, 100, 10)
    assert "101" in caught.value.message
    assert codec.encode(b"x" * 100, None, 100, 1_000)[0] == b"x" * 100


def test_structs_and_dataclasses_are_encoded_and_decoded() -> None:
    class Order(msgspec.Struct):
        id: int

    @dataclasses.dataclass
    class Item:
        name: str

    assert codec.decode(*encode(Order(1)), Order) == Order(1)
    assert codec.decode(*encode(Item("a"), "msgpack"), Item) == Item("a")
    assert codec.decode(*encode(b"x"), bytes) == b"x"


@pytest.mark.parametrize(
    ("body", "encoding", "to"),
    [
        (b"{", codec.JSON, object),
        (b"\xc1", codec.MSGPACK, object),
        (b"1", codec.JSON, str),
        (b"not zstd", codec.JSON | codec.ZSTD, object),
        (b"x", 7, object),
        (b"x", codec.BYTES, int),
    ],
    ids=["json", "msgpack", "type", "zstd", "format", "bytes as a number"],
)
def test_what_cannot_be_decoded_says_so(body: bytes, encoding: int, to: object) -> None:
    with pytest.raises(UndecodablePayload) as caught:
        codec.decode(body, encoding, to)
    assert caught.value.hint


@given(st.dictionaries(texts, texts, max_size=5))
def test_headers_come_back(headers: dict[str, str]) -> None:
    raw = codec.encode_headers(headers, bytes_max=LIMIT)

    assert codec.decode_headers(raw) == headers


def test_headers_are_limited() -> None:
    with pytest.raises(PayloadTooLarge):
        codec.encode_headers({"a": "x" * 100}, bytes_max=50)
    with pytest.raises(InvalidPayload):
        codec.encode_headers({"a": 1}, bytes_max=50)


@given(
    st.lists(st.none() | st.binary(max_size=4), min_size=1, max_size=4),
    st.lists(st.none() | st.binary(max_size=4), min_size=1, max_size=4),
)
def test_digests_tell_messages_apart(first: list[bytes | None], second: list[bytes | None]) -> None:
    assert (codec.digest(*first) == codec.digest(*second)) == (first == second)


def test_content_types() -> None:
    assert codec.content_type(encode({})[1]) == "application/json"
    assert codec.content_type(encode({}, "msgpack")[1]) == "application/msgpack"
    assert codec.content_type(encode(b"x" * 5_000, above=1)[1]) == "application/octet-stream"


@pytest.mark.parametrize("format", ["json", "msgpack", "bytes"])
def test_what_cannot_be_encoded_is_refused_and_nothing_of_it_is_called(format: str) -> None:
    called: list[str] = []

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            called.append("reduce")
            return list, ()

        def __str__(self) -> str:
            called.append("str")
            return ""

    with pytest.raises(InvalidPayload) as caught:
        encode({"a": [Trap()]}, format)
    assert caught.value.hint
    assert called == []


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)

    for format in ("json", "msgpack"):
        with pytest.raises(InvalidPayload):
            encode(endless, format)


@given(st.lists(st.dictionaries(texts, values), min_size=1), st.integers(10, 200))
def test_many_at_once_are_what_each_alone_is(payloads: list[object], bytes_max: int) -> None:
    bodies = codec.encode_dicts(payloads, bytes_max)
    alone = [codec.encode(payload, None, LIMIT, LIMIT)[0] for payload in payloads]
    if bodies is not None:
        assert bodies == alone
    else:
        assert b"null" in b"".join(alone) or max(map(len, alone)) > bytes_max


@pytest.mark.parametrize(
    "payload",
    [
        ["a list"],
        b"bytes",
        {"not": "finite", "as": float("nan")},
        {"of": object()},
        {"raw": msgspec.Raw(b'{"a":\n1}')},
    ],
    ids=["list", "bytes", "nan", "object", "raw"],
)
def test_with_one_that_is_difficult_each_is_looked_at_alone(payload: object) -> None:
    assert codec.encode_dicts([{"a": 1}, payload, {"b": 2}], LIMIT) is None
