"""Jobs found again, counted, and their history read (J7, J8)."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.job import Failure, JobFilter, Kind, QueueLimits, State
from penstock.testing import FakeClock
from tests.conformance.desk import Desk, new_job


@pytest.fixture
def mess(desk: Desk) -> dict[State, list[int]]:
    """Two jobs in each state, of two queues."""
    found: dict[State, list[int]] = {}
    for queue in ("a", "b"):
        for state in (State.COMPLETED, State.FAILED, State.CANCELLED, State.PROCESSING):
            number = desk.enqueue(queue)
            found.setdefault(state, []).append(number)
            if state == State.CANCELLED:
                desk.cancel(number)
                continue
            claim = desk.take(queue)
            if state == State.COMPLETED:
                desk.complete(claim)
            elif state == State.FAILED:
                desk.set_back(claim, Kind.DIED)
        parent = found[State.PROCESSING][-1]
        found.setdefault(State.WAITING, []).append(desk.enqueue(queue, after=(parent,)))
        found.setdefault(State.SCHEDULED, []).append(desk.enqueue(queue, delay=99))
        found.setdefault(State.PENDING, []).append(desk.enqueue(queue))
    return found


@pytest.mark.parametrize("state", list(State))
def test_jobs_are_found_by_state(desk: Desk, mess: dict[State, list[int]], state: State) -> None:
    first, second = mess[state]
    assert desk.find(states=(state,)) == [second, first]
    assert desk.find(states=(state,), queue="a") == [first]
    assert desk.find(states=(state,), queue="none") == []


@pytest.mark.parametrize(
    "states",
    [
        (State.FAILED, State.CANCELLED),
        (State.PENDING, State.PROCESSING),
        (State.COMPLETED, State.SCHEDULED, State.FAILED),
        tuple(State),
        (),
    ],
)
@pytest.mark.parametrize("few", [0, 10_000])
def test_jobs_are_found_by_several_states(
    desk: Desk,
    mess: dict[State, list[int]],
    states: tuple[State, ...],
    few: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By both ways a store may take to them."""
    from penstock.stores.sqlite import job_reader

    monkeypatch.setattr(job_reader, "FEW", few)
    expected = sorted(n for state in states or State for n in mess[state])
    assert desk.find(states=states) == expected[::-1]


def test_jobs_are_found_by_type_key_and_schedule(desk: Desk) -> None:
    desk.enqueue()
    plain = desk.enqueue(type="other")
    keyed = desk.enqueue(unique_key="k")
    ticked = desk.enqueue(schedule="nightly")

    assert desk.find(type="other") == [plain]
    assert desk.find(unique_key="k") == [keyed]
    assert desk.find(schedule="nightly") == [ticked]
    assert desk.find(schedule="nightly", type="other") == []


def test_jobs_are_found_by_when_they_were_made(desk: Desk, clock: FakeClock) -> None:
    first = desk.enqueue()
    clock.advance(10)
    second = desk.enqueue()

    assert desk.find(created_before=desk.at(0)) == [first]
    assert desk.find(created_after=desk.at(0)) == [second]
    assert desk.find(created_after=desk.at(-10), created_before=desk.at(1)) == [second, first]


def test_jobs_are_found_by_part_of_their_error(desk: Desk) -> None:
    """In its error or message, whatever characters are in it, and not in its traceback."""
    failures = [
        Failure("KeyError", 'no "name" in\nline ü', "secret"),
        Failure("ValueError", "100%_"),
    ]
    ids = []
    for failure in failures:
        ids.append(desk.enqueue(max_attempts=1))
        desk.set_back(desk.take(), failure=failure)
    desk.enqueue()

    assert desk.find(error="KeyErr") == [ids[0]]
    assert desk.find(error='no "name" in\nline ü') == [ids[0]]
    assert desk.find(error="100%_") == [ids[1]]
    assert desk.find(error="%") == [ids[1]]
    assert desk.find(error="Error") == ids[::-1]
    assert desk.find(error="secret") == desk.find(error="traceback") == []


