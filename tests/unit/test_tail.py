"""One tail per process, bounded readers, one order (T5, T6)."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

import penstock
from penstock.errors import EpochChanged, InvalidInput, LogTrimmed
from penstock.testing import FakeClock, memory_hub
from penstock.topics.subscription import Live
from tests.factories import ids, payloads
from tests.waiting import SOON, wait_until

OpenHub = Callable[..., penstock.Hub]


@pytest.fixture
def narrow() -> Iterator[penstock.Hub]:
    """Readers here have room for three messages."""
    with memory_hub(subscriber_buffer_max=3) as hub:
        yield hub


def drain(live: Live, count: int) -> list[object]:
    seen: list[object] = []
    while len(seen) < count:
        batch = live.take(timeout=SOON)
        assert batch, f"only {seen} came"
        seen += payloads(batch)
    return seen


def test_a_subscriber_gets_what_comes_from_now_on(memory: penstock.Hub) -> None:
    memory.topics.publish("t", "before")
    with memory.topics.subscribe("t") as live:
        assert live.get(0) is None
        memory.topics.publish("t", 1)
        memory.topics.publish("other", 2)
        memory.topics.publish("t", 3)

        assert [live.get(SOON).payload, live.get(SOON).payload] == [1, 3]


def test_what_is_published_after_subscribing_is_not_missed(memory: penstock.Hub) -> None:
    """Even if nobody asked for a message in between."""
    with memory.topics.subscribe("t") as live:
        memory.topics.publish("t", 1)

        assert live.get(SOON).payload == 1


def test_a_reader_without_room_is_served_from_the_log(narrow: penstock.Hub) -> None:
    with narrow.topics.subscribe("t") as live:
        assert live.get(0) is None
        narrow.topics.publish_many("t", range(50))
        wait_until(lambda: narrow.telemetry.counters().get("behind"))

        assert drain(live, 50) == list(range(50))
        narrow.topics.publish("t", 50)
        assert drain(live, 1) == [50]


def test_a_slow_reader_beside_a_writer_loses_and_repeats_nothing(narrow: penstock.Hub) -> None:
    with narrow.topics.subscribe("t") as live:
        assert live.get(0) is None
        publisher = threading.Thread(
            target=lambda: [narrow.topics.publish("t", n) for n in range(500)]
        )
        publisher.start()
        seen = drain(live, 500)
        publisher.join()

        assert seen == list(range(500))
        assert live.get(0) is None


def test_local_and_foreign_messages_come_in_one_order(open_hub: OpenHub) -> None:
    first, second = open_hub(), open_hub()
    with first.topics.subscribe("*") as here, second.topics.subscribe("*") as there:
        assert (here.get(0), there.get(0)) == (None, None)
        writers = [
            threading.Thread(target=lambda h=hub: [h.topics.publish("t", n) for n in range(100)])
            for hub in (first, second)
        ]
        for writer in writers:
            writer.start()
        found = {}
        for name, live in (("here", here), ("there", there)):
            found[name] = []
            while len(found[name]) < 200:
                found[name] += ids(live.take(timeout=SOON))
        for writer in writers:
            writer.join()

    assert found["here"] == found["there"] == list(range(1, 201))


@pytest.mark.parametrize("local", [True, False])
def test_delivery_works_with_and_without_the_short_way(local: bool) -> None:
    with memory_hub(local_delivery=local) as hub, hub.topics.subscribe("t") as live:
        assert live.get(0) is None
        for number in range(20):
            hub.topics.publish("t", number)

        assert drain(live, 20) == list(range(20))


def test_a_message_is_on_disk_before_it_is_delivered(open_hub: OpenHub) -> None:
    hub, other = open_hub(), open_hub()
    with hub.topics.subscribe("t") as live:
        assert live.get(0) is None
        publisher = threading.Thread(target=lambda: [hub.topics.publish("t", n) for n in range(50)])
        publisher.start()
        for _ in range(50):
            message = live.get(SOON)
            assert other.topics.read("t", last=1)[0].id >= message.id
        publisher.join()


def test_expired_messages_are_not_delivered(clock: FakeClock) -> None:
    with memory_hub(clock=clock) as hub, hub.topics.subscribe("t") as live:
        assert live.get(0) is None
        hub.topics.publish("t", "short", ttl=5)
        wait_until(lambda: hub._open().tail.cursor == 1)
        clock.advance(5)
        hub.topics.publish("t", "long")

        assert live.get(SOON).payload == "long"


def test_a_subscriber_starts_after_a_position_or_with_the_last(memory: penstock.Hub) -> None:
    receipts = memory.topics.publish_many("t", range(5))
    memory.topics.publish("other", 1)
    with memory.topics.subscribe("t", after=receipts[1].position) as live:
        assert drain(live, 3) == [2, 3, 4]
    with memory.topics.subscribe("t", last=2) as live:
        assert drain(live, 2) == [3, 4]
        memory.topics.publish("t", 5)
        assert drain(live, 1) == [5]


def test_a_subscriber_resumes_with_its_position(memory: penstock.Hub) -> None:
    memory.topics.publish_many("t", range(6))
    with memory.topics.subscribe("t", last=6) as live:
        assert [live.get(SOON).payload for _ in range(3)] == [0, 1, 2]
        position = live.position
    with memory.topics.subscribe("t", after=position) as live:
        assert drain(live, 3) == [3, 4, 5]


def test_a_subscriber_learns_of_a_loss_or_skips_it(memory: penstock.Hub) -> None:
    receipts = memory.topics.publish_many("t", range(5))
    memory.topics.trim("t", keep=2)
    with memory.topics.subscribe("t", after=receipts[0].position) as live:
        with pytest.raises(LogTrimmed) as caught:
            live.get(SOON)
        assert caught.value.first == receipts[3].position
    after = receipts[0].position
    with memory.topics.subscribe("t", after=after, on_trimmed="skip") as live:
        assert drain(live, 2) == [3, 4]


def test_a_subscriber_cannot_start_in_two_places(memory: penstock.Hub) -> None:
    position = memory.topics.publish("t", 1).position

    with pytest.raises(InvalidInput):
        memory.topics.subscribe("t", after=position, last=1)


def test_a_new_generation_ends_live_subscriptions(memory: penstock.Hub) -> None:
    with memory.topics.subscribe("t") as live:
        assert live.get(0) is None
        memory.new_generation()

        with pytest.raises(EpochChanged):
            live.get(SOON)


def test_a_restore_ends_live_subscriptions(open_hub: OpenHub, tmp_path: object) -> None:
    hub = open_hub()
    hub.topics.publish_many("t", range(3))
    hub.backup(tmp_path / "copy")
    with open_hub().topics.subscribe("t") as live:
        assert live.get(0) is None
        hub.restore(tmp_path / "copy")

        with pytest.raises(EpochChanged):
            live.get(SOON)


def test_a_reader_nobody_holds_any_more_leaves_the_tail(memory: penstock.Hub) -> None:
    live = memory.topics.subscribe("t")
    assert live.get(0) is None
    gone = weakref.ref(live)
    del live
    gc.collect()
    memory.topics.publish("t", 1)

    assert gone() is None
    assert memory._open().tail.audience == 0


def test_many_subscribers_each_get_everything(memory: penstock.Hub) -> None:
    lives = [memory.topics.subscribe(f"t{n % 5}") for n in range(50)]
    for live in lives:
        assert live.get(0) is None
    for n in range(5):
        memory.topics.publish_many(f"t{n}", range(10))

    assert all(drain(live, 10) == list(range(10)) for live in lives)
    for live in lives:
        live.close()


def test_a_tail_that_meets_an_error_is_called_again(open_hub: OpenHub) -> None:
    """Supervised: it never dies of a database error."""
    hub = open_hub()
    with hub.topics.subscribe("t") as live:
        assert live.get(0) is None
        tail, look = hub._open().tail, hub._open().tail.look
        failures: list[int] = []

        def fail_twice() -> bool:
            if len(failures) < 2:
                failures.append(1)
                raise penstock.StoreError("no")
            return look()

        hub._open().doorbell._listeners = (fail_twice,)
        open_hub().topics.publish("t", 1)

        assert live.get(SOON).payload == 1
        assert len(failures) == 2
        assert tail.cursor == 1


@pytest.mark.parametrize("subscription", ["t", "t*"])
def test_a_process_that_was_away_while_messages_were_trimmed_says_so(
    open_hub: OpenHub, subscription: str
) -> None:
    """T5, T7: such as one that was suspended for longer than messages are kept. Readers of other
    topics notice nothing."""
    away, other = open_hub(), open_hub()
    with away.topics.subscribe(subscription) as live, away.topics.subscribe("u") as untouched:
        assert live.get(0) is untouched.get(0) is None
        away._open().doorbell.stop()
        other.topics.publish_many("t", [1, 2, 3])
        other.topics.trim("t", keep=1)
        other.topics.publish("u", 4)
        away._open().tail.look()

        with pytest.raises(LogTrimmed):
            live.get(SOON)
        assert untouched.get(SOON).payload == 4


def test_a_process_that_was_away_may_skip_what_was_trimmed(open_hub: OpenHub) -> None:
    away, other = open_hub(), open_hub()
    with away.topics.subscribe("t", on_trimmed="skip") as live:
        assert live.get(0) is None
        away._open().doorbell.stop()
        other.topics.publish_many("t", [1, 2, 3])
        other.topics.trim("t", keep=1)
        away._open().tail.look()

        assert live.get(SOON).payload == 3
