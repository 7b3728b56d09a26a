"""`python -m penstock.demo.story`: three processes, one killed and resumed, nothing lost (T3)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.acceptance.terminal import Terminal
from tests.factories import file_url, hub_on
from tests.waiting import wait_until

DEMO = [sys.executable, "-W", "error", "-m", "penstock.demo.story"]


def run(terminal: Terminal, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments],
        capture_output=True,
        text=True,
        env=terminal.environment,
        timeout=100,
        check=False,
    )


def summary(out: str) -> dict[str, list[str]]:
    """The rows of the table at the end, by process."""
    rows = out[out.rindex("p50 latency") :].splitlines()[2:]
    return {row.split()[0]: row.split()[1:] for row in rows if row}


def test_the_demo_loses_nothing_though_a_consumer_is_killed(terminal: Terminal) -> None:
    result = run(terminal, "--messages", "30", "--rate", "30")

    assert (result.returncode, result.stderr) == (0, "")
    assert "kill -9" in result.stdout
    assert "indexer is back" in result.stdout
    assert "caught up" in result.stdout
    rows = summary(result.stdout)
    assert rows["publisher"] == ["30"]
    assert rows["follower"][:2] == ["30", "0"]
    assert rows["indexer"][:2] == ["30", "0"]


def test_the_demo_runs_on_a_file_that_is_there_already(terminal: Terminal, tmp_path: Path) -> None:
    url = file_url(tmp_path / "existing.db")
    with hub_on(tmp_path / "existing.db") as hub:
        hub.topics.publish("canvas-garden", {"not": "the demo's"})
        result = run(terminal, "--url", url, "--messages", "5", "--rate", "50")

        assert result.returncode == 0, result.stderr
        assert summary(result.stdout)["indexer"][:2] == ["5", "0"]
        assert sum(topic.messages for topic in hub.topics.list("canvas-*")) == 6
        assert hub.consumers.list() == []


def test_the_demo_ends_with_a_summary_after_ctrl_c(terminal: Terminal) -> None:
    with subprocess.Popen(
        [*DEMO, "--rate", "20"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=terminal.environment,
    ) as demo:
        assert demo.stdout is not None
        before = [demo.stdout.readline() for _ in range(10)]
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=100)

    assert (demo.returncode, err) == (0, "")
    assert "publisher" in "".join(before)
    assert summary(out)["follower"][1] == "0"


def test_the_demo_leaves_no_process_behind_when_it_is_killed(terminal: Terminal) -> None:
    with subprocess.Popen(
        [*DEMO, "--rate", "20"], stdout=subprocess.PIPE, text=True, env=terminal.environment
    ) as demo:
        assert demo.stdout is not None
        title = [demo.stdout.readline() for _ in range(4)]
        pids = [int(line.split("pid")[1].split()[0]) for line in title[1:]]
        demo.kill()

    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids))


def test_the_demo_says_what_is_wrong_with_its_url(terminal: Terminal) -> None:
    result = run(terminal, "--url", "sqlite:////no/such/folder/x.db")

    assert result.returncode == 1
    assert result.stderr.startswith("error: The folder /no/such/folder does not exist.\nhint: ")