def test_found_jobs_come_newest_first_page_by_page(desk: Desk) -> None:
    ids = [job.id for job in desk.put(*(new_job() for _ in range(10)))]
    first = desk.find(limit=4)
    second = desk.find(limit=4, before=first[-1])

    assert (first, second) == (ids[:5:-1], ids[5:1:-1])
    assert desk.find(limit=4, before=ids[0]) == []


def test_ids_come_oldest_first_page_by_page(desk: Desk) -> None:
    """For operations on many: what was changed meanwhile is not met twice."""
    ids = [job.id for job in desk.put(*(new_job() for _ in range(10)))]
    find = desk.store.jobs.find_ids
    assert find(JobFilter(), after=0, limit=4) == ids[:4]
    assert find(JobFilter(states=(State.PENDING,)), after=ids[3], limit=99) == ids[4:]


def test_an_unknown_job_is_none(desk: Desk) -> None:
    assert desk.store.jobs.get(99) is None
    assert desk.store.jobs.parents(99) == []
    assert desk.store.jobs.events(after=0, limit=9, job_id=99) == []


# Counts


def test_stats_count_every_state_of_every_queue(desk: Desk, mess: dict[State, list[int]]) -> None:
    a, b = desk.store.jobs.stats(now=desk.at(0))
    assert (a.queue, b.queue, a.total, b.total) == ("a", "b", 7, 7)
    assert {getattr(a, state.name.lower()) for state in State} == {1}


def test_a_queue_with_limits_only_is_listed(desk: Desk) -> None:
    desk.limit("quiet", is_paused=True)
    (stats,) = desk.store.jobs.stats(now=desk.at(0))
    assert (stats.queue, stats.total, stats.limits) == ("quiet", 0, QueueLimits(is_paused=True))


def test_the_oldest_ready_job_is_found_whatever_its_priority(desk: Desk, clock: FakeClock) -> None:
    desk.enqueue(priority=5)
    clock.advance(10)
    desk.enqueue(priority=-5)
    desk.enqueue(priority=1, delay=2)
    clock.advance(10)
    desk.claim(0)

    def oldest() -> float | None:
        return desk.store.jobs.stats(now=clock.now())[0].oldest_pending_seconds

    assert oldest() == 20
    desk.cancel(1)
    assert oldest() == 10
    desk.cancel(2)
    assert oldest() == 8, "one that was delayed waits since its time came"
    desk.claim()
    assert oldest() is None


# History


def test_the_history_of_all_is_in_order_and_can_be_read_on(
    desk: Desk, mess: dict[State, list[int]]
) -> None:
    """What pipelines read: by id, each event once."""
    found = []
    while events := desk.store.jobs.events(after=found[-1].id if found else 0, limit=5):
        found += events
    ids = [event.id for event in found]
    assert ids == sorted(set(ids))
    for numbers in mess.values():
        for number in numbers:
            own = desk.store.jobs.events(after=0, limit=99, job_id=number)
            assert own == [event for event in found if event.job_id == number]


def test_the_history_of_one_can_be_read_on(desk: Desk) -> None:
    number = desk.enqueue(max_attempts=9)
    desk.enqueue("other")
    for _ in range(3):
        desk.set_back(desk.take(), retry=0)
    events = desk.store.jobs.events(after=0, limit=99, job_id=number)
    assert len(events) == 7

    assert desk.store.jobs.events(after=events[2].id, limit=3, job_id=number) == events[3:6]


