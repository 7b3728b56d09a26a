"""Messages on their way: encoded once, cut into frames, kept for those who come back (D2, D6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock import codec
from penstock.delivery.batch import Item, Recent, frame, split
from penstock.model import Message
from penstock.protocol import JSON_WIRE, MSGPACK_WIRE

steps = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), max_size=12),
        st.tuples(st.sampled_from(["forget", "restart"]), st.integers(0, 60)),
    ),
    max_size=12,
)


def item(id: int, size: int = 1) -> Item:
    return Item(Message(id, "orders", 0, b"1" * size, codec.JSON, "e"), with_topic=False)


@given(steps, st.integers(1, 6), st.integers(1, 100))
def test_recent_gives_what_a_list_of_everything_would(
    script: list[object], count_max: int, bytes_max: int
) -> None:
    recent = Recent(0, count_max, bytes_max)
    everything: list[Item] = []
    last = 0
    for step in script:
        if isinstance(step, tuple):
            what, at = step
            at = min(at, last)
            recent.forget(at) if what == "forget" else recent.restart(last)
            assert what != "forget" or recent.start >= at
        else:
            batch = []
            for gap, size in step:
                last += gap
                batch.append(item(last, size))
            everything += batch
            recent.extend(batch)
        assert recent.start <= last
        kept = recent.after(recent.start)
        assert len(kept) <= 2 * count_max
        assert recent.size == sum(len(one.message.body) for one in kept) <= 2 * bytes_max
        for position in range(recent.start, last + 1):
            assert recent.covers(position)
            assert recent.after(position) == [one for one in everything if one.id > position]
        assert not recent.covers(recent.start - 1)


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 10), st.integers(1, 100))
def test_a_frame_has_at_least_one_message_and_no_more_than_it_may(
    sizes: list[int], count_max: int, bytes_max: int
) -> None:
    items = [item(id + 1, size) for id, size in enumerate(sizes)]
    count = split(items, count_max, bytes_max)
    assert 1 <= count <= min(len(items), count_max)
    assert count == 1 or sum(sizes[:count]) <= bytes_max
    if count < min(len(items), count_max):
        assert sum(sizes[: count + 1]) > bytes_max


def test_a_message_is_encoded_once_for_each_format() -> None:
    one = item(1)
    for wire in (JSON_WIRE, MSGPACK_WIRE):
        assert one.encoded(wire) is one.encoded(wire)
    assert bytes(one.encoded(JSON_WIRE)) != bytes(one.encoded(MSGPACK_WIRE))


def test_a_frame_is_one_push_of_all() -> None:
    for wire in (JSON_WIRE, MSGPACK_WIRE):
        assert wire.decode_any(frame("orders", [item(1), item(2)], wire)) == {
            "push": "messages",
            "topic": "orders",
            "messages": [{"id": 1, "at": 0, "payload": 1}, {"id": 2, "at": 0, "payload": 1}],
        }


def test_a_message_expires_when_its_time_has_come() -> None:
    mortal = Item(Message(1, "t", 0, b"1", codec.JSON, "e", expires_at=10), with_topic=False)
    assert [mortal.has_expired(now) for now in (9, 10)] == [False, True]
    assert not item(1).has_expired(1 << 60)
