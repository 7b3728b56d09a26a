"""The examples run as they stand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples" / "topics"
LINES_MAX = 60
DEADLINE_SECONDS = 60.0


class Program:
    """An example as a process, whose output is read line by line."""

    def __init__(self, name: str, *arguments: str, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env={k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")},
        )

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def next_line(self) -> str:
        assert self.process.stdout is not None
        # A program that says nothing is ended, so that the read comes back.
        watchdog = threading.Timer(DEADLINE_SECONDS, self.process.kill)
        watchdog.start()
        try:
            return self.process.stdout.readline().rstrip("\n")
        finally:
            watchdog.cancel()

    def finish(self) -> list[str]:
        output, _ = self.process.communicate(timeout=DEADLINE_SECONDS)
        assert self.process.returncode == 0, output
        return output.splitlines()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=DEADLINE_SECONDS)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[penstock.Hub]:
    with penstock.connect(f"sqlite:///{tmp_path}/penstock.db") as hub:
        yield hub


def test_chat_shows_each_what_the_other_says(tmp_path: Path) -> None:
    ann, bob = (Program("chat.py", name, cwd=tmp_path) for name in ("ann", "bob"))
    assert ann.next_line() == "You are ann. Ctrl-D ends."
    assert bob.next_line() == "You are bob. Ctrl-D ends."
    ann.say("hello")
    assert bob.next_line() == "ann: hello"
    bob.say("hi ann")
    assert ann.next_line() == "bob: hi ann"
    assert ann.finish() == bob.finish() == []


def test_outbox_writes_the_row_and_the_message_or_neither(tmp_path: Path) -> None:
    assert Program("outbox.py", "12.50", cwd=tmp_path).finish() == [
        "order 1",
        "1 rows, 1 messages",
    ]
    refused = Program("outbox.py", "--", "-3", cwd=tmp_path).finish()
    assert "CHECK constraint failed" in refused[0]
    assert refused[-1] == "1 rows, 1 messages"


def test_indexer_counts_every_word_once_though_it_is_killed(
    tmp_path: Path, hub: penstock.Hub
) -> None:
    hub.topics.publish("notes.today", {"text": "buy milk"})
    indexer = Program("indexer.py", cwd=tmp_path)
    assert indexer.next_line() == "indexed up to 1"
    indexer.kill()  # The batch is in its tables, and not yet committed by the consumer.
    hub.topics.publish("notes.tomorrow", {"text": "Buy bread"})

    assert Program("indexer.py", "--once", cwd=tmp_path).finish()[-1] == "indexed up to 2"
    top = Program("indexer.py", "--top", "3", cwd=tmp_path).finish()
    assert top == ["buy 2", "bread 1", "milk 1"]


def test_cursors_become_a_handful_of_messages(tmp_path: Path) -> None:
    *cursors, summary = Program("cursors.py", "--moves", "500", cwd=tmp_path).finish()
    assert [line.split()[0] for line in cursors] == ["ann", "bob"]
    assert cursors[1] == "bob {'x': 499, 'y': 0}"
    written = re.fullmatch(r"1,000 moves, (\d+) messages in the log", summary)
    assert written
    assert int(written[1]) < 500


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_says_how_to_run_it(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert len(text.splitlines()) < LINES_MAX
    assert text.startswith('"""')
    assert f"python {example.name}" in text
