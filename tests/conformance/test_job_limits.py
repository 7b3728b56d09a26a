"""What holds for a queue over all processes: at once, in a time, and not at all (J10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.job import Answer, QueueLimits, State
from penstock.ports import Transaction
from penstock.testing import FakeClock
from tests.conformance.desk import Desk, new_job
from tests.conformance.places import Place

OpenDesk = Callable[..., Desk]


@pytest.fixture
def full(desk: Desk) -> Desk:
    """Twenty jobs are ready."""
    desk.put(*(new_job() for _ in range(20)))
    return desk


def test_a_queue_has_no_limits_of_its_own(desk: Desk) -> None:
    assert desk.store.jobs.limits("q") == QueueLimits()


def test_limits_are_kept_and_changed_and_lifted(full: Desk) -> None:
    limits = {"concurrency_max": 3, "rate_max": 10, "rate_seconds": 0.5, "is_paused": True}
    full.limit(**limits)
    assert full.store.jobs.limits("q") == QueueLimits(**limits)
    assert full.store.jobs.stats(now=0)[0].limits == QueueLimits(**limits)
    full.limit()

    assert full.store.jobs.limits("q") == QueueLimits()
    assert len(full.claimed()) == 20


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(full: Desk) -> None:
    running = full.take()
    full.limit(is_paused=True)
    full.enqueue("other")
    assert (full.claimed(), len(full.claimed(queue="other"))) == ([], 1)
    assert full.complete(running) == [running.id]
    full.limit(is_paused=False)

    assert len(full.claimed()) == 19


def test_a_paused_queue_still_takes_jobs_and_their_time_still_comes(
    desk: Desk, clock: FakeClock
) -> None:
    desk.limit(is_paused=True)
    number = desk.enqueue(delay=5)
    clock.advance(5)
    assert (desk.claimed(), desk.state(number)) == ([], State.PENDING)


def test_no_more_are_in_hands_than_the_concurrency(full: Desk) -> None:
    full.limit(concurrency_max=3)
    claims = full.claim(10)
    assert (len(claims), full.claim(10)) == (3, [])
    full.start(*claims)
    full.complete(claims[0])
    full.set_back(claims[1], retry=100)
    assert len(full.claim(10)) == 2
    full.release(claims[2])

    assert len(full.claim(10)) == 1


def test_a_lower_concurrency_takes_effect_as_jobs_end(full: Desk) -> None:
    claims = full.take_many(5)
    full.limit(concurrency_max=2)
    full.complete(*claims[:3])
    assert full.claim(10) == []
    full.complete(claims[3])

    assert len(full.claim(10)) == 1


def test_the_concurrency_holds_over_processes(open_desk: OpenDesk) -> None:
    one, two = open_desk("one"), open_desk("two")
    one.put(*(new_job() for _ in range(20)))
    one.limit(concurrency_max=4)

    assert (len(one.claim(3)), len(two.claim(3)), len(one.claim(3))) == (3, 1, 0)


def test_the_concurrency_holds_when_a_worker_dies(open_desk: OpenDesk, place: Place) -> None:
    """What the dead one had counts until it is rescued, and not a moment longer."""
    one, two = open_desk("one"), open_desk("two")
    one.put(*(new_job() for _ in range(20)))
    one.limit(concurrency_max=3)
    two.take_many(3)
    place.end(two.store)
    assert one.claim(10) == []
    assert len(one.rescue()) == 3

    assert len(one.claim(10)) == 3


def test_no_more_are_handed_out_in_a_time_than_the_rate(full: Desk, clock: FakeClock) -> None:
    full.limit(rate_max=5, rate_seconds=10)
    assert len(full.claim(3)) == 3
    clock.advance(5)
    assert len(full.claim(10)) == 2
    clock.advance(5.2)
    assert len(full.claim(10)) == 3
    clock.advance(4.5)
    assert full.claim(10) == []
    clock.advance(0.5)
    assert len(full.claim(10)) == 2


@pytest.mark.parametrize(
    ("rate", "seconds", "step"), [(7, 1.0, 0.005), (1, 3.0, 0.4), (50, 0.2, 0.01)]
)
def test_the_rate_holds_in_any_stretch_of_time(
    desk: Desk, clock: FakeClock, rate: int, seconds: float, step: float
) -> None:
    """Not only between full seconds; and it is not wasted."""
    desk.put(*(new_job() for _ in range(10 * rate)))
    desk.limit(rate_max=rate, rate_seconds=seconds)
    times: list[int] = []
    clock.advance(0.012)
    began = clock.now()
    while len(times) < 5 * rate:
        times += [clock.now()] * len(desk.claim(1_000))
        clock.advance(step)
    window = round(seconds * 1_000_000)
    for first, beyond in zip(times, times[rate:], strict=False):
        assert beyond - first >= window
    assert times[-1] - began <= 4 * (window * 65 / 64 + 2 * step * 1_000_000)


def test_a_released_job_has_used_its_place_in_the_rate(full: Desk) -> None:
    full.limit(rate_max=2, rate_seconds=10)
    full.release(*full.claim(2))

    assert full.claim(5) == []


def test_a_pause_does_not_renew_the_rate(full: Desk) -> None:
    full.limit(rate_max=5, rate_seconds=10)
    assert len(full.claim(9)) == 5
    full.limit(rate_max=5, rate_seconds=10, is_paused=True)
    full.limit(rate_max=5, rate_seconds=10)
    assert full.claim(9) == []
    full.limit(rate_max=7, rate_seconds=10)

    assert len(full.claim(9)) == 2


def test_a_shorter_time_of_the_rate_holds_at_once(full: Desk, clock: FakeClock) -> None:
    full.limit(rate_max=5, rate_seconds=3600)
    assert len(full.claim(9)) == 5
    full.limit(rate_max=5, rate_seconds=1)
    clock.advance(1.1)

    assert len(full.claim(9)) == 5


def test_a_wall_clock_that_jumps_changes_no_rate(full: Desk, clock: FakeClock) -> None:
    full.limit(rate_max=5, rate_seconds=10)
    assert len(full.claim(9)) == 5
    clock.set_back(3600)
    assert full.claim(9) == []
    clock.advance(10.2)

    assert len(full.claim(9)) == 5


def test_the_rate_holds_over_processes_and_crashes(open_desk: OpenDesk, place: Place) -> None:
    one, two = open_desk("one"), open_desk("two")
    one.put(*(new_job() for _ in range(20)))
    one.limit(rate_max=5, rate_seconds=10)
    assert (len(one.claim(3)), len(two.claim(3))) == (3, 2)
    place.end(two.store)
    one.rescue()

    assert one.claim(9) == []


def test_after_a_reboot_a_rate_blocks_nothing(place: Place, open_desk: OpenDesk) -> None:
    """Monotonic time begins anew: what was written under the old one must not count for days."""
    desk = open_desk()
    desk.put(*(new_job() for _ in range(9)))
    desk.limit(rate_max=5, rate_seconds=10)
    desk.clock.advance(30 * 86_400)
    assert len(desk.claim(9)) == 5
    booted = FakeClock(desk.clock.now())
    place.clock = booted
    later = open_desk("after the reboot")

    assert len(later.claim(9)) == 4
    desk.leave()


def test_late_jobs_use_nothing_of_the_rate(desk: Desk, clock: FakeClock) -> None:
    desk.limit(rate_max=2, rate_seconds=10)
    desk.put(*(new_job(deadline=desk.at(1)) for _ in range(5)), *(new_job() for _ in range(5)))
    clock.advance(1)

    assert len(desk.claim(9)) == 2


def test_a_look_knows_the_limits(full: Desk, clock: FakeClock) -> None:
    """Failure mode 7: no herd on the lock for jobs that nobody may have."""

    def look() -> bool:
        return full.store.jobs.look(["q"], now=clock.now())

    assert look() is True
    full.limit(is_paused=True)
    assert look() is False
    full.limit(concurrency_max=2)
    assert look() is True
    claims = full.take_many(2)
    assert look() is False
    full.complete(claims[0])
    assert look() is True
    full.limit(rate_max=3, rate_seconds=4)
    assert len(full.claim(9)) == 3
    assert look() is False
    wait = full.store.jobs.free_in(["q", "none"])
    assert wait == full.store.jobs.rate_wait("q")
    clock.advance(wait / 1_000_000)

    assert (look(), full.store.jobs.free_in(["q"])) == (True, None)


@pytest.mark.parametrize("limit", [1, None])
def test_room_under_a_limit_wakes_the_workers(full: Desk, limit: int | None) -> None:
    """And where there is no limit, nobody is woken for nothing."""
    full.limit(concurrency_max=limit)
    claim = full.take()
    seen: list[Transaction] = []

    def complete(tx: Transaction) -> None:
        now = full.at(0)
        tx.jobs.complete([Answer(claim.id, claim.token)], now=now, result_until=now)
        seen.append(tx)

    full.write(complete)
    assert seen[0].jobs.made_ready is (limit is not None)
