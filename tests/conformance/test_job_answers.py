"""What workers say of the jobs they have, and what they cannot say any more (J1, J3, J4)."""

from __future__ import annotations

import pytest

from penstock.job import Answer, Claim, Kind, Progress, Setback, State
from penstock.testing import FakeClock
from tests.conformance.desk import BROKEN, Desk, new_job


def test_a_completed_job_has_its_result_and_history(desk: Desk, clock: FakeClock) -> None:
    """J1, J3"""
    number = desk.enqueue()
    claim = desk.take()
    clock.advance(3)
    assert desk.complete(claim, result=b"[7]") == [number]

    job = desk.get(number)
    assert (job.state, job.attempts, job.result) == (State.COMPLETED, 1, [7])
    assert (job.started_at, job.finished_at) == (desk.at(-3), clock.now())
    assert desk.told(number) == "enqueued started completed"


def test_a_result_is_gone_after_its_time(desk: Desk, clock: FakeClock) -> None:
    number = desk.enqueue()
    desk.complete(desk.take(), result=b"[7]", keep=60)
    clock.advance(59)
    assert desk.get(number).result == [7]
    clock.advance(1)
    assert desk.get(number).result is None
    desk.prune({State.COMPLETED: 1_000})

    assert desk.store.query("SELECT result FROM penstock_job_finished") == [(None,)]


def test_an_answer_may_keep_its_result_for_longer(desk: Desk, clock: FakeClock) -> None:
    number = desk.enqueue()
    claim = desk.take()
    answer = Answer(claim.id, claim.token, b"1", 1, result_for=90_000_000)
    desk.write(lambda tx: tx.jobs.complete([answer], now=desk.at(0), result_until=desk.at(1)))
    clock.advance(89)

    assert desk.get(number).result == 1


def test_answers_for_many_claims_of_several_turns_go_together(desk: Desk) -> None:
    desk.put(*(new_job() for _ in range(9)))
    claims = [*desk.claim(4), *desk.claim(5)]
    mixed = [claims[index] for index in (8, 0, 3, 5, 1)]
    assert sorted(desk.start(*mixed)) == sorted(claim.id for claim in mixed)

    assert sorted(desk.complete(*mixed)) == sorted(claim.id for claim in mixed)
    assert desk.store.jobs.stats(now=0)[0].processing == 4


def test_answers_for_jobs_of_several_queues_are_counted_by_queue(desk: Desk) -> None:
    """J7: also where they were claimed under one token."""
    desk.put(*(new_job(queue) for queue in "abab"), new_job("a"))
    claims = desk.claim(a=3, b=2)
    assert len({claim.token for claim in claims}) == 1
    desk.start(*claims)
    desk.complete(*claims)

    stats = desk.store.jobs.stats(now=0)
    assert {one.queue: (one.processing, one.completed) for one in stats} == {
        "a": (0, 3),
        "b": (0, 2),
    }


def test_of_many_answers_only_those_still_held_count(desk: Desk) -> None:
    """J4: one of them was handed back meanwhile, one never began."""
    desk.put(*(new_job() for _ in range(4)))
    claims = desk.claim(4)
    desk.start(*claims[:3])
    desk.release(claims[0])

    assert desk.complete(*claims) == [claims[1].id, claims[2].id]
    assert desk.complete(*claims) == []
    (stats,) = desk.store.jobs.stats(now=0)
    assert (stats.pending, stats.processing, stats.completed) == (1, 1, 2)
    assert desk.told(claims[3].id) == "enqueued"


def test_jobs_may_begin_with_their_claim(desk: Desk, clock: FakeClock) -> None:
    """J2: the claimer says which, one by one in their order; the others' attempts have not
    begun."""
    numbers = [desk.enqueue() for _ in range(4)]
    asked: list[int] = []

    def begins(claim: Claim) -> bool:
        asked.append(claim.id)
        return claim.id % 2 == 1

    claims = desk.claim_and_start(4, begins)
    assert asked == numbers == [claim.id for claim in claims]
    began = [claim for claim in claims if claim.id % 2]
    for number in numbers:
        is_begun = number % 2 == 1
        assert desk.told(number) == ("enqueued started" if is_begun else "enqueued")
        assert desk.get(number).started_at == (clock.now() if is_begun else None)
    assert desk.complete(*claims) == [claim.id for claim in began]


def test_a_job_that_began_with_its_claim_is_a_crash_if_its_worker_dies(desk: Desk) -> None:
    """J4"""
    begun, waiting = desk.enqueue(), desk.enqueue()
    desk.enter(lease_seconds=1)
    desk.claim_and_start(2, lambda claim: claim.id == begun)
    desk.clock.advance(2)
    desk.rescue()

    assert (desk.get(begun).crashes, desk.get(begun).attempts) == (1, 1)
    assert (desk.get(waiting).crashes, desk.state(waiting)) == (0, State.PENDING)


def test_saying_start_twice_is_one_attempt(desk: Desk, clock: FakeClock) -> None:
    """After a commit whose outcome is unknown, a worker says it again."""
    number = desk.enqueue()
    claim = desk.take()
    clock.advance(5)
    assert desk.start(claim) == [number]

    assert (desk.told(number), desk.get(number).started_at) == ("enqueued started", desk.at(-5))


def test_a_failed_attempt_is_tried_again_at_its_time(desk: Desk, clock: FakeClock) -> None:
    """J3"""
    number = desk.enqueue()
    assert desk.set_back(desk.take(), retry=30) == [number]
    job = desk.get(number)
    assert (job.state, job.attempts, job.run_at) == (State.SCHEDULED, 1, desk.at(30))
    assert job.failure == BROKEN
    assert desk.last(number)["retry_at"] == desk.at(30)
    clock.advance(30)

    assert desk.claim()[0].attempt == 2
    assert desk.told(number) == "enqueued started failed"


