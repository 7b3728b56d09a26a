"""The Topics API on a hub, through threads (T1, T4, T6, T7)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec
import pytest

import penstock
from penstock import Delivery, Position, Publication, Retention
from penstock.clock import as_datetime, seconds
from penstock.errors import (
    EpochChanged,
    IdempotencyConflict,
    InvalidInput,
    InvalidPayload,
    LogTrimmed,
    TopicExists,
    TopicNotFound,
)
from penstock.testing import FakeClock, memory_hub
from tests.factories import ids, payloads

OpenHub = Callable[..., penstock.Hub]


@pytest.fixture
def clocked(clock: FakeClock) -> Iterator[penstock.Hub]:
    with memory_hub(clock=clock) as hub:
        yield hub


# Publishing


def test_a_published_message_is_read_back_as_it_was(hub: penstock.Hub) -> None:
    receipt = hub.topics.publish(
        "orders", {"id": 1}, type="created", key="k", headers={"trace": "abc"}
    )
    (message,) = hub.topics.read("orders")

    assert (message.payload, message.type, message.key) == ({"id": 1}, "created", "k")
    assert message.headers == {"trace": "abc"}
    assert message.position == receipt.position
    assert (receipt.durable, receipt.duplicate, receipt.topic) == (True, False, "orders")


@pytest.mark.parametrize(
    ("payload", "format", "content_type"),
    [
        ({"a": [1, None, "ü"]}, None, "application/json"),
        ({"a": [1, None, "ü"]}, "msgpack", "application/msgpack"),
        (b"\x00\xff", None, "application/octet-stream"),
        (b"\x00\xff", "msgpack", "application/msgpack"),
        ("x" * 100_000, None, "application/json"),
        (None, None, "application/json"),
    ],
    ids=["json", "msgpack", "bytes", "bytes in msgpack", "compressed", "null"],
)
def test_payloads_of_all_formats_come_back(
    memory: penstock.Hub, payload: object, format: str | None, content_type: str
) -> None:
    memory.topics.publish("t", payload, format=format)
    (message,) = memory.topics.read("t")

    assert message.payload == payload
    assert message.content_type == content_type


def test_a_large_payload_is_stored_compressed(memory: penstock.Hub) -> None:
    memory.topics.publish("t", "x" * 100_000)

    assert memory.topics.get("t").bytes < 1_000
    assert len(memory.topics.read("t")[0].data) == 100_002


def test_a_payload_is_decoded_to_the_type_asked_for(memory: penstock.Hub) -> None:
    class Order(msgspec.Struct):
        id: int

    memory.topics.publish("t", Order(7))

    assert memory.topics.read("t")[0].decode(Order) == Order(7)


def test_an_expired_message_is_not_read(clocked: penstock.Hub, clock: FakeClock) -> None:
    clocked.topics.publish("t", "short", ttl=5)
    clocked.topics.publish("t", "long")
    clock.advance(5)

    assert payloads(clocked.topics.read("t")) == ["long"]


def test_the_same_idempotency_key_publishes_once(hub: penstock.Hub) -> None:
    first = hub.topics.publish("t", {"id": 1}, idempotency_key="k")
    second = hub.topics.publish("t", {"id": 1}, idempotency_key="k")

    assert (second.position, second.duplicate) == (first.position, True)
    assert len(hub.topics.read("t")) == 1


def test_a_different_payload_under_the_key_is_an_error(hub: penstock.Hub) -> None:
    hub.topics.publish("t", {"id": 1}, idempotency_key="k")

    with pytest.raises(IdempotencyConflict):
        hub.topics.publish("t", {"id": 2}, idempotency_key="k")


def test_many_messages_are_published_in_their_order(hub: penstock.Hub) -> None:
    receipts = hub.topics.publish_many("t", range(3_000), type="number")

    assert [receipt.id for receipt in receipts] == list(range(1, 3_001))
    messages = hub.topics.read("t", limit=5_000)
    assert payloads(messages) == list(range(3_000))
    assert {message.type for message in messages} == {"number"}


def test_a_publication_says_more_about_one_of_many(memory: penstock.Hub) -> None:
    receipts = memory.topics.publish_many(
        "t",
        [
            1,
            Publication(2, type="special", key="k", headers={"h": "v"}, idempotency_key="i"),
            Publication(2, type="special", key="k", headers={"h": "v"}, idempotency_key="i"),
            Publication(b"3", format="bytes"),
        ],
        type="plain",
    )

    messages = memory.topics.read("t")
    assert [(m.payload, m.type, m.key) for m in messages] == [
        (1, "plain", None),
        (2, "special", "k"),
        (b"3", "plain", None),
    ]
    assert [receipt.id for receipt in receipts] == [1, 2, 2, 3]
    assert [receipt.duplicate for receipt in receipts] == [False, False, True, False]


def test_a_list_with_one_bad_item_publishes_nothing(hub: penstock.Hub) -> None:
    with pytest.raises(InvalidPayload):
        hub.topics.publish_many("t", [*range(2_500), object()])

    assert hub.topics.position().offset == 0


def test_a_generator_is_published_as_it_is_read(open_hub: OpenHub) -> None:
    hub = open_hub(commit_group_max=10)

    def produce() -> Iterator[int]:
        yield from range(100)
        raise OSError("the source ended")

    with pytest.raises(OSError, match="the source ended"):
        hub.topics.publish_many("t", produce())
    hub.topics.publish("t", "later")
    written = payloads(hub.topics.read("t"))
    assert written[:50] == list(range(50))
    assert written[-1] == "later"


def test_publishing_nothing_writes_nothing(memory: penstock.Hub) -> None:
    assert memory.topics.publish_many("t", []) == []
    assert memory.topics.position().offset == 0


def test_threads_of_one_hub_share_one_order(hub: penstock.Hub) -> None:
    receipts: list[penstock.Receipt] = []

    def work(name: int) -> None:
        receipts.extend(hub.topics.publish(f"t{name}", n) for n in range(25))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(receipt.id for receipt in receipts) == list(range(1, 201))
    for name in range(8):
        assert payloads(hub.topics.read(f"t{name}")) == list(range(25))


def test_two_hubs_on_one_file_share_one_log(open_hub: OpenHub) -> None:
    first, second = open_hub(), open_hub()
    first.topics.publish("t", 1)
    second.topics.publish("t", 2)
    first.topics.publish("t", 3)

    assert payloads(first.topics.read("t")) == payloads(second.topics.read("t")) == [1, 2, 3]


def test_a_hub_opened_again_has_everything(open_hub: OpenHub) -> None:
    with open_hub() as hub:
        position = hub.topics.publish("t", 1).position
    again = open_hub()

    assert again.topics.read("t")[0].position == position


# Reading


def test_reading_starts_after_a_position(memory: penstock.Hub) -> None:
    receipts = memory.topics.publish_many("t", range(5))

    assert payloads(memory.topics.read("t", after=receipts[2].position)) == [3, 4]


def test_reading_gives_the_last_messages(memory: penstock.Hub) -> None:
    memory.topics.publish_many("t", range(5))

    assert payloads(memory.topics.read("t", last=2)) == [3, 4]
    assert payloads(memory.topics.read("t", last=99)) == [0, 1, 2, 3, 4]


def test_reading_starts_at_a_time(clocked: penstock.Hub, clock: FakeClock) -> None:
    times = []
    for number in range(4):
        times.append(clock.now())
        clocked.topics.publish("t", number)
        clock.advance(60)

    assert payloads(clocked.topics.read("t", since=as_datetime(times[2]))) == [2, 3]
    assert payloads(clocked.topics.read("t", since=seconds(times[1]))) == [1, 2, 3]
    assert payloads(clocked.topics.read("t", since=datetime(2000, 1, 1, tzinfo=UTC))) == [
        0,
        1,
        2,
        3,
    ]


def test_reading_is_limited(memory: penstock.Hub) -> None:
    memory.topics.publish_many("t", range(1_500))

    assert len(memory.topics.read("t")) == 1_000
    assert payloads(memory.topics.read("t", limit=3)) == [0, 1, 2]
    assert payloads(memory.topics.read("t", last=10, limit=3)) == [1497, 1498, 1499]


def test_reading_a_glob_goes_over_its_topics(memory: penstock.Hub) -> None:
    for name in ("canvas-a", "other", "canvas-b", "canvas-a"):
        memory.topics.publish(name, name)

    assert payloads(memory.topics.read("canvas-*")) == ["canvas-a", "canvas-b", "canvas-a"]


def test_a_topic_nobody_published_to_is_empty(memory: penstock.Hub) -> None:
    assert memory.topics.read("none") == []


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0},
        {"limit": -1},
        {"limit": True},
        {"limit": 1.5},
        {"last": 0},
        {"last": "3"},
        {"since": datetime(2026, 1, 1)},  # noqa: DTZ001 - that it has no time zone is the point
        {"since": -1},
        {"since": "yesterday"},
        {"last": 3, "since": 0.0},
    ],
    ids=str,
)
def test_a_read_that_makes_no_sense_is_refused(memory: penstock.Hub, options: dict) -> None:
    with pytest.raises(InvalidInput):
        memory.topics.read("t", **options)


def test_a_position_of_another_generation_is_refused(memory: penstock.Hub) -> None:
    position = memory.topics.publish("t", 1).position
    memory.new_generation()

    with pytest.raises(EpochChanged):
        memory.topics.read("t", after=position)


def test_a_position_ahead_of_the_log_is_refused(memory: penstock.Hub) -> None:
    position = memory.topics.publish("t", 1).position
    assert position is not None

    with pytest.raises(EpochChanged):
        memory.topics.read("t", after=Position(position.epoch, 99))


# What topics there are


def test_topics_are_created_configured_listed_and_deleted(memory: penstock.Hub) -> None:
    made = memory.topics.create("b", Retention(messages_max=5))
    memory.topics.publish("a", 1)

    assert made.retention.messages_max == 5
    assert [topic.name for topic in memory.topics.list()] == ["a", "b"]
    assert [topic.name for topic in memory.topics.list("b*")] == ["b"]
    assert memory.topics.configure("b", Retention(age_seconds=1)).retention.age_seconds == 1
    assert memory.topics.get("b").retention == Retention(age_seconds=1)
    assert memory.topics.delete("a") == 1
    assert [topic.name for topic in memory.topics.list()] == ["b"]


def test_how_a_topic_is_sent_is_set_and_changed_beside_its_retention(
    memory: penstock.Hub,
) -> None:
    """D1, D5"""
    keep, send = Retention(messages_max=5), Delivery(batch_max=2, slow_policy="drop_oldest")
    made = memory.topics.create("a", keep, delivery=send)
    other = memory.topics.configure("a", delivery=Delivery(batch_ms=1))
    last = memory.topics.configure("a", Retention(), delivery=send)

    assert (made.retention, made.delivery) == (keep, send)
    assert (other.retention, other.delivery) == (keep, Delivery(batch_ms=1))
    assert (last.retention, last.delivery) == (Retention(), send)


def test_configure_needs_something_to_change(memory: penstock.Hub) -> None:
    memory.topics.create("a")

    with pytest.raises(InvalidInput):
        memory.topics.configure("a")


def test_a_topic_is_created_once(memory: penstock.Hub) -> None:
    memory.topics.create("a")

    with pytest.raises(TopicExists):
        memory.topics.create("a")


@pytest.mark.parametrize(
    "use",
    [
        lambda topics: topics.get("none"),
        lambda topics: topics.configure("none", Retention()),
        lambda topics: topics.delete("none"),
        lambda topics: topics.trim("none", keep=1),
        lambda topics: topics.stats("none"),
    ],
    ids=["get", "configure", "delete", "trim", "stats"],
)
def test_a_topic_that_does_not_exist_is_not_found(memory: penstock.Hub, use: Callable) -> None:
    with pytest.raises(TopicNotFound) as caught:
        use(memory.topics)
    assert caught.value.hint


def test_trimming_by_position_count_and_age(clocked: penstock.Hub, clock: FakeClock) -> None:
    receipts = []
    for number in range(6):
        receipts.append(clocked.topics.publish("t", number))
        clock.advance(10)

    assert clocked.topics.trim("t", through=receipts[0].position) == 1
    assert payloads(clocked.topics.read("t")) == [1, 2, 3, 4, 5]
    assert clocked.topics.trim("t", keep=4) == 1
    assert payloads(clocked.topics.read("t")) == [2, 3, 4, 5]
    assert clocked.topics.trim("t", older_than_seconds=20) == 2
    assert payloads(clocked.topics.read("t")) == [4, 5]
    assert clocked.topics.trim("t", keep=0) == 2
    assert clocked.topics.read("t") == []


def test_trimming_tells_its_progress_in_small_steps(memory_small: penstock.Hub) -> None:
    memory_small.topics.publish_many("t", range(25))
    seen: list[int] = []

    assert memory_small.topics.trim("t", keep=0, progress=seen.append) == 25
    assert seen == [10, 20, 25]


@pytest.fixture
def memory_small() -> Iterator[penstock.Hub]:
    with memory_hub(sweep_batch_max=10) as hub:
        yield hub


@pytest.mark.parametrize(
    "options",
    [{}, {"keep": 1, "older_than_seconds": 1}, {"keep": -1}, {"older_than_seconds": -1}],
    ids=str,
)
def test_a_trim_that_makes_no_sense_is_refused(memory: penstock.Hub, options: dict) -> None:
    memory.topics.publish("t", 1)

    with pytest.raises(InvalidInput):
        memory.topics.trim("t", **options)
    assert len(memory.topics.read("t")) == 1


def test_stats_tell_size_age_and_rate(clocked: penstock.Hub, clock: FakeClock) -> None:
    receipts = clocked.topics.publish_many("t", [b"12345"] * 60)
    clock.advance(30)
    clocked.topics.trim("t", keep=40)
    stats = clocked.topics.stats("t")

    assert (stats.messages, stats.bytes, stats.published) == (40, 200, 60)
    assert (stats.first, stats.last) == (receipts[20].position, receipts[-1].position)
    assert stats.oldest_age_seconds == 30
    assert stats.messages_per_second == pytest.approx(40 / 60)
    assert stats.consumers == 0


def test_stats_of_an_empty_topic(memory: penstock.Hub) -> None:
    memory.topics.create("t")
    stats = memory.topics.stats("t")

    assert (stats.messages, stats.first, stats.last, stats.oldest_age_seconds) == (
        0,
        None,
        None,
        None,
    )


def test_a_reader_after_trimmed_messages_learns_where_to_go_on(memory: penstock.Hub) -> None:
    receipts = memory.topics.publish_many("t", range(10))
    memory.topics.trim("t", keep=4)

    with pytest.raises(LogTrimmed) as caught:
        memory.topics.read("t", after=receipts[2].position)
    assert caught.value.first == receipts[6].position
    assert payloads(memory.topics.read("t", after=caught.value.resume)) == [6, 7, 8, 9]


def test_a_glob_is_read_on_over_what_is_gone_of_one_topic(memory: penstock.Hub) -> None:
    """T7: `resume` lies before the end of a trim if another topic still has older messages."""
    first = memory.topics.publish("a", 1)
    memory.topics.publish("b", 2)
    memory.topics.publish("a", 3)
    memory.topics.trim("a", keep=0)
    memory.topics.publish("a", 4)

    with pytest.raises(LogTrimmed) as caught:
        memory.topics.read("*", after=first.position)
    assert caught.value.trims == {"a": 3}
    assert caught.value.resume == first.position
    found = memory.topics.read("*", after=caught.value.resume, on_trimmed="skip")
    assert payloads(found) == [2, 4]


def test_a_live_glob_is_told_of_each_topic_that_is_trimmed(memory: penstock.Hub) -> None:
    """T7: once each, also of a trim that lies before one it knows of; then it goes on."""
    for topic in ("a", "b", "a", "b"):
        memory.topics.publish(topic, topic)
    start = Position(memory.topics.position().epoch, 0)
    with memory.topics.subscribe("*", after=start) as live:
        memory.topics.trim("b", keep=0)
        with pytest.raises(LogTrimmed) as caught:
            live.take(timeout=60)
        assert caught.value.trims == {"b": 4}
        memory.topics.trim("a", keep=1)
        with pytest.raises(LogTrimmed) as caught:
            live.take(timeout=60)
        assert caught.value.trims == {"a": 1}
        assert payloads(live.take(timeout=60)) == ["a"]


def test_a_deleted_topic_starts_again_with_higher_ids(memory: penstock.Hub) -> None:
    memory.topics.publish_many("t", range(3))
    memory.topics.delete("t")
    memory.topics.publish("t", "new")

    assert ids(memory.topics.read("t")) == [4]


# Retention in the background


def test_the_sweeper_removes_what_is_past_its_time(clocked: penstock.Hub, clock: FakeClock) -> None:
    clocked.topics.publish("t", "old")
    clocked.topics.create("keep", Retention(age_seconds=10 * 86_400))
    clocked.topics.publish("keep", "kept")
    clock.advance(86_400)
    clocked.topics.publish("t", "new")

    assert clocked._open().sweeper.sweep() == 1
    assert payloads(clocked.topics.read("*")) == ["kept", "new"]


def test_one_process_at_a_time_sweeps(open_hub: OpenHub, clock: FakeClock) -> None:
    first, second = open_hub(clock=clock), open_hub(clock=clock)
    first.topics.publish("t", "old")
    clock.advance(86_400)

    first._open().sweeper.run_once()
    assert first.topics.read("t") == []
    first.topics.publish("t", "old")
    clock.advance(86_400)
    first._open().sweeper.run_once()
    second._open().sweeper.run_once()
    assert first.telemetry.counters()["swept"] == 2
    assert "swept" not in second.telemetry.counters()


def test_another_process_sweeps_when_the_first_has_ended(
    open_hub: OpenHub, clock: FakeClock
) -> None:
    first, second = open_hub(clock=clock), open_hub(clock=clock)
    first.topics.publish("t", "old")
    first._open().sweeper.run_once()
    first.close()
    clock.advance(86_400)
    second._open().sweeper.run_once()

    assert second.topics.read("t") == []


def test_a_broken_hold_is_told(clock: FakeClock) -> None:
    with memory_hub(clock=clock, hold_seconds_max=100, retention_seconds=10) as hub:
        hub.topics.create("t", Retention(hold_for=("gone",)))
        hub.topics.publish("t", 1)
        events: list[str] = []
        hub.telemetry.attach(lambda name, _: events.append(name))
        clock.advance(99)
        assert hub._open().sweeper.sweep() == 0
        clock.advance(1)

        assert hub._open().sweeper.sweep() == 1
        assert "hold_broken" in events
