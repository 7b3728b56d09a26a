"""`penstock work`: a program's handlers as a command (J5, J9)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.job import State
from tests.acceptance.terminal import COMMAND, Running, Terminal
from tests.waiting import wait_until

PROGRAM = """
import asyncio, os, sys, time
from pathlib import Path
import penstock

hub = penstock.connect()
other = 5

@hub.job(queue="emails", max_attempts=2, timeout=30)
async def send(to: str):
    if to == "nobody":
        raise LookupError("no such address")
    return f"sent to {to}"

@hub.job(queue="reports")
def report(folder: str):
    Path(folder, f"begun-{os.getpid()}").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.005)
    return os.getpid()

@hub.job(queue="reports", isolation="process")
def crunch(n: int):
    return [n, os.getpid()]
"""


@pytest.fixture
def program(terminal: Terminal) -> Path:
    file = terminal.folder / "shop.py"
    file.write_text(PROGRAM)
    return file


Start = Callable[..., Running]


@pytest.fixture
def start(terminal: Terminal, program: Path) -> Iterator[Start]:
    """The command in the program's folder."""
    started: list[Running] = []
    before = os.getcwd()
    os.chdir(terminal.folder)

    def run(*arguments: str, json: bool = True) -> Running:
        options = ["--json"] if json else []
        started.append(Running([*options, "work", *arguments], terminal.environment))
        return started[-1]

    yield run
    os.chdir(before)
    for running in started:
        running.close()


# Finding the program


def test_check_shows_what_was_found(terminal: Terminal, program: Path) -> None:
    shown = terminal.done("work", "shop:hub", "--check")
    assert "shop:send" in shown.out
    assert "a process" in shown.out
    found = terminal.done("--json", "work", "shop", "--check", "--queues", "emails:3").json
    assert found["queues"] == {"emails": 3}
    assert [handler["type"] for handler in found["handlers"]] == ["send", "crunch", "report"]
    assert found["handlers"][0]["timeout_seconds"] == 30


@pytest.mark.parametrize(
    ("arguments", "complaint", "hint"),
    [
        (["nosuch:hub"], "There is no module 'nosuch' here.", "Start in your program's folder"),
        (["nosuch.deep:hub"], "There is no module 'nosuch.deep'", "folder"),
        (["shop:app"], "nothing of the name 'app'", "shop:hub"),
        (["shop:other"], "a int called 'other'", "shop:hub"),
        (["empty:hub"], "no hub", "hub = penstock.connect()"),
        (["idle:hub"], "no handlers", "@hub.job"),
        (["broken:hub"], "ZeroDivisionError", "python -c"),
        (["needs:hub"], "No module named 'missing_library'", "python -c"),
        (["leaves:hub"], "SystemExit", "python -c"),
        (["shop.py"], "not the name of a module", "shop:hub"),
        (["shop:hub", "--queues", "nosuch:3"], "no queue 'nosuch'", "emails, reports"),
        (["shop:hub", "--queues", "emails:x"], "not a queue and a number", "--queues"),
        (["shop:hub", "--queues", "emails:0"], "not a queue and a number", "--queues"),
        (["shop:hub", "--queues", ","], "No queue is named", "--queues"),
        (["shop:hub", "--queues", "emails,emails"], "named twice", ""),
    ],
)
def test_what_is_wrong_is_said_in_a_line_with_a_hint(
    terminal: Terminal, program: Path, arguments: list[str], complaint: str, hint: str
) -> None:
    for name, text in {
        "empty": "",
        "idle": "import penstock; hub = penstock.connect()",
        "broken": "1 / 0",
        "needs": "import missing_library",
        "leaves": "raise SystemExit(3)",
    }.items():
        (terminal.folder / f"{name}.py").write_text(text)
    result = terminal.run("work", *arguments)
    assert result.code == 1
    assert complaint in result.err
    assert hint in result.err
    assert "Traceback" not in result.err


def test_jobs_in_a_queue_of_their_own_are_worked_on(
    terminal: Terminal, start: Start, hub: penstock.Hub
) -> None:
    """A queue is what jobs were put into, whatever their handler's default is."""
    job = hub.jobs.enqueue("urgent", "send", "ann")
    start("shop:hub", "--queues", "urgent:1")
    assert hub.jobs.wait(job, timeout=60) == "sent to ann"


# Working


