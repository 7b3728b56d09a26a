"""What is asked about jobs by those who operate them, and by those who wait for them (J7)."""

from __future__ import annotations

import msgspec
import pytest

from penstock.clock import micros, seconds
from penstock.job import State, Worker
from tests.conformance.desk import LEASE_SECONDS, Desk, new_job


def test_those_ahead_are_of_the_same_queue_and_come_first(desk: Desk) -> None:
    low = desk.enqueue(priority=5)
    first, second = desk.enqueue(), desk.enqueue()
    desk.enqueue("other", priority=-9)
    high = desk.enqueue(priority=-1)
    later = desk.enqueue(delay=60, priority=-2)

    def ahead(id: int, limit: int = 100) -> int:
        return desk.store.jobs.ahead(id, limit=limit)

    assert [ahead(id) for id in (high, first, second, low)] == [0, 1, 2, 3]
    assert ahead(low, limit=2) == 2
    assert ahead(later) == 0
    assert ahead(999) == 0
    desk.claim()
    assert [ahead(id) for id in (first, second, low)] == [0, 1, 2]


def test_a_rate_says_how_long_it_is_used_up(desk: Desk) -> None:
    desk.put(*[new_job() for _ in range(9)])
    assert desk.store.jobs.rate_wait("q") == 0
    desk.limit(rate_max=3, rate_seconds=10)
    assert desk.store.jobs.rate_wait("q") == 0
    desk.claim(2)
    assert desk.store.jobs.rate_wait("q") == 0
    desk.clock.advance(4)
    desk.claim(5)
    wait = desk.store.jobs.rate_wait("q")
    assert 5 < seconds(wait) <= 6.2
    assert desk.claimed() == []
    desk.clock.advance(seconds(wait) - 0.001)
    assert desk.claimed() == []
    desk.clock.advance(0.002)
    assert desk.store.jobs.rate_wait("q") == 0
    assert len(desk.claimed()) == 2, "what was handed out first counts no longer"
    assert desk.store.jobs.rate_wait("q") > 0


def test_finished_tells_of_the_ended_and_of_the_gone(desk: Desk) -> None:
    open_, later = desk.enqueue(), desk.enqueue(delay=60)
    waiting = desk.enqueue(after=(later,))
    ended = desk.done(State.COMPLETED)
    failed = desk.done(State.FAILED)
    cancelled = desk.done(State.CANCELLED)
    running = desk.take().id
    assert running == open_
    ids = [open_, later, waiting, ended, failed, cancelled, 999]
    assert desk.store.jobs.finished(ids) == {ended, failed, cancelled, 999}
    assert desk.store.jobs.finished([]) == set()
    assert desk.store.jobs.finished([open_]) == set()
    desk.retry(failed)
    assert failed not in desk.store.jobs.finished(ids)


def test_recent_runs_have_the_times_of_what_completed(desk: Desk) -> None:
    desk.enqueue()
    delayed = desk.enqueue("d", delay=5)
    desk.done(State.FAILED)
    begin = desk.clock.now()
    desk.clock.advance(2)
    claim = desk.take()
    desk.clock.advance(3)
    desk.complete(claim)
    desk.clock.advance(1)
    late = desk.take("d")
    assert late.id == delayed
    desk.complete(late)

    runs, since = desk.store.jobs.recent_runs(since=begin, limit=1_000)
    found = {run.queue: run for run in runs}
    assert set(found) == {"q", "d"}
    assert since == begin
    run = found["q"]
    times = [seconds(at - begin) for at in (run.ready_at, run.started_at, run.at)]
    assert times == [0, 2, 5]
    assert seconds(found["d"].started_at - found["d"].ready_at) == 1

    cut = desk.clock.now() - micros(0.5)
    assert [run.queue for run in desk.store.jobs.recent_runs(since=cut, limit=1_000)[0]] == ["d"]
    few, since = desk.store.jobs.recent_runs(since=begin, limit=1)
    assert [run.queue for run in few] == ["d"]
    assert since > begin, "what is older was not looked at"
    assert desk.store.jobs.recent_runs(since=desk.at(60), limit=10)[0] == []


def test_a_store_without_jobs_has_no_runs(desk: Desk) -> None:
    assert desk.store.jobs.recent_runs(since=7, limit=10) == ([], 7)


@pytest.mark.parametrize("types", [(), ("a", "b.c")])
def test_workers_say_which_jobs_they_can_do(desk: Desk, types: tuple[str, ...]) -> None:
    worker = Worker(desk.instance.id, "w", {"q": 1}, desk.at(0), types=types)

    def enter(worker: Worker) -> None:
        now = desk.clock.now()
        desk.write(lambda tx: tx.jobs.enter(worker, lease_seconds=LEASE_SECONDS, now=now))

    enter(worker)
    assert [found.types for found in desk.store.jobs.workers()] == [types]
    enter(msgspec.structs.replace(worker, types=(*types, "new")))
    assert [found.types for found in desk.store.jobs.workers()] == [(*types, "new")]
