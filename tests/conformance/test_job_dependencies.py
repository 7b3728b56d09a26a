"""Jobs that wait for others (J10)."""

from __future__ import annotations

import pytest

from penstock.errors import JobNotFound
from penstock.job import Kind, OnParentFailure, State
from penstock.ports import Transaction
from penstock.testing import FakeClock
from tests.conformance.desk import Desk, new_job

DEEP = 3_000


def test_a_chain_runs_in_order(desk: Desk) -> None:
    first = desk.enqueue()
    second = desk.enqueue(after=(first,), priority=-9)
    third = desk.enqueue(after=(second,), priority=-99)
    order = []
    for _ in range(3):
        (claim,) = desk.take_many(99)
        order.append(claim.id)
        desk.complete(claim)

    assert order == [first, second, third]


def test_a_diamond_waits_for_both_sides(desk: Desk) -> None:
    top = desk.enqueue()
    left, right = desk.enqueue(after=(top,)), desk.enqueue(after=(top,))
    bottom = desk.enqueue(after=(left, right))
    assert desk.store.jobs.parents(bottom) == [left, right]
    desk.complete(desk.take())
    desk.complete(desk.take())
    assert (desk.state(bottom), desk.store.jobs.parents(bottom)) == (State.WAITING, [right])
    desk.complete(desk.take())

    assert desk.claimed() == [bottom]


def test_both_sides_may_end_in_one_transaction(desk: Desk) -> None:
    bottom = desk.enqueue(after=(desk.enqueue(), desk.enqueue()))
    desk.complete(*desk.take_many(2))

    assert desk.claimed() == [bottom]


def test_a_parent_named_twice_is_waited_for_once(desk: Desk) -> None:
    parent = desk.enqueue()
    child = desk.enqueue(after=(parent, parent))
    desk.complete(desk.take())

    assert desk.claimed() == [child]


def test_a_parent_that_has_completed_is_not_waited_for(desk: Desk) -> None:
    done, still_open = desk.done(State.COMPLETED), desk.enqueue("other")
    assert desk.state(desk.enqueue(after=(done,))) == State.PENDING
    mixed = desk.enqueue(after=(done, still_open))

    assert desk.store.jobs.parents(mixed) == [still_open]


@pytest.mark.parametrize("end", [State.FAILED, State.CANCELLED])
@pytest.mark.parametrize("policy", ["cancel", "run"])
def test_a_parent_that_has_not_come_to_a_good_end_before(
    desk: Desk, end: State, policy: OnParentFailure
) -> None:
    still_open, bad = desk.enqueue("other"), desk.done(end)
    child = desk.enqueue(after=(still_open, bad), on_parent_failure=policy)
    if policy == "cancel":
        assert (desk.state(child), desk.told(child)) == (State.CANCELLED, "enqueued cancelled")
        assert desk.last(child) == {"reason": f"job {bad} did not complete"}
    desk.complete(desk.take("other"))

    assert desk.claimed() == ([child] if policy == "run" else [])


@pytest.mark.parametrize("end", ["failed", "cancelled", "expired", "crashed"])
@pytest.mark.parametrize("policy", ["cancel", "run"])
def test_a_parent_that_does_not_come_to_a_good_end_later(
    desk: Desk, clock: FakeClock, end: str, policy: OnParentFailure
) -> None:
    deadline = desk.at(1) if end == "expired" else None
    parent = desk.enqueue(max_attempts=1, deadline=deadline)
    child = desk.enqueue("other", after=(parent,), on_parent_failure=policy)
    match end:
        case "failed":
            desk.set_back(desk.take(), Kind.DIED)
        case "cancelled":
            desk.cancel(parent)
        case "expired":
            clock.advance(1)
            desk.claim()
        case "crashed":
            desk.enter(lease_seconds=1)
            desk.take()
            clock.advance(1)
            desk.rescue()

    assert desk.claimed(queue="other") == ([child] if policy == "run" else [])
    if policy == "cancel":
        assert desk.state(child) == State.CANCELLED


def test_a_parent_that_is_tried_again_is_still_waited_for(desk: Desk) -> None:
    parent = desk.enqueue()
    child = desk.enqueue(after=(parent,))
    desk.set_back(desk.take(), retry=0)
    assert desk.state(child) == State.WAITING
    desk.complete(desk.take())

    assert desk.state(child) == State.PENDING


def test_an_unknown_parent_is_refused_and_nothing_is_written(desk: Desk) -> None:
    def work(tx: Transaction) -> None:
        with pytest.raises(JobNotFound, match="no job 99"):
            tx.jobs.enqueue([new_job(after=(99,), unique_key="k")], now=desk.at(0))

    desk.write(work)
    assert (desk.store.jobs.stats(now=0), desk.find()) == ([], [])


def test_no_job_waits_for_itself(desk: Desk) -> None:
    """Nor for a later one, so there are no cycles: what is waited for exists before."""
    number = desk.enqueue()
    with pytest.raises(JobNotFound):
        desk.enqueue(after=(number + 1,))


def test_a_chain_of_thousands_is_cancelled_at_once(desk: Desk) -> None:
    """Longer than Python's stack is deep."""
    top = desk.enqueue()

    def build(tx: Transaction) -> list[int]:
        ids = [top]
        for _ in range(DEEP):
            (added,) = tx.jobs.enqueue([new_job(after=(ids[-1],))], now=desk.at(0))
            ids.append(added.id)
        return ids

    ids = desk.write(build)
    desk.set_back(desk.take(), Kind.DIED)

    (stats,) = desk.store.jobs.stats(now=0)
    assert (stats.failed, stats.cancelled, stats.waiting) == (1, DEEP, 0)
    assert desk.last(ids[-1]) == {"reason": f"job {ids[-2]} did not complete"}


def test_the_cascade_stops_where_a_job_runs_all_the_same(desk: Desk) -> None:
    top = desk.enqueue()
    cancelled = desk.enqueue(after=(top,))
    cleaner = desk.enqueue(after=(cancelled,), on_parent_failure="run")
    last = desk.enqueue(after=(cleaner,))
    desk.cancel(top)

    assert desk.states(cancelled, cleaner, last) == [
        State.CANCELLED,
        State.PENDING,
        State.WAITING,
    ]


def test_a_waiting_job_with_a_time_waits_for_both(desk: Desk, clock: FakeClock) -> None:
    parent = desk.enqueue()
    child = desk.enqueue(after=(parent,), delay=60)
    assert desk.store.jobs.next_at() is None
    desk.complete(desk.take())
    assert (desk.state(child), desk.claimed()) == (State.SCHEDULED, [])
    clock.advance(60)

    assert desk.claimed() == [child]


def test_a_cancelled_child_holds_nobody_up(desk: Desk) -> None:
    parent = desk.enqueue()
    child, sibling = desk.enqueue(after=(parent,)), desk.enqueue(after=(parent,))
    assert desk.cancel(child) == [child]
    desk.complete(desk.take())

    assert desk.claimed() == [sibling]
    assert desk.state(child) == State.CANCELLED


def test_many_wait_for_one_and_one_for_many(desk: Desk) -> None:
    top = desk.enqueue()
    middle = [job.id for job in desk.put(*(new_job(after=(top,)) for _ in range(300)))]
    last = desk.enqueue(after=tuple(middle))
    desk.complete(desk.take())
    claims = desk.take_many(300)
    desk.complete(*claims[:299])
    assert desk.state(last) == State.WAITING
    desk.complete(claims[299])

    assert desk.claimed() == [last]
