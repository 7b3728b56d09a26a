"""The real command line in processes of its own, as a user has it in a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw

from tests.acceptance.nursery import Nursery
from tests.factories import file_url, hub_on
from tests.waiting import is_readable

DEADLINE_SECONDS = 60.0
COMMAND = [sys.executable, "-W", "error", "-m", "penstock"]
NURSERY = Nursery()


class Result:
    """What a command that has ended left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def __repr__(self) -> str:
        return f"<exit code {self.code}>\n{self.out}\n--- standard error\n{self.err}"


class Running:
    """A command that goes on, such as `follow`."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self._heard = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self) -> str:
        """The next line it prints."""
        out = self._process.stdout
        assert out is not None
        deadline = time.monotonic() + DEADLINE_SECONDS
        while b"\n" not in self._heard:
            assert is_readable(out, deadline - time.monotonic()), "nothing was printed in time"
            piece = os.read(out.fileno(), 65536)
            assert piece, f"it ended: {self.end()!r}"
            self._heard += piece
        line, self._heard = self._heard.split(b"\n", 1)
        return line.decode()

    def message(self) -> Any:
        """The next line, of JSON."""
        return json.loads(self.line())

    def signal(self, number: signal.Signals) -> Result:
        """Send it, and wait for the end."""
        self._process.send_signal(number)
        return self.end()

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def close_output(self) -> Result:
        """As a reader in a pipe does that has seen enough."""
        out = self._process.stdout
        assert out is not None
        out.close()
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            err = pipe.read().decode()
        return Result(self._process.wait(DEADLINE_SECONDS), "", err)

    def end(self) -> Result:
        if self._process.stdout is not None and self._process.stdout.closed:
            return Result(self._process.wait(DEADLINE_SECONDS), "", "")
        out, err = self._process.communicate(timeout=DEADLINE_SECONDS)
        return Result(self._process.returncode, (self._heard + out).decode(), err.decode())

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.end()


class Terminal:
    """A shell with PENSTOCK_URL set to one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "hub.db"
        # Unbuffered output, which some machines ask of all Python programs, is no user's.
        plain = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        self.environment = {
            **plain,
            "PENSTOCK_URL": file_url(self.file),
            "COLUMNS": "100",
        }
        self._running: list[Running] = []

    def run(self, *arguments: object, given: str | bytes = b"", **environment: str) -> Result:
        """A command to its end; `given` is its standard input."""
        code, out, err = NURSERY.run(
            [*map(str, arguments)],
            given.encode() if isinstance(given, str) else given,
            {**self.environment, **environment},
            self.folder,
            DEADLINE_SECONDS,
        )
        return Result(code, out.decode(), err.decode())

    def done(self, *arguments: object, given: str | bytes = b"") -> Result:
        """The same, where anything but success is a failed test."""
        result = self.run(*arguments, given=given)
        assert result.code == 0, result
        return result

    def start(self, *arguments: object) -> Running:
        self._running.append(Running([*map(str, arguments)], self.environment))
        return self._running[-1]

    def close(self) -> None:
        for running in self._running:
            running.close()


def make_too_new(terminal: Terminal) -> None:
    """As a later release would leave it, if this one could not use it any more."""
    with hub_on(terminal.file) as hub:
        hub.topics.publish("orders", 1)
    connection = apsw.Connection(str(terminal.file))
    connection.execute("INSERT INTO penstock_schema VALUES (99, 'future', 99, 0)")
    connection.close()
