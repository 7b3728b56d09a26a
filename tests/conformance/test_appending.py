"""Appending: one order, no gaps, no id twice, time that does not fall (T1, T4)."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from penstock.errors import IdempotencyConflict
from penstock.model import Pattern, Position, Retention
from penstock.ports import Store
from penstock.testing import FakeClock
from tests.conformance.places import Place, Scribe
from tests.factories import new_message


class Undone(Exception):
    """What a test raises to have a transaction or savepoint rolled back."""


def test_ids_rise_by_one_over_all_topics(scribe: Scribe) -> None:
    assert scribe.publish("a", 2) + scribe.publish("b", 1) + scribe.publish("a", 2) == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_every_message_of_a_mixed_group_keeps_its_own_values_and_place(scribe: Scribe) -> None:
    alike = [new_message("a", b"%d" % number, type="t") for number in range(40)]
    group = [
        *alike,
        *(new_message("a", b"", type="t") for _ in range(10)),
        new_message("b", b"b"),
        new_message("a", b"keyed", type="t", key="k"),
        new_message("a", b"json", type="t", encoding=1),
        *(new_message("a", b"u", type="u") for _ in range(20)),
        new_message("a", b"mortal", type="u", ttl=60),
        *alike,
    ]

    receipts = scribe.append(*group)

    read = scribe.store.topics.read_tail(
        after=Position(scribe.store.log().epoch, 0), patterns=None, limit=1_000
    ).messages
    assert [(r.topic, r.id) for r in receipts] == [(m.topic, m.id) for m in read]
    assert [m.id for m in read] == list(range(1, len(group) + 1))
    assert [(m.topic, m.body, m.type, m.key, m.encoding) for m in read] == [
        (m.topic, m.body, m.type, m.key, m.encoding) for m in group
    ]
    assert [m.id for m in read if m.expires_at is not None] == [74]
    topic = scribe.store.topics.get("a")
    assert topic is not None
    assert topic.messages == len(group) - 1
    assert topic.bytes == sum(len(m.body) for m in group if m.topic == "a")
    assert topic.last_id == len(group)


def test_ids_are_dense_over_threads_that_write_at_once(place: Place, store: Store) -> None:
    receipts: list[int] = []

    def work(topic: str) -> None:
        scribe = Scribe(store, place.writer(store), place.clock)
        for _ in range(20):
            receipts.extend(scribe.publish(topic, 3))

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(receipts) == list(range(1, 241))
    assert store.log().last_id == 240


def test_ids_are_dense_over_stores_that_share_the_data(place: Place, scribe: Scribe) -> None:
    other_store = place.open()
    other = Scribe(other_store, place.writer(other_store), place.clock)

    assert [scribe.publish("a"), other.publish("a"), other.publish("b"), scribe.publish("b")] == [
        [1],
        [2],
        [3],
        [4],
    ]
    assert other.ids() == scribe.ids() == [1, 2, 3, 4]


def test_an_id_that_was_rolled_back_is_given_to_the_next_message(scribe: Scribe) -> None:
    scribe.publish("a")

    def undone(tx: object) -> None:
        tx.topics.append([new_message("a")], producer="test", now=scribe.clock.now())
        raise Undone

    with pytest.raises(Undone):
        scribe.write(undone)

    assert scribe.publish("a") == [2]
    assert scribe.ids() == [1, 2]


def test_ids_are_not_used_again_after_everything_was_trimmed(scribe: Scribe) -> None:
    scribe.publish("a", 3)
    scribe.write(lambda tx: tx.topics.delete("a", now=scribe.clock.now()))
    sweep_all(scribe, "a")

    assert scribe.publish("b") == [4]


def test_a_store_opened_again_goes_on_with_the_next_id(place: Place, scribe: Scribe) -> None:
    scribe.publish("a", 3)
    again = place.open()

    assert Scribe(again, place.writer(again), place.clock).publish("a") == [4]


def test_the_order_of_a_transaction_is_that_of_its_appends(scribe: Scribe) -> None:
    def both(tx: object) -> None:
        now = scribe.clock.now()
        tx.topics.append([new_message("b", b"1"), new_message("a", b"2")], producer="p", now=now)
        tx.topics.append([new_message("b", b"3")], producer="p", now=now)

    scribe.write(both)

    assert [(m.topic, m.payload) for m in scribe.read()] == [("b", b"1"), ("a", b"2"), ("b", b"3")]


def test_what_is_stored_comes_back_as_it_was(scribe: Scribe) -> None:
    (receipt,) = scribe.append(
        new_message("a", b"\x00body", ttl=60, key="k", type="t", idempotency_key="once")
    )
    (message,) = scribe.read()

    assert (message.topic, message.body, message.key, message.type) == ("a", b"\x00body", "k", "t")
    assert (message.message_id, message.producer) == ("once", "test")
    assert message.position == receipt.position
    assert message.created_at == receipt.created_at == scribe.clock.now()
    assert message.expires_at == message.created_at + 60_000_000


def test_an_uncommitted_message_is_visible_to_nobody(place: Place, store: Store) -> None:
    writer = place.writer(store)
    transaction = writer.begin()
    transaction.topics.append([new_message("a")], producer="p", now=place.clock.now())

    assert store.log().last_id == 0
    assert store.topics.find() == []
    writer.rollback()


def test_a_transaction_knows_what_it_has_appended(scribe: Scribe) -> None:
    def look(tx: object) -> None:
        assert tx.topics.appended() == []
        tx.topics.append([new_message("a", b"1")], producer="p", now=scribe.clock.now())
        tx.topics.append([new_message("b", b"2")], producer="p", now=scribe.clock.now())
        assert [(m.id, m.topic, m.payload) for m in tx.topics.appended()] == [
            (1, "a", b"1"),
            (2, "b", b"2"),
        ]
        assert tx.topics.appended_count == 2

    scribe.write(look)


def test_the_next_transaction_has_appended_nothing_yet(scribe: Scribe) -> None:
    scribe.publish("a")

    assert scribe.write(lambda tx: tx.topics.appended()) == []
    assert scribe.write(lambda tx: tx.topics.appended_count) == 0


# Time


def test_created_at_does_not_fall_when_the_clock_is_set_back_a_little(
    scribe: Scribe, clock: FakeClock
) -> None:
    first = scribe.append(new_message("a"))[0]
    clock.set_back(30)
    second = scribe.append(new_message("a"))[0]

    assert second.created_at == first.created_at


def test_created_at_follows_a_clock_set_back_by_more_than_a_minute(
    scribe: Scribe, clock: FakeClock
) -> None:
    scribe.append(new_message("a"))
    clock.set_back(61)

    assert scribe.append(new_message("a"))[0].created_at == clock.now()


def test_a_time_to_live_counts_from_created_at(scribe: Scribe, clock: FakeClock) -> None:
    first = scribe.append(new_message("a"))[0]
    clock.set_back(30)
    scribe.append(new_message("a", ttl=5))

    assert scribe.read()[1].expires_at == first.created_at + 5_000_000


# Savepoints


def test_a_savepoint_that_raises_undoes_its_appends_alone(scribe: Scribe) -> None:
    def work(tx: object) -> None:
        now = scribe.clock.now()
        tx.topics.append([new_message("a", b"before")], producer="p", now=now)
        with suppress(Undone), tx.savepoint():
            tx.topics.append([new_message("new", b"inside")], producer="p", now=now)
            raise Undone
        tx.topics.append([new_message("a", b"after")], producer="p", now=now)
        assert [m.payload for m in tx.topics.appended()] == [b"before", b"after"]

    scribe.write(work)

    assert [(m.id, m.payload) for m in scribe.read()] == [(1, b"before"), (2, b"after")]
    assert [(t.name, t.messages) for t in scribe.store.topics.find()] == [("a", 2)]


def test_a_savepoint_that_raises_first_leaves_the_ids_where_they_were(scribe: Scribe) -> None:
    scribe.publish("a", 5)

    def work(tx: object) -> None:
        now = scribe.clock.now()
        with suppress(Undone), tx.savepoint():
            tx.topics.append([new_message("a")], producer="p", now=now)
            raise Undone
        tx.topics.append([new_message("a")], producer="p", now=now)

    scribe.write(work)

    assert scribe.ids() == [1, 2, 3, 4, 5, 6]


def test_a_savepoint_that_ends_well_is_kept(scribe: Scribe) -> None:
    def work(tx: object) -> None:
        with tx.savepoint():
            tx.topics.append([new_message("a")], producer="p", now=scribe.clock.now())

    scribe.write(work)

    assert scribe.ids() == [1]


def test_a_savepoint_undoes_leases_and_consumers_too(scribe: Scribe) -> None:
    def work(tx: object) -> None:
        with suppress(Undone), tx.savepoint():
            tx.leases.acquire("l", owner="me", seconds=30)
            tx.consumers.ensure("c", "a", position=0, floor=0, now=scribe.clock.now())
            raise Undone

    scribe.write(work)

    assert scribe.store.leases.holder("l") is None
    assert scribe.store.consumers.find() == []


# Idempotency


def test_the_same_key_returns_the_first_receipt(scribe: Scribe, clock: FakeClock) -> None:
    first = scribe.append(new_message("a", b"1", idempotency_key="k"))[0]
    clock.advance(10)
    second = scribe.append(new_message("a", b"1", idempotency_key="k"))[0]

    assert not first.duplicate
    assert second.duplicate
    assert (second.position, second.created_at) == (first.position, first.created_at)
    assert scribe.ids() == [1]


def test_the_same_key_twice_in_one_append_is_one_message(scribe: Scribe) -> None:
    message = new_message("a", b"1", idempotency_key="k")
    first, second = scribe.append(message, message)

    assert (first.id, first.duplicate, second.id, second.duplicate) == (1, False, 1, True)
    assert scribe.ids() == [1]


@pytest.mark.parametrize(
    "other",
    [
        new_message("a", b"2", idempotency_key="k"),
        new_message("a", b"1", key="other", idempotency_key="k"),
        new_message("a", b"1", type="other", idempotency_key="k"),
        new_message("a", b"1", encoding=1, idempotency_key="k"),
    ],
    ids=["body", "key", "type", "format"],
)
def test_a_different_message_under_the_key_is_refused(scribe: Scribe, other: object) -> None:
    scribe.append(new_message("a", b"1", idempotency_key="k"))

    with pytest.raises(IdempotencyConflict):
        scribe.append(other)
    assert scribe.ids() == [1]


def test_a_key_belongs_to_its_topic(scribe: Scribe) -> None:
    scribe.append(new_message("a", b"1", idempotency_key="k"))

    assert not scribe.append(new_message("b", b"2", idempotency_key="k"))[0].duplicate


def test_a_key_is_forgotten_after_its_time(place: Place) -> None:
    store = place.open(idempotency_seconds=300)
    scribe = Scribe(store, place.writer(store), place.clock)
    scribe.append(new_message("a", b"1", idempotency_key="k"))
    place.clock.advance(299)
    assert scribe.append(new_message("a", b"1", idempotency_key="k"))[0].duplicate
    place.clock.advance(1)

    assert scribe.append(new_message("a", b"2", idempotency_key="k"))[0].id == 2


def test_a_rolled_back_key_is_free(scribe: Scribe) -> None:
    def undone(tx: object) -> None:
        message = new_message("a", b"1", idempotency_key="k")
        tx.topics.append([message], producer="p", now=scribe.clock.now())
        raise Undone

    with pytest.raises(Undone):
        scribe.write(undone)

    assert not scribe.append(new_message("a", b"2", idempotency_key="k"))[0].duplicate


def test_only_expired_keys_are_removed_and_only_so_many(place: Place) -> None:
    store = place.open(idempotency_seconds=10)
    scribe = Scribe(store, place.writer(store), place.clock)
    for number in range(5):
        scribe.append(new_message("a", idempotency_key=f"old-{number}"))
    place.clock.advance(10)
    scribe.append(new_message("a", idempotency_key="young"))

    def forget(limit: int) -> int:
        return scribe.write(lambda tx: tx.topics.forget_keys(now=place.clock.now(), limit=limit))

    assert [forget(3), forget(3), forget(3)] == [3, 2, 0]
    assert scribe.append(new_message("a", idempotency_key="young"))[0].duplicate


def test_messages_outlive_their_keys(scribe: Scribe, clock: FakeClock) -> None:
    scribe.append(new_message("a", idempotency_key="k"))
    clock.advance(301)
    scribe.write(lambda tx: tx.topics.forget_keys(now=clock.now(), limit=10))

    assert scribe.ids() == [1]


# Topics


def test_publishing_makes_the_topic_and_keeps_its_counters(scribe: Scribe) -> None:
    scribe.append(new_message("a", b"12"), new_message("b", b"3"), new_message("a", b"456"))
    topic = scribe.store.topics.get("a")

    assert topic is not None
    assert (topic.messages, topic.bytes, topic.published, topic.last_id) == (2, 5, 2, 3)
    assert (topic.created_at, topic.deleted_through) == (scribe.clock.now(), 0)


def test_counters_are_right_when_topics_are_touched_again_and_again(scribe: Scribe) -> None:
    def work(tx: object) -> None:
        now = scribe.clock.now()
        for _ in range(3):
            tx.topics.append([new_message("a"), new_message("b")], producer="p", now=now)
            tx.topics.trim("b", 0)

    scribe.write(work)

    counted = {t.name: (t.messages, t.last_id) for t in scribe.store.topics.find()}
    assert counted == {"a": (3, 5), "b": (3, 6)}


def sweep_all(scribe: Scribe, topic: str) -> int:
    now = scribe.clock.now()
    return scribe.write(lambda tx: tx.topics.sweep(topic, Retention(), now=now, limit=1000)).removed


def test_a_pattern_finds_topics_by_name(scribe: Scribe) -> None:
    for name in ("b", "a.2", "a.1", "penstock.x"):
        scribe.publish(name)

    assert [t.name for t in scribe.store.topics.find()] == ["a.1", "a.2", "b", "penstock.x"]
    assert [t.name for t in scribe.store.topics.find(Pattern("a.*"))] == ["a.1", "a.2"]
    assert [t.name for t in scribe.store.topics.find(Pattern("*"))] == ["a.1", "a.2", "b"]
