"""Unique keys, and what a second job under one does (J6)."""

from __future__ import annotations

import pytest

from penstock.clock import SECOND
from penstock.errors import JobExists
from penstock.job import Enqueued, Kind, OnConflict, State
from penstock.ports import Transaction
from penstock.testing import FakeClock
from tests.conformance.desk import Desk, new_job

POLICIES: list[OnConflict] = ["reject", "return", "replace", "debounce"]
CHANGING: list[OnConflict] = ["replace", "debounce"]


def again(desk: Desk, policy: OnConflict, **options: object) -> Enqueued:
    """Another job with the key `k`."""
    return desk.put(new_job(unique_key="k", on_conflict=policy, **options))[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_free_key_stops_nobody(desk: Desk, policy: OnConflict) -> None:
    first = again(desk, policy)
    other = desk.put(new_job(unique_key="other", on_conflict=policy))[0]

    assert (first.duplicate, other.duplicate) == (False, False)
    assert desk.claimed() == [first.id, other.id]


def test_reject_names_the_job_that_has_the_key(desk: Desk) -> None:
    number = desk.enqueue(unique_key="k")
    with pytest.raises(JobExists, match="pending") as caught:
        again(desk, "reject")

    assert caught.value.job_id == number
    assert desk.claimed() == [number]


def test_return_answers_with_the_job_that_has_the_key(desk: Desk) -> None:
    number = desk.enqueue(unique_key="k", delay=5)
    assert again(desk, "return") == Enqueued(number, State.SCHEDULED, duplicate=True)
    desk.retry(number)
    desk.claim()

    assert again(desk, "return") == Enqueued(number, State.PROCESSING, duplicate=True)


@pytest.mark.parametrize("was", ["pending", "scheduled", "waiting"])
def test_replace_makes_it_the_new_one(desk: Desk, clock: FakeClock, was: str) -> None:
    parent = desk.enqueue("other")
    after = (parent,) if was == "waiting" else ()
    number = desk.enqueue(
        unique_key="k", priority=1, delay=9 if was == "scheduled" else None, after=after
    )
    replaced = again(
        desk,
        "replace",
        body=b"2",
        type="better",
        priority=-7,
        max_attempts=5,
        run_at=desk.at(3),
        timeout=SECOND,
    )

    expected = State.WAITING if was == "waiting" else State.SCHEDULED
    assert replaced == Enqueued(number, expected, duplicate=True)
    if was == "waiting":
        desk.complete(desk.take("other"))
        assert desk.state(number) == State.SCHEDULED
    job = desk.get(number)
    assert (job.body, job.type, job.priority, job.max_attempts) == (b"2", "better", -7, 5)
    assert (job.run_at, job.timeout) == (desk.at(3), SECOND)
    assert desk.told(number) == "enqueued replaced"
    clock.advance(3)
    assert desk.claimed() == [number]


def test_replace_brings_a_time_forward(desk: Desk) -> None:
    number = desk.enqueue(unique_key="k", delay=100)
    assert again(desk, "replace").state == State.PENDING
    assert desk.claimed() == [number]


def test_debounce_postpones_and_keeps_one_job_with_the_last_payload(
    desk: Desk, clock: FakeClock
) -> None:
    number = desk.enqueue(unique_key="k", delay=10, priority=4)
    for turn in range(5):
        clock.advance(6)
        found = again(
            desk, "debounce", body=b"%d" % turn, priority=-1, type="x", run_at=desk.at(10)
        )
        assert found == Enqueued(number, State.SCHEDULED, duplicate=True)
        assert desk.claimed() == []
    clock.advance(10)

    (claim,) = desk.claim(99)
    assert (claim.id, claim.body, claim.priority, claim.type) == (number, b"4", 4, "work")


def test_debounce_brings_nothing_forward(desk: Desk) -> None:
    number = desk.enqueue(unique_key="k", delay=100)
    again(desk, "debounce", body=b"2", run_at=desk.at(5))
    again(desk, "debounce", body=b"3")

    job = desk.get(number)
    assert (job.run_at, job.body, job.state) == (desk.at(100), b"3", State.SCHEDULED)


def test_debounce_makes_a_ready_job_wait_again(desk: Desk) -> None:
    desk.enqueue(unique_key="k")
    assert again(desk, "debounce", run_at=desk.at(5)).state == State.SCHEDULED
    assert desk.claimed() == []


@pytest.mark.parametrize("policy", CHANGING)
def test_a_job_that_is_tried_again_can_be_changed_and_has_all_its_attempts(
    desk: Desk, clock: FakeClock, policy: OnConflict
) -> None:
    """Failure mode 13: its history stays."""
    number = desk.enqueue(unique_key="k", max_attempts=2)
    desk.set_back(desk.take(), retry=10)
    assert again(desk, policy, max_attempts=2).id == number
    assert desk.get(number).attempts == 0
    clock.advance(10)

    assert desk.claim()[0].attempt == 1
    assert desk.told(number) == "enqueued started failed replaced"


@pytest.mark.parametrize("policy", CHANGING)
@pytest.mark.parametrize("is_started", [True, False])
def test_a_job_in_a_workers_hands_is_not_changed(
    desk: Desk, policy: OnConflict, is_started: bool
) -> None:
    number = desk.enqueue(unique_key="k")
    if is_started:
        desk.take()
    else:
        desk.claim()
    with pytest.raises(JobExists, match="processing"):
        again(desk, policy, body=b"2")

    assert desk.get(number).body == b"1"


@pytest.mark.parametrize("policy", CHANGING)
def test_a_job_of_another_queue_is_not_changed(desk: Desk, policy: OnConflict) -> None:
    desk.enqueue("other", unique_key="k")
    with pytest.raises(JobExists):
        again(desk, policy)


# How long a key is taken


@pytest.mark.parametrize("end", [State.COMPLETED, State.FAILED, State.CANCELLED])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_key_is_free_when_its_job_has_finished(
    desk: Desk, end: State, policy: OnConflict
) -> None:
    number = desk.done(end, unique_key="k")
    found = again(desk, policy)

    assert (found.duplicate, found.id > number) == (False, True)


@pytest.mark.parametrize("end", ["expired", "crashed", "parent", "parent before", "released"])
def test_the_key_is_free_however_its_job_has_ended(desk: Desk, clock: FakeClock, end: str) -> None:
    match end:
        case "expired":
            desk.enqueue(unique_key="k", deadline=desk.at(1))
            clock.advance(2)
            desk.claim()
        case "crashed":
            desk.enter(lease_seconds=5)
            desk.enqueue(unique_key="k", max_attempts=1)
            desk.take()
            clock.advance(5)
            desk.rescue()
        case "parent":
            desk.enqueue(unique_key="k", after=(desk.enqueue("other"),))
            desk.set_back(desk.take("other"), Kind.DIED)
        case "parent before":
            desk.enqueue(unique_key="k", after=(desk.done(State.FAILED),))
        case "released":
            desk.enqueue(unique_key="k")
            claim = desk.take()
            desk.cancel(claim.id)
            desk.release(claim)

    assert again(desk, "reject").duplicate is False


def test_a_key_never_stops_its_own_job_from_being_tried_again(desk: Desk, clock: FakeClock) -> None:
    """Failure mode 13: by a failure, a snooze, a release, a crash, or by hand."""
    number = desk.enqueue(unique_key="k", max_attempts=9)
    desk.enter(lease_seconds=50)
    desk.set_back(desk.take(), retry=0)
    desk.set_back(desk.take(), Kind.SNOOZED, retry=0)
    desk.release(desk.take())
    desk.take()
    clock.advance(50)
    assert desk.rescue() == [number]
    with pytest.raises(JobExists):
        again(desk, "reject")
    clock.advance(100)
    desk.complete(desk.take())
    assert desk.retry(number) == [number]

    assert desk.claimed() == [number]


def test_a_key_with_a_period_is_taken_for_that_long_also_after_completion(
    desk: Desk, clock: FakeClock
) -> None:
    number = desk.enqueue(unique_key="k", unique_for=60 * SECOND)
    desk.complete(desk.take())
    clock.advance(59)
    assert again(desk, "return") == Enqueued(number, State.COMPLETED, duplicate=True)
    for policy in ("reject", *CHANGING):
        with pytest.raises(JobExists, match="completed"):
            again(desk, policy)
    clock.advance(1)

    assert again(desk, "reject").id > number


def test_a_key_with_a_period_is_free_after_it_also_before_completion(
    desk: Desk, clock: FakeClock
) -> None:
    first = desk.enqueue(unique_key="k", unique_for=60 * SECOND)
    clock.advance(60)
    second = again(desk, "reject")
    assert desk.claimed(1) == [first]
    # The end of the first does not free what the second has now.
    desk.leave()
    desk.complete(desk.take())
    with pytest.raises(JobExists):
        again(desk, "reject")
    assert desk.claimed() == [second.id]


def test_a_job_whose_key_is_taken_for_longer_is_not_pruned(desk: Desk, clock: FakeClock) -> None:
    number = desk.enqueue(unique_key="k", unique_for=60 * SECOND)
    desk.complete(desk.take())
    clock.advance(59)
    assert desk.prune({State.COMPLETED: 10}) == 0
    assert again(desk, "return").id == number
    clock.advance(1)
    assert desk.prune({State.COMPLETED: 10}) == 1

    assert desk.store.query("SELECT count(*) FROM penstock_job_unique") == [(0,)]


@pytest.mark.parametrize("policy", CHANGING)
def test_a_change_begins_the_period_anew(desk: Desk, clock: FakeClock, policy: OnConflict) -> None:
    number = desk.enqueue(unique_key="k", unique_for=60 * SECOND, delay=1000)
    clock.advance(50)
    again(desk, policy, unique_for=60 * SECOND, run_at=desk.at(1000))
    clock.advance(50)

    assert again(desk, "return").id == number


# By hand


def test_a_job_that_is_retried_has_its_key_again(desk: Desk) -> None:
    number = desk.done(State.FAILED, unique_key="k")
    assert desk.retry(number) == [number]
    with pytest.raises(JobExists) as caught:
        again(desk, "reject")

    assert caught.value.job_id == number


def test_a_job_whose_key_another_has_by_now_is_not_retried(desk: Desk) -> None:
    old = desk.done(State.FAILED, unique_key="k")
    new = again(desk, "reject").id
    assert desk.retry(old) == []
    assert desk.state(old) == State.FAILED
    desk.cancel(new)

    assert desk.retry(old) == [old]


def test_a_refused_job_leaves_nothing_in_its_transaction(desk: Desk) -> None:
    """The others of the transaction stay, and counts are exact."""
    desk.enqueue(unique_key="k")

    def work(tx: Transaction) -> None:
        now = desk.at(0)
        tx.jobs.enqueue([new_job("other")], now=now)
        with pytest.raises(JobExists), tx.savepoint():
            tx.jobs.enqueue([new_job("other"), new_job(unique_key="k")], now=now)

    desk.write(work)
    assert [stats.pending for stats in desk.store.jobs.stats(now=0)] == [1, 1]