def test_the_history_tells_when_a_job_was_to_be_ready(desk: Desk) -> None:
    """S5: how long jobs were kept waiting, without looking at what they are now."""
    plain, due = desk.enqueue("other"), desk.enqueue("other", delay=-5)
    delayed, child = desk.enqueue(delay=60), desk.enqueue(after=(plain,), delay=9)
    key = {"unique_key": "k", "on_conflict": "replace"}
    replaced = desk.enqueue(unique_key="k")
    desk.enqueue(delay=30, **key)

    def data(number: int) -> list[dict[str, Any]]:
        return [event.data for event in desk.store.jobs.events(after=0, limit=9, job_id=number)]

    assert data(plain) == data(due) == [{}]
    assert data(delayed) == [{"run_at": desk.at(60)}]
    assert data(child) == [{"run_at": desk.at(9), "waiting": True}]
    assert data(replaced) == [{}, {"run_at": desk.at(30)}]


def test_a_failure_of_a_megabyte_is_kept_and_read(desk: Desk) -> None:
    """Bounds are set above; the store loses nothing of what it is given."""
    number = desk.enqueue()
    failure = Failure("E", "ü" * 1000, "x" * 1_000_000)
    desk.set_back(desk.take(), retry=0, failure=failure)

    assert desk.get(number).failure == failure
    assert desk.last(number)["traceback"] == failure.traceback


# Why a job is not running, and how the others fare


def test_those_in_front_of_a_job_are_counted_up_to_a_limit(desk: Desk) -> None:
    desk.put(*(new_job(priority=1) for _ in range(5)), new_job("other"))
    last = desk.enqueue(priority=1)
    desk.enqueue(priority=0)
    desk.enqueue(priority=2)

    assert desk.store.jobs.ahead(last, limit=100) == 6
    assert desk.store.jobs.ahead(last, limit=3) == 3
    desk.claim(4)
    assert desk.store.jobs.ahead(last, limit=100) == 2
    assert desk.store.jobs.ahead(99, limit=100) == 0


def test_jobs_in_hand_are_told_with_their_tokens(desk: Desk) -> None:
    """So that a worker whose commit had an unknown outcome finds what it has."""
    desk.put(*(new_job() for _ in range(3)))
    started, claimed = desk.take(), desk.claim()[0]
    assert desk.store.jobs.held(desk.instance) == {
        started.id: started.token,
        claimed.id: claimed.token,
    }
    desk.complete(started)

    assert desk.store.jobs.held(desk.instance) == {claimed.id: claimed.token}


def test_it_is_told_when_a_rate_lets_out_the_next(desk: Desk, clock: FakeClock) -> None:
    desk.put(*(new_job() for _ in range(9)))
    assert desk.store.jobs.rate_wait("q") == 0
    desk.limit(rate_max=3, rate_seconds=8)
    assert desk.store.jobs.rate_wait("q") == 0
    desk.claim(2)
    clock.advance(1)
    assert desk.store.jobs.rate_wait("q") == 0
    assert len(desk.claim(5)) == 1
    wait = desk.store.jobs.rate_wait("q")
    clock.advance(wait / 1_000_000 - 0.000_001)
    assert desk.claim(5) == []
    clock.advance(0.000_001)

    assert len(desk.claim(5)) == 2


def test_recent_runs_are_those_that_completed_since(desk: Desk, clock: FakeClock) -> None:
    runs = desk.store.jobs.recent_runs
    assert runs(since=desk.at(-60), limit=100) == ([], desk.at(-60))
    desk.done(State.COMPLETED)
    clock.advance(100)
    desk.enqueue("slow", delay=10)
    clock.advance(15)
    claim = desk.take("slow")
    clock.advance(7)
    desk.complete(claim)
    desk.done(State.FAILED)

    found, since = runs(since=desk.at(-60), limit=100)
    (ran,) = found
    assert (ran.queue, ran.at, since) == ("slow", desk.at(0), desk.at(-60))
    assert (ran.ready_at, ran.started_at) == (desk.at(-12), desk.at(-7))
    all_found, _ = runs(since=0, limit=100)
    assert len(all_found) == 2
    few, known_since = runs(since=0, limit=2)
    assert (few, known_since) == ([], desk.at(0)), "of the last events only, and that is told"
