"""Background work: supervised, nudged, stopped; the doorbell; the turnstile; who is alive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest

import penstock
from penstock.doorbell import Doorbell
from penstock.leases import LeaseKeeper
from penstock.ports import Transaction
from penstock.service import Service
from penstock.stores.sqlite import turnstile
from penstock.stores.sqlite.liveness import Liveness
from penstock.stores.sqlite.turnstile import Turnstile
from penstock.telemetry import Telemetry
from penstock.testing import memory_hub
from tests.factories import file_url, settings_for, store_at
from tests.processes import Child
from tests.waiting import SOON, wait_until

T = TypeVar("T")


class Counting(Service):
    """Counts its runs, and fails in some of them."""

    name = "counting"

    def __init__(self, telemetry: Telemetry, fail_first: int = 0, pause: float = 0.001) -> None:
        super().__init__(telemetry)
        self.runs = 0
        self.stopped = threading.Event()
        self._fail_first = fail_first
        self._seconds = pause

    def run_once(self) -> float:
        self.runs += 1
        if self.runs <= self._fail_first:
            raise OSError(f"failure {self.runs}")
        return self._seconds

    def _on_stop(self) -> None:
        self.stopped.set()


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


def test_a_service_runs_until_it_is_stopped(telemetry: Telemetry) -> None:
    service = Counting(telemetry)
    service.start()
    service.start()
    wait_until(lambda: service.runs > 3)
    service.stop(SOON)

    assert not service.is_running
    assert service.stopped.is_set()


def test_a_failure_is_reported_and_tried_again(telemetry: Telemetry) -> None:
    events: list[dict[str, object]] = []
    telemetry.attach(lambda name, m: events.append({"event": name, **m}))
    service = Counting(telemetry, fail_first=2, pause=3600)
    service.start()
    wait_until(lambda: service.runs == 3 and service.last_error is None)
    service.stop(SOON)

    assert [(e["event"], e["service"]) for e in events] == [("service_failed", "counting")] * 2
    assert "failure 1" in str(events[0]["error"])


def test_a_nudge_ends_a_pause(telemetry: Telemetry) -> None:
    service = Counting(telemetry, pause=3600)
    service.start()
    wait_until(lambda: service.runs == 1)
    service.nudge()
    wait_until(lambda: service.runs == 2)
    service.stop(SOON)


def test_a_service_stopped_before_it_started_never_runs(telemetry: Telemetry) -> None:
    service = Counting(telemetry)
    service.stop()
    service.start()

    assert (service.runs, service.is_running) == (0, False)


def test_a_handler_that_fails_does_no_harm(telemetry: Telemetry) -> None:
    seen: list[str] = []
    telemetry.attach(lambda name, _: 1 / 0)
    detach = telemetry.attach(lambda name, _: seen.append(name))
    telemetry.emit("commit")
    detach()
    telemetry.emit("commit")

    assert seen == ["commit"]
    assert telemetry.counters() == {"commit": 2}


# The doorbell


@pytest.fixture
def bell(path: Path, telemetry: Telemetry) -> Iterator[tuple[Doorbell, object]]:
    store = store_at(file_url(path))
    doorbell = Doorbell(store.open_wake, settings_for(file_url(path)), telemetry)
    yield doorbell, store
    doorbell.stop(SOON)
    store.close()


def test_listeners_are_called_after_a_ring(bell: tuple[Doorbell, object]) -> None:
    doorbell, store = bell
    calls: list[int] = []
    doorbell.listen(lambda: bool(calls.append(1)))
    wait_until(lambda: calls)
    before = len(calls)
    store.ring()

    wait_until(lambda: len(calls) > before)


def test_a_listener_that_fails_is_called_again_without_another_ring(
    bell: tuple[Doorbell, object],
) -> None:
    doorbell, _ = bell
    calls: list[int] = []

    def fail_at_first() -> bool:
        calls.append(1)
        if len(calls) < 3:
            raise OSError("not yet")
        return True

    doorbell.listen(fail_at_first)

    wait_until(lambda: len(calls) >= 3)


def test_a_removed_bell_is_hung_up_again(path: Path) -> None:
    """Without waiting for the safety net."""
    store, other = store_at(file_url(path)), store_at(file_url(path))
    wake = store.open_wake()
    while wake.wait(0):
        pass
    Path(f"{path}-bell").unlink()
    other.ring()
    while wake.wait(0):
        pass
    other.ring()

    assert wake.wait(SOON) is True
    wake.close()
    store.close()
    other.close()


# Leases kept


def test_leases_are_renewed_and_a_lost_one_is_told_once(telemetry: Telemetry) -> None:
    with memory_hub() as hub:
        runtime = hub._open()
        runtime.store.register("here")

        def write(work: Callable[[Transaction], T]) -> T:
            return runtime.committer.run(work).wait()

        held = [write(lambda tx, n=n: tx.leases.acquire(n, owner="me", seconds=30)) for n in "ab"]
        lost: list[str] = []
        keeper = LeaseKeeper(write, 30.0, telemetry)
        keeper.stop()  # No thread: the test runs it.
        for lease in held:
            keeper.keep(lease, lambda name=lease.name: lost.append(name))
        write(lambda tx: tx.leases.release(held[1]))

        assert keeper.run_once() == pytest.approx(10.0)
        keeper.run_once()

        assert lost == ["b"]
        assert runtime.store.leases.holder("a") == "me"


# The turnstile


TAKE_TURNS = """
    import sys
    from penstock.testing import FakeClock
    from tests.factories import new_message, store_at
    store = store_at(sys.argv[1])
    writer = store.open_writer()
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(int(sys.argv[2])):
        with writer.transaction() as tx:
            tx.topics.append([new_message(sys.argv[3])], producer="p", now=0)
    print("done", flush=True)
