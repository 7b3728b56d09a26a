"""A queue's jobs on Spark's executors (S7)."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import InvalidInput
from penstock.job import Kind, State
from penstock.spark import run
from penstock.spark.runner import Report, Stop
from tests.factories import file_url, hub_on
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PROGRAM = """
import asyncio, os, time
from pathlib import Path
import penstock
from penstock.jobs.retry import fixed

hub = penstock.connect("sqlite:///another.db")

@hub.job(queue="q")
def double(n: int):
    return [2 * n, os.getpid()]

@hub.job(queue="q")
async def nap(n: int):
    await asyncio.sleep(0.01)

@hub.job(queue="q", max_attempts=2, retry=fixed(0.01))
def flaky(n: int, job):
    if not job.is_last_attempt:
        raise LookupError(f"not yet: {n}")
    return job.attempt

@hub.job(queue="q", max_attempts=1)
def poison(n: int):
    os._exit(3)

@hub.job(queue="slow")
def waits(folder: str, job):
    Path(folder, f"begun-{job.id}").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"drained_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return f"{name}:hub"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[penstock.Hub]:
    with hub_on(tmp_path / "hub.db") as hub:
        yield hub


@pytest.fixture
def url(hub: penstock.Hub, tmp_path: Path) -> str:
    return file_url(tmp_path / "hub.db")


def counts(hub: penstock.Hub, queue: str = "q") -> dict[str, int]:
    [stats] = [one for one in hub.jobs.stats() if one.queue == queue]
    names = ("pending", "scheduled", "processing", "completed", "failed")
    return {name: count for name in names if (count := getattr(stats, name))}


def test_all_ready_jobs_are_done_elsewhere_and_answered(
    spark: SparkSession, hub: penstock.Hub, url: str, app: str
) -> None:
    """S7: in batches; coroutines, functions and retries as in a worker."""
    hub.jobs.enqueue_many("q", "double", list(range(300)))
    hub.jobs.enqueue_many("q", "nap", list(range(30)))
    flaky = hub.jobs.enqueue_many("q", "flaky", list(range(5)), max_attempts=2)
    reports: list[Report] = []
    status = run("drain", url, spark=spark, app=app, until_empty=True, on_report=reports.append)

    assert (status.state, status.rows, status.lag) == ("finished", 340, 0)
    assert counts(hub) == {"completed": 335}
    results = [job.result for job in hub.jobs.list("q", type="double", limit=300)]
    assert sorted(result[0] for result in results) == [2 * n for n in range(300)]
    assert os.getpid() not in {result[1] for result in results}
    kinds = [event.kind for event in hub.jobs.history(flaky[0].id)]
    assert kinds == [Kind.ENQUEUED, Kind.STARTED, Kind.FAILED, Kind.STARTED, Kind.COMPLETED]
    failed = hub.jobs.history(flaky[0].id)[2]
    assert "raise LookupError" in failed.data["traceback"]
    assert sum(report.rows for report in reports) == 340
    assert not [worker for worker in hub.jobs.workers() if worker.queues]


def test_a_job_that_kills_its_process_fails_alone(
    spark: SparkSession, hub: penstock.Hub, url: str, app: str
) -> None:
    """S7: those that were with it in a slice are done; it burns its attempt."""
    hub.jobs.enqueue_many("q", "double", list(range(4)))
    poison = hub.jobs.enqueue("q", "poison", 1, max_attempts=1)
    hub.jobs.enqueue_many("q", "double", list(range(3)))
    run("drain", url, spark=spark, app=app)

    assert counts(hub) == {"completed": 7, "failed": 1}
    dead = hub.jobs.get(poison.id)
    assert dead.state is State.FAILED
    assert dead.failure is not None
    assert dead.failure.error == "penstock.errors.ProcessDied"
    assert "Python worker exited unexpectedly" in dead.failure.message


def test_the_answer_for_a_job_that_was_taken_away_is_refused(
    spark: SparkSession, hub: penstock.Hub, url: str, app: str, tmp_path: Path
) -> None:
    """S7: outcomes carry their tokens; a job that is somebody else's by now stays theirs."""
    kept = hub.jobs.enqueue("slow", "waits", str(tmp_path))
    lost = hub.jobs.enqueue("slow", "waits", str(tmp_path))
    ended: list[Any] = []

    def drain() -> None:
        ended.append(run("drain", url, spark=spark, app=app, queues="slow"))

    draining = threading.Thread(target=drain)
    draining.start()
    try:
        for job in (kept, lost):
            wait_until((tmp_path / f"begun-{job.id}").exists, "both run")
        [worker] = hub.jobs.workers()
        assert worker.running == 2
        # As a rescue does, of a driver that was suspended: the token is void.
        held = hub._open().store.jobs.held(_instance(worker.instance))
        answer = penstock.job.Answer(lost.id, held[lost.id])
        hub._open().committer.run(
            lambda tx: tx.jobs.release([answer], now=hub._open().clock.now())
        ).wait()
        hub.jobs.pause("slow")
    finally:
        (tmp_path / "go").touch()
        draining.join(120)
    assert [one.state for one in ended] == ["finished"]
    assert hub.jobs.get(kept.id).state is State.COMPLETED
    assert hub.jobs.get(lost.id).state is State.PENDING


def _instance(number: int) -> Any:
    return penstock.model.Instance(number, "driver", 0)


def test_told_to_stop_at_once_it_hands_back_what_runs(
    spark: SparkSession, hub: penstock.Hub, url: str, app: str, tmp_path: Path
) -> None:
    """J5: no attempt is burnt by stopping."""
    jobs = hub.jobs.enqueue_many("slow", "waits", [str(tmp_path)] * 8)
    stop = Stop()
    ended: list[Any] = []

    def drain() -> None:
        ended.append(run("drain", url, spark=spark, app=app, queues="slow", once=False, stop=stop))

    draining = threading.Thread(target=drain)
    draining.start()
    try:
        wait_until(lambda: list(tmp_path.glob("begun-*")), "some run")
        stop.ask()
        stop.ask()
        draining.join(120)
    finally:
        (tmp_path / "go").touch()
        draining.join(120)
    assert [one.state for one in ended] == ["stopped"]
    assert counts(hub, "slow") == {"pending": 8}
    assert {hub.jobs.get(job.id).attempts for job in jobs} == {0}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "needs the program with the handlers"),
        ({"app": "no_such_app:hub"}, "no module 'no_such_app'"),
        ({"app": "{app}", "slice": 0}, "--slice is a number from 1 up"),
        ({"app": "{app}", "queues": "a,b\x00"}, "queue name"),
        ({"app": "{app}", "slices": 5}, "no option --slices"),
    ],
)
def test_what_cannot_be_drained_is_refused_and_claims_nothing(
    spark: SparkSession, hub: penstock.Hub, url: str, app: str, options: Any, text: str
) -> None:
    hub.jobs.enqueue("q", "double", 1)
    given = {k: v.format(app=app) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises(InvalidInput, match=text):
        run("drain", url, spark=spark, **given)
    assert counts(hub) == {"pending": 1}


def test_where_executors_cannot_find_the_program_the_jobs_stay(
    spark: SparkSession, hub: penstock.Hub, url: str, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.spark.pipelines import drain

    monkeypatch.setattr(drain, "find_path", list)
    hub.jobs.enqueue_many("q", "double", [1, 2])
    with pytest.raises(InvalidInput, match="The executors cannot do these jobs") as raised:
        run("drain", url, spark=spark, app=app)
    assert "penstock pipeline package" in raised.value.hint
    assert counts(hub) == {"pending": 2}
