"""Background work is supervised: it survives its failures, runs when nudged, stops when told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.service import Service
from penstock.telemetry import Telemetry
from tests.waiting import SOON, wait_until

NEVER = 3600.0


class Worker(Service):
    """Does what it is told, and counts how often."""

    name = "worker"

    def __init__(self, telemetry: Telemetry, work: Callable[[int], float]) -> None:
        super().__init__(telemetry)
        self.runs = 0
        self.ended = 0
        self.pauses: list[float] = []
        self.threads: set[int] = set()
        self._work = work

    def run_once(self) -> float:
        self.runs += 1
        self.threads.add(threading.get_ident())
        return self._work(self.runs)

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        super()._pause(seconds)

    def _on_stop(self) -> None:
        self.ended += 1


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def start(telemetry: Telemetry) -> Iterator[Callable[[Callable[[int], float]], Worker]]:
    """Start a worker that does this; it is stopped at the end."""
    workers: list[Worker] = []

    def start_one(work: Callable[[int], float]) -> Worker:
        workers.append(Worker(telemetry, work))
        workers[-1].start()
        return workers[-1]

    yield start_one
    for worker in workers:
        worker.stop(SOON)


Start = Callable[[Callable[[int], float]], Worker]


def test_it_runs_again_after_the_pause_it_asked_for(start: Start) -> None:
    worker = start(lambda runs: 0.001)

    wait_until(lambda: worker.runs >= 3)
    assert set(worker.pauses) == {0.001}


def test_it_does_not_pause_when_there_is_more_to_do(start: Start) -> None:
    worker = start(lambda runs: 0.0 if runs < 100 else NEVER)

    wait_until(lambda: worker.runs == 100 and worker.pauses)
    assert worker.pauses == [NEVER]


def test_its_last_error_stands_until_a_run_succeeds(start: Start) -> None:
    error = ValueError("no luck")
    may_succeed = threading.Event()

    def fail_until_told(runs: int) -> float:
        if not may_succeed.is_set():
            raise error
        return NEVER

    worker = start(fail_until_told)
    wait_until(lambda: worker.last_error is error)
    may_succeed.set()
    worker.nudge()

    wait_until(lambda: worker.last_error is None)


def test_pauses_grow_while_it_fails_and_are_bounded(start: Start) -> None:
    def fail(runs: int) -> float:
        raise ValueError

    worker = start(fail)

    def has_failed_often() -> bool:
        worker.nudge()  # so that nobody waits for the pauses themselves
        return len(worker.pauses) >= 10

    wait_until(has_failed_often)
    assert worker.pauses[:3] == [0.1, 0.2, 0.4]
    assert worker.pauses == sorted(worker.pauses)
    assert max(worker.pauses) == 5.0


def test_after_a_success_pauses_start_small_again(start: Start) -> None:
    def fail_every_other_time(runs: int) -> float:
        if runs % 2:
            raise ValueError
        return 0.0

    worker = start(fail_every_other_time)

    wait_until(lambda: len(worker.pauses) >= 3)
    assert set(worker.pauses) == {0.1}


def test_a_nudge_during_a_run_is_not_lost(start: Start) -> None:
    is_running, may_end = threading.Event(), threading.Event()

    def work(runs: int) -> float:
        if runs == 1:
            is_running.set()
            assert may_end.wait(SOON)
        return NEVER

    worker = start(work)
    assert is_running.wait(SOON)
    worker.nudge()
    may_end.set()

    wait_until(lambda: worker.runs == 2)


def test_stop_waits_for_the_run_to_end(start: Start) -> None:
    is_running, may_end = threading.Event(), threading.Event()
    done: list[bool] = []

    def work(runs: int) -> float:
        is_running.set()
        assert may_end.wait(SOON)
        done.append(True)
        return NEVER

    worker = start(work)
    assert is_running.wait(SOON)
    worker.stop(0.01)
    assert worker.is_running
    may_end.set()
    worker.stop(SOON)

    assert (done, worker.runs, worker.ended, worker.is_running) == ([True], 1, 1, False)


def test_stop_ends_a_pause_at_once(start: Start) -> None:
    worker = start(lambda runs: NEVER)
    wait_until(lambda: worker.pauses)
    worker.stop(SOON)

    assert (worker.runs, worker.is_running) == (1, False)


def test_stop_ends_one_that_only_fails(start: Start) -> None:
    def fail(runs: int) -> float:
        raise ValueError

    worker = start(fail)
    wait_until(lambda: worker.runs)
    worker.stop(SOON)

    assert not worker.is_running


def test_a_run_may_stop_its_own_service(start: Start) -> None:
    worker: list[Worker] = []
    is_known = threading.Event()

    def stop(runs: int) -> float:
        assert is_known.wait(SOON)
        worker[0].stop()
        return 0.0

    worker.append(start(stop))
    is_known.set()

    wait_until(lambda: not worker[0].is_running)
    assert worker[0].runs == 1


def test_starting_twice_starts_one_thread(start: Start) -> None:
    worker = start(lambda runs: 0.001)
    starters = [threading.Thread(target=worker.start) for _ in range(8)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    seen = worker.runs
    wait_until(lambda: worker.runs > seen + 10)

    assert len(worker.threads) == 1
