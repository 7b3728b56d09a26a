"""Removal: by prefix, as asked, within holds, and recorded exactly (T7)."""

from __future__ import annotations

import pytest

from penstock.clock import micros
from penstock.errors import LogTrimmed, TopicExists, TopicNotFound
from penstock.model import Delivery, Pattern, Retention, Swept
from penstock.testing import FakeClock
from tests.conformance.places import Scribe
from tests.factories import new_message

KEEP_ALL = Retention()


def sweep(scribe: Scribe, retention: Retention, topic: str = "a", limit: int = 1000) -> Swept:
    now = scribe.clock.now()
    return scribe.write(lambda tx: tx.topics.sweep(topic, retention, now=now, limit=limit))


def consumer(scribe: Scribe, name: str, position: int, subscription: str = "a") -> None:
    now = scribe.clock.now()
    scribe.write(
        lambda tx: tx.consumers.ensure(name, subscription, position=position, floor=0, now=now)
    )


def deleted_through(scribe: Scribe, topic: str = "a") -> int:
    found = scribe.store.topics.get(topic)
    assert found is not None
    return found.deleted_through


def due(scribe: Scribe, default: Retention = KEEP_ALL) -> list[str]:
    return sorted(scribe.store.topics.needs_sweep(default, now=scribe.clock.now()))


def test_nothing_is_removed_without_a_reason(scribe: Scribe) -> None:
    scribe.publish("a", 5)

    assert sweep(scribe, KEEP_ALL) == Swept(0, 0)
    assert scribe.ids() == [1, 2, 3, 4, 5]


def test_messages_of_an_age_are_removed(scribe: Scribe, clock: FakeClock) -> None:
    scribe.publish("a", 2)
    clock.advance(5)
    scribe.publish("a", 2)
    clock.advance(5)

    assert sweep(scribe, Retention(age_seconds=10)).removed == 2
    assert scribe.ids() == [3, 4]
    assert deleted_through(scribe) == 2


def test_a_number_of_messages_is_kept(scribe: Scribe) -> None:
    scribe.publish("a", 5)

    assert sweep(scribe, Retention(messages_max=2)).removed == 3
    assert scribe.ids() == [4, 5]


def test_a_number_of_bytes_is_kept(scribe: Scribe) -> None:
    scribe.append(*(new_message("a", b"0123456789") for _ in range(5)))

    assert sweep(scribe, Retention(bytes_max=29)).removed == 3
    topic = scribe.store.topics.get("a")
    assert topic is not None
    assert (topic.messages, topic.bytes) == (2, 20)


def test_any_limit_that_is_reached_removes(scribe: Scribe, clock: FakeClock) -> None:
    scribe.publish("a", 2)
    clock.advance(10)
    scribe.publish("a", 4)

    assert sweep(scribe, Retention(age_seconds=10, messages_max=3)).removed == 3


def test_only_so_many_are_removed_at_once(scribe: Scribe) -> None:
    scribe.publish("a", 5)
    keep_one = Retention(messages_max=1)

    assert [sweep(scribe, keep_one, limit=3).removed for _ in range(3)] == [3, 1, 0]


def test_only_the_topics_own_messages_are_removed(scribe: Scribe) -> None:
    for name in ("a", "b", "a", "b"):
        scribe.publish(name)
    sweep(scribe, Retention(messages_max=1))

    assert scribe.ids() == [2, 3, 4]


def test_expired_messages_are_removed_and_no_loss(scribe: Scribe, clock: FakeClock) -> None:
    scribe.publish("a", 2, ttl=5)
    scribe.publish("a")
    clock.advance(5)

    assert sweep(scribe, KEEP_ALL).removed == 2
    assert deleted_through(scribe) == 0


def test_an_expired_message_waits_for_those_before_it(scribe: Scribe, clock: FakeClock) -> None:
    scribe.publish("a")
    scribe.publish("a", ttl=5)
    clock.advance(5)

    assert sweep(scribe, KEEP_ALL).removed == 0
    assert sweep(scribe, Retention(messages_max=1)).removed == 2
    assert deleted_through(scribe) == 1


