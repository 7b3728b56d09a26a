"""What people do to jobs: cancel, retry, change, prune (J7, J8)."""

from __future__ import annotations

import pytest

from penstock.clock import SECOND
from penstock.job import Kind, State
from penstock.testing import FakeClock
from tests.audit import audit_jobs
from tests.conformance.desk import Desk, new_job

FINAL = [State.COMPLETED, State.FAILED, State.CANCELLED]
NEVER = 1e9

# Cancel


@pytest.mark.parametrize("state", ["pending", "scheduled", "waiting", "claimed", "retrying"])
def test_what_has_not_started_is_cancelled_at_once(desk: Desk, state: str) -> None:
    parent = desk.enqueue("other")
    number = desk.enqueue(
        delay=9 if state == "scheduled" else None, after=(parent,) if state == "waiting" else ()
    )
    claims = desk.claim() if state == "claimed" else []
    if state == "retrying":
        desk.set_back(desk.take(), retry=5)
    assert desk.cancel(number, reason="wrong") == [number]

    assert (desk.state(number), desk.last(number)) == (State.CANCELLED, {"reason": "wrong"})
    assert desk.get(number).finished_at == desk.at(0)
    # A worker that has it in hand finds that it may not run it.
    assert desk.start(*claims) == desk.release(*claims) == []
    assert desk.claimed() == []


def test_a_running_job_is_asked_to_stop_and_goes_on_until_its_worker_answers(desk: Desk) -> None:
    number = desk.enqueue()
    claim = desk.take()
    assert desk.cancel(number) == [number]

    assert (desk.state(number), desk.get(number).is_cancelling) == (State.PROCESSING, True)
    assert desk.store.jobs.cancelling(desk.instance) == [number]
    assert desk.start(claim) == []


@pytest.mark.parametrize("kind", [Kind.FAILED, Kind.DIED, Kind.SNOOZED, Kind.CANCELLED])
def test_a_job_that_was_asked_to_stop_is_cancelled_by_any_setback(desk: Desk, kind: Kind) -> None:
    number = desk.enqueue()
    claim = desk.take()
    desk.cancel(number, reason="first")
    desk.cancel(number, reason="second")
    assert desk.set_back(claim, kind, retry=1, failure=None) == [number]

    assert (desk.state(number), desk.last(number)) == (State.CANCELLED, {"reason": "first"})


def test_a_job_that_was_asked_to_stop_and_is_released_is_cancelled(desk: Desk) -> None:
    number = desk.enqueue()
    claim = desk.take()
    desk.cancel(number)
    assert desk.release(claim) == [number]
    assert desk.state(number) == State.CANCELLED


def test_a_job_that_was_asked_to_stop_and_is_done_all_the_same_is_completed(desk: Desk) -> None:
    number = desk.enqueue()
    claim = desk.take()
    desk.cancel(number)
    assert desk.complete(claim) == [number]
    assert (desk.state(number), desk.get(number).is_cancelling) == (State.COMPLETED, False)


@pytest.mark.parametrize("state", FINAL)
def test_what_has_finished_is_not_cancelled(desk: Desk, state: State) -> None:
    number = desk.done(state)
    told = desk.told(number)
    assert desk.cancel(number, 99) == []
    assert (desk.state(number), desk.told(number)) == (state, told)


@pytest.mark.parametrize("state", [State.PENDING, State.SCHEDULED, State.PROCESSING])
def test_what_has_left_the_state_it_was_found_in_is_not_cancelled(desk: Desk, state: State) -> None:
    number = desk.enqueue(delay=9 if state == State.SCHEDULED else None)
    if state == State.PROCESSING:
        desk.take()
    others = [found for found in State if found != state]
    assert desk.cancel(number, states=others) == []
    assert (desk.state(number), desk.get(number).is_cancelling) == (state, False)
    assert desk.cancel(number, states=[state, State.WAITING]) == [number]


# Retry


@pytest.mark.parametrize("state", FINAL)
def test_what_has_finished_can_be_tried_again(desk: Desk, clock: FakeClock, state: State) -> None:
    """Failure mode 12: with all attempts, no crashes, and its whole history."""
    number = desk.done(state, max_attempts=1)
    told = desk.told(number)
    clock.advance(5)
    assert desk.retry(number, 99) == [number]

    job = desk.get(number)
    assert (job.state, job.attempts, job.crashes) == (State.PENDING, 0, 0)
    assert (job.finished_at, job.started_at) == (None, None)
    assert desk.told(number) == f"{told} retried"
    claim = desk.take("ready-made")
    assert claim.attempt == 1
    assert desk.complete(claim) == [number]


