"""A queue drained on a cluster while one of its executors is killed (S7)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

import penstock
from tests.factories import file_url, hub_on
from tests.waiting import is_readable

pytestmark = [pytest.mark.spark, pytest.mark.crash]

DRIVER = Path(__file__).with_name("drainer.py")
EXECUTOR = "CoarseGrainedExecutorBackend"
PATIENCE_SECONDS = 300.0


class Drainer:
    """The driver, and what it says."""

    def __init__(self, url: str, complaints: Path) -> None:
        self._complaints = complaints
        self.application = "none"
        self._heard = b""
        with complaints.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, str(DRIVER), url],
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=DRIVER.parents[2],
            )

    def says(self) -> Any:
        out = self._process.stdout
        assert out is not None
        while b"\n" not in self._heard:
            assert is_readable(out, PATIENCE_SECONDS), self._complaints.read_text()
            piece = os.read(out.fileno(), 65536)
            assert piece, self._complaints.read_text()
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)

    def executors(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if any(EXECUTOR in word for word in child.cmdline()):
                    found.append(child)
        return found

    def end(self) -> None:
        """With its executors, and what they leave in Spark's own folder."""
        family = []
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
        if self._process.poll() is None:
            self._process.kill()
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait(60)
        left = Path(pyspark.__file__).with_name("work") / self.application
        shutil.rmtree(left, ignore_errors=True)
        with suppress(OSError):
            left.parent.rmdir()  # Unless somebody else's are there.


def drain_with_a_kill(folder: Path, jobs: int) -> dict[str, Any]:
    """Enqueues so many, and kills an executor when a third of them is done."""
    with hub_on(folder / "hub.db") as hub:
        hub.jobs.enqueue_many("q", "work", list(range(jobs)))
        drainer = Drainer(file_url(folder / "hub.db"), folder / "complaints")
        try:
            drainer.application = drainer.says()["application"]
            done, killed, said = 0, 0, drainer.says()
            while "state" not in said:
                done += said["rows"]
                if done >= jobs // 3 and not killed:
                    # The first that is found: both are at work.
                    victim = drainer.executors()[0]
                    victim.kill()
                    killed = victim.pid
                said = drainer.says()
            assert killed, "there was no time to kill one"
        finally:
            drainer.end()
        _check(hub, jobs)
    return {**said, "killed": killed}


def _check(hub: penstock.Hub, jobs: int) -> None:
    """Each is completed, once, with its own result, and nobody has any in hand."""
    [stats] = hub.jobs.stats()
    assert (stats.completed, stats.total) == (jobs, jobs)
    assert [worker for worker in hub.jobs.workers() if worker.running] == []
    with hub.connection() as connection:
        [(completed,)] = connection.execute(
            "SELECT count(*) FROM penstock_job_events WHERE kind = 3"
        )
    assert completed == jobs
    for job in hub.jobs.list("q", limit=100):
        assert job.result == job.payload + 1


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_lost_executors_jobs_are_handed_on(java_home: Path, tmp_path: Path) -> None:
    said = drain_with_a_kill(tmp_path, 4_000)
    assert (said["state"], said["rows"]) == ("finished", 4_000)


@pytest.mark.soak
def test_a_hundred_thousand_jobs_survive_a_lost_executor(java_home: Path, tmp_path: Path) -> None:
    said = drain_with_a_kill(tmp_path, 100_000)
    assert (said["state"], said["rows"]) == ("finished", 100_000)
    print(f"{said['rows'] / said['seconds']:,.0f} jobs/s, with an executor lost")