def test_loss_is_recorded_up_to_the_last_message_that_was_not_expired(
    scribe: Scribe, clock: FakeClock
) -> None:
    scribe.publish("a", ttl=5)
    scribe.publish("a")
    scribe.publish("a", ttl=5)
    clock.advance(5)
    sweep(scribe, Retention(age_seconds=5))

    assert deleted_through(scribe) == 2
    with pytest.raises(LogTrimmed):
        scribe.read("a", after=1, floor=0)
    assert scribe.read("a", after=2, floor=0) == []


def test_loss_is_recorded_with_the_removal_or_not_at_all(scribe: Scribe) -> None:
    scribe.publish("a", 3)

    class Undone(Exception):
        pass

    def undone(tx: object) -> None:
        tx.topics.sweep("a", Retention(messages_max=1), now=scribe.clock.now(), limit=10)
        raise Undone

    with pytest.raises(Undone):
        scribe.write(undone)

    assert deleted_through(scribe) == 0
    assert scribe.ids() == [1, 2, 3]


def test_a_sweep_sees_what_its_own_transaction_appended(scribe: Scribe) -> None:
    def work(tx: object) -> Swept:
        now = scribe.clock.now()
        tx.topics.append([new_message("a")] * 3, producer="p", now=now)
        swept = tx.topics.sweep("a", Retention(messages_max=1), now=now, limit=10)
        tx.topics.append([new_message("a")], producer="p", now=now)
        return swept

    assert scribe.write(work).removed == 2
    topic = scribe.store.topics.get("a")
    assert topic is not None
    assert (topic.messages, topic.published, topic.last_id) == (2, 4, 4)


def test_a_topic_that_does_not_exist_has_nothing_to_remove(scribe: Scribe) -> None:
    assert sweep(scribe, Retention(messages_max=1), topic="none") == Swept(0, 0)


# Holds


def test_a_message_is_held_until_the_consumer_has_it(scribe: Scribe) -> None:
    scribe.publish("a", 5)
    consumer(scribe, "slow", 2)
    held = Retention(messages_max=1, hold_for=("slow",))

    assert sweep(scribe, held) == Swept(2, 0)
    assert scribe.ids() == [3, 4, 5]


def test_the_slowest_of_several_holds_decides(scribe: Scribe) -> None:
    scribe.publish("a", 5)
    consumer(scribe, "slow", 1)
    consumer(scribe, "fast", 4)

    assert sweep(scribe, Retention(messages_max=1, hold_for=("slow", "fast"))).removed == 1


def test_a_consumer_without_a_hold_holds_nothing(scribe: Scribe) -> None:
    scribe.publish("a", 5)
    consumer(scribe, "slow", 1)
    consumer(scribe, "fast", 4)

    assert sweep(scribe, Retention(messages_max=1, hold_for=("fast",))).removed == 4


def test_a_consumer_that_does_not_exist_yet_holds_everything(scribe: Scribe) -> None:
    scribe.publish("a", 5)

    assert sweep(scribe, Retention(messages_max=1, hold_for=("later",))).removed == 0


def test_a_consumer_on_a_glob_holds_its_topics(scribe: Scribe) -> None:
    scribe.publish("a.1", 3)
    scribe.publish("b", 3)
    consumer(scribe, "slow", 1, "a.*")
    held = Retention(messages_max=1, hold_for=("slow",))

    assert sweep(scribe, held, "a.1").removed == 1


def test_a_consumers_watermark_on_other_topics_does_not_count(scribe: Scribe) -> None:
    scribe.publish("a", 3)
    consumer(scribe, "slow", 3, "b")

    assert sweep(scribe, Retention(messages_max=1, hold_for=("slow",))).removed == 0


def test_expired_messages_are_not_held(scribe: Scribe, clock: FakeClock) -> None:
    scribe.publish("a", 2, ttl=5)
    consumer(scribe, "slow", 0)
    clock.advance(5)

    assert sweep(scribe, Retention(hold_for=("slow",))) == Swept(2, 0)


