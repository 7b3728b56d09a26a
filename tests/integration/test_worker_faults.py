"""Workers when the world fails: nothing is lost, nothing is stuck, the reason is told (J4)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import penstock
from penstock.job import State
from penstock.stores.sqlite.transaction import SqliteWriter
from tests.faults import faulty_disk
from tests.processes import Child
from tests.waiting import SOON, wait_until

OpenHub = Callable[..., penstock.Hub]
N = 200


def total(hub: penstock.Hub, queue: str = "default") -> dict[str, int]:
    found = hub.jobs.stats(queue)
    names = ("pending", "scheduled", "processing", "completed", "failed", "cancelled")
    return {name: n for stats in found for name in names if (n := getattr(stats, name))}


def each_once(seen: list[int], count: int = N) -> bool:
    return sorted(seen) == list(range(count))


@pytest.fixture
def seen() -> list[int]:
    return []


@pytest.fixture
def work(seen: list[int]) -> Callable[[penstock.Hub], None]:
    def register(hub: penstock.Hub) -> None:
        async def work(n: int) -> None:
            seen.append(n)

        hub.job(name="work")(work)

    return register


# The database


def test_a_database_locked_for_a_while_loses_and_repeats_nothing(
    open_hub: OpenHub, path: Path, seen: list[int]
) -> None:
    """Answers wait until they can be written; a handler does not run again for that."""
    hub = open_hub(lock_timeout_seconds=0.05)
    hub.topics.position()  # Before the other connection, which it would take for sqlite3's.
    foreign = apsw.Connection(str(path))
    foreign.set_busy_timeout(10_000)

    @hub.job
    async def work(n: int) -> None:
        seen.append(n)
        if len(seen) == N // 4:
            foreign.execute("BEGIN IMMEDIATE")

    hub.jobs.enqueue_many("default", "work", range(N))
    failures: list[str] = []
    hub.telemetry.attach(
        lambda event, facts: failures.append(event) if event == "service_failed" else None
    )
    foreign.execute("BEGIN IMMEDIATE")
    starting: list[Any] = []
    refused: list[int] = []
    thread = threading.Thread(target=lambda: starting.append(start_patiently(hub, refused)))
    thread.start()
    wait_until(lambda: len(refused) >= 2, "it is locked out")
    foreign.execute("ROLLBACK")
    thread.join(SOON)
    wait_until(lambda: "service_failed" in failures, "it is locked out again")
    foreign.execute("ROLLBACK")
    wait_until(lambda: total(hub) == {"completed": N}, "all are done")
    foreign.close()
    starting[0].stop()
    assert each_once(seen)


def start_patiently(hub: penstock.Hub, refused: list[int]) -> Any:
    while True:
        try:
            return hub.start_workers({"default": 5})
        except penstock.StoreBusy:
            refused.append(1)


def test_a_full_disk_loses_and_repeats_nothing(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch, seen: list[int]
) -> None:
    with faulty_disk(monkeypatch) as disk:
        hub = open_hub()

        @hub.job
        async def work(n: int) -> None:
            seen.append(n)
            disk.is_full = disk.is_full or len(seen) == N // 4

        hub.jobs.enqueue_many("default", "work", range(N))
        with hub.start_workers({"default": 5}):
            wait_until(
                lambda: hub.telemetry.counters().get("service_failed", 0) >= 2, "the disk is full"
            )
            disk.is_full = False
            wait_until(lambda: total(hub) == {"completed": N}, "all are done")
        assert each_once(seen)


def test_a_file_that_is_away_for_a_while(
    open_hub: OpenHub, path: Path, seen: list[int], work: Any
) -> None:
    hub = open_hub()
    work(hub)
    hub.jobs.enqueue_many("default", "work", range(N))
    with hub.start_workers({"default": 2}):
        wait_until(lambda: len(seen) >= 5, "it works")
        away = path.with_name("away.db")
        os.rename(path, away)
        try:
            hub.jobs.enqueue("default", "work", N)
        except penstock.PenstockError:
            pass
        os.rename(away, path)
        wait_until(lambda: total(hub).get("completed", 0) >= N, "all are done")
        wait_until(lambda: set(total(hub)) == {"completed"}, "nothing is stuck")
    assert set(range(N)) <= set(seen)
    # A job may run again whose answer was refused with the file; none is lost.
    assert all(job.state == State.COMPLETED for job in hub.jobs.list(limit=2 * N))


def test_a_commit_of_unknown_outcome_leaves_no_job_behind(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch, seen: list[int], work: Any
) -> None:
    """The claims may be on disk, and the worker does not know of them: they go back."""
    hub = open_hub(job_lease_seconds=3.0)
    work(hub)
    hub.jobs.enqueue_many("default", "work", range(20))
    real = SqliteWriter.commit
    left = [2]

    def commit_and_lie(writer: SqliteWriter) -> None:
        transaction = writer._transaction
        has_claimed = transaction is not None and bool(transaction.jobs._counted)
        real(writer)
        if has_claimed and left[0] > 0 and threading.current_thread().name == "penstock-committer":
            left[0] -= 1
            raise penstock.OutcomeUnknown

    monkeypatch.setattr(SqliteWriter, "commit", commit_and_lie)
    with hub.start_workers({"default": 5}):
        wait_until(lambda: total(hub) == {"completed": 20}, "all are done")
    assert left == [0]
    assert each_once(seen, 20)


# The worker


def test_a_blocked_event_loop_does_not_lose_the_lease(open_hub: OpenHub) -> None:
    """Failure mode 3: the heart beats on a thread of its own."""
    hub, other = open_hub(job_lease_seconds=0.6), open_hub()
    blocked = threading.Event()
    runs: list[int] = []

    @hub.job
    async def blocks(n: int, job: Any) -> str:
        runs.append(job.attempt)
        blocked.set()
        time.sleep(2.0)  # noqa: ASYNC251 - what must not hurt
        return "done"

    with hub.start_workers({"default": 1}):
        job = blocks.enqueue(1)
        assert blocked.wait(SOON)
        assert other.jobs.wait(job, timeout=SOON) == "done"
    assert runs == [1]
    assert [event.kind.name for event in other.jobs.history(job.id)] == [
        "ENQUEUED",
        "STARTED",
        "COMPLETED",
    ]


SUSPENDED = """
    import sys, threading, time, penstock
    hub = penstock.connect(sys.argv[1], job_lease_seconds=0.6)

    @hub.job(name="work")
    def work(n, job):
        print("begun", job.attempt, flush=True)
        try:
            while True:
                time.sleep(0.005)
        finally:
            print("stopped" if job.is_cancelled else "?", flush=True)

    told = []
    hub.telemetry.attach(lambda event, facts: told.append(event))
    crew = hub.start_workers({"default": 1})
    sys.stdin.readline()
    crew.stop(0)
    print("lost" if "jobs_lost" in told else "not lost", flush=True)
    hub.close()
