"""Several worker processes under one command: started, replaced when they die, stopped together."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

import typer

from penstock.cli import INTERRUPTED
from penstock.cli.session import FAILED, Session

_SIGNAL_WITH_PARENT = 1
LOOK_SECONDS = 0.1
RESTART_SECONDS = 1.0
RESTART_SECONDS_MAX = 30.0
STEADY_SECONDS = 10.0
"""A process that lived so long did not fail to start."""


class Supervisor:
    def __init__(self, session: Session, program: str, queues: str | None, count: int) -> None:
        self._session = session
        self._command = [sys.executable, "-m", "penstock"]
        if session.is_json:
            self._command.append("--json")
        if session.url:
            self._command += ["--url", session.url]
        self._command += ["work", program, "--one-of-many"]
        if queues is not None:
            self._command += ["--queues", queues]
        self._count = count
        self._signals: list[int] = []

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        places = [Place(self._command) for _ in range(self._count)]
        self._say(f"{self._count} worker processes. Ctrl-C stops them.")
        sent = 0
        while True:
            is_ending = bool(self._signals)
            for told in self._signals[sent:]:
                for place in places:
                    place.send(told)
                sent += 1
            alive = 0
            for place in places:
                died = place.look(restart=not is_ending)
                if died is not None and not is_ending:
                    self._say(f"A worker process ended with {died}; it is replaced.")
                alive += place.is_alive
            if is_ending and not alive:
                break
            time.sleep(LOOK_SECONDS)
        if any(place.has_failed for place in places):
            return FAILED
        return INTERRUPTED if self._signals[0] == signal.SIGINT else 0

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)

    def _say(self, text: str) -> None:
        if not self._session.is_json:
            typer.echo(text, err=True)


class Place:
    """One of the processes, and its successors."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._pause = RESTART_SECONDS
        self._again_at: float | None = None
        self.has_failed = False
        """Whether its last process ended badly after it was told to stop."""
        self._start()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, number: int) -> None:
        if self.is_alive:
            self._process.send_signal(number)

    def look(self, *, restart: bool) -> int | None:
        """Replace it if it has ended. Returns the exit code when that is noticed."""
        code = self._process.poll()
        if code is None:
            return None
        if not restart:
            self.has_failed = self._again_at is None and code not in (0, INTERRUPTED)
            return code
        now = time.monotonic()
        if self._again_at is None:
            if now - self._started_at > STEADY_SECONDS:
                self._pause = RESTART_SECONDS
            self._again_at = now + self._pause
            self._pause = min(RESTART_SECONDS_MAX, self._pause * 2)
            return code
        if now >= self._again_at:
            self._start()
        return None

    def _start(self) -> None:
        # A group of its own: Ctrl-C reaches it through the supervisor, and once.
        self._process = subprocess.Popen(self._command, process_group=0)
        self._started_at = time.monotonic()
        self._again_at = None


def end_with_parent() -> None:
    """In a worker process: stop gracefully when the supervisor is killed."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_WITH_PARENT, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
