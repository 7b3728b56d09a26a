"""Cron: which ticks there are, and what becomes of those that nobody was there for (J10)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import penstock
from penstock.clock import SECOND, as_datetime
from penstock.errors import InvalidInput
from penstock.job import Missed
from penstock.jobs.schedule import MISSED_MAX, Ticker, next_tick
from penstock.testing import FakeClock
from tests.factories import hub_on

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


@pytest.fixture
def clock() -> FakeClock:
    """A minute past midnight: nothing is due at the hour."""
    clock = FakeClock()
    clock.advance(MINUTE)
    return clock


@pytest.fixture
def hub(tmp_path: Path, clock: FakeClock) -> Iterator[penstock.Hub]:
    with hub_on(tmp_path / "hub.db", clock=clock) as hub:
        yield hub


def tick(hub: penstock.Hub) -> None:
    """What the process of a worker does when it looks."""
    Ticker(hub._open()).run_once()


def enqueued(hub: penstock.Hub) -> int:
    return sum(queue.pending for queue in hub.jobs.stats())


def hourly(hub: penstock.Hub, missed: Missed = "latest", cron: str = "0 * * * *") -> None:
    hub.schedules.put("report", cron, "reports", "make", missed=missed)


def ticks(cron: str, zone: str, start: datetime, days: float) -> list[datetime]:
    """All ticks of some days, in UTC."""
    found: list[datetime] = []
    at = round(start.timestamp() * SECOND)
    end = start + timedelta(days=days)
    while (following := next_tick(cron, zone, at)) is not None:
        at = following
        if as_datetime(at) >= end:
            break
        found.append(as_datetime(at))
    return found


def test_each_tick_is_enqueued_once_whoever_looks(
    hub: penstock.Hub, clock: FakeClock, tmp_path: Path
) -> None:
    hourly(hub)
    with hub_on(tmp_path / "hub.db", clock=clock) as other:
        for hour in range(1, 6):
            clock.advance(HOUR)
            for each in (hub, other, hub):
                tick(each)
            assert enqueued(hub) == hour


def test_nothing_is_due_before_its_time(hub: penstock.Hub, clock: FakeClock) -> None:
    hourly(hub)
    clock.advance(58 * MINUTE)
    tick(hub)
    assert enqueued(hub) == 0


@pytest.mark.parametrize(("missed", "jobs"), [("latest", 1), ("all", 3), ("skip", 0)])
def test_ticks_that_nobody_was_there_for(
    hub: penstock.Hub, clock: FakeClock, missed: Missed, jobs: int
) -> None:
    hourly(hub, missed)
    clock.advance(3 * HOUR + 30 * MINUTE)
    tick(hub)
    assert enqueued(hub) == jobs
    # From here on it goes on as if nothing had been.
    clock.advance(30 * MINUTE)
    tick(hub)
    assert enqueued(hub) == jobs + 1


def test_one_who_skips_takes_the_tick_that_has_just_been(
    hub: penstock.Hub, clock: FakeClock
) -> None:
    """It is late by as much as a process needs to start."""
    hourly(hub, "skip")
    clock.advance(4 * HOUR - MINUTE + 20)
    tick(hub)
    assert enqueued(hub) == 1


def test_a_machine_that_slept_for_long_is_no_flood(hub: penstock.Hub, clock: FakeClock) -> None:
    hourly(hub, "all", cron="* * * * * *")
    clock.advance(30 * DAY)
    tick(hub)
    assert enqueued(hub) == MISSED_MAX
    clock.advance(1)
    tick(hub)
    assert enqueued(hub) == MISSED_MAX + 1


def test_a_clock_that_was_set_back_repeats_no_tick(hub: penstock.Hub, clock: FakeClock) -> None:
    hourly(hub)
    clock.advance(2 * HOUR)
    tick(hub)
    before = enqueued(hub)
    clock.set_back(90 * MINUTE)
    for _ in range(3):
        clock.advance(30 * MINUTE)
        tick(hub)
    assert enqueued(hub) == before, "these hours have had theirs"
    clock.advance(HOUR)
    tick(hub)
    assert enqueued(hub) == before + 1


def test_a_clock_that_leaps_ahead_makes_up_for_one(hub: penstock.Hub, clock: FakeClock) -> None:
    hourly(hub)
    clock.advance(400 * DAY)
    tick(hub)
    assert enqueued(hub) == 1
    following = hub.schedules.get("report").next_at
    assert following is not None
    assert 0 < following - clock.now() <= HOUR * SECOND


def test_a_tick_is_at_its_time_of_the_zone_in_winter_and_in_summer() -> None:
    winter = ticks("0 9 * * *", "Europe/Vienna", datetime(2026, 1, 10, tzinfo=UTC), 1)
    summer = ticks("0 9 * * *", "Europe/Vienna", datetime(2026, 7, 10, tzinfo=UTC), 1)
    assert [at.hour for at in winter] == [8]
    assert [at.hour for at in summer] == [7]


@pytest.mark.parametrize(
    "day", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)]
)
def test_a_time_that_is_missing_or_comes_twice_ticks_once(day: datetime) -> None:
    """Half past two in the night in which the clocks change."""
    found = ticks("30 2 * * *", "Europe/Vienna", day - timedelta(hours=12), 1.5)
    assert len(found) == 1


def test_an_hourly_schedule_has_each_hour_when_the_clocks_change() -> None:
    for month, day in ((3, 28), (10, 24)):
        found = ticks("0 * * * *", "Europe/Vienna", datetime(2026, month, day, tzinfo=UTC), 3)
        gaps = {later - earlier for earlier, later in itertools.pairwise(found)}
        assert gaps == {timedelta(hours=1)}


@pytest.mark.parametrize(
    ("cron", "zone"),
    [("61 * * * *", "UTC"), ("daily", "UTC"), ("* * *", "UTC"), ("* * * * *", "Mars/Olympus")],
)
def test_what_is_no_schedule_is_refused_and_changes_nothing(
    hub: penstock.Hub, cron: str, zone: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        hub.schedules.put("report", cron, "reports", "make", timezone=zone)
    assert refused.value.hint
    assert hub.schedules.list() == []
