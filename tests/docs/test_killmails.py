"""J12: the killmails example does what its README says, and survives kill -9 of its worker."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.killmails.remote import Remote

import penstock
from penstock import State
from tests.docs.pages import ROOT, links, steps
from tests.waiting import wait_until

EXAMPLE = ROOT / "examples" / "killmails"
README = EXAMPLE / "README.md"
WALKER = Path(__file__).with_name("walker.py")
PORT = "8460"
KILLS = 30
DEADLINE_SECONDS = 60


def environ(folder: Path, remote: str = "") -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    # The example is run from a folder of its own, and found where the project is.
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    url = f"sqlite:///{folder / 'penstock.db'}"
    return {**kept, "PYTHONPATH": path, "PENSTOCK_URL": url, "KILLMAILS_REMOTE": remote}


@pytest.mark.slow
def test_the_readme_can_be_followed_from_top_to_bottom(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    plan = {"page": "examples/killmails/README.md", "steps": [vars(s) for s in steps(README)]}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(WALKER)],
        input=json.dumps(plan).replace(PORT, port),
        text=True,
        capture_output=True,
        cwd=tmp_path,
        env=environ(tmp_path, f"http://127.0.0.1:{port}"),
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def remote() -> Iterator[Remote]:
    """Every answer takes a while, so that a worker is never killed between two jobs."""
    server = Remote(fails=0.1, is_slow=1.0, slow_seconds=0.2).start()
    yield server
    server.shutdown()
    server.server_close()


class Processes:
    """The example's parts, as its users start them."""

    def __init__(self, folder: Path, remote: Remote) -> None:
        self.folder = folder
        self._environ = environ(folder, remote.url)
        self._started: list[subprocess.Popen[bytes]] = []

    def work(self) -> subprocess.Popen[bytes]:
        return self.start("penstock", "work", "examples.killmails.jobs:hub")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", *arguments],
            cwd=self.folder,
            env=self._environ,
            stdout=subprocess.DEVNULL,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait(DEADLINE_SECONDS)


@pytest.fixture
def processes(tmp_path: Path, remote: Remote) -> Iterator[Processes]:
    started = Processes(tmp_path, remote)
    yield started
    started.end()


@pytest.mark.crash
@pytest.mark.slow
def test_every_kill_is_announced_once_though_workers_are_killed(
    tmp_path: Path, processes: Processes
) -> None:
    """J4, J12, failure mode 1: two workers die with jobs in their hands; a third finishes."""
    receiving = processes.start("examples.killmails.receive", "--count", str(KILLS))
    with penstock.connect(f"sqlite:///{tmp_path}/penstock.db") as hub:
        wait_until(lambda: len(hub.jobs.list(limit=1_000)) == 3 * KILLS, "kills come in")
        for share in (0.2, 0.5):
            worker = processes.work()
            wait_until(
                lambda share=share: _announced(hub) >= share * KILLS and _is_busy(hub),
                "it works",
                seconds=DEADLINE_SECONDS,
            )
            worker.kill()
            worker.wait()
        processes.work()
        assert receiving.wait(DEADLINE_SECONDS) == 0
        jobs = hub.jobs.list(limit=1_000)
        told = [message.payload["id"] for message in hub.topics.read("kills", limit=1_000)]
    # The remote side knows nothing of number 13.
    assert sorted(told) == [number for number in range(1, KILLS + 1) if number != 13]
    assert sum(job.crashes for job in jobs) > 0
    assert {job.state for job in jobs} == {State.COMPLETED, State.CANCELLED}
    assert sum(job.state is State.CANCELLED for job in jobs) == 3


def test_it_ships_no_secret_and_asks_nobody_else() -> None:
    for file in EXAMPLE.iterdir():
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"(?i)(token|password|secret|api[_-]?key)\s*=", text), file.name
            hosts = set(re.findall(r"https?://([\w.]+)", text))
            assert hosts <= {"127.0.0.1"}, file.name


def test_its_readme_names_every_file_that_matters() -> None:
    for link in links(README):
        assert (EXAMPLE / link).exists(), link


def _announced(hub: penstock.Hub) -> int:
    stats = hub.jobs.stats("notify")
    return stats[0].completed + stats[0].cancelled


def _is_busy(hub: penstock.Hub) -> bool:
    running = hub.jobs.list("remote", state=State.PROCESSING, limit=10)
    return any(job.started_at is not None for job in running)
