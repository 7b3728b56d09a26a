"""Group commit: many callers, one transaction, each with its own answer (T4)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.committer import Committer
from penstock.errors import (
    HubClosed,
    OutcomeUnknown,
    QueueFull,
    StoreError,
    TopicExists,
    TopicNotFound,
    WriteTimeout,
)
from penstock.model import Alike, Pattern, Retention
from penstock.ports import Store, Writer
from penstock.settings import Settings
from penstock.telemetry import Telemetry
from penstock.testing import FakeClock
from tests.factories import new_message, payloads, settings_for, store_at
from tests.waiting import SOON, wait_until


class Bench:
    """A committer on a private store, whose turn a test can hold back."""

    def __init__(self, **arguments: Any) -> None:
        self.settings: Settings = settings_for("memory:", **arguments)
        self.store: Store = store_at("memory:", **arguments)
        self.telemetry = Telemetry()
        self.groups: list[tuple[int, int]] = []
        self.telemetry.attach(self._note)
        self.committer = Committer(self.store, self.settings, FakeClock(), "test", self.telemetry)
        self._blocker: Writer = self.store.open_writer()

    def hold(self) -> None:
        """Nobody commits until `let_go`."""
        self._blocker.begin()

    def let_go(self) -> None:
        self._blocker.rollback()

    def wait_for(self, count: int) -> None:
        """Until so many operations wait behind the one that is held back."""
        wait_until(lambda: self.committer.waiting == count)

    def close(self) -> None:
        self._blocker.close()
        self.committer.stop()
        self.store.close()

    def _note(self, event: str, measured: Any) -> None:
        if event == "commit":
            self.groups.append((measured["operations"], measured["messages"]))


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def one(**arguments: Any) -> Bench:
        made.append(Bench(**arguments))
        return made[-1]

    yield one
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


def topics(bench: Bench) -> dict[str, int]:
    return {topic.name: topic.messages for topic in bench.store.topics.find()}


def held_group(bench: Bench, *works: Callable[[Committer], Any]) -> list[Any]:
    """Have all of these wait at once, so that they are one group behind a first write."""
    bench.hold()
    first = bench.committer.append([new_message("first")])
    bench.wait_for(0)
    operations = [work(bench.committer) for work in works]
    bench.let_go()
    first.wait(SOON)
    return operations


def append(topic: str, **options: Any) -> Callable[[Committer], Any]:
    return lambda committer: committer.append([new_message(topic, **options)])


def test_whatever_waits_is_one_transaction(bench: Bench) -> None:
    operations = held_group(bench, *(append(f"t{n}") for n in range(50)))

    assert [operation.wait(SOON)[0].id for operation in operations] == list(range(2, 52))
    assert bench.groups == [(1, 1), (50, 50)]


@pytest.mark.parametrize("count", [1, 3, 20])
def test_messages_that_are_alike_are_one_transaction_with_others(bench: Bench, count: int) -> None:
    alike = Alike("t", [b"%d" % n for n in range(count)], 0, "kind")
    listed = [new_message("t", b"listed")]
    operations = held_group(
        bench,
        lambda committer: committer.append(alike),
        lambda committer: committer.append(listed),
        lambda committer: committer.append(alike),
    )

    ids = [[receipt.id for receipt in operation.wait(SOON)] for operation in operations]
    assert [id for some in ids for id in some] == list(range(2, 2 * count + 3))
    assert [len(some) for some in ids] == [count, 1, count]
    stored = bench.store.topics.read_last(Pattern.parse("t"), count=100, now=0)
    assert payloads(stored) == [*alike.bodies, b"listed", *alike.bodies]
    assert [message.type for message in stored] == ["kind"] * count + [None] + ["kind"] * count
    assert (len(alike), len(listed)) == (count, 1), "they are their callers'"
    assert bench.groups == [(1, 1), (3, 2 * count + 1)]


def test_threads_and_tasks_share_a_transaction(bench: Bench) -> None:
    bench.hold()
    first = bench.committer.append([new_message("first")])
    bench.wait_for(0)
    answers: list[Any] = []

    def from_a_thread() -> None:
        answers.append(bench.committer.append([new_message("thread")]).wait(SOON))

    async def from_a_loop() -> None:
        futures = [bench.committer.append_async([new_message("loop")]) for _ in range(5)]
        answers.extend(await asyncio.gather(*futures))

    threads = [threading.Thread(target=from_a_thread) for _ in range(3)]
    threads.append(threading.Thread(target=lambda: asyncio.run(from_a_loop())))
    for thread in threads:
        thread.start()
    bench.wait_for(8)
    bench.let_go()
    for thread in threads:
        thread.join()
    first.wait(SOON)

    assert len(answers) == 8
    assert bench.groups == [(1, 1), (8, 8)]


def test_one_that_fails_fails_its_own_caller_only(bench: Bench) -> None:
    now = 0
    bench.committer.append([new_message("t", b"1", idempotency_key="k")]).wait(SOON)
    operations = held_group(
        bench,
        append("a"),
        lambda c: c.run(lambda tx: tx.topics.configure("none", Retention())),
        append("t", body=b"2", idempotency_key="k"),
        lambda c: c.run(lambda tx: tx.topics.create("t", Retention(), now=now)),
        append("b"),
    )

    assert [operations[n].wait(SOON)[0].topic for n in (0, 4)] == ["a", "b"]
    for number, error in (
        (1, TopicNotFound),
        (2, penstock.IdempotencyConflict),
        (3, TopicExists),
    ):
        with pytest.raises(error):
            operations[number].wait(SOON)
    assert topics(bench) == {"t": 1, "first": 1, "a": 1, "b": 1}
    assert bench.groups[-1] == (5, 2)


def test_what_a_failing_operation_had_written_is_undone(bench: Bench) -> None:
    def half(tx: Any) -> None:
        tx.topics.append([new_message("half")], producer="p", now=0)
        tx.topics.configure("none", Retention())

    operations = held_group(bench, append("a"), lambda c: c.run(half), append("b"))

    with pytest.raises(TopicNotFound):
        operations[1].wait(SOON)
    assert [operations[n].wait(SOON)[0].id for n in (0, 2)] == [2, 3]
    assert "half" not in topics(bench)


def test_a_mistake_in_an_operation_fails_it_alone(bench: Bench) -> None:
    """Something that is no penstock error undoes the group, which is then written one by one."""

    def mistake(_: Any) -> None:
        raise ZeroDivisionError

    operations = held_group(bench, append("a"), lambda c: c.run(mistake), append("b"))

    with pytest.raises(ZeroDivisionError):
        operations[1].wait(SOON)
    assert [operations[n].wait(SOON)[0].id for n in (0, 2)] == [2, 3]
    assert topics(bench) == {"first": 1, "a": 1, "b": 1}


def test_a_group_that_was_undone_as_a_whole_is_written_one_by_one(bench: Bench) -> None:
    """As a full disk does; here a statement of the user's ends the transaction."""
    seen: list[int] = []

    def undo_all_the_first_time(tx: Any) -> str:
        seen.append(1)
        if len(seen) == 1:
            tx._connection.execute("ROLLBACK")
            raise StoreError("the disk was full for a moment")
        return "done"

    operations = held_group(
        bench, append("a"), lambda c: c.run(undo_all_the_first_time), append("b")
    )

    assert [operations[n].wait(SOON)[0].id for n in (0, 2)] == [2, 3]
    assert topics(bench) == {"first": 1, "a": 1, "b": 1}