def test_jobs_are_done_and_told(start: Start, hub: penstock.Hub) -> None:
    running = start("shop:hub")
    ready = running.message()
    assert (ready["event"], ready["queues"]) == ("ready", {"emails": 10, "reports": 10})
    job = hub.jobs.enqueue("emails", "send", "ann")
    assert hub.jobs.wait(job, timeout=60) == "sent to ann"
    told = running.message()
    assert (told["event"], told["id"], told["type"]) == ("completed", job.id, "send")
    bad = hub.jobs.enqueue("emails", "send", "nobody", max_attempts=1)
    told = running.message()
    assert (told["event"], told["id"], told["error"]) == ("died", bad.id, "LookupError")
    number, pid = hub.jobs.wait(hub.jobs.enqueue("reports", "crunch", 3), timeout=60)
    assert number == 3
    assert pid != running.pid
    ended = running.signal(signal.SIGTERM)
    assert ended.code == 0
    last = ended.lines[-1]
    assert '"event":"stopped"' in last
    assert '"completed":2' in last


def test_people_read_lines(start: Start, hub: penstock.Hub) -> None:
    running = start("shop:hub", "--queues", "emails:2", json=False)
    assert "emails (2 at once)" in running.line()
    hub.jobs.enqueue("emails", "send", "nobody", max_attempts=1)
    assert "LookupError: no such address" in running.line()
    ended = running.signal(signal.SIGINT)
    assert ended.code == 130
    assert "stopped: 0 completed, 1 attempts failed" in ended.out


# Stopping


def test_sigterm_finishes_what_runs(terminal: Terminal, start: Start, hub: penstock.Hub) -> None:
    """Failure mode 12."""
    running = start("shop:hub", "--queues", "reports:1")
    running.line()
    jobs = [hub.jobs.enqueue("reports", "report", str(terminal.folder)) for _ in range(2)]
    wait_until(lambda: list(terminal.folder.glob("begun-*")), "one runs")
    os.kill(running.pid, signal.SIGTERM)
    assert running.message()["event"] == "stopping"
    (terminal.folder / "go").touch()
    assert running.end().code == 0
    first, second = (hub.jobs.get(job.id) for job in jobs)
    assert (first.state, first.result) == (State.COMPLETED, running.pid)
    assert (second.state, second.attempts) == (State.PENDING, 0)


def test_a_second_signal_hands_back_at_once(
    terminal: Terminal, start: Start, hub: penstock.Hub
) -> None:
    running = start("shop:hub")
    running.line()
    number = hub.jobs.enqueue("reports", "report", str(terminal.folder)).id
    wait_until(lambda: list(terminal.folder.glob("begun-*")), "it runs")
    os.kill(running.pid, signal.SIGTERM)
    assert running.message()["event"] == "stopping"
    os.kill(running.pid, signal.SIGTERM)
    assert running.end().code == 0
    job = hub.jobs.get(number)
    assert (job.state, job.attempts) == (State.PENDING, 0)


# Several processes


def workers(hub: penstock.Hub) -> set[str]:
    return {worker.name.rpartition(":")[2] for worker in hub.jobs.workers()}


def test_several_processes_are_replaced_and_stopped_together(
    start: Start, hub: penstock.Hub
) -> None:
    running = start("shop:hub", "--processes", "2", "--queues", "emails:1")
    before = wait_until(lambda: len(workers(hub)) == 2 and workers(hub), "both work")
    victim = int(min(before))
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(workers(hub)) == 2 and str(victim) not in workers(hub), "it is replaced")
    assert hub.jobs.wait(hub.jobs.enqueue("emails", "send", "ann"), timeout=60) == "sent to ann"
    now = workers(hub)
    assert running.signal(signal.SIGTERM).code == 0
    for pid in now:
        assert not Path(f"/proc/{pid}").exists()
    assert hub.jobs.workers() == []


def test_processes_end_with_their_supervisor(start: Start, hub: penstock.Hub) -> None:
    running = start("shop:hub", "--processes", "2", "--queues", "emails:1")
    wait_until(lambda: len(workers(hub)) == 2, "both work")
    running.kill()
    wait_until(lambda: not hub.jobs.workers(), "both have ended")


def test_a_program_run_as_a_script_has_processes_too(terminal: Terminal, program: Path) -> None:
    """Its handlers are in `__main__`, which a process finds under its file."""
    script = terminal.folder / "script.py"
    script.write_text(
        PROGRAM
        + """
if __name__ == "__main__":
    with hub.start_workers():
        print(hub.jobs.wait(crunch.enqueue(4), timeout=60)[0])
    hub.close()
"""
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env=terminal.environment,
        cwd=terminal.folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("4\n", "")
    assert COMMAND[0] == sys.executable