@pytest.mark.parametrize("state", FINAL)
def test_what_has_left_the_state_it_was_found_in_is_not_tried_again(
    desk: Desk, state: State
) -> None:
    """Failure mode 1: whoever retries all that failed never repeats what was done meanwhile."""
    number = desk.done(state)
    told = desk.told(number)
    others = [found for found in State if found != state]
    assert desk.retry(number, states=others) == []
    assert (desk.state(number), desk.told(number)) == (state, told)
    assert desk.retry(number, states=[state, State.SCHEDULED]) == [number]


def test_a_retry_resets_the_crashes(desk: Desk, clock: FakeClock) -> None:
    """Failure mode 12: or a job that crashed could never be retried (bullmq#3555)."""
    number = desk.enqueue(max_attempts=1)
    for _ in range(2):
        desk.enter(lease_seconds=5)
        desk.take()
        clock.advance(5)
        desk.rescue()
        assert (desk.state(number), desk.get(number).crashes) == (State.FAILED, 1)
        desk.retry(number)

    assert desk.get(number).crashes == 0
    assert desk.told(number) == "enqueued" + " started died retried" * 2


def test_a_scheduled_job_is_made_ready(desk: Desk) -> None:
    delayed, retrying = desk.enqueue(delay=500, priority=1), desk.enqueue()
    desk.set_back(desk.take(), retry=500)
    assert desk.retry(delayed, retrying) == [delayed, retrying]

    assert desk.claimed() == [retrying, delayed]


@pytest.mark.parametrize("state", ["pending", "waiting", "processing"])
def test_what_is_ready_waits_or_runs_is_left_alone(desk: Desk, state: str) -> None:
    number = desk.enqueue(after=(desk.enqueue("other"),) if state == "waiting" else ())
    if state == "processing":
        desk.take()
    told = desk.told(number)

    assert desk.retry(number) == []
    assert (desk.state(number).name.lower(), desk.told(number)) == (state, told)


def test_a_retry_lifts_a_deadline_that_has_passed(desk: Desk, clock: FakeClock) -> None:
    late, early = desk.enqueue(deadline=desk.at(5)), desk.enqueue(deadline=desk.at(50))
    clock.advance(5)
    desk.complete(desk.take())
    assert desk.state(late) == State.FAILED
    desk.retry(late, early)

    assert desk.claimed() == [late, early]
    assert desk.get(early).deadline == desk.at(45)


def test_a_retried_parent_calls_nobody_back(desk: Desk) -> None:
    """What was cancelled for it is retried by itself, if that is meant."""
    parent = desk.enqueue()
    child = desk.enqueue(after=(parent,))
    desk.set_back(desk.take(), Kind.DIED)
    desk.retry(parent)
    desk.complete(desk.take())
    assert desk.state(child) == State.CANCELLED

    assert desk.retry(child) == [child]
    assert desk.claimed() == [child]


# Priority


@pytest.mark.parametrize("state", ["pending", "scheduled", "waiting"])
def test_the_priority_of_what_waits_can_be_changed(
    desk: Desk, clock: FakeClock, state: str
) -> None:
    parent = desk.enqueue("other")
    first = desk.enqueue()
    number = desk.enqueue(
        delay=9 if state == "scheduled" else None, after=(parent,) if state == "waiting" else ()
    )
    assert desk.write(lambda tx: tx.jobs.set_priority(number, -1)) is True
    desk.complete(desk.take("other"))
    clock.advance(9)

    assert desk.claimed() == [number, first]


def test_the_priority_of_what_runs_or_is_over_cannot(desk: Desk) -> None:
    over = desk.done(State.COMPLETED)
    running = desk.enqueue()
    desk.take()
    for number in (over, running, 99):
        assert desk.write(lambda tx, n=number: tx.jobs.set_priority(n, -1)) is False


# Prune


def rows(desk: Desk, table: str) -> int:
    return int(desk.store.query(f"SELECT count(*) FROM penstock_{table}")[0][0])