def test_a_hold_is_broken_after_its_time(scribe: Scribe, clock: FakeClock) -> None:
    scribe.publish("a", 2)
    clock.advance(50)
    scribe.publish("a", 2)
    clock.advance(50)
    consumer(scribe, "gone", 1)
    held = Retention(age_seconds=10, hold_for=("gone",), hold_seconds_max=100)

    assert sweep(scribe, held) == Swept(2, 1)
    assert scribe.ids() == [3, 4]


def test_a_hold_is_broken_above_its_size(scribe: Scribe) -> None:
    scribe.append(*(new_message("a", b"0123456789") for _ in range(5)))
    consumer(scribe, "gone", 0)
    held = Retention(messages_max=1, hold_for=("gone",), hold_bytes_max=30)

    assert sweep(scribe, held) == Swept(2, 2)


def test_a_hold_keeps_nothing_that_retention_does_not_want_to_remove(scribe: Scribe) -> None:
    scribe.publish("a", 3)
    consumer(scribe, "gone", 0)

    assert sweep(scribe, Retention(hold_for=("gone",), hold_bytes_max=1)) == Swept(0, 0)


# What is due


def test_a_topic_is_due_for_what_its_own_retention_asks(scribe: Scribe, clock: FakeClock) -> None:
    now = clock.now()
    scribe.write(lambda tx: tx.topics.create("few", Retention(messages_max=1), now=now))
    scribe.write(lambda tx: tx.topics.create("small", Retention(bytes_max=1), now=now))
    scribe.write(lambda tx: tx.topics.create("short", Retention(age_seconds=5), now=now))
    scribe.publish("few", 2)
    scribe.publish("small", 2)
    scribe.publish("short")
    scribe.publish("default")

    assert due(scribe) == ["few", "small"]
    clock.advance(5)
    assert due(scribe) == ["few", "short", "small"]
    assert due(scribe, Retention(age_seconds=5)) == ["default", "few", "short", "small"]


def test_a_topic_is_due_when_its_oldest_message_has_expired(
    scribe: Scribe, clock: FakeClock
) -> None:
    scribe.publish("a", ttl=5)
    assert due(scribe) == []
    clock.advance(5)

    assert due(scribe) == ["a"]


def test_a_trimmed_and_a_deleted_topic_are_due_until_swept(scribe: Scribe) -> None:
    scribe.publish("a", 2)
    scribe.publish("b", 2)
    scribe.write(lambda tx: tx.topics.trim("a", 1))
    scribe.write(lambda tx: tx.topics.delete("b", now=scribe.clock.now()))
    assert due(scribe) == ["a", "b"]
    sweep(scribe, KEEP_ALL, "a")
    sweep(scribe, KEEP_ALL, "b")

    assert due(scribe) == []


# Trims, deletion, new beginnings


def test_a_trim_hides_at_once_and_a_sweep_removes(scribe: Scribe) -> None:
    scribe.publish("a", 5)
    scribe.write(lambda tx: tx.topics.trim("a", 3))

    assert scribe.ids() == [4, 5]
    assert sweep(scribe, KEEP_ALL).removed == 3
    topic = scribe.store.topics.get("a")
    assert topic is not None
    assert (topic.messages, topic.published, topic.deleted_through) == (2, 5, 3)


def test_a_trim_goes_past_holds(scribe: Scribe) -> None:
    scribe.publish("a", 5)
    consumer(scribe, "slow", 0)
    scribe.write(lambda tx: tx.topics.trim("a", 3))

    assert sweep(scribe, Retention(hold_for=("slow",))).removed == 3


def test_a_trim_never_goes_back(scribe: Scribe) -> None:
    scribe.publish("a", 5)
    scribe.write(lambda tx: tx.topics.trim("a", 3))
    scribe.write(lambda tx: tx.topics.trim("a", 1))

    assert scribe.ids() == [4, 5]


