"""Jobs on their way in and out to a worker (J1, J2, J6)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock.job import Claim, State
from penstock.ports import Transaction
from penstock.testing import FakeClock
from tests.conformance.desk import Desk, new_job

OpenDesk = Callable[..., Desk]

# In


def test_jobs_are_added_in_order_and_ids_rise(desk: Desk) -> None:
    """J6"""
    added = desk.put(*(new_job(body=b"%d" % number) for number in range(150)))
    more = desk.put(new_job(), new_job(run_at=desk.at(5)), new_job(), new_job(unique_key="k"))

    ids = [job.id for job in added + more]
    assert ids == sorted(set(ids))
    assert [desk.get(job.id).body for job in added] == [b"%d" % number for number in range(150)]
    assert [job.state for job in more] == [
        State.PENDING,
        State.SCHEDULED,
        State.PENDING,
        State.PENDING,
    ]


def test_a_job_has_everything_it_was_given(desk: Desk, clock: FakeClock) -> None:
    """J1"""
    number = desk.put(
        new_job(
            "mail",
            b'{"to":1}',
            type="send",
            priority=-3,
            max_attempts=7,
            deadline=desk.at(50),
            timeout=4_000_000,
            schedule="nightly",
        )
    )[0].id

    job = desk.get(number)
    assert (job.queue, job.type, job.payload, job.priority) == ("mail", "send", {"to": 1}, -3)
    assert (job.max_attempts, job.attempts, job.crashes) == (7, 0, 0)
    assert (job.created_at, job.deadline, job.timeout) == (clock.now(), desk.at(50), 4_000_000)
    assert (job.schedule, job.state, job.worker, job.finished_at) == (
        "nightly",
        State.PENDING,
        None,
        None,
    )


def test_an_id_is_never_given_twice(desk: Desk, clock: FakeClock) -> None:
    last = desk.done(State.COMPLETED)
    clock.advance(100)
    assert desk.prune({State.COMPLETED: 10}) == 1

    assert desk.enqueue() > last


# Out


def test_lower_priority_goes_first_then_the_older(desk: Desk) -> None:
    """J2"""
    late, first, second, never = (
        desk.enqueue(priority=5),
        desk.enqueue(priority=-5),
        desk.enqueue(priority=-5),
        desk.enqueue(queue="other", priority=-9),
    )

    assert [desk.claimed(1), desk.claimed(2), desk.claimed()] == [[first], [second, late], []]
    assert desk.state(never) == State.PENDING


def test_a_claim_has_what_a_worker_needs_and_is_no_attempt_yet(
    desk: Desk, clock: FakeClock
) -> None:
    """J2"""
    number = desk.enqueue(body=b'"x"', max_attempts=2, timeout=9, deadline=desk.at(100))
    (claim,) = desk.claim()

    job = desk.get(number)
    assert (claim.id, claim.queue, claim.type, claim.body) == (number, "q", "work", b'"x"')
    assert (claim.attempt, claim.max_attempts, claim.crashes) == (1, 2, 0)
    assert (claim.timeout, claim.deadline, claim.created_at) == (9, desk.at(100), clock.now())
    assert (job.state, job.attempts, job.claimed_at, job.started_at) == (
        State.PROCESSING,
        0,
        clock.now(),
        None,
    )
    assert desk.told(number) == "enqueued"


def test_several_queues_are_claimed_at_once_each_up_to_its_number(desk: Desk) -> None:
    for queue in ("a", "b", "c"):
        desk.put(*(new_job(queue) for _ in range(3)))

    claims = desk.claim(a=2, b=5, d=1)
    assert [claim.queue for claim in claims] == ["a", "a", "b", "b", "b"]


@pytest.mark.parametrize("delay", [0.001, 60, 86_400])
def test_a_delayed_job_is_not_handed_out_before_its_time(
    desk: Desk, clock: FakeClock, delay: float
) -> None:
    """J6"""
    number = desk.enqueue(delay=delay)
    assert (desk.claimed(), desk.state(number)) == ([], State.SCHEDULED)
    clock.advance(delay - 0.000_001)
    assert desk.claimed() == []
    clock.advance(0.000_001)

    assert desk.claimed() == [number]


def test_a_time_that_has_passed_is_now(desk: Desk) -> None:
    number = desk.enqueue(delay=-5)
    assert (desk.state(number), desk.claimed()) == (State.PENDING, [number])


def test_due_jobs_go_by_priority_not_by_when_they_were_due(desk: Desk, clock: FakeClock) -> None:
    early, late = desk.enqueue(delay=1, priority=1), desk.enqueue(delay=2)
    clock.advance(5)

    assert desk.claimed() == [late, early]


def test_more_due_jobs_than_are_staged_at_once_all_come(desk: Desk, clock: FakeClock) -> None:
    desk.put(*(new_job(run_at=desk.at(1)) for _ in range(2_300)))
    clock.advance(1)

    found = [number for _ in range(3) for number in desk.claimed(5_000)]
    assert len(found) == len(set(found)) == 2_300


def test_a_job_past_its_deadline_fails_instead(desk: Desk, clock: FakeClock) -> None:
    """J6: the reason is in its history, and what comes after it is handed out all the same."""
    late = [desk.enqueue(deadline=desk.at(10)) for _ in range(3)]
    good = desk.enqueue()
    clock.advance(10)

    assert desk.claimed(1) == [good]
    assert desk.states(*late) == [State.FAILED] * 3
    assert desk.told(late[0]) == "enqueued expired"
    failure = desk.get(late[0]).failure
    assert (failure and failure.error, desk.get(late[0]).attempts) == ("DeadlinePassed", 0)


def test_two_writers_never_get_the_same_job(open_desk: OpenDesk) -> None:
    """J2: from threads of two processes' stores, at the same time."""
    desks = [open_desk("a"), open_desk("b")]
    desks[0].put(*(new_job() for _ in range(400)))
    found: list[list[Claim]] = [[], []]

    def drain(desk: Desk, into: list[Claim]) -> None:
        while claims := desk.claim(7):
            into += claims

    threads = [threading.Thread(target=drain, args=pair) for pair in zip(desks, found, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    ids = [claim.id for claims in found for claim in claims]
    tokens = [{claim.token for claim in claims} for claims in found]
    assert (len(ids), len(set(ids))) == (400, 400)
    assert not tokens[0] & tokens[1]


# Looking


def test_a_look_tells_whether_a_claim_may_be_worth_it(desk: Desk, clock: FakeClock) -> None:
    def look(*queues: str) -> bool:
        return desk.store.jobs.look(queues, now=clock.now())

    assert look("q") is False
    desk.enqueue(delay=5)
    assert look("q") is False
    clock.advance(5)
    assert look("q") is True
    desk.claim()
    assert look("q", "other") is False
    desk.enqueue("other")
    assert (look("q"), look("q", "other")) == (False, True)


def test_the_next_time_is_that_of_the_earliest_scheduled_job(desk: Desk, clock: FakeClock) -> None:
    assert desk.store.jobs.next_at() is None
    desk.enqueue(delay=50)
    desk.enqueue(delay=20)
    assert desk.store.jobs.next_at() == desk.at(20)
    clock.advance(30)
    assert desk.store.jobs.next_at() == desk.at(-10)
    desk.claim()
    assert desk.store.jobs.next_at() == desk.at(20)


@pytest.mark.parametrize("delay", [None, 60])
def test_whoever_makes_jobs_ready_wakes_the_workers(desk: Desk, delay: float | None) -> None:
    """A worker that sleeps until the next time it knows must hear of an earlier one, too."""
    job = new_job(run_at=None if delay is None else desk.at(delay))

    def enqueue(tx: Transaction) -> bool:
        tx.jobs.enqueue([job], now=desk.at(0))
        return bool(tx.jobs.made_ready)

    assert desk.write(enqueue) is True
    assert desk.write(lambda tx: tx.jobs.made_ready) is False