def test_old_jobs_go_by_state_and_age_with_all_that_belongs_to_them(
    desk: Desk, clock: FakeClock
) -> None:
    """J7"""
    old = {state: desk.done(state, unique_key=state.name) for state in FINAL}
    open_job = desk.enqueue(delay=NEVER)
    clock.advance(100)
    young = desk.done(State.COMPLETED)
    clock.advance(50)
    assert desk.prune({State.COMPLETED: 100, State.FAILED: 200, State.CANCELLED: 150}) == 1

    assert desk.store.jobs.get(old[State.COMPLETED]) is None
    assert desk.find() == [young, open_job, old[State.CANCELLED], old[State.FAILED]]
    assert desk.prune({State.FAILED: 149, State.CANCELLED: 149}) == 2
    assert desk.find() == [young, open_job]
    assert desk.prune(dict.fromkeys(FINAL, 50)) == 0, "to the microsecond"
    assert desk.prune(dict.fromkeys(FINAL, 49.999_999)) == 1
    assert [rows(desk, t) for t in ("jobs", "job_finished", "job_events", "job_unique")] == [
        1,
        0,
        1,
        0,
    ]


def test_a_state_without_a_time_is_kept(desk: Desk, clock: FakeClock) -> None:
    for state in FINAL:
        desk.done(state)
    clock.advance(NEVER)
    assert desk.prune({}) == 0
    assert desk.prune({State.COMPLETED: 1}) == 1
    assert rows(desk, "jobs") == 2


def test_no_more_are_removed_at_once_than_allowed(desk: Desk, clock: FakeClock) -> None:
    desk.put(*(new_job() for _ in range(25)))
    desk.complete(*desk.take_many(25))
    clock.advance(10)

    assert [desk.prune({State.COMPLETED: 1}, limit=10) for _ in range(4)] == [10, 10, 5, 0]
    audit_jobs(desk.store)


def test_what_is_kept_hides_nothing_that_goes(desk: Desk, clock: FakeClock) -> None:
    """Failure mode 8: hundreds of dead letters that are kept stand before the old."""
    desk.put(*(new_job(max_attempts=1) for _ in range(300)))
    claims = desk.take_many(300)
    for claim in claims:
        desk.set_back(claim)
    last = desk.done(State.COMPLETED)
    clock.advance(100)

    removed = [desk.prune({State.COMPLETED: 1}, limit=5) for _ in range(10)]
    assert (sum(removed), desk.store.jobs.get(last), rows(desk, "jobs")) == (1, None, 300)


def test_one_that_finished_late_hides_nothing_that_goes(desk: Desk, clock: FakeClock) -> None:
    first, second = desk.enqueue(), desk.enqueue()
    slow, fast = desk.take(), desk.take()
    desk.complete(fast)
    clock.advance(100)
    desk.complete(slow)
    assert desk.prune({State.COMPLETED: 50}) == 1

    assert (desk.store.jobs.get(second), desk.state(first)) == (None, State.COMPLETED)


def test_a_pruned_parent_is_unknown(desk: Desk, clock: FakeClock) -> None:
    parent = desk.enqueue()
    child = desk.enqueue(after=(parent,), delay=NEVER)
    desk.complete(desk.take())
    clock.advance(10)
    assert desk.prune({State.COMPLETED: 1}) == 1

    assert (desk.state(child), desk.store.jobs.parents(child)) == (State.SCHEDULED, [])


def test_jobs_that_are_retried_are_not_pruned(desk: Desk, clock: FakeClock) -> None:
    number = desk.done(State.FAILED)
    clock.advance(100)
    desk.retry(number)
    assert desk.prune(dict.fromkeys(FINAL, 0)) == 0
    assert desk.state(number) == State.PENDING


def test_results_are_forgotten_where_their_jobs_are_kept(desk: Desk, clock: FakeClock) -> None:
    desk.put(new_job(), new_job())
    first, second = desk.take(), desk.take()
    desk.complete(first, result=b"1", keep=10)
    desk.complete(second, result=b"2", keep=100)
    clock.advance(10)
    desk.prune({})

    kept = desk.store.query("SELECT result FROM penstock_job_finished ORDER BY job_id")
    assert kept == [(None,), (b"2",)]


def test_a_timeout_travels_with_the_claim(desk: Desk) -> None:
    desk.enqueue(timeout=3 * SECOND)
    assert desk.claim()[0].timeout == 3 * SECOND