def test_a_failure_without_a_time_is_tried_again_at_once(desk: Desk) -> None:
    number = desk.enqueue()
    desk.set_back(desk.take())
    assert desk.claimed() == [number]


def test_the_last_failure_is_the_end_whatever_it_asks_for(desk: Desk) -> None:
    """J8: a dead letter keeps everything."""
    number = desk.enqueue(max_attempts=2)
    desk.set_back(desk.take(), retry=0)
    assert desk.set_back(desk.take(), retry=0) == [number]

    job = desk.get(number)
    assert (job.state, job.attempts, job.failure) == (State.FAILED, 2, BROKEN)
    assert desk.told(number) == "enqueued started failed started died"
    events = desk.store.jobs.events(after=0, limit=99, job_id=number)
    assert [event.attempt for event in events] == [0, 1, 1, 2, 2]
    assert [e.data.get("message") for e in events if e.kind in (Kind.FAILED, Kind.DIED)] == [
        "broken"
    ] * 2


def test_giving_up_ends_it_with_attempts_left(desk: Desk) -> None:
    number = desk.enqueue(max_attempts=9)
    desk.set_back(desk.take(), Kind.DIED)
    assert (desk.state(number), desk.get(number).attempts) == (State.FAILED, 1)


def test_a_snooze_burns_no_attempt_however_often(desk: Desk, clock: FakeClock) -> None:
    number = desk.enqueue(max_attempts=1)
    for _ in range(3):
        claim = desk.take()
        assert claim.attempt == 1
        desk.set_back(claim, Kind.SNOOZED, retry=10, failure=None)
        assert (desk.state(number), desk.get(number).attempts) == (State.SCHEDULED, 0)
        clock.advance(10)

    assert desk.told(number) == "enqueued" + " started snoozed" * 3


def test_a_handler_may_cancel_its_job(desk: Desk) -> None:
    number = desk.enqueue()
    desk.set_back(desk.take(), Kind.CANCELLED)
    assert (desk.state(number), desk.told(number)) == (
        State.CANCELLED,
        "enqueued started cancelled",
    )


@pytest.mark.parametrize("is_started", [True, False])
def test_a_released_job_is_ready_without_an_attempt(desk: Desk, is_started: bool) -> None:
    """Failure mode 12: a deployment burns no attempts."""
    number = desk.enqueue(max_attempts=1)
    claim = desk.take() if is_started else desk.claim()[0]
    assert desk.release(claim) == [number]

    assert (desk.state(number), desk.get(number).attempts) == (State.PENDING, 0)
    assert desk.told(number) == ("enqueued started released" if is_started else "enqueued")
    assert desk.claim()[0].attempt == 1


def test_progress_is_kept_with_the_running_job(desk: Desk) -> None:
    """J10"""
    number = desk.enqueue()
    claim = desk.take()
    progress = Progress(3, 12, "pages")
    assert desk.write(lambda tx: tx.jobs.report(claim.id, claim.token, progress, now=desk.at(0)))

    found = desk.get(number).progress
    assert (found, found and found.percent) == (progress, 25)
    assert desk.last(number) == {"done": 3, "total": 12, "note": "pages"}


# Stale tokens


def answers(desk: Desk, claim: Claim) -> dict[str, object]:
    """All that a worker can say about a job it has, and what it is told."""
    now = desk.at(0)
    setbacks = [
        Setback(claim.id, claim.token, kind, now, BROKEN)
        for kind in (Kind.FAILED, Kind.DIED, Kind.SNOOZED, Kind.CANCELLED)
    ]
    return {
        "start": desk.start(claim),
        "complete": desk.complete(claim, result=b"9"),
        "set_back": desk.write(lambda tx: tx.jobs.set_back(setbacks, now=now)),
        "release": desk.release(claim),
        "report": desk.write(
            lambda tx: tx.jobs.report(claim.id, claim.token, Progress(1), now=now)
        ),
    }


REFUSED = {"start": [], "complete": [], "set_back": [], "release": [], "report": False}


@pytest.mark.parametrize("end", ["completed", "failed", "released", "cancelled", "left"])
def test_what_a_worker_says_later_is_refused(desk: Desk, end: str) -> None:
    """Failure mode 2: and changes nothing, neither while another has the job nor after."""
    number = desk.enqueue()
    old = desk.take()
    match end:
        case "completed":
            desk.complete(old)
        case "failed":
            desk.set_back(old, retry=0)
        case "released":
            desk.release(old)
        case "cancelled":
            desk.set_back(old, Kind.CANCELLED)
        case "left":
            assert desk.leave() == [number]
    told = desk.told(number)
    assert answers(desk, old) == REFUSED
    assert desk.told(number) == told
    if not desk.state(number).is_final:
        new = desk.take()
        assert answers(desk, old) == REFUSED
        assert desk.complete(new) == [number]


def test_the_end_of_an_attempt_that_never_began_is_refused(desk: Desk) -> None:
    number = desk.enqueue()
    (claim,) = desk.claim()
    assert desk.complete(claim) == desk.set_back(claim) == []
    assert desk.state(number) == State.PROCESSING
    desk.start(claim)

    assert desk.complete(claim) == [number]


def test_a_token_of_one_job_does_not_answer_for_another(desk: Desk) -> None:
    desk.put(new_job(), new_job())
    first, second = desk.claim()[0], desk.claim()[0]
    swapped = Claim(
        first.id, second.token, *(getattr(first, f) for f in first.__struct_fields__[2:])
    )

    assert answers(desk, swapped) == REFUSED
    assert desk.start(first, second) == [first.id, second.id]