"""


def test_a_suspended_worker_finds_its_jobs_gone_and_stops_its_copies(
    open_hub: OpenHub, path: Path
) -> None:
    """Failure mode 2: SIGSTOP for longer than the lease, then SIGCONT."""
    hub = open_hub(lock_timeout_seconds=0.2)
    number = hub.jobs.enqueue("default", "work", 1).id
    with Child(SUSPENDED, f"sqlite:///{path}") as child:
        assert child.hear() == "begun 1"
        child.stop_between_writes(lambda: hub.topics.publish("any", 1))
        wait_until(
            lambda: hub.jobs.get(number).crashes == 1, "its job is rescued without user code"
        )
        hub.jobs.pause("default")
        child.go_on()
        assert child.hear() == "stopped"
        child.tell()
        assert child.hear() == "lost"
        assert child.wait() == 0
    job = hub.jobs.get(number)
    assert job.state in (State.SCHEDULED, State.PENDING)
    assert (job.attempts, job.crashes) == (1, 1)


ANSWERS_LATE = """
    import sys, time, penstock
    hub = penstock.connect(sys.argv[1], job_lease_seconds=0.6)

    @hub.job(name="work")
    async def work(n):
        print("begun", flush=True)
        time.sleep(0.3)
        return "too late"

    told = []
    hub.telemetry.attach(lambda event, facts: told.append(event))
    crew = hub.start_workers({"default": 1})
    while "refused" not in told:
        time.sleep(0.005)
    print("refused", flush=True)
    sys.stdin.readline()
"""


def test_the_late_answer_of_a_suspended_worker_is_refused(open_hub: OpenHub, path: Path) -> None:
    """J4: a zombie completes nothing."""
    hub = open_hub(lock_timeout_seconds=0.2)
    number = hub.jobs.enqueue("default", "work", 1).id
    with Child(ANSWERS_LATE, f"sqlite:///{path}") as child:
        assert child.hear() == "begun"
        child.stop_between_writes(lambda: hub.topics.publish("any", 1))
        wait_until(lambda: hub.jobs.get(number).crashes == 1, "its job is rescued")
        hub.jobs.pause("default")
        child.go_on()
        assert child.hear() == "refused"
        assert hub.jobs.get(number).raw_result is None
        assert hub.jobs.get(number).state in (State.SCHEDULED, State.PENDING)


KILLED = """
    import os, sys, time, penstock
    from tests import job_handlers
    hub = job_handlers.hub
    crew = hub.start_workers({"p": 1})
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_processes_of_a_killed_worker_end_with_it(open_hub: OpenHub, path: Path) -> None:
    hub = open_hub()
    file = path.with_name("pid")
    url = f"sqlite:///{path}"
    with Child(KILLED, JOB_HANDLERS_URL=url) as child:
        assert child.hear() == "ready"
        number = hub.jobs.enqueue("p", "defy", str(file), max_attempts=2).id
        wait_until(lambda: file.exists() and file.read_text(), "it runs in a process")
        child.kill()
        wait_until(lambda: not Path(f"/proc/{file.read_text()}").exists(), "the process is gone")
        wait_until(lambda: hub.jobs.get(number).crashes == 1, "the job is rescued")
