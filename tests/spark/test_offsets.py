"""Offsets as they stand in a checkpoint (S1)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import EpochChanged, InvalidInput
from penstock.spark.offsets import Offset

told = st.dictionaries(st.text(max_size=5), st.integers(0, 2**40), max_size=4)
offsets = st.builds(Offset, st.text(min_size=1), st.integers(0), st.integers(0), told)


@given(offsets)
def test_an_offset_comes_back_from_json(offset: Offset) -> None:
    assert Offset.parse(json.loads(json.dumps(offset.as_json()))) == offset


@given(offsets, st.randoms())
def test_the_same_offset_is_always_the_same_text(offset: Offset, chance: object) -> None:
    """Spark compares the text to find out whether there is anything new."""
    items = list(offset.told.items())
    chance.shuffle(items)  # type: ignore[attr-defined]
    other = Offset(offset.db, offset.id, offset.at, dict(items))

    assert json.dumps(other.as_json()) == json.dumps(offset.as_json())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"v": 2, "db": "a", "id": 1}, "offsets of version 2"),
        ({"db": "a", "id": 1}, "is not an offset of penstock"),
        ({"v": 1, "db": "a"}, "is not an offset"),
        ({"v": 1, "db": "a", "id": "x"}, "is not an offset"),
        ({"topic": {"0": 7}}, "is not an offset"),
    ],
)
def test_the_checkpoint_of_something_else_is_refused(
    value: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Offset.parse(value)


def test_an_offset_of_another_database_or_ahead_of_it_is_refused() -> None:
    offset = Offset("a-1", 10)
    offset.check("a-1", 10)
    with pytest.raises(EpochChanged, match="belongs to the database a-1, and this one is b-1"):
        offset.check("b-1", 100)
    with pytest.raises(EpochChanged, match="at 10, ahead of the database \\(9\\)"):
        offset.check("a-1", 9)


def test_only_removals_that_were_not_known_are_news() -> None:
    offset = Offset("a-1", 10, told={"a": 20})

    assert offset.news({"a": 20, "b": 11}) == {"b": 11}
    assert offset.news({"a": 21}) == {"a": 21}