"""


def test_two_processes_that_write_take_turns(path: Path) -> None:
    """Neither waits for the other's whole work: their messages are mixed from the start."""
    store_at(file_url(path)).close()
    with (
        Child(TAKE_TURNS, file_url(path), 200, "a", PYTHONPATH=".") as first,
        Child(TAKE_TURNS, file_url(path), 200, "b", PYTHONPATH=".") as second,
    ):
        for child in (first, second):
            assert child.hear() == "ready"
        for child in (first, second):
            child.tell()
        for child in (first, second):
            assert child.hear() == "done"
    with penstock.connect(file_url(path)) as hub:
        order = [message.topic for message in hub.topics.read("*")]

    begin = max(order.index("a"), order.index("b"))
    end = min(len(order) - order[::-1].index(topic) for topic in "ab")
    both_at_work = order[begin:end]
    changes = sum(x != y for x, y in pairwise(both_at_work))
    assert changes > len(both_at_work) / 2


HOLD_TURN = """
    import sys
    from pathlib import Path
    from penstock.stores.sqlite.turnstile import Turnstile
    stile = Turnstile(Path(sys.argv[1]))
    stile.enter(5)
    print("mine", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnstile, "PATIENCE_SECONDS", 0.1)


@pytest.mark.usefixtures("impatient")
def test_a_stopped_holder_of_the_turn_is_passed(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish("t", 1)
    with Child(HOLD_TURN, path) as child:
        assert child.hear() == "mine"
        child.stop()
        for number in range(3):
            hub.topics.publish("t", number)
        child.go_on()

    assert hub.topics.position().offset == 4


def test_the_turn_is_free_when_its_holder_has_died(path: Path) -> None:
    with Child(HOLD_TURN, path) as child:
        assert child.hear() == "mine"
    stile = Turnstile(path)
    stile.enter(SOON)

    assert stile._has_turn
    stile.leave()
    stile.close()


# Who is alive


LIVE = """
    import sys
    from pathlib import Path
    from penstock.stores.sqlite.liveness import Liveness
    Liveness(Path(sys.argv[1])).declare(7)
    print("alive", flush=True)
    sys.stdin.readline()
"""


def test_a_process_is_alive_until_it_ends(path: Path) -> None:
    liveness = Liveness(path)
    assert not liveness.is_alive(7)
    with Child(LIVE, path) as child:
        assert child.hear() == "alive"
        assert liveness.is_alive(7)
        child.stop()
        assert liveness.is_alive(7)
        child.kill()

        assert not liveness.is_alive(7)
    liveness.close()


def test_one_that_declared_itself_is_alive_here_and_for_others(path: Path) -> None:
    mine, other = Liveness(path), Liveness(path)
    mine.declare(3)

    assert (mine.is_alive(3), other.is_alive(3), other.is_alive(4)) == (True, True, False)
    mine.close()
    assert not other.is_alive(3)
    other.close()


def test_who_was_here_before_the_folder_was_emptied_sees_who_came_later(path: Path) -> None:
    """It would take them for dead, and their jobs from them."""
    old = Liveness(path)
    old.declare(3)
    path.with_name(path.name + "-live").unlink()
    later = Liveness(path)
    later.declare(7)

    assert old.is_alive(7)
    assert later.is_alive(3), "the old one is there with its own number, too"
    assert not old.is_alive(8)
    old.close()
    assert not later.is_alive(3)
    later.close()
