"""Reading: by id, bounded, from one view, and loss that is announced to those who lost (T5, T7)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.clock import micros
from penstock.errors import EpochChanged, LogTrimmed
from penstock.model import Pattern, Position, Retention
from penstock.ports.topics import NOTHING_TOLD
from penstock.testing import FakeClock
from tests.conformance.places import Scribe
from tests.factories import ids, new_message

MANY = 100  # more topics than a store may name in one query


def read(
    scribe: Scribe,
    pattern: str,
    *,
    after: int = 0,
    floor: int = 0,
    limit: int = 1000,
    told: Mapping[str, int] = NOTHING_TOLD,
) -> list:
    now = scribe.clock.now()
    chunk = scribe.store.topics.read(
        Pattern(pattern), after=after, floor=floor, limit=limit, now=now, told=told
    )
    return ids(chunk.messages)


def test_one_topic_is_read_in_id_order_after_an_id(scribe: Scribe) -> None:
    for _ in range(3):
        scribe.publish("a")
        scribe.publish("b")

    assert read(scribe, "a", after=1) == [3, 5]


def test_a_limited_read_says_how_far_it_came(scribe: Scribe) -> None:
    scribe.publish("a", 5)
    scribe.publish("b", 5)
    topics, now = scribe.store.topics, scribe.clock.now()

    first = topics.read(Pattern("a"), after=0, floor=0, limit=3, now=now)
    assert (ids(first.messages), first.through) == ([1, 2, 3], 3)
    rest = topics.read(Pattern("a"), after=first.through, floor=0, limit=3, now=now)
    assert (ids(rest.messages), rest.through) == ([4, 5], 10)
    nothing = topics.read(Pattern("a"), after=10, floor=0, limit=3, now=now)
    assert (nothing.messages, nothing.through) == ([], 10)


def test_a_read_of_a_topic_that_does_not_exist_comes_to_the_end(scribe: Scribe) -> None:
    scribe.publish("a", 5)
    chunk = scribe.store.topics.read(
        Pattern("none"), after=0, floor=0, limit=3, now=scribe.clock.now()
    )

    assert (chunk.messages, chunk.through) == ([], 5)


@pytest.mark.parametrize("others", [0, MANY])
def test_a_glob_is_read_over_all_its_topics(scribe: Scribe, others: int) -> None:
    scribe.append(*(new_message(f"x.{number}") for number in range(others)))
    first = scribe.store.log().last_id + 1
    for name in ("x.a", "y", "x.b", "y", "x.a"):
        scribe.publish(name)

    assert read(scribe, "x.*", after=first - 1) == [first, first + 2, first + 4]
    assert read(scribe, "x.*", after=first, limit=1) == [first + 2]


@pytest.mark.parametrize("count", [3, MANY])
def test_reading_a_glob_in_steps_misses_and_repeats_nothing(scribe: Scribe, count: int) -> None:
    for _ in range(3):
        scribe.append(*(new_message(f"t.{n}") for n in range(count)), new_message("other"))

    messages = scribe.read("t.*", limit=7)
    assert len(messages) == 3 * count
    assert ids(messages) == sorted(set(ids(messages)))
    assert all(message.topic.startswith("t.") for message in messages)


def test_a_glob_stands_for_topics_made_later(scribe: Scribe) -> None:
    scribe.publish("t.1")
    assert read(scribe, "t.*") == [1]
    scribe.publish("t.2")

    assert read(scribe, "t.*") == [1, 2]


def test_a_question_mark_is_one_character(scribe: Scribe) -> None:
    for name in ("t1", "t22", "t3"):
        scribe.publish(name)

    assert read(scribe, "t?") == [1, 3]


def test_a_star_does_not_stand_for_penstocks_own_topics(scribe: Scribe) -> None:
    scribe.publish("penstock.doctor")
    scribe.publish("a")

    assert read(scribe, "*") == [2]
    assert read(scribe, "penstock.*") == [1]


def test_a_position_ahead_of_the_log_is_another_logs(scribe: Scribe) -> None:
    scribe.publish("a")

    with pytest.raises(EpochChanged):
        read(scribe, "a", after=2)


# Times to live


def test_a_message_is_hidden_when_its_time_is_over(scribe: Scribe, clock: FakeClock) -> None:
    scribe.publish("a", ttl=10)
    scribe.publish("a")
    clock.advance(9.999)
    assert read(scribe, "a") == read(scribe, "*") == [1, 2]
    clock.advance(0.001)

    assert read(scribe, "a") == read(scribe, "*") == [2]
    assert ids(scribe.store.topics.read_last(Pattern("a"), count=5, now=clock.now())) == [2]


def test_expired_messages_of_many_topics_are_hidden(scribe: Scribe, clock: FakeClock) -> None:
    scribe.append(*(new_message(f"t.{n}", ttl=1) for n in range(MANY)), new_message("t.0"))
    clock.advance(1)

    assert read(scribe, "t.*") == [MANY + 1]


# The tail


def test_the_tail_reads_new_messages_of_some_topics(scribe: Scribe) -> None:
    for name in ("a", "b", "c", "a"):
        scribe.publish(name)
    patterns = [Pattern("a"), Pattern("c*")]

    chunk = scribe.tail(after=1, patterns=patterns, limit=10)
    assert (ids(chunk.messages), chunk.through) == ([3, 4], 4)
    assert chunk.epoch == scribe.store.log().epoch


def test_the_tail_reads_all_topics(scribe: Scribe) -> None:
    for name in ("a", "penstock.x", "b"):
        scribe.publish(name)

    chunk = scribe.tail(after=0, patterns=None, limit=2)
    assert (ids(chunk.messages), chunk.through) == ([1, 2], 2)


def test_the_tail_passes_what_matches_nothing(scribe: Scribe) -> None:
    scribe.publish("a", 5)

    chunk = scribe.tail(after=0, patterns=[Pattern("b")], limit=2)
    assert (chunk.messages, chunk.through) == ([], 5)


def test_the_tail_at_the_end_finds_nothing(scribe: Scribe) -> None:
    scribe.publish("a")

    chunk = scribe.tail(after=1, patterns=None, limit=2)
    assert (chunk.messages, chunk.through) == ([], 1)


def test_the_tail_of_many_patterns_has_their_messages(scribe: Scribe) -> None:
    scribe.append(*(new_message(f"t.{n}") for n in range(MANY)), new_message("other"))
    patterns = [Pattern(f"t.{n}") for n in range(MANY)]

    chunk = scribe.tail(after=0, patterns=patterns, limit=1000)
    assert [m.topic for m in chunk.messages if m.topic != "other"] == [
        f"t.{n}" for n in range(MANY)
    ]


def test_the_tail_gives_no_message_twice_to_overlapping_patterns(scribe: Scribe) -> None:
    scribe.publish("a.1", 2)

    chunk = scribe.tail(
        after=0, patterns=[Pattern("a.*"), Pattern("a.1"), Pattern("?.1")], limit=10
    )
    assert ids(chunk.messages) == [1, 2]


def test_the_tail_refuses_a_position_of_another_generation(scribe: Scribe) -> None:
    scribe.publish("a", 3)
    before = scribe.store.log().epoch
    scribe.store.new_generation()
    scribe.publish("a", 3)

    for offset in (0, 3):
        with pytest.raises(EpochChanged):
            scribe.tail(after=offset, patterns=None, limit=10, epoch=before)


def test_the_tail_reads_on_over_what_was_removed(scribe: Scribe) -> None:
    scribe.publish("a", 3)
    scribe.write(lambda tx: tx.topics.trim("a", 2))
    scribe.sweep("a")

    chunk = scribe.tail(after=0, patterns=None, limit=10)
    assert (ids(chunk.messages), chunk.through) == ([3], 3)


# Looking things up


def test_the_last_messages_come_oldest_first(scribe: Scribe) -> None:
    for name in ("a", "b", "a", "b", "a"):
        scribe.publish(name)
    topics, now = scribe.store.topics, scribe.clock.now()

    assert ids(topics.read_last(Pattern("a"), count=2, now=now)) == [3, 5]
    assert ids(topics.read_last(Pattern("*"), count=3, now=now)) == [3, 4, 5]
    assert ids(topics.read_last(Pattern("none"), count=3, now=now)) == []


def test_the_offset_at_a_time_is_the_last_older_message(scribe: Scribe, clock: FakeClock) -> None:
    start = clock.now()
    for _ in range(5):
        scribe.publish("a")
        clock.advance(1)
    offsets = [scribe.store.topics.offset_at(start + micros(t)) for t in (0, 0.5, 1, 2.5, 4, 99)]

    assert offsets == [0, 1, 1, 3, 4, 5]


def test_the_offset_at_a_time_steps_over_removed_messages(scribe: Scribe, clock: FakeClock) -> None:
    start = clock.now()
    for name in ("a", "b", "b", "b", "a", "b"):
        scribe.publish(name)
        clock.advance(1)
    remove(scribe, "b")
    offsets = [scribe.store.topics.offset_at(start + micros(t)) for t in (0, 1, 4, 4.5, 99)]

    assert offsets == [0, 1, 1, 5, 5]


def test_the_offset_in_an_empty_log_is_zero(scribe: Scribe, clock: FakeClock) -> None:
    assert scribe.store.topics.offset_at(clock.now()) == 0


def test_the_oldest_message_tells_its_time(scribe: Scribe, clock: FakeClock) -> None:
    assert scribe.store.topics.oldest_at() is None
    scribe.publish("a")
    first = clock.now()
    clock.advance(5)
    scribe.publish("b")

    assert scribe.store.topics.oldest_at() == first
    remove(scribe, "a")
    assert scribe.store.topics.oldest_at() == clock.now()


def test_the_first_message_after_an_id(scribe: Scribe) -> None:
    for name in ("a", "b", "a"):
        scribe.publish(name)
    topics = scribe.store.topics
    found = topics.first_after(Pattern("a"), 1, now=scribe.clock.now())

    assert found is not None
    assert (found.id, found.topic) == (3, "a")
    assert topics.first_after(Pattern("a"), 3, now=scribe.clock.now()) is None
    assert topics.first_after(Pattern("?"), 1, now=scribe.clock.now()).id == 2


def test_messages_above_an_id_are_counted(scribe: Scribe) -> None:
    for name in ("a", "b", "a", "a"):
        scribe.publish(name)
    topics = scribe.store.topics

    assert topics.count_after(Pattern("a"), 0, now=scribe.clock.now()) == 3
    assert topics.count_after(Pattern("a"), 3, now=scribe.clock.now()) == 1
    assert topics.count_after(Pattern("*"), 1, now=scribe.clock.now()) == 3


def test_trimmed_messages_are_neither_found_nor_counted(scribe: Scribe) -> None:
    scribe.publish("a", 4)
    scribe.write(lambda tx: tx.topics.trim("a", 2))
    topics = scribe.store.topics

    assert topics.count_after(Pattern("a"), 0, now=scribe.clock.now()) == 2
    assert topics.first_after(Pattern("a"), 0, now=scribe.clock.now()).id == 3


# Loss


def remove(scribe: Scribe, topic: str) -> None:
    now = scribe.clock.now()
    scribe.write(lambda tx: tx.topics.delete(topic, now=now))
    scribe.write(lambda tx: tx.topics.sweep(topic, Retention(), now=now, limit=1000))


def trim(scribe: Scribe, topic: str, through: int, *, sweep: bool) -> None:
    now = scribe.clock.now()
    scribe.write(lambda tx: tx.topics.trim(topic, through))
    if sweep:
        scribe.write(lambda tx: tx.topics.sweep(topic, Retention(), now=now, limit=1000))


@pytest.mark.parametrize("sweep", [False, True], ids=["hidden", "removed"])
@pytest.mark.parametrize("pattern", ["a", "*"])
def test_a_reader_that_lost_messages_is_told_where_to_go_on(
    scribe: Scribe, sweep: bool, pattern: str
) -> None:
    scribe.publish("a", 5)
    trim(scribe, "a", 3, sweep=sweep)

    with pytest.raises(LogTrimmed) as caught:
        read(scribe, pattern, after=1)
    epoch = scribe.store.log().epoch
    assert caught.value.first == Position(epoch, 4)
    assert read(scribe, pattern, after=caught.value.resume.offset, floor=3) == [4, 5]


@pytest.mark.parametrize("sweep", [False, True], ids=["hidden", "removed"])
def test_a_reader_that_had_them_has_lost_nothing(scribe: Scribe, sweep: bool) -> None:
    scribe.publish("a", 5)
    trim(scribe, "a", 3, sweep=sweep)

    assert read(scribe, "a", after=3) == [4, 5]


def test_a_reader_of_other_topics_has_lost_nothing(scribe: Scribe) -> None:
    for name in ("a", "b", "a", "b"):
        scribe.publish(name)
    trim(scribe, "a", 4, sweep=True)

    assert read(scribe, "b") == [2, 4]


def test_trims_below_the_floor_are_known_to_the_reader(scribe: Scribe) -> None:
    scribe.publish("a", 5)
    trim(scribe, "a", 3, sweep=True)

    assert read(scribe, "a", floor=3) == [4, 5]
    with pytest.raises(LogTrimmed):
        read(scribe, "a", floor=2)


def test_a_reader_of_several_topics_is_told_of_each_that_was_trimmed(scribe: Scribe) -> None:
    """T7: that it knows of one topic's trim says nothing of another's, wherever that ends."""
    for name in ("a", "b", "a", "b", "a"):
        scribe.publish(name)
    trim(scribe, "b", 4, sweep=True)

    with pytest.raises(LogTrimmed) as caught:
        read(scribe, "*")
    assert caught.value.trims == {"b": 4}
    assert caught.value.resume.offset == 0
    assert read(scribe, "*", told=caught.value.trims) == [1, 3, 5]

    trim(scribe, "a", 1, sweep=True)
    with pytest.raises(LogTrimmed) as again:
        read(scribe, "*", told=caught.value.trims)
    assert again.value.trims == {"a": 1}
    assert scribe.store.topics.trims(Pattern("*"), after=0) == {"a": 1, "b": 4}
    assert scribe.store.topics.trims(Pattern("*"), after=1) == {"b": 4}
    assert read(scribe, "*", told={"a": 1, "b": 4}) == [3, 5]


def test_a_trim_between_two_messages_is_no_loss_to_one_that_has_the_first(scribe: Scribe) -> None:
    for name in ("a", "b", "b", "a"):
        scribe.publish(name)
    trim(scribe, "a", 3, sweep=True)

    assert read(scribe, "a", after=1) == [4]
    assert scribe.store.topics.trimmed_through(Pattern("a")) == 1


def test_what_expired_by_itself_is_no_loss(scribe: Scribe, clock: FakeClock) -> None:
    scribe.publish("a", 3, ttl=5)
    clock.advance(5)
    now = clock.now()
    scribe.write(lambda tx: tx.topics.sweep("a", Retention(), now=now, limit=10))

    assert read(scribe, "a") == []
    assert scribe.store.topics.trimmed_through(Pattern("*")) == 0


def test_everything_lost_leaves_no_first_message(scribe: Scribe) -> None:
    scribe.publish("a", 3)
    remove(scribe, "a")

    with pytest.raises(LogTrimmed) as caught:
        read(scribe, "a", after=1)
    assert caught.value.first is None
    assert caught.value.resume.offset == 3


def test_the_highest_trim_of_a_pattern_is_known(scribe: Scribe) -> None:
    for name in ("a", "b", "a", "b"):
        scribe.publish(name)
    trim(scribe, "a", 3, sweep=False)
    trim(scribe, "b", 2, sweep=False)
    topics = scribe.store.topics

    assert topics.trimmed_through(Pattern("a")) == 3
    assert topics.trimmed_through(Pattern("b")) == 2
    assert topics.trimmed_through(Pattern("?")) == 3
    assert topics.trimmed_through(Pattern("none")) == 0