def test_a_trim_beyond_the_end_hides_what_there_is(scribe: Scribe) -> None:
    scribe.publish("a", 2)
    scribe.write(lambda tx: tx.topics.trim("a", 100))

    assert deleted_through(scribe) == 2
    assert scribe.publish("a") == [3]
    assert scribe.ids() == [3]


def test_a_trim_of_a_topic_whose_messages_have_gone_is_no_loss(
    scribe: Scribe, clock: FakeClock
) -> None:
    scribe.publish("a", 2, ttl=5)
    clock.advance(5)
    sweep(scribe, KEEP_ALL)
    scribe.write(lambda tx: tx.topics.trim("a", 2))

    assert deleted_through(scribe) == 0


def test_a_trim_of_no_topic_is_refused(scribe: Scribe) -> None:
    with pytest.raises(TopicNotFound):
        scribe.write(lambda tx: tx.topics.trim("none", 1))


def test_a_deleted_topic_is_gone_at_once(scribe: Scribe) -> None:
    scribe.publish("a", 3)
    scribe.publish("b")
    scribe.write(lambda tx: tx.topics.delete("a", now=scribe.clock.now()))

    assert scribe.store.topics.get("a") is None
    assert [topic.name for topic in scribe.store.topics.find()] == ["b"]
    assert scribe.ids() == [4]


def test_what_is_deleted_is_removed_past_holds(scribe: Scribe) -> None:
    scribe.publish("a", 3)
    scribe.write(lambda tx: tx.topics.delete("a", now=scribe.clock.now()))

    assert sweep(scribe, Retention(hold_for=("slow",))) == Swept(3, 0)


def test_a_topic_is_deleted_once(scribe: Scribe) -> None:
    scribe.publish("a")
    scribe.write(lambda tx: tx.topics.delete("a", now=scribe.clock.now()))

    with pytest.raises(TopicNotFound):
        scribe.write(lambda tx: tx.topics.delete("a", now=scribe.clock.now()))


def test_deleting_an_empty_topic_is_no_loss(scribe: Scribe, clock: FakeClock) -> None:
    scribe.publish("a", 2, ttl=5)
    clock.advance(5)
    sweep(scribe, KEEP_ALL)
    scribe.write(lambda tx: tx.topics.delete("a", now=clock.now()))

    assert scribe.store.topics.trimmed_through(Pattern("a")) == 0


@pytest.mark.parametrize("swept", [False, True])
def test_publishing_under_a_deleted_name_starts_it_again(
    scribe: Scribe, clock: FakeClock, swept: bool
) -> None:
    scribe.write(lambda tx: tx.topics.create("a", Retention(messages_max=9), now=clock.now()))
    scribe.publish("a", 3)
    scribe.write(lambda tx: tx.topics.delete("a", now=clock.now()))
    if swept:
        sweep(scribe, KEEP_ALL)
    clock.advance(60)

    assert scribe.publish("a", 2) == [4, 5]
    assert scribe.ids() == [4, 5]
    topic = scribe.store.topics.get("a")
    assert topic is not None
    assert (topic.retention, topic.created_at) == (Retention(), clock.now())
    with pytest.raises(LogTrimmed):
        scribe.read("a", after=1, floor=0)
    assert [m.id for m in scribe.read("a", after=3, floor=0)] == [4, 5]


def test_a_topic_started_again_loses_only_its_old_messages_to_the_sweep(scribe: Scribe) -> None:
    scribe.publish("a", 3)
    scribe.write(lambda tx: tx.topics.delete("a", now=scribe.clock.now()))
    scribe.publish("a", 2)
    sweep(scribe, KEEP_ALL)

    assert scribe.ids() == [4, 5]
    topic = scribe.store.topics.get("a")
    assert topic is not None
    assert topic.messages == 2


