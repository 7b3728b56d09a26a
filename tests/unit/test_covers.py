"""Rights by pattern: what a grant covers, it covers whole (D2)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.access import ALL_ACCESS, Access, covers
from penstock.errors import Forbidden
from penstock.model import Pattern

patterns = st.text("ab.*?", min_size=1, max_size=8)
names = st.text("ab.", min_size=1, max_size=8)


def topics_up_to(length: int) -> list[str]:
    return ["".join(c) for n in range(1, length + 1) for c in itertools.product("abx", repeat=n)]


TOPICS = topics_up_to(5)


def stood_for(wanted: str, stars: list[str], marks: str) -> str:
    """A topic that a pattern matches, with these texts in place of its wildcards."""
    texts, characters = itertools.cycle(stars or [""]), itertools.cycle(marks or "a")
    return "".join(next(texts) if c == "*" else next(characters) if c == "?" else c for c in wanted)


@given(patterns, patterns, st.lists(st.text("abx.", max_size=4), max_size=4), st.text("abx."))
def test_what_is_covered_is_covered_whole(
    grant: str, wanted: str, stars: list[str], marks: str
) -> None:
    topic = stood_for(wanted, stars, marks)
    if covers(grant, wanted) and topic and Pattern(wanted).matches(topic):
        assert Pattern(grant).matches(topic), topic


@given(st.text("ab*?", min_size=1, max_size=5), st.text("ab*?", min_size=1, max_size=5))
def test_covering_is_never_more_than_all_topics_together(grant: str, wanted: str) -> None:
    """Against every name of up to five letters, one of which no pattern mentions."""
    if covers(grant, wanted):
        lost = [t for t in TOPICS if Pattern(wanted).matches(t) and not Pattern(grant).matches(t)]
        assert lost == []


@given(patterns, names)
def test_for_a_single_topic_it_is_matching(grant: str, topic: str) -> None:
    assert covers(grant, topic) == Pattern(grant).matches(topic)


@given(patterns)
def test_a_pattern_covers_itself_and_everything_covers_it(pattern: str) -> None:
    assert covers(pattern, pattern)
    assert covers("*", pattern)


@pytest.mark.parametrize(
    ("grant", "wanted", "expected"),
    [
        ("room-*", "room-*", True),
        ("room-*", "room-1-*", True),
        ("room-*", "room-?", True),
        ("room-?", "room-*", False),
        ("room-1", "room-?", False),
        ("room-*", "*", False),
        ("*-1", "room-*", False),
        ("a*c", "ab*bc", True),
        ("a*b*c", "a*c", False),
        ("*", "penstock.delivery", False),
        ("*", "penstock.*", False),
        ("penstock.*", "penstock.delivery", True),
        ("penstock.*", "*", False),
        ("?enstock.*", "penstock.delivery", False),
        ("room", "room", True),
        ("room", "rooms", False),
    ],
)
def test_by_example(grant: str, wanted: str, expected: bool) -> None:
    assert covers(grant, wanted) is expected


def test_a_hostile_pattern_takes_no_time() -> None:
    """Quadratic at worst: exponential matching would not end."""
    assert not covers("*a" * 120 + "b", "a" * 250)


def test_each_right_is_its_own() -> None:
    access = Access("ann", publish=("a",), subscribe=("b", "c-*"), admin=())
    access.check_publish("a")
    access.check_subscribe("c-1")
    for check, topic in ((access.check_publish, "b"), (access.check_subscribe, "a")):
        with pytest.raises(Forbidden):
            check(topic)
    with pytest.raises(Forbidden):
        access.check_admin("a")
    ALL_ACCESS.check_subscribe("penstock.*")
    ALL_ACCESS.check_admin("*")
