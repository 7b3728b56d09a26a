"""Workers that come, stay, stop answering and end; what becomes of their jobs (J4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.job import State, Worker
from penstock.ports import Transaction
from penstock.testing import FakeClock
from tests.conformance.desk import LEASE_SECONDS, Desk, new_job
from tests.conformance.places import Place
from tests.conformance.test_job_answers import REFUSED, answers
from tests.processes import Child
from tests.waiting import wait_until

OpenDesk = Callable[..., Desk]


def lose(desk: Desk, clock: FakeClock) -> None:
    """Let its lease run out."""
    clock.advance(LEASE_SECONDS)
    assert desk.store.jobs.has_lost()


def test_a_crash_is_counted_and_the_job_tried_again_after_a_pause(
    desk: Desk, clock: FakeClock
) -> None:
    """Failure modes 1 and 4: crashes are counted apart, and burn an attempt."""
    number = desk.enqueue(max_attempts=5)
    desk.enter()
    desk.take()
    lose(desk, clock)
    assert desk.rescue() == [number]

    job = desk.get(number)
    assert (job.state, job.attempts, job.crashes) == (State.SCHEDULED, 1, 1)
    assert job.failure is not None
    assert job.failure.error == "WorkerLost"
    assert (job.run_at, desk.told(number)) == (desk.at(1), "enqueued started rescued")
    assert desk.last(number)["instance"] == desk.instance.id
    clock.advance(1)
    assert desk.claim()[0].attempt == 2


def test_crashes_end_with_the_attempts(desk: Desk, clock: FakeClock) -> None:
    """Failure mode 4: a job that kills its workers is not handed on for ever."""
    number = desk.enqueue(max_attempts=3)
    for _ in range(3):
        desk.enter()
        desk.take()
        lose(desk, clock)
        assert desk.rescue() == [number]
        clock.advance(100)

    job = desk.get(number)
    assert (job.state, job.attempts, job.crashes, desk.claim()) == (State.FAILED, 3, 3, [])
    assert desk.told(number) == "enqueued started rescued started rescued started died"


def test_crashes_and_failures_share_the_attempts(desk: Desk, clock: FakeClock) -> None:
    number = desk.enqueue(max_attempts=2)
    desk.enter()
    desk.set_back(desk.take(), retry=0)
    desk.take()
    lose(desk, clock)
    desk.rescue()

    job = desk.get(number)
    assert (job.state, job.attempts, job.crashes) == (State.FAILED, 2, 1)


def test_a_job_that_had_not_started_is_free_without_an_attempt(
    desk: Desk, clock: FakeClock
) -> None:
    number = desk.enqueue(max_attempts=1)
    desk.enter()
    desk.claim()
    lose(desk, clock)
    assert desk.rescue() == [number]

    job = desk.get(number)
    assert (job.state, job.attempts, job.crashes) == (State.PENDING, 0, 0)
    assert desk.told(number) == "enqueued"


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_a_running_job_that_was_cancelled_is_so_when_its_worker_is_gone(
    desk: Desk, clock: FakeClock, max_attempts: int
) -> None:
    number = desk.enqueue(max_attempts=max_attempts)
    desk.enter()
    desk.take()
    desk.cancel(number, reason="enough")
    lose(desk, clock)
    assert desk.rescue() == [number]

    assert (desk.state(number), desk.told(number)) == (
        State.CANCELLED,
        "enqueued started cancelled",
    )
    assert desk.last(number) == {"reason": "enough"}


def test_each_is_rescued_once_whoever_calls(open_desk: OpenDesk, place: Place) -> None:
    """Failure mode 1: and by any process, also when the one that began to rescue has died."""
    dead, one, two = open_desk("dead"), open_desk("one"), open_desk("two")
    one.put(*(new_job(max_attempts=1) for _ in range(10)))
    dead.take_many(10)
    place.end(dead.store)
    first = one.rescue(limit=3)
    place.end(one.store)
    rest = [*two.rescue(limit=3), *two.rescue(), *two.rescue()]

    assert (len(first), sorted(first + rest), two.store.jobs.has_lost()) == (
        3,
        list(range(1, 11)),
        False,
    )


def test_the_living_hide_nothing_of_the_dead(open_desk: OpenDesk, place: Place) -> None:
    """Failure mode 8: hundreds that cannot be rescued stand before the one that can."""
    living, dead = open_desk("living"), open_desk("dead")
    living.enter()
    living.put(*(new_job() for _ in range(301)))
    living.take_many(300)
    lost = dead.take()
    place.end(dead.store)

    assert living.rescue(limit=10) == [lost.id]
    assert living.rescue(limit=10) == []


def test_a_renewed_lease_keeps_the_jobs(desk: Desk, clock: FakeClock) -> None:
    desk.enqueue()
    desk.enter()
    claim = desk.take()
    for _ in range(5):
        clock.advance(LEASE_SECONDS - 1)
        assert (desk.store.jobs.has_lost(), desk.rescue()) == (False, [])
        desk.enter()

    assert desk.complete(claim) == [claim.id]


def test_one_whose_lease_has_run_out_gets_nothing_until_it_has_entered_again(
    desk: Desk, clock: FakeClock
) -> None:
    """It was suspended: what it took now, any other would take from it at once."""
    number = desk.enqueue()
    desk.enter()
    clock.advance(LEASE_SECONDS)
    assert (desk.claimed(), desk.state(number)) == ([], State.PENDING)

    def enter(tx: Transaction) -> bool:
        worker = Worker(desk.instance.id, "desk", {"q": 1}, desk.at(0))
        tx.jobs.enter(worker, lease_seconds=30, now=desk.at(0))
        return tx.jobs.made_ready

    assert [desk.write(enter), desk.write(enter)] == [True, False], "it hears that it may"
    assert desk.claimed() == [number]


def test_a_wall_clock_that_jumps_loses_no_lease(desk: Desk, clock: FakeClock) -> None:
    desk.enqueue()
    desk.enter()
    desk.take()
    clock.set_back(86_400)
    clock.advance(LEASE_SECONDS - 1)
    assert desk.rescue() == []
    clock.advance(1)

    assert len(desk.rescue()) == 1


def test_a_zombies_answers_are_refused(open_desk: OpenDesk, clock: FakeClock) -> None:
    """Failure mode 2: after the rescue, while another has the job, and after that one is done."""
    zombie, other = open_desk("zombie"), open_desk("other")
    number = zombie.enqueue()
    zombie.enter()
    old = zombie.take()
    lose(other, clock)
    other.rescue()
    assert answers(zombie, old) == REFUSED
    clock.advance(5)
    other.enter()
    new = other.take()
    assert answers(zombie, old) == REFUSED
    assert other.complete(new, result=b"1") == [number]
    assert answers(zombie, old) == REFUSED

    assert (other.get(number).result, new.token > old.token) == (1, True)


def test_two_workers_with_one_name_are_two(open_desk: OpenDesk, place: Place) -> None:
    """Failure mode 2: one that comes back under the same name inherits nothing."""
    old, new = open_desk("w"), open_desk("w")
    number = old.enqueue()
    old.enter()
    claim = old.take()
    place.end(old.store)
    new.enter()
    assert new.rescue() == [number]

    assert answers(new, claim) == REFUSED
    assert [worker.instance for worker in new.store.jobs.workers()] == [new.instance.id]


def test_one_that_leaves_hands_back_what_it_has(desk: Desk) -> None:
    """Failure mode 12: without an attempt, started or not; nothing stays in dead hands."""
    first, second = desk.enqueue(max_attempts=1), desk.enqueue(max_attempts=1)
    desk.enter()
    desk.take()
    desk.claim()
    assert desk.leave() == [first, second]

    assert desk.states(first, second) == [State.PENDING, State.PENDING]
    assert [desk.get(first).attempts, desk.told(first)] == [0, "enqueued started released"]
    assert desk.store.jobs.workers() == []


def test_workers_are_listed_while_they_live(
    open_desk: OpenDesk, place: Place, clock: FakeClock
) -> None:
    one, two = open_desk("one"), open_desk("two")
    one.enter(a=3, b=2)
    started_at = clock.now()
    two.enter(q=1)
    one.put(new_job("a"), new_job("a"))
    one.claim(a=2)
    clock.advance(5)
    one.enter(a=3, b=2)

    first, second = two.store.jobs.workers()
    assert (first.name, first.queues, first.running) == ("one", {"a": 3, "b": 2}, 2)
    assert (first.started_at, first.seen_at) == (started_at, clock.now())
    assert (second.name, second.running, second.seen_at) == ("two", 0, started_at)
    assert two.get(1).worker == "one"
    place.end(two.store)
    assert [worker.name for worker in one.store.jobs.workers()] == ["one"]
    one.enter(a=3)
    assert len(one.store.query("SELECT 1 FROM penstock_workers")) == 1


def test_only_running_jobs_of_this_process_are_asked_to_stop(open_desk: OpenDesk) -> None:
    one, two = open_desk("one"), open_desk("two")
    one.put(*(new_job() for _ in range(3)))
    mine, also_mine, others = one.take(), one.take(), two.take()
    one.cancel(mine.id, others.id)

    assert one.store.jobs.cancelling(one.instance) == [mine.id]
    assert two.store.jobs.cancelling(two.instance) == [others.id]
    assert one.get(mine.id).is_cancelling
    assert not one.get(also_mine.id).is_cancelling


# Real processes

WORKER = """
    import sys
    from penstock.clock import SystemClock
    from penstock.job import Answer, Progress, Worker
    from tests.factories import store_at

    clock = SystemClock()
    store = store_at(sys.argv[1], clock=clock)
    instance = store.register("child")
    writer = store.open_writer()
    worker = Worker(instance.id, "child", {"q": 1}, clock.now())
    with writer.transaction() as tx:
        tx.jobs.enter(worker, lease_seconds=float(sys.argv[2]), now=clock.now())
        started, claimed = tx.jobs.claim(instance, {"q": 2}, now=clock.now())
        tx.jobs.start([started], now=clock.now())
    print(started.id, claimed.id, flush=True)
    input()
    with writer.transaction() as tx:
        now = clock.now()
        answers = (
            tx.jobs.complete([Answer(started.id, started.token)], now=now, result_until=now),
            tx.jobs.start([claimed], now=now),
            tx.jobs.report(started.id, started.token, Progress(1), now=now),
        )
    print(*answers, flush=True)
