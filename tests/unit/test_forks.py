"""A fork waits until nobody uses SQLite, and whoever comes meanwhile waits for the fork."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import penstock
from penstock.stores.sqlite import forks
from penstock.stores.sqlite.forks import Gate
from tests.factories import file_url, payloads
from tests.processes import Child, in_fork
from tests.waiting import SOON, wait_until


class Visitor(threading.Thread):
    """Enters the gate, and leaves when told."""

    def __init__(self, gate: Gate, *, twice: bool = False) -> None:
        super().__init__(daemon=True)
        self.is_inside = threading.Event()
        self.may_leave = threading.Event()
        self.may_enter_again = threading.Event()
        self.is_inside_again = threading.Event()
        self._gate = gate
        self._twice = twice
        self.start()

    def run(self) -> None:
        with self._gate:
            self.is_inside.set()
            if self._twice:
                assert self.may_enter_again.wait(SOON)
                with self._gate:
                    self.is_inside_again.set()
            assert self.may_leave.wait(SOON)

    def leave(self) -> None:
        self.may_leave.set()
        self.join(SOON)


class Fork(threading.Thread):
    """Shuts the gate, as a fork in another thread does."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(daemon=True)
        self.answers: list[bool] = []
        self._gate = gate
        self.start()

    def run(self) -> None:
        self.answers.append(self._gate.shut())


@pytest.fixture
def gate() -> Gate:
    return Gate()


def is_waited_at(gate: Gate) -> bool:
    """Whether some thread sleeps at the gate, in or out."""
    return bool(gate._changed._waiters)


def test_many_are_inside_at_once(gate: Gate) -> None:
    visitors = [Visitor(gate) for _ in range(3)]

    for visitor in visitors:
        assert visitor.is_inside.wait(SOON)
    for visitor in visitors:
        visitor.leave()


def test_an_empty_gate_is_shut_at_once(gate: Gate) -> None:
    assert gate.shut() is True


def test_who_comes_while_it_is_shut_waits_until_it_opens(gate: Gate) -> None:
    assert gate.shut()
    visitor = Visitor(gate)
    wait_until(lambda: is_waited_at(gate))
    assert not visitor.is_inside.is_set()
    gate.open()

    assert visitor.is_inside.wait(SOON)
    visitor.leave()


def test_shutting_waits_for_those_inside(gate: Gate) -> None:
    first, second = Visitor(gate), Visitor(gate)
    for visitor in (first, second):
        assert visitor.is_inside.wait(SOON)
    fork = Fork(gate)
    wait_until(lambda: is_waited_at(gate))
    first.leave()
    assert fork.answers == []
    second.leave()
    fork.join(SOON)

    assert fork.answers == [True]


def test_a_thread_inside_enters_again_while_somebody_waits_for_it(gate: Gate) -> None:
    """Otherwise each would wait for the other."""
    visitor = Visitor(gate, twice=True)
    assert visitor.is_inside.wait(SOON)
    fork = Fork(gate)
    wait_until(lambda: is_waited_at(gate))
    visitor.may_enter_again.set()
    assert visitor.is_inside_again.wait(SOON)
    assert fork.answers == []
    visitor.leave()
    fork.join(SOON)

    assert fork.answers == [True]


def test_a_thread_inside_cannot_shut_it_cleanly(gate: Gate) -> None:
    with gate:
        assert gate.shut() is False
    gate.open()
    assert gate.shut() is True


def test_one_who_stays_is_not_waited_for_forever(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "WAIT_SECONDS_MAX", 0.05)
    visitor = Visitor(gate)
    assert visitor.is_inside.wait(SOON)

    assert gate.shut() is False
    visitor.leave()


def test_a_seat_is_given_back_by_another_thread(gate: Gate) -> None:
    """As when a reader is closed by whoever collects it."""
    seat = gate.enter()
    other = threading.Thread(target=gate.leave, args=(seat,))
    other.start()
    other.join()

    assert gate.shut() is True


def test_in_a_child_the_gate_is_as_new(gate: Gate) -> None:
    """Whoever was inside is not here."""
    other = threading.Thread(target=gate.enter)
    other.start()
    other.join()
    gate._is_shut = True
    gate.reset()
    with gate:
        pass

    assert gate.shut() is True


