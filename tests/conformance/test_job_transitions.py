"""Each way a job can go is gone, and its history tells what the table says (J3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.job import TRANSITIONS, Kind, Progress, State
from tests.conformance.desk import Desk, new_job

Way = tuple[State | None, State | None]
Go = Callable[[Desk], list[int]]
"""Makes the change, once or in several ways; returns the jobs it was made to."""


def name_of(way: Way) -> str:
    return "-".join("none" if state is None else state.name.lower() for state in way)


def enqueue(desk: Desk) -> list[int]:
    return [desk.enqueue()]


def delay(desk: Desk) -> list[int]:
    return [desk.enqueue(delay=5)]


def wait(desk: Desk) -> list[int]:
    return [desk.enqueue(after=(desk.enqueue("parents"),))]


def follow_a_failure(desk: Desk) -> list[int]:
    return [desk.enqueue(after=(desk.done(State.FAILED),))]


def bring_forward(desk: Desk) -> list[int]:
    retried, replaced = desk.enqueue(delay=5), desk.enqueue(delay=5, unique_key="k")
    desk.retry(retried)
    replace(desk)
    return [retried, replaced]


def replace(desk: Desk, **options: object) -> None:
    desk.put(new_job(unique_key="k", on_conflict="replace", **options))


def reschedule(desk: Desk) -> list[int]:
    number = desk.enqueue(delay=5, unique_key="k")
    replace(desk, run_at=desk.at(9))
    return [number]


def cancel_scheduled(desk: Desk) -> list[int]:
    return desk.cancel(desk.enqueue(delay=5))


def finish_the_parent(desk: Desk) -> list[int]:
    number = desk.enqueue(after=(desk.enqueue("parents"),))
    desk.complete(desk.take("parents"))
    return [number]


def finish_the_parent_early(desk: Desk) -> list[int]:
    number = desk.enqueue(after=(desk.enqueue("parents"),), delay=5)
    desk.complete(desk.take("parents"))
    return [number]


def replace_waiting(desk: Desk) -> list[int]:
    number = desk.enqueue(after=(desk.enqueue("parents"),), unique_key="k")
    replace(desk)
    return [number]


def cancel_waiting(desk: Desk) -> list[int]:
    by_hand, by_parent = (desk.enqueue(after=(desk.enqueue("parents"),)) for _ in range(2))
    desk.cancel(by_hand)
    desk.take("parents")
    desk.set_back(desk.take("parents"), Kind.DIED)
    return [by_hand, by_parent]


def replace_ready(desk: Desk) -> list[int]:
    number = desk.enqueue(unique_key="k")
    replace(desk)
    return [number]


def put_off(desk: Desk) -> list[int]:
    number = desk.enqueue(unique_key="k")
    desk.put(new_job(unique_key="k", on_conflict="debounce", run_at=desk.at(5)))
    return [number]


def claim(desk: Desk) -> list[int]:
    desk.enqueue()
    return desk.claimed()


def be_late(desk: Desk) -> list[int]:
    number = desk.enqueue(deadline=desk.at(1))
    desk.clock.advance(1)
    desk.claim()
    return [number]


def cancel_ready(desk: Desk) -> list[int]:
    return desk.cancel(desk.enqueue())


def run(desk: Desk) -> list[int]:
    desk.enqueue()
    taken = desk.take()
    desk.write(lambda tx: tx.jobs.report(taken.id, taken.token, Progress(1), now=desk.at(0)))
    return [taken.id]


def come_back_at_once(desk: Desk) -> list[int]:
    failed, snoozed, released = (desk.enqueue() for _ in range(3))
    claims = desk.take_many(3)
    desk.set_back(claims[0])
    desk.set_back(claims[1], Kind.SNOOZED, retry=0)
    desk.release(claims[2])
    return [failed, snoozed, released]


def come_back_later(desk: Desk) -> list[int]:
    desk.enter(lease_seconds=1)
    ids = [desk.enqueue() for _ in range(3)]
    claims = desk.take_many(3)
    desk.set_back(claims[0], retry=50)
    desk.set_back(claims[1], Kind.SNOOZED, retry=50)
    desk.clock.advance(1)
    assert desk.rescue() == [claims[2].id]
    return ids


def complete(desk: Desk) -> list[int]:
    desk.enqueue()
    return desk.complete(desk.take())


def give_up(desk: Desk) -> list[int]:
    desk.enter(lease_seconds=1)
    ids = [desk.enqueue(max_attempts=1) for _ in range(3)]
    claims = desk.take_many(3)
    desk.set_back(claims[0])
    desk.set_back(claims[1], Kind.DIED)
    desk.clock.advance(1)
    assert desk.rescue() == [claims[2].id]
    return ids


def cancel_running(desk: Desk) -> list[int]:
    ids = [desk.enqueue() for _ in range(3)]
    (held,) = desk.claim()
    stopped, itself = desk.take(), desk.take()
    desk.cancel(held.id, stopped.id)
    desk.set_back(stopped)
    desk.set_back(itself, Kind.CANCELLED)
    return ids


def retry(state: State) -> Go:
    return lambda desk: desk.retry(desk.done(state))


def prune(state: State) -> Go:
    def go(desk: Desk) -> list[int]:
        number = desk.done(state)
        desk.clock.advance(10)
        assert desk.prune({state: 1}) == 1
        return [number]

    return go


WAYS: dict[Way, Go] = {
    (None, State.PENDING): enqueue,
    (None, State.SCHEDULED): delay,
    (None, State.WAITING): wait,
    (None, State.CANCELLED): follow_a_failure,
    (State.SCHEDULED, State.PENDING): bring_forward,
    (State.SCHEDULED, State.SCHEDULED): reschedule,
    (State.SCHEDULED, State.CANCELLED): cancel_scheduled,
    (State.WAITING, State.PENDING): finish_the_parent,
    (State.WAITING, State.SCHEDULED): finish_the_parent_early,
    (State.WAITING, State.WAITING): replace_waiting,
    (State.WAITING, State.CANCELLED): cancel_waiting,
    (State.PENDING, State.PENDING): replace_ready,
    (State.PENDING, State.SCHEDULED): put_off,
    (State.PENDING, State.PROCESSING): claim,
    (State.PENDING, State.FAILED): be_late,
    (State.PENDING, State.CANCELLED): cancel_ready,
    (State.PROCESSING, State.PROCESSING): run,
    (State.PROCESSING, State.PENDING): come_back_at_once,
    (State.PROCESSING, State.SCHEDULED): come_back_later,
    (State.PROCESSING, State.COMPLETED): complete,
    (State.PROCESSING, State.FAILED): give_up,
    (State.PROCESSING, State.CANCELLED): cancel_running,
    **{(state, State.PENDING): retry(state) for state in State if state.is_final},
    **{(state, None): prune(state) for state in State if state.is_final},
}


def before(way: Way) -> set[Kind]:
    """What had to be told of a job for it to be where this way begins."""
    source, target = way
    if source is None:
        return set()
    if source.is_final:
        return {Kind.ENQUEUED, Kind.STARTED, Kind.COMPLETED, Kind.DIED, Kind.CANCELLED}
    if source == State.PROCESSING != target:
        return {Kind.ENQUEUED, Kind.STARTED}
    return {Kind.ENQUEUED}


def test_every_way_of_the_table_is_here() -> None:
    assert set(WAYS) == set(TRANSITIONS)


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_a_way_is_gone_as_the_table_says(desk: Desk, way: Way) -> None:
    target = way[1]
    jobs = WAYS[way](desk)
    assert jobs
    for number in jobs:
        found = desk.store.jobs.get(number)
        assert (None if found is None else found.state) == target
    events = [
        event
        for event in desk.store.jobs.events(after=0, limit=1_000)
        if event.job_id in jobs and event.kind not in before(way)
    ]
    assert {event.kind for event in events} == TRANSITIONS[way]


def test_a_time_that_has_come_is_told_by_what_comes_next(desk: Desk) -> None:
    """The way from scheduled to pending that no event tells of."""
    number = desk.enqueue(delay=5)
    desk.clock.advance(5)
    desk.claim(1, "other")

    assert (desk.state(number), desk.told(number)) == (State.PENDING, "enqueued")
