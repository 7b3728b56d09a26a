"""Names, globs, positions, retention."""

from __future__ import annotations

from contextlib import suppress

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from penstock import codec
from penstock.clock import SECOND
from penstock.errors import InvalidInput, InvalidTopic
from penstock.model import (
    Conflated,
    Delivery,
    Message,
    Pattern,
    Position,
    Retention,
    check_name,
    check_topic,
)

letters = st.text("ab.*?", max_size=8)
names = st.text("ab.", min_size=1, max_size=8)


def reference(pattern: str, name: str) -> bool:
    """A glob by the book: star eats any number of characters, question mark one."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(reference(pattern[1:], name[cut:]) for cut in range(len(name) + 1))
    return bool(name) and pattern[0] in ("?", name[0]) and reference(pattern[1:], name[1:])


@given(letters, names)
def test_a_glob_matches_as_the_book_says(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name) == reference(pattern, name)


@given(names)
def test_a_name_matches_itself_alone(name: str) -> None:
    assert Pattern(name).matches(name)
    assert not Pattern(name).matches(name + "x")
    assert not Pattern(name).is_glob


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*", "a\u00fc", True),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("a.b", "axb", False),
        ("*", "penstock.doctor", False),
        ("penstock.*", "penstock.doctor", True),
        ("*doctor", "penstock.doctor", False),
        ("a(*", "a(b", True),
    ],
)
def test_a_glob_knows_no_other_signs(pattern: str, name: str, matches: bool) -> None:
    assert Pattern(pattern).matches(name) is matches


@given(st.text())
def test_a_pattern_is_parsed_or_refused_and_nothing_else(text: str) -> None:
    with suppress(InvalidTopic):
        assert Pattern.parse(text).text == text


@given(st.text())
def test_a_name_is_taken_or_refused_and_nothing_else(text: str) -> None:
    with suppress(InvalidTopic):
        assert check_topic(text) == text
        assert 0 < len(text.encode()) <= 255


@given(st.text("abc-0123456789:", min_size=1), st.integers(0, 2**63 - 1))
def test_a_position_is_read_back_from_its_text(epoch: str, offset: int) -> None:
    position = Position(epoch, offset)

    assert Position.parse(str(position)) == position


@pytest.mark.parametrize(
    "text", ["", "42", ":42", "e:", "e:-1", "e:1.5", "e:x", "e:٣", "e: 1", "e:" + "9" * 5_000]
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Position.parse(text)
    assert caught.value.hint


def test_positions_of_one_epoch_are_in_order() -> None:
    assert Position("e", 1) < Position("e", 2)


@pytest.mark.parametrize(
    "options",
    [
        {"age_seconds": 0},
        {"age_seconds": -1},
        {"age_seconds": float("nan")},
        {"age_seconds": "1"},
        {"messages_max": 0},
        {"messages_max": 1.5},
        {"bytes_max": -1},
        {"bytes_max": "1"},
        {"hold_for": "billing"},
        {"hold_for": (1,)},
        {"hold_for": None},
        {"hold_seconds_max": 0},
        {"hold_bytes_max": 0.5},
    ],
    ids=str,
)
def test_a_retention_that_could_not_be_read_back_is_refused(options: dict[str, object]) -> None:
    """It would make the topic unreadable, and every listing with it."""
    with pytest.raises(InvalidInput):
        Retention(**options)


def test_a_retention_is_read_back() -> None:
    retention = Retention(60, 5, 1_000, ("a", "b"), 7.5, 9)

    assert msgspec.json.decode(msgspec.json.encode(retention), type=Retention) == retention


def test_the_hubs_defaults_stand_where_the_topic_does_not_say() -> None:
    default = Retention(age_seconds=60, hold_seconds_max=600, hold_bytes_max=1_000)

    assert Retention().with_defaults(default) == default
    assert Retention(age_seconds=5).with_defaults(default).age_seconds == 5
    assert Retention(messages_max=5).with_defaults(default).age_seconds is None
    assert Retention(bytes_max=5).with_defaults(default).hold_seconds_max == 600


@pytest.mark.parametrize(
    "options",
    [
        {"batch_max": 0},
        {"batch_max": -1},
        {"batch_max": 1.5},
        {"batch_max": True},
        {"batch_max": "5"},
        {"batch_ms": -0.1},
        {"batch_ms": float("nan")},
        {"batch_ms": float("inf")},
        {"batch_ms": False},
        {"batch_ms": "5"},
        {"slow_policy": "wait"},
        {"slow_policy": ""},
        {"slow_policy": ["catch_up"]},
    ],
    ids=str,
)
def test_a_delivery_that_could_not_be_read_back_is_refused(options: dict[str, object]) -> None:
    """D1, D5"""
    with pytest.raises(InvalidInput):
        Delivery(**options)


@pytest.mark.parametrize("policy", [None, "catch_up", "disconnect", "drop_oldest"])
def test_a_delivery_is_read_back(policy: str | None) -> None:
    """D1, D5"""
    for delivery in (Delivery(slow_policy=policy), Delivery(1, 0, policy), Delivery(9, 2.5)):
        assert msgspec.json.decode(msgspec.json.encode(delivery), type=Delivery) == delivery


def test_any_limit_asks_for_removal() -> None:
    keep = Retention(age_seconds=10, messages_max=2, bytes_max=100)

    assert not keep.wants_removal(age=9 * SECOND, messages=2, size=100)
    assert keep.wants_removal(age=10 * SECOND, messages=1, size=1)
    assert keep.wants_removal(age=0, messages=3, size=1)
    assert keep.wants_removal(age=0, messages=1, size=101)
    assert not Retention().wants_removal(age=10**15, messages=10**9, size=10**12)


def test_consumers_may_hold_until_any_of_their_limits() -> None:
    keep = Retention(hold_seconds_max=10, hold_bytes_max=100)

    assert keep.may_hold(age=9 * SECOND, size=100)
    assert not keep.may_hold(age=10 * SECOND, size=1)
    assert not keep.may_hold(age=0, size=101)
    assert Retention().may_hold(age=10**15, size=10**12)


@pytest.mark.parametrize("name", ["", "a\nb", "a\x7f", "\ud800", "x" * 256, "ü" * 128, None, 7])
def test_a_name_that_could_not_be_looked_up_is_refused(name: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_name(name, "consumer name")
    assert "consumer name" in caught.value.message
    assert caught.value.hint


def test_a_name_counts_in_bytes() -> None:
    assert check_name("ü" * 127 + "x", "name")


def stored(payload: object, **fields: object) -> Message:
    body, encoding = codec.encode(payload, None, 10_000, 100)
    flags = fields.pop("flags", 0)
    return Message(7, "t", 1_500_000, body, encoding | flags, "e", **fields)


def test_a_message_has_its_payload_as_values_bytes_and_type() -> None:
    message = stored({"n": 1, "text": "x" * 500})

    assert message.payload == {"n": 1, "text": "x" * 500}
    assert message.payload is message.payload
    assert message.data == msgspec.json.encode(message.payload)
    assert message.decode(dict[str, object]) == message.payload
    assert (message.content_type, str(message.position)) == ("application/json", "e:7")
    assert message.time.timestamp() == 1.5


def test_a_message_has_headers_or_none() -> None:
    raw = codec.encode_headers({"trace": "1"}, bytes_max=100)

    assert stored(1, raw_headers=raw).headers == {"trace": "1"}
    assert stored(1).headers == {}


def test_only_a_conflated_message_has_entries() -> None:
    entries = [{"key": "a", "payload": 1}, {"key": "b", "type": "move"}]

    found = stored(entries, flags=codec.CONFLATED).conflated
    assert found == [Conflated("a", 1), Conflated("b", None, "move")]
    assert stored(entries).conflated == []
