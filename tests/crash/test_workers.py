"""Workers killed at each transition of a job, and at random: nothing is lost, nothing is stuck,
nothing completes twice (J4; failure modes 1, 2, 4)."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.job import Kind, State
from tests.audit import audit_jobs
from tests.crash import worker_actors
from tests.crash.processes import PATIENCE_SECONDS, until
from tests.crash.soak import (
    NARROW_MAX,
    PACED_MAX,
    Load,
    check_concurrency,
    check_lock,
    check_rate,
)
from tests.crash.workers import Rescues, WorkerProcess, disorder

pytestmark = pytest.mark.crash

CHAOS_SECONDS = 8.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'hub.db'}"


@pytest.fixture
def hub(url: str) -> Iterator[penstock.Hub]:
    with penstock.connect(url) as hub:
        yield hub


@pytest.fixture
def processes() -> Iterator[list[WorkerProcess]]:
    started: list[WorkerProcess] = []
    yield started
    for process in started:
        process.close()


JOBS = ("plain", "plain", "fails-once", "snoozes", "settles", "plain")


def enqueue(hub: penstock.Hub, point: str) -> list[int]:
    types = ("long", *JOBS) if point.endswith((":release", ":leave")) else JOBS
    return [hub.jobs.enqueue("q", type, n, max_attempts=5).id for n, type in enumerate(types)]


def lost_worker(url: str) -> None:
    """A process that has claimed and started jobs, and is gone: for whoever rescues."""
    code = (
        "import os, sys, penstock; hub = penstock.connect(sys.argv[1]); r = hub._open();"
        "r.start_reading();"
        "r.committer.run(lambda tx: tx.jobs.start(tx.jobs.claim(r.instance, {'q': 2},"
        " now=r.clock.now()), now=r.clock.now())).wait(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, url], check=True, timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("point", worker_actors.POINTS)
def test_killed_at_a_transition_a_worker_loses_and_repeats_nothing(
    hub: penstock.Hub, url: str, processes: list[WorkerProcess], point: str
) -> None:
    """Failure mode 1: each job completes once, whoever does it in the end."""
    hub.topics.position()  # The file is there, and nothing is kept running by this process yet.
    numbers = enqueue(hub, point)
    if point.endswith(":rescue"):
        hub.close()  # So that only the victim is there to rescue.
        lost_worker(url)
    victim = WorkerProcess(url, point)
    processes.append(victim)
    if point.endswith((":release", ":leave")):
        until(lambda: victim.runs(), "the long one runs")
        victim.tell()
    assert victim.wait() == -signal.SIGKILL, victim.complaint.decode()

    with penstock.connect(url) as after:
        audit_jobs(after._open().store)
        started = {
            event.job_id
            for number in numbers
            for event in after.jobs.history(number)
            if event.kind == Kind.STARTED
        }
        assert {number for number, _ in victim.runs()} <= started, "it ran before it was started"
        heir = WorkerProcess(url)
        processes.append(heir)
        until(
            lambda: all(after.jobs.get(number).state == State.COMPLETED for number in numbers),
            "all are completed",
        )
        where = audit_jobs(after._open().store)
        assert set(where) == set(numbers)
        for number in numbers:
            check_history(after, number)
        settled = [message.payload for message in after.topics.read("settled")]
        assert settled == [number for number in numbers if after.jobs.get(number).type == "settles"]
        if point in ("before:enter", "after:enter", "before:claim", "before:start"):
            assert victim.runs() == []
            assert all(after.jobs.get(number).crashes == 0 for number in numbers)
        if point in ("handler", "after:start"):
            assert any(after.jobs.get(number).crashes == 1 for number in numbers)


def check_history(hub: penstock.Hub, number: int) -> None:
    """At most one completion, and every attempt that began has an end."""
    kinds = [event.kind for event in hub.jobs.history(number)]
    assert kinds.count(Kind.COMPLETED) == 1, kinds
    assert kinds[-1] == Kind.COMPLETED
    ends = {Kind.COMPLETED, Kind.FAILED, Kind.SNOOZED, Kind.RESCUED, Kind.RELEASED}
    is_running = False
    for kind in kinds:
        if kind == Kind.STARTED:
            assert not is_running, kinds
            is_running = True
        elif kind in ends:
            assert is_running, kinds
            is_running = False


# At random


def check_total_queue(url: str, seconds: float) -> str:
    """Lost = 0, unexpected = 0, at most one completion for each job; every tick of the schedule
    once; limits never exceeded; a lock never held twice. Returns what there was to see."""
    with penstock.connect(url) as hub:
        load = Load(hub)
        store = hub._open().store
        ends_at = time.monotonic() + seconds
        chance = random.Random(7)
        rescues = Rescues(hub)
        with disorder(url, 3) as chaos:
            # On a slow machine it takes longer until somebody dies at work.
            while time.monotonic() < ends_at or not rescues.has_any():
                assert time.monotonic() < ends_at + 2 * PATIENCE_SECONDS, "nobody died at work"
                load.add()
                time.sleep(chance.uniform(0, 0.05))
        ((last_event,),) = store.query("SELECT max(id) FROM penstock_job_events")
        load.end()
        heirs: list[WorkerProcess] = []
        try:
            heirs += [WorkerProcess(url), WorkerProcess(url)]
            until(load.is_done, "all are completed", 2 * PATIENCE_SECONDS)
            for heir in heirs:
                heir.tell()
                heir.wait()
        finally:
            for heir in heirs:
                heir.close()
        ticks = load.check_cron()
        expected = set(load.acked) | {number for number, _ in load.ticks()}
        where = audit_jobs(store)
        assert set(where) == expected, "lost or unexpected jobs"
        lives = [*heirs, *(life for one in chaos for life in one.lives)]
        runs = Counter(run for life in lives for run in life.runs())
        assert {number for number, _ in runs} == expected, "a job was never run, or invented"
        twice = [run for run, count in runs.items() if count > 1]
        assert not twice, "a handler ran twice under one token"
        happened: Counter[Kind] = Counter()
        for number in expected:
            kinds = [event.kind for event in hub.jobs.history(number)]
            assert kinds.count(Kind.COMPLETED) == 1, (number, kinds)
            happened.update(kinds)
        assert happened[Kind.RESCUED] > 0
        settled = Counter(m.payload for m in hub.topics.read("settled", limit=100_000))
        assert settled == Counter(n for n, type in load.acked.items() if type == "settles")
        narrow = {number for number, type in load.acked.items() if type == "narrow"}
        at_once = check_concurrency(store, narrow, last_event)
        in_window = check_rate(lives)
        holders = check_lock(lives)
        assert min(at_once, in_window, holders) > 0, "there was nothing to see"
        ends = sum((one.ends for one in chaos), Counter())
        assert ends["kill"] > 0
        until(lambda: hub.jobs.workers() == [], "the dead are found out")
        return (
            f"{len(lives)} lives, ended by {dict(ends)}; {len(expected):,} jobs completed once each"
            f" in {len(runs):,} runs, {happened[Kind.RESCUED]:,} rescued; {ticks} ticks; at most"
            f" {at_once} of {NARROW_MAX} at once and {in_window} of {PACED_MAX} in a window;"
            f" {holders} holders of the lock"
        )


def test_random_kills_suspensions_and_stops_lose_nothing(url: str) -> None:
    """The total-queue check, for a few seconds (J4, J10, J11)."""
    check_total_queue(url, CHAOS_SECONDS)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_same_for_ten_minutes(
    url: str, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Three workers under kills, suspensions and restarts (J4, J10, J11)."""
    seen = check_total_queue(url, 600.0)
    record_property("seen", seen)
    with capsys.disabled():
        print(f"\n{seen}")
