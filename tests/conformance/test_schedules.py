"""Schedules: kept, due, moved on (J10)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from penstock.clock import SECOND
from penstock.job import Schedule, State
from penstock.ports import Transaction
from penstock.testing import FakeClock
from tests.conformance.desk import Desk, new_job

OpenDesk = Callable[..., Desk]
LONG = 3_600.0


def schedule(
    desk: Desk, name: str = "nightly", in_seconds: float | None = 60, **changes: object
) -> Schedule:
    made = Schedule(
        name,
        "0 3 * * *",
        "UTC",
        "latest",
        "q",
        "work",
        2,
        5,
        9 * SECOND,
        1,
        b'{"a":1}',
        desk.at(0),
        next_at=None if in_seconds is None else desk.at(in_seconds),
    )
    return msgspec.structs.replace(made, **changes)


def put(desk: Desk, *schedules: Schedule) -> None:
    for made in schedules:
        desk.write(lambda tx, s=made: tx.schedules.put(s))


def due(desk: Desk, limit: int = 100) -> list[str]:
    now = desk.at(0)
    return [s.name for s in desk.write(lambda tx: tx.schedules.due(now=now, limit=limit))]


def test_a_schedule_is_kept_as_it_was_put(desk: Desk) -> None:
    made = schedule(desk)
    put(desk, made)

    (found,) = desk.store.schedules.all()
    assert (found, found.payload) == (made, {"a": 1})


def test_schedules_are_listed_by_name(desk: Desk) -> None:
    put(desk, *(schedule(desk, name) for name in ("b", "c", "a")))
    assert [s.name for s in desk.store.schedules.all()] == ["a", "b", "c"]


def test_changing_it_keeps_its_next_time_and_its_past(desk: Desk, clock: FakeClock) -> None:
    """A deployment that says the same again is no tick."""
    put(desk, schedule(desk))
    number = desk.enqueue()
    desk.write(
        lambda tx: tx.schedules.ticked(
            "nightly", next_at=desk.at(LONG), last_at=desk.at(0), job_id=number
        )
    )
    next_at, last_at, created_at = desk.at(LONG), desk.at(0), desk.at(0)
    clock.advance(10)
    put(desk, schedule(desk, queue="other", body=b"2", missed="skip", priority=7, in_seconds=1))

    (found,) = desk.store.schedules.all()
    assert (found.queue, found.body, found.missed, found.priority) == ("other", b"2", "skip", 7)
    assert (found.next_at, found.last_at, found.last_job_id) == (next_at, last_at, number)
    assert found.created_at == created_at


@pytest.mark.parametrize("change", [{"cron": "0 4 * * *"}, {"timezone": "Asia/Tokyo"}])
def test_another_expression_or_zone_has_another_next_time(
    desk: Desk, change: dict[str, str]
) -> None:
    put(desk, schedule(desk, in_seconds=60))
    put(desk, schedule(desk, in_seconds=99, **change))
    assert desk.store.schedules.all()[0].next_at == desk.at(99)


def test_it_is_due_when_its_time_has_come(desk: Desk, clock: FakeClock) -> None:
    put(desk, schedule(desk, "late", 20), schedule(desk, "early", 10), schedule(desk, "no", None))
    assert (due(desk), desk.store.schedules.next_at()) == ([], desk.at(10))
    clock.advance(10)
    assert due(desk) == ["early"]
    clock.advance(10)

    assert (due(desk), due(desk, limit=1)) == (["early", "late"], ["early"])


def test_ticking_moves_it_on(desk: Desk, clock: FakeClock) -> None:
    put(desk, schedule(desk, in_seconds=10))
    clock.advance(10)
    at = desk.at(0)
    desk.write(
        lambda tx: tx.schedules.ticked("nightly", next_at=at + 5 * SECOND, last_at=at, job_id=7)
    )
    assert due(desk) == []
    clock.advance(5)
    desk.write(
        lambda tx: tx.schedules.ticked("nightly", next_at=None, last_at=desk.at(0), job_id=None)
    )

    (found,) = desk.store.schedules.all()
    assert (found.next_at, found.last_at, found.last_job_id) == (None, desk.at(0), 7)
    assert desk.store.schedules.next_at() is None


def test_of_two_processes_one_enqueues_for_a_tick(open_desk: OpenDesk, clock: FakeClock) -> None:
    """Failure mode 6: enqueueing and moving on are one transaction."""
    desks = [open_desk("one"), open_desk("two")]
    put(desks[0], schedule(desks[0], in_seconds=10))
    clock.advance(10)

    def tick(tx: Transaction) -> int:
        now = clock.now()
        found = tx.schedules.due(now=now, limit=9)
        for made in found:
            (job,) = tx.jobs.enqueue([new_job(schedule=made.name)], now=now)
            tx.schedules.ticked(made.name, next_at=now + SECOND, last_at=now, job_id=job.id)
        return len(found)

    assert [desk.write(tick) for desk in (*desks, *desks)] == [1, 0, 0, 0]
    clock.set_back(10)
    assert [desk.write(tick) for desk in desks] == [0, 0], "a clock set back repeats nothing"
    assert desks[0].find(schedule="nightly", states=(State.PENDING,)) == [1]


def test_a_tick_that_is_rolled_back_is_still_due(desk: Desk, clock: FakeClock) -> None:
    put(desk, schedule(desk, in_seconds=10))
    clock.advance(10)

    def fail(tx: Transaction) -> None:
        tx.jobs.enqueue([new_job()], now=desk.at(0))
        tx.schedules.ticked("nightly", next_at=desk.at(60), last_at=desk.at(0), job_id=1)
        raise LookupError

    with pytest.raises(LookupError):
        desk.write(fail)
    assert (due(desk), desk.find()) == (["nightly"], [])


def test_a_paused_schedule_is_not_due(desk: Desk, clock: FakeClock) -> None:
    put(desk, schedule(desk, in_seconds=10))
    paused_at = desk.at(0)

    def pause(paused: int | None, next_at: int | None) -> bool:
        return desk.write(
            lambda tx: tx.schedules.pause("nightly", paused_at=paused, next_at=next_at)
        )

    assert pause(paused_at, desk.at(10)) is True
    clock.advance(20)
    assert (due(desk), desk.store.schedules.next_at()) == ([], None)
    assert desk.store.schedules.all()[0].paused_at == paused_at
    put(desk, schedule(desk, in_seconds=10))
    assert due(desk) == [], "a deployment does not resume it"
    assert pause(None, desk.at(5)) is True
    clock.advance(5)

    assert due(desk) == ["nightly"]


def test_a_removed_schedule_is_gone_its_jobs_stay(desk: Desk, clock: FakeClock) -> None:
    put(desk, schedule(desk))
    number = desk.enqueue(schedule="nightly")
    assert desk.write(lambda tx: tx.schedules.remove("nightly")) is True

    assert (desk.store.schedules.all(), due(desk)) == ([], [])
    assert desk.claimed() == [number]


def test_an_unknown_schedule_is_told(desk: Desk) -> None:
    assert desk.write(lambda tx: tx.schedules.remove("none")) is False
    assert desk.write(lambda tx: tx.schedules.pause("none", paused_at=None, next_at=None)) is False