def test_a_group_is_limited_in_messages_and_bytes(make: Callable[..., Bench]) -> None:
    few = make(commit_group_max=10)
    held_group(few, *(append("t") for _ in range(25)))[-1].wait(SOON)
    assert few.groups == [(1, 1), (10, 10), (10, 10), (5, 5)]
    small = make(commit_bytes_max=100)
    held_group(small, *(append("t", body=bytes(40)) for _ in range(5)))[-1].wait(SOON)
    assert small.groups == [(1, 1), (2, 2), (2, 2), (1, 1)]


def test_one_larger_than_a_group_is_written_alone(make: Callable[..., Bench]) -> None:
    bench = make(commit_group_max=3)
    many = bench.committer.append([new_message("t")] * 10)

    assert len(many.wait(SOON)) == 10


def test_a_full_queue_is_backpressure(make: Callable[..., Bench]) -> None:
    bench = make(write_queue_max=3)
    bench.hold()
    first = bench.committer.append([new_message("t")])
    bench.wait_for(0)
    waiting = [bench.committer.append([new_message("t")]) for _ in range(3)]
    with pytest.raises(QueueFull) as caught:
        bench.committer.append([new_message("t")])
    assert caught.value.retryable
    bench.let_go()
    for operation in (first, *waiting):
        operation.wait(SOON)

    bench.committer.append([new_message("t")]).wait(SOON)
    assert topics(bench) == {"t": 5}


def test_a_caller_can_stop_waiting_while_the_write_goes_on(bench: Bench) -> None:
    bench.hold()
    operation = bench.committer.append([new_message("t")])
    with pytest.raises(WriteTimeout) as caught:
        operation.wait(0.01)
    assert isinstance(caught.value, OutcomeUnknown)
    bench.let_go()

    assert operation.wait(SOON)[0].id == 1


def test_closing_writes_what_waits(bench: Bench) -> None:
    bench.hold()
    operations = [bench.committer.append([new_message("t")]) for _ in range(20)]
    closing = threading.Thread(target=bench.committer.stop)
    closing.start()
    wait_until(lambda: bench.committer.is_closed)
    with pytest.raises(HubClosed):
        bench.committer.append([new_message("t")])
    bench.let_go()
    closing.join()

    assert [operation.wait(0)[0].id for operation in operations] == list(range(1, 21))


def test_everyone_who_publishes_while_the_hub_closes_gets_an_answer(
    make: Callable[..., Bench],
) -> None:
    """A receipt, or HubClosed; never silence."""
    for _ in range(20):
        bench = make()
        answered: list[str] = []

        def publish_on(bench: Bench = bench, answered: list[str] = answered) -> None:
            while True:
                try:
                    bench.committer.append([new_message("t")]).wait(SOON)
                except HubClosed:
                    answered.append("closed")
                    return

        threads = [threading.Thread(target=publish_on) for _ in range(4)]
        for thread in threads:
            thread.start()
        bench.committer.append([new_message("t")]).wait(SOON)
        bench.committer.stop()
        for thread in threads:
            thread.join()
        assert answered == ["closed"] * 4


def test_receipts_are_given_after_others_can_see_the_messages(memory: penstock.Hub) -> None:
    for number in range(50):
        memory.topics.publish("t", number)
        assert payloads(memory.topics.read("t", last=1)) == [number]
