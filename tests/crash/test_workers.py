"""Workers killed at each transition of a job, and at random: nothing is lost, nothing is stuck,
nothing completes twice (J4; failure modes 1, 2, 4)."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.job import Kind, State
from tests.audit import audit_jobs
from tests.crash import worker_actors
from tests.crash.processes import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

SCRIPT = Path(worker_actors.__file__)
CHAOS_SECONDS = 8.0
ATTEMPTS = 1_000


class WorkerProcess:
    """The script above, listened to."""

    def __init__(self, url: str, point: str = "none") -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), url, point],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.lines: list[list[str]] = []
        self.complaint = b""
        self._readers = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._collect, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode().split())

    def _collect(self) -> None:
        assert self.process.stderr is not None
        self.complaint = self.process.stderr.read()

    def runs(self) -> list[tuple[int, int]]:
        """Id and token of each handler that began."""
        return [(int(line[1]), int(line[2])) for line in self.lines if line[0] == "ran"]

    def tell(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"stop\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        code = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(seconds)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue


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


class Chaos(threading.Thread):
    """One worker process: killed, suspended beyond its lease, or stopped, and started again."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self.lives: list[WorkerProcess] = []
        self.ends: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                life = WorkerProcess(self._url)
                self.lives.append(life)
                try:
                    self._live(life)
                finally:
                    life.close()
        except BaseException as error:  # noqa: BLE001 - told to the test by check()
            self.failure = error

    def _live(self, life: WorkerProcess) -> None:
        until(lambda: life.lines or life.process.poll() is not None, "it speaks")
        self._stopping.wait(self._chance.uniform(0.0, 1.2))
        end = self._chance.choice(["kill", "kill", "suspend", "stop"])
        self.ends[end] += 1
        if end == "suspend":
            life.process.send_signal(signal.SIGSTOP)
            # Longer than its lease: its jobs are rescued, and it wakes up a zombie.
            self._stopping.wait(2.6)
            life.process.send_signal(signal.SIGCONT)
            self._stopping.wait(0.5)
        if end == "kill":
            life.process.kill()
        life.tell()
        life.wait()

    def stop(self) -> None:
        """No process of it is left; `check` says whether it went well."""
        self._stopping.set()
        self.join(2 * PATIENCE_SECONDS)

    def check(self) -> None:
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure


@contextmanager
def disorder(url: str, count: int) -> Iterator[list[Chaos]]:
    """So many workers that come and go, and none at the end, whatever happens inside."""
    chaos = [Chaos(url, seed) for seed in range(count)]
    for one in chaos:
        one.start()
    try:
        yield chaos
    finally:
        for one in chaos:
            one.stop()
    for one in chaos:
        one.check()


class Rescues:
    """Whether a job had to be taken from a worker, read from the history by and by."""

    def __init__(self, hub: penstock.Hub) -> None:
        self._reader = hub._open().store.jobs
        self._after = 0
        self._has_any = False

    def has_any(self) -> bool:
        while not self._has_any and (events := self._reader.events(after=self._after, limit=1_000)):
            self._after = events[-1].id
            self._has_any = any(event.kind == Kind.RESCUED for event in events)
        return self._has_any


def check_total_queue(url: str, seconds: float) -> None:
    """Lost = 0, unexpected = 0, at most one completion for each job."""
    types = ("plain", "fails-once", "snoozes", "settles")
    acked: dict[int, str] = {}
    with penstock.connect(url) as hub:
        ends_at = time.monotonic() + seconds
        chance = random.Random(7)
        rescues = Rescues(hub)
        with disorder(url, 3) as chaos:
            # On a slow machine it takes longer until somebody dies at work.
            while time.monotonic() < ends_at or not rescues.has_any():
                assert time.monotonic() < ends_at + 2 * PATIENCE_SECONDS, "nobody died at work"
                type = chance.choice(types)
                payloads = range(len(acked), len(acked) + chance.randint(1, 12))
                added = hub.jobs.enqueue_many("q", type, payloads, max_attempts=ATTEMPTS)
                acked.update((job.id, type) for job in added)
                time.sleep(chance.uniform(0, 0.05))
        heirs: list[WorkerProcess] = []
        try:
            heirs += [WorkerProcess(url), WorkerProcess(url)]

            def is_done() -> bool:
                # Those that crashed often would come back later: they are asked to come now.
                hub.jobs.retry_all(state="scheduled")
                (stats,) = hub.jobs.stats("q")
                return stats.completed == len(acked)

            until(is_done, "all are completed", 2 * PATIENCE_SECONDS)
            for heir in heirs:
                heir.tell()
                heir.wait()
        finally:
            for heir in heirs:
                heir.close()
        where = audit_jobs(hub._open().store)
        assert set(where) == set(acked), "lost or unexpected jobs"
        lives = [*heirs, *(life for one in chaos for life in one.lives)]
        runs = Counter(run for life in lives for run in life.runs())
        assert {number for number, _ in runs} == set(acked), "a job was never run, or invented"
        twice = [run for run, count in runs.items() if count > 1]
        assert not twice, "a handler ran twice under one token"
        happened: Counter[Kind] = Counter()
        for number in acked:
            kinds = [event.kind for event in hub.jobs.history(number)]
            assert kinds.count(Kind.COMPLETED) == 1, (number, kinds)
            happened.update(kinds)
        assert happened[Kind.RESCUED] > 0
        settled = Counter(m.payload for m in hub.topics.read("settled", limit=100_000))
        assert settled == Counter(n for n, type in acked.items() if type == "settles")
        assert sum((one.ends for one in chaos), Counter())["kill"] > 0
        until(lambda: hub.jobs.workers() == [], "the dead are found out")


def test_random_kills_suspensions_and_stops_lose_nothing(url: str) -> None:
    """The total-queue check, for a few seconds."""
    check_total_queue(url, CHAOS_SECONDS)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_same_for_ten_minutes(url: str) -> None:
    check_total_queue(url, 600.0)