"""


@pytest.fixture
def real(tmp_path: Path, open_desk: OpenDesk, place: Place) -> Desk:
    """On the real clock, for processes of their own."""
    place.clock = SystemClock()  # type: ignore[assignment]
    desk = open_desk()
    if not desk.store.capabilities.shared:
        pytest.skip("the store is not shared between processes")
    desk.put(new_job(), new_job())
    return desk


def test_the_jobs_of_a_killed_process_are_rescued_at_once(real: Desk, place: Place) -> None:
    """Failure mode 1: SIGKILL, with an hour left on the lease."""
    with Child(WORKER, place.url, 3600) as child:
        started, claimed = map(int, child.hear().split())
        assert (real.store.jobs.has_lost(), real.rescue()) == (False, [])
        child.kill()

        assert real.store.jobs.has_lost()
        assert sorted(real.rescue()) == [started, claimed]
    assert (real.get(started).crashes, real.state(claimed)) == (1, State.PENDING)


def test_a_suspended_process_loses_its_jobs_and_is_refused_when_it_goes_on(
    real: Desk, place: Place
) -> None:
    """Failure mode 2: SIGSTOP for longer than the lease, then SIGCONT."""
    with Child(WORKER, place.url, 0.5) as child:
        started, claimed = map(int, child.hear().split())
        child.stop()
        wait_until(real.store.jobs.has_lost, "the lease runs out")
        assert sorted(real.rescue()) == [started, claimed]
        child.go_on()
        child.tell()

        assert child.hear() == "[] [] False"
    assert real.states(started, claimed) == [State.SCHEDULED, State.PENDING]


def test_a_suspended_process_keeps_its_jobs_while_nobody_took_them(
    real: Desk, place: Place
) -> None:
    """The token decides, not the time: an answer that is late, but first, counts."""
    with Child(WORKER, place.url, 0.5) as child:
        started, claimed = map(int, child.hear().split())
        child.stop()
        wait_until(real.store.jobs.has_lost, "the lease runs out")
        child.go_on()
        child.tell()

        assert child.hear() == f"[{started}] [{claimed}] False"
        child.kill()
    assert real.rescue() == [claimed]
    assert real.state(started) == State.COMPLETED