def test_a_topic_deleted_and_appended_to_in_one_transaction_starts_again(scribe: Scribe) -> None:
    scribe.publish("a", 2)

    def work(tx: object) -> None:
        now = scribe.clock.now()
        tx.topics.append([new_message("a", b"old")], producer="p", now=now)
        tx.topics.delete("a", now=now)
        tx.topics.append([new_message("a", b"new")], producer="p", now=now)

    scribe.write(work)

    assert [(m.id, m.payload) for m in scribe.read("a")] == [(4, b"new")]


def test_create_makes_a_topic_with_its_retention(scribe: Scribe) -> None:
    keep, now = Retention(age_seconds=60, hold_for=("x",)), scribe.clock.now()
    made = scribe.write(lambda tx: tx.topics.create("a", keep, now=now))

    assert made == scribe.store.topics.get("a")
    assert (made.retention, made.messages, made.created_at) == (keep, 0, now)


def test_create_refuses_a_topic_that_exists(scribe: Scribe) -> None:
    scribe.publish("a")

    with pytest.raises(TopicExists):
        scribe.write(lambda tx: tx.topics.create("a", KEEP_ALL, now=scribe.clock.now()))


def test_create_takes_a_deleted_name(scribe: Scribe) -> None:
    scribe.publish("a", 2)
    now = scribe.clock.now()
    scribe.write(lambda tx: tx.topics.delete("a", now=now))
    scribe.write(lambda tx: tx.topics.create("a", Retention(messages_max=5), now=now))

    assert scribe.ids() == []
    topic = scribe.store.topics.get("a")
    assert topic is not None
    assert topic.retention.messages_max == 5


def test_configure_changes_the_retention(scribe: Scribe) -> None:
    scribe.publish("a", 2)
    keep = Retention(bytes_max=100)

    assert scribe.write(lambda tx: tx.topics.configure("a", keep)).retention == keep
    assert scribe.store.topics.get("a").retention == keep


def test_create_makes_a_topic_with_its_delivery(scribe: Scribe) -> None:
    """D1, D5"""
    send, now = Delivery(batch_max=5, batch_ms=0, slow_policy="disconnect"), scribe.clock.now()
    made = scribe.write(lambda tx: tx.topics.create("a", Retention(), delivery=send, now=now))
    scribe.publish("b")

    assert made.delivery == send
    assert [t.delivery for t in scribe.store.topics.find()] == [send, Delivery()]


def test_configure_leaves_what_is_not_given(scribe: Scribe) -> None:
    """D1, D5"""
    keep, send = Retention(bytes_max=100), Delivery(slow_policy="drop_oldest")
    scribe.publish("a")
    scribe.write(lambda tx: tx.topics.configure("a", keep))
    made = scribe.write(lambda tx: tx.topics.configure("a", None, send))
    assert (made.retention, made.delivery) == (keep, send)
    made = scribe.write(lambda tx: tx.topics.configure("a", Retention()))

    assert (made.retention, made.delivery) == (Retention(), send)


@pytest.mark.parametrize("again", ["publish", "create"])
def test_a_deleted_topic_begins_again_with_the_hubs_delivery(scribe: Scribe, again: str) -> None:
    """D1, D5"""
    send, now = Delivery(batch_max=5), scribe.clock.now()
    scribe.write(lambda tx: tx.topics.create("a", Retention(), delivery=send, now=now))
    scribe.write(lambda tx: tx.topics.delete("a", now=now))
    if again == "publish":
        scribe.publish("a")
    else:
        scribe.write(lambda tx: tx.topics.create("a", Retention(), now=now))

    assert scribe.store.topics.get("a").delivery == Delivery()


def test_configure_refuses_a_topic_that_does_not_exist(scribe: Scribe) -> None:
    with pytest.raises(TopicNotFound):
        scribe.write(lambda tx: tx.topics.configure("a", KEEP_ALL))


def test_a_clock_set_back_removes_nothing_early(scribe: Scribe, clock: FakeClock) -> None:
    scribe.publish("a", 2)
    clock.set_back(3600)

    assert sweep(scribe, Retention(age_seconds=micros(1))).removed == 0