# Real forks


class Publishers:
    """Threads that publish all the time, and know what was acknowledged."""

    def __init__(self, hub: penstock.Hub, count: int) -> None:
        self.acknowledged: list[list[int]] = [[] for _ in range(count)]
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._hub = hub
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(count)]

    def __enter__(self) -> Publishers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        mine = self.acknowledged[number]
        try:
            while not self._stop.is_set():
                self._hub.topics.publish(f"busy-{number}", len(mine))
                mine.append(len(mine))
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.errors.append(error)


def check_nothing_is_lost(hub: penstock.Hub, publishers: Publishers) -> None:
    assert publishers.errors == []
    for number, acknowledged in enumerate(publishers.acknowledged):
        found = payloads(hub.topics.read(f"busy-{number}", limit=1_000_000))
        assert found == acknowledged
        assert acknowledged


def test_forks_amid_publishing_hang_nobody_and_lose_nothing(hub: penstock.Hub) -> None:
    """The parent's threads go on; each child publishes on its own."""
    with Publishers(hub, 3) as publishers:
        results = []
        for number in range(20):
            before = sum(map(len, publishers.acknowledged))
            results.append(in_fork(lambda number=number: hub.topics.publish("child", number)))
            wait_until(lambda before=before: sum(map(len, publishers.acknowledged)) > before)

    assert results == [0] * 20
    assert payloads(hub.topics.read("child")) == list(range(20))
    check_nothing_is_lost(hub, publishers)


FORK_AT_THE_FIRST_USE = """
    import os, sys, threading
    import penstock
    from tests.processes import in_fork
    hub = penstock.connect(sys.argv[1])
    threads = [threading.Thread(target=hub.topics.publish, args=("t", n)) for n in range(3)]
    for thread in threads:
        thread.start()
    print(in_fork(lambda: hub.topics.publish("t", "child")), flush=True)
    for thread in threads:
        thread.join()
    print(len(hub.topics.read("t")), flush=True)
"""


def test_a_fork_amid_the_first_use_of_a_hub_hangs_nobody(path: Path) -> None:
    """Nothing is imported then, the lock of which a child would inherit."""
    with Child(FORK_AT_THE_FIRST_USE, file_url(path), PYTHONPATH=".") as child:
        assert child.hear() == "0"
        assert child.hear() == "4"


def test_forks_of_several_threads_do_not_disturb_each_other(hub: penstock.Hub) -> None:
    """One fork that has ended does not open the gate under another."""
    results: list[int] = []

    def fork_on(name: str) -> None:
        results.extend(in_fork(lambda: hub.topics.publish(name, "child")) for _ in range(8))

    with Publishers(hub, 2) as publishers:
        forkers = [threading.Thread(target=fork_on, args=(name,)) for name in ("x", "y", "z")]
        for forker in forkers:
            forker.start()
        for forker in forkers:
            forker.join()

    assert results == [0] * 24
    assert [len(hub.topics.read(name)) for name in ("x", "y", "z")] == [8, 8, 8]
    check_nothing_is_lost(hub, publishers)


def test_a_fork_that_has_to_wait_for_another_finds_the_gate_shut_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second of two forks at once begins when the first has ended."""
    own = Gate()
    monkeypatch.setattr(forks, "gate", own)
    forks._before()
    second = threading.Thread(target=forks._before, daemon=True)
    second.start()
    forks._after_in_parent()
    second.join(SOON)
    assert not second.is_alive()
    visitor = Visitor(own)
    wait_until(lambda: is_waited_at(own))
    assert not visitor.is_inside.is_set()
    forks._after_in_parent()

    assert visitor.is_inside.wait(SOON)
    visitor.leave()


def test_a_child_forked_inside_a_transaction_is_told_to_start_over(hub: penstock.Hub) -> None:
    """Its parent could not let go of SQLite; the parent's transaction is not hurt."""

    def work() -> None:
        assert forks.is_tainted()
        with pytest.raises(penstock.PenstockError):
            hub.topics.publish("t", "child")

    with hub.transaction(limit_seconds=60) as tx:
        tx.publish("t", "parent")
        assert in_fork(work) == 0
    assert not forks.is_tainted()
    assert payloads(hub.topics.read("t")) == ["parent"]
