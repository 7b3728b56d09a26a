"""Walks through one page's steps in a process and a folder of its own.

Started by `test_pages.py` with the steps as JSON on standard input; exits with 1 and says where
the page was wrong.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

DEADLINE_SECONDS = 300.0


class Wrong(Exception):
    """The page does not tell the truth."""


class Background:
    """A command that runs beside the rest of the page."""

    def __init__(self, step: dict[str, Any], environ: dict[str, str]) -> None:
        self.step = step
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {step['text']}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for_lines(self, count: int) -> str:
        with self._changed:
            self._changed.wait_for(lambda: len(self._lines) >= count, DEADLINE_SECONDS)
            return "".join(self._lines)

    def finish(self) -> None:
        expected = self.step["expected"]
        found = self.wait_for_lines(len(expected.splitlines()))
        self._process.send_signal(signal.SIGINT)
        self._process.wait(DEADLINE_SECONDS)
        # What an interrupted program says about that is not part of the page.
        compare(self.step, "".join(found.splitlines(keepends=True)[: len(expected.splitlines())]))

    def kill(self) -> None:
        """The page was wrong: nothing of it must stay behind."""
        self._process.kill()
        self._process.wait(DEADLINE_SECONDS)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()


def compare(step: dict[str, Any], found: str) -> None:
    expected = step["expected"].replace("…", "...")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    checker = doctest.OutputChecker()
    if not checker.check_output(expected, found, flags):
        raise Wrong(f"It should print\n{expected}\nand prints\n{found}")


def run_python(page: str, step: dict[str, Any], namespace: dict[str, Any]) -> None:
    # Line numbers of tracebacks are those of the page.
    source = "\n" * (step["line"] - 1) + step["text"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, page, "exec"), namespace)
    if step["expected"] is not None:
        compare(step, printed.getvalue())


def run_command(step: dict[str, Any], environ: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", step["text"]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
        env=environ,
    )
    # A command that is shown failing shows how; only a silent block must succeed.
    if step["expected"]:
        compare(step, done.stdout)
    elif done.returncode:
        raise Wrong(f"{step['text']} failed:\n{done.stdout}")


def main() -> int:
    return walk(json.load(sys.stdin))


def walk(plan: dict[str, Any]) -> int:
    """Follow a page in the folder we are in. 0 if it tells the truth."""
    # As in a reader's own session: what a page has written to a file can be imported.
    sys.path.insert(0, "")
    binaries = str(Path(sys.executable).parent)
    environ = {
        **os.environ,
        "PATH": binaries + os.pathsep + os.environ["PATH"],
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "COLUMNS": "100",
    }
    namespace: dict[str, Any] = {"__name__": "__main__"}
    running: list[Background] = []
    for step in plan["steps"]:
        try:
            match step["kind"]:
                case "file":
                    Path(step["file"]).write_text(step["text"], encoding="utf-8")
                case "python":
                    run_python(plan["page"], step, namespace)
                case "background":
                    running.append(Background(step, environ))
                    running[-1].wait_for_lines(1)
                case _ if not shutil.which(step["text"].split()[0], path=environ["PATH"]):
                    raise Wrong(f"There is no command {step['text'].split()[0]}.")
                case _:
                    run_command(step, environ)
        except (Exception, SystemExit):  # noqa: BLE001 - whatever a page raises is its mistake
            print(f"{plan['page']}:{step['line']}", file=sys.stderr)
            traceback.print_exc()
            for background in running:
                background.kill()
            return 1
    for background in running:
        try:
            background.finish()
        except Wrong:
            print(f"{plan['page']}:{background.step['line']}", file=sys.stderr)
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
