"""Named consumers: at least once, in order, one holder, resumed where they were (T3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

import penstock
from penstock import Retention
from penstock.errors import (
    ConsumerBusy,
    ConsumerNotFound,
    EpochChanged,
    InvalidInput,
    InvalidTopic,
    LeaseLost,
    LogTrimmed,
    StoreBusy,
)
from penstock.testing import FakeClock, memory_hub
from tests.factories import file_url, payloads
from tests.processes import Child
from tests.waiting import SOON, wait_until

OpenHub = Callable[..., penstock.Hub]
NOTHING = 0.05


@pytest.fixture
def small() -> Iterator[penstock.Hub]:
    """Followers get two messages at a time."""
    with memory_hub(follow_batch_max=2) as hub:
        yield hub


def follow(hub: penstock.Hub, topic: str = "t", **options: object) -> object:
    return hub.topics.follow(topic, consumer="c", **{"start": "earliest", **options})


def watermark(hub: penstock.Hub, topic: str = "t") -> int:
    return hub.consumers.get("c", topic).position.offset


def test_a_follower_gets_messages_in_order(memory: penstock.Hub) -> None:
    memory.topics.publish_many("t", range(5))
    with follow(memory) as follower:
        assert [next(follower).payload for _ in range(5)] == [0, 1, 2, 3, 4]
        memory.topics.publish("t", 5)
        assert next(follower).payload == 5


def test_a_new_consumer_starts_with_the_latest_unless_told(memory: penstock.Hub) -> None:
    memory.topics.publish("t", "before")
    with memory.topics.follow("t", consumer="c") as follower:
        memory.topics.publish("t", "after")

        assert follower.get(SOON).payload == "after"


def test_a_known_consumer_resumes_whatever_start_says(memory: penstock.Hub) -> None:
    memory.topics.publish("t", 1)
    with memory.topics.follow("t", consumer="c") as follower:
        assert follower.get(NOTHING) is None
    memory.topics.publish("t", 2)
    with follow(memory, start="earliest") as follower:
        assert follower.get(SOON).payload == 2
        follower.commit()
    memory.topics.publish("t", 3)
    with follow(memory, start="latest") as follower:
        assert follower.get(SOON).payload == 3


def test_asking_for_the_next_batch_commits_the_one_before(small: penstock.Hub) -> None:
    small.topics.publish_many("t", range(6))
    with follow(small) as follower:
        for _ in range(2):
            next(follower)
        assert watermark(small) == 0
        next(follower)
        assert watermark(small) == 2


def test_leaving_the_loop_leaves_the_current_batch_uncommitted(small: penstock.Hub) -> None:
    small.topics.publish_many("t", range(6))
    with follow(small) as follower:
        for message in follower:
            if message.payload == 3:
                break
    with follow(small) as follower:
        assert [next(follower).payload for _ in range(4)] == [2, 3, 4, 5]


def test_a_follower_that_was_dropped_frees_the_name(memory: penstock.Hub) -> None:
    memory.topics.publish_many("t", range(3))
    for message in follow(memory):
        assert message.payload == 0
        break

    def try_again() -> object:
        try:
            return follow(memory)
        except ConsumerBusy:
            return None

    with wait_until(try_again) as follower:
        assert next(follower).payload == 0


def test_batches_are_committed_by_asking_for_the_next(small: penstock.Hub) -> None:
    small.topics.publish_many("t", range(5))
    with follow(small) as follower:
        batches = follower.batches()
        assert payloads(next(batches)) == [0, 1]
        assert watermark(small) == 0
        assert payloads(next(batches)) == [2, 3]
        assert watermark(small) == 2


def test_a_batch_can_be_of_another_size(small: penstock.Hub) -> None:
    small.topics.publish_many("t", range(5))
    with follow(small) as follower:
        assert payloads(follower.take(4)) == [0, 1, 2, 3]
        assert payloads(follower.take(4)) == [4]
        assert follower.take(timeout=NOTHING) == []


def test_commit_writes_what_was_handed_out(small: penstock.Hub) -> None:
    small.topics.publish_many("t", range(4))
    with follow(small) as follower:
        next(follower)
        follower.commit()
        assert watermark(small) == 1
        assert follower.position.offset == 1
    with follow(small) as follower:
        assert next(follower).payload == 1


def test_waiting_in_vain_commits_what_was_handed_out(memory: penstock.Hub) -> None:
    memory.topics.publish("t", 1)
    with follow(memory) as follower:
        follower.get(SOON)
        assert follower.get(NOTHING) is None

    assert watermark(memory) == 1


def test_a_glob_is_followed_as_one_consumer(memory: penstock.Hub) -> None:
    with follow(memory, "canvas-*") as follower:
        for name in ("canvas-a", "other", "canvas-b"):
            memory.topics.publish(name, name)
        assert [follower.get(SOON).payload for _ in range(2)] == ["canvas-a", "canvas-b"]
        follower.commit()

    assert watermark(memory, "canvas-*") == 3


def test_consumers_do_not_take_messages_from_each_other(memory: penstock.Hub) -> None:
    memory.topics.publish_many("t", range(3))
    for name in ("a", "b"):
        with memory.topics.follow("t", consumer=name, start="earliest") as follower:
            assert payloads(follower.take()) == [0, 1, 2]


def test_expired_messages_are_not_followed(clock: FakeClock) -> None:
    with memory_hub(clock=clock) as hub:
        hub.topics.publish("t", "short", ttl=5)
        hub.topics.publish("t", "long")
        clock.advance(5)
        with follow(hub) as follower:
            assert follower.get(SOON).payload == "long"


def test_a_message_that_expires_while_it_waits_hides_nothing_behind_it(clock: FakeClock) -> None:
    """Not even if it fills a whole batch."""
    with memory_hub(clock=clock, follow_batch_max=1) as hub, hub.topics.subscribe("t") as live:
        assert live.get(NOTHING) is None
        hub.topics.publish("t", "short", ttl=5)
        hub.topics.publish("t", "long")
        wait_until(lambda: hub._open().tail.cursor == 2)
        clock.advance(5)

        assert live.get(SOON).payload == "long"


def test_a_follower_in_another_hub_is_woken(open_hub: OpenHub) -> None:
    with follow(open_hub()) as follower:
        assert follower.get(NOTHING) is None
        open_hub().topics.publish("t", 1)

        assert follower.get(SOON).payload == 1


# One holder


def test_a_second_follower_of_the_name_is_refused(open_hub: OpenHub) -> None:
    first = follow(open_hub())

    with pytest.raises(ConsumerBusy) as caught:
        follow(open_hub())
    assert caught.value.hint
    first.close()
    follow(open_hub()).close()


def test_the_same_name_on_another_subscription_is_another_consumer(memory: penstock.Hub) -> None:
    with follow(memory, "a"), follow(memory, "b"):
        assert len(memory.consumers.list("c")) == 2


def test_a_standby_takes_over_where_the_holder_was(open_hub: OpenHub) -> None:
    hub, other = open_hub(follow_batch_max=1), open_hub(follow_batch_max=1)
    hub.topics.publish_many("t", range(3))
    first = follow(hub)
    first.take()
    first.commit()
    taken: list[object] = []

    def stand_by() -> None:
        with follow(other, standby=True) as second:
            taken.extend(payloads(second.take()))

    waiter = threading.Thread(target=stand_by)
    waiter.start()
    assert taken == []
    first.close()
    waiter.join()

    assert taken == [1]


def test_a_killed_process_frees_its_consumer_at_once(open_hub: OpenHub, path: object) -> None:
    """Long before its lease has run out."""
    hub = open_hub()
    hub.topics.publish_many("t", range(3))
    code = """
        import sys, penstock
        hub = penstock.connect(sys.argv[1], consumer_lease_seconds=3600, follow_batch_max=1)
        follower = hub.topics.follow("t", consumer="c", start="earliest")
        print(follower.take()[0].payload, flush=True)
        follower.take()
        print("two", flush=True)
        sys.stdin.readline()
    """
    with Child(code, file_url(path)) as child:
        assert [child.hear(), child.hear()] == ["0", "two"]
        with pytest.raises(ConsumerBusy):
            follow(hub)
        child.kill()
        with follow(hub) as follower:
            assert payloads(follower.take()) == [1, 2]


def test_a_follower_that_stalled_is_told_when_another_took_over(
    open_hub: OpenHub, clock: FakeClock
) -> None:
    slow = open_hub(clock=clock, consumer_lease_seconds=30, follow_batch_max=1)
    slow._open().keeper.stop()  # as if the whole process stood still
    slow.topics.publish_many("t", range(3))
    stalled = follow(slow)
    stalled.take()
    clock.advance(30)
    with follow(open_hub(clock=clock, follow_batch_max=1)) as second:
        assert payloads(second.take()) == [0]

        with pytest.raises(LeaseLost):
            stalled.take()
        assert payloads(second.take()) == [1]
    assert watermark(slow) == 1


def test_a_follower_that_lost_its_lease_is_told_by_the_keeper(
    open_hub: OpenHub, clock: FakeClock
) -> None:
    slow = open_hub(clock=clock, consumer_lease_seconds=30)
    slow._open().keeper.stop()
    stalled = follow(slow)
    clock.advance(30)
    follow(open_hub(clock=clock))
    slow._open().keeper.run_once()
    slow.topics.publish("t", 1)

    with pytest.raises(LeaseLost):
        stalled.take(timeout=SOON)


def test_a_kept_lease_does_not_run_out(open_hub: OpenHub, clock: FakeClock) -> None:
    hub = open_hub(clock=clock, consumer_lease_seconds=30)
    with follow(hub):
        for _ in range(5):
            clock.advance(20)
            hub._open().keeper.run_once()

        with pytest.raises(ConsumerBusy):
            follow(open_hub(clock=clock))


def test_a_follow_that_was_refused_holds_nothing(memory: penstock.Hub) -> None:
    with pytest.raises(InvalidInput):
        follow(memory, on_trimmed="ignore")
    with pytest.raises(InvalidInput):
        follow(memory, start="newest")

    follow(memory).close()


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, 7])
def test_a_consumer_name_that_is_none_is_refused(memory: penstock.Hub, name: object) -> None:
    with pytest.raises(InvalidInput):
        memory.topics.follow("t", consumer=name)


def test_a_topic_name_that_is_none_is_refused(memory: penstock.Hub) -> None:
    with pytest.raises(InvalidTopic):
        memory.topics.follow("", consumer="c")


# Loss


def test_a_follower_behind_trimmed_messages_is_told(memory: penstock.Hub) -> None:
    receipts = memory.topics.publish_many("t", range(5))
    follow(memory).close()
    memory.topics.trim("t", keep=2)
    with follow(memory) as follower:
        with pytest.raises(LogTrimmed) as caught:
            follower.take()
        assert caught.value.first == receipts[3].position


def test_a_follower_may_skip_what_was_trimmed(memory: penstock.Hub) -> None:
    memory.topics.publish_many("t", range(5))
    follow(memory).close()
    memory.topics.trim("t", keep=2)
    with follow(memory, on_trimmed="skip") as follower:
        assert payloads(follower.take()) == [3, 4]
        follower.commit()
    with follow(memory) as follower:
        memory.topics.publish("t", 5)
        assert follower.get(SOON).payload == 5


def test_a_skipped_loss_is_not_told_again(memory: penstock.Hub) -> None:
    memory.topics.publish_many("t", range(5))
    follow(memory).close()
    memory.topics.trim("t", keep=2)
    assert memory.consumers.lag("c", "t").lost
    with follow(memory, on_trimmed="skip") as follower:
        follower.take(1)
        follower.commit()

    assert not memory.consumers.lag("c", "t").lost
    with follow(memory) as follower:
        assert payloads(follower.take()) == [4]


def test_what_was_trimmed_before_its_first_day_is_no_loss_to_a_consumer(
    memory: penstock.Hub,
) -> None:
    memory.topics.publish_many("t", range(5))
    memory.topics.trim("t", keep=2)
    with follow(memory) as follower:
        assert payloads(follower.take()) == [3, 4]


def test_a_held_message_waits_for_the_consumer(clock: FakeClock) -> None:
    with memory_hub(clock=clock, follow_batch_max=2) as hub:
        hub.topics.create("t", Retention(age_seconds=10, hold_for=("c",)))
        hub.topics.publish_many("t", range(5))
        clock.advance(10)
        with follow(hub) as follower:
            follower.take()
            follower.commit()
        hub._open().sweeper.sweep()

        assert payloads(hub.topics.read("t")) == [2, 3, 4]


def test_a_follower_of_a_new_generation_is_told(memory: penstock.Hub) -> None:
    memory.topics.publish("t", 1)
    with follow(memory) as follower:
        assert follower.get(SOON).payload == 1
        assert follower.get(NOTHING) is None
        memory.new_generation()
        memory.topics.publish("t", 2)
        with pytest.raises(EpochChanged):
            follower.get(SOON)


# When the database is in the way


def test_a_follower_goes_on_after_its_watermark_could_not_be_written(open_hub: OpenHub) -> None:
    """Nothing is skipped, and the batch that was not committed is committed later."""
    hub = open_hub(lock_timeout_seconds=0.1, follow_batch_max=1)
    hub.topics.publish_many("t", range(3))
    with follow(hub) as follower:
        assert payloads(follower.take()) == [0]
        writer = open_hub()._open().store.open_writer()
        writer.begin()
        with pytest.raises(StoreBusy):
            follower.take()
        writer.close()
        assert [payloads(follower.take()) for _ in range(2)] == [[1], [2]]
        assert watermark(hub) == 2


def test_closing_the_hub_ends_the_loops_of_waiting_readers(open_hub: OpenHub) -> None:
    hub = open_hub()
    ended: list[object] = []

    def read_on(reader: Iterator[penstock.Message]) -> None:
        for _ in reader:
            pass
        ended.append(reader)

    readers = [follow(hub), hub.topics.subscribe("t")]
    threads = [threading.Thread(target=read_on, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    hub.close()
    for thread in threads:
        thread.join(SOON)

    assert len(ended) == 2


# hub.consumers


def test_consumers_are_listed_with_their_holders(memory: penstock.Hub) -> None:
    memory.topics.publish("t", 1)
    with follow(memory):
        (consumer,) = memory.consumers.list()
        assert (consumer.name, consumer.subscription) == ("c", "t")
        assert consumer.holder
    assert memory.consumers.get("c", "t").holder is None


def test_lag_is_counted_in_messages_and_seconds(clock: FakeClock) -> None:
    with memory_hub(clock=clock, follow_batch_max=1) as hub:
        hub.topics.publish_many("t", range(3))
        clock.advance(5)
        hub.topics.publish("other", 1)
        with follow(hub) as follower:
            follower.take()
            follower.commit()
        lag = hub.consumers.lag("c", "t")

        assert (lag.messages, lag.seconds, lag.lost) == (2, 5.0, False)


def test_a_consumer_is_moved_by_hand(memory: penstock.Hub) -> None:
    receipts = memory.topics.publish_many("t", range(5))
    follow(memory).close()

    def first() -> object:
        with follow(memory) as follower:
            message = follower.get(NOTHING)
            return None if message is None else message.payload

    memory.consumers.seek("c", "t", receipts[2].position)
    assert first() == 3
    memory.consumers.seek("c", "t", "latest")
    assert first() is None
    memory.consumers.seek("c", "t", "earliest")
    assert first() == 0


@pytest.mark.parametrize("to", ["newest", 3, None])
def test_a_consumer_is_not_moved_to_nowhere(memory: penstock.Hub, to: object) -> None:
    memory.topics.publish("t", 1)
    memory.topics.follow("t", consumer="c").close()

    with pytest.raises(InvalidInput):
        memory.consumers.seek("c", "t", to)
    assert watermark(memory) == 1


def test_a_followed_consumer_is_neither_moved_nor_forgotten(memory: penstock.Hub) -> None:
    with follow(memory):
        with pytest.raises(ConsumerBusy):
            memory.consumers.seek("c", "t", "latest")
        with pytest.raises(ConsumerBusy):
            memory.consumers.delete("c")


def test_a_forgotten_consumer_is_gone(memory: penstock.Hub) -> None:
    follow(memory).close()

    assert memory.consumers.delete("c") == 1
    for use in (memory.consumers.get, memory.consumers.lag, memory.consumers.delete):
        with pytest.raises(ConsumerNotFound):
            use("c", "t")
