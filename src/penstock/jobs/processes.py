"""Handlers in processes of their own: for work that takes the CPU, or that may crash.

A process does one job after the other. It is killed when a job runs out of time, and replaced when
it dies: a segmentation fault fails the attempt it happened in, with its reason, and nothing else.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock.errors import PenstockError, ProcessDied
from penstock.job import Progress
from penstock.jobs import wire
from penstock.jobs.handling import Outcome
from penstock.jobs.registry import Handler
from penstock.jobs.run import Run
from penstock.settings import Settings

BEGIN_SECONDS = 60.0
"""How long a new process may take to import the handler."""
EXIT_SECONDS = 10.0


class Servant:
    """One process. Used by one thread at a time; any thread may kill it.

    Its life hangs on the thread that made it, which lives as long as the worker.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._connection = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.jobs.servant", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=None,
            )
        self._sending = threading.Lock()
        self.send(wire.Hello([entry or "." for entry in sys.path], _main_file()))

    def send(self, message: wire.ToProcess) -> None:
        with self._sending:
            try:
                wire.send(self._connection, message)
            except OSError:
                return  # It has died: the next receive says so.

    def receive(self, seconds: float | None) -> wire.FromProcess | None:
        """None: it has died. `TimeoutError`: it has not said anything in time."""
        if seconds is not None and seconds <= 0:
            raise TimeoutError
        self._connection.settimeout(seconds)
        frame = wire.receive(self._connection)
        return None if frame is None else wire.from_process.decode(frame)

    def kill(self) -> None:
        self._process.kill()

    def bury(self) -> str:
        """After its death: how it died."""
        self._connection.close()
        try:
            code = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code >= 0:
            return f"it ended with exit code {code}"
        try:
            return f"it was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was ended by signal {-code}"


class Processes:
    """Those that are idle wait for the next job."""

    def __init__(self, settings: Settings, report: Callable[[Run, Progress], None]) -> None:
        self._settings = settings
        self._report = report
        self._idle: list[Servant] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def do(self, run: Run) -> Outcome | None:
        """On a thread of the worker: have it done, and wait for the outcome."""
        assert run.entry is not None
        try:
            servant = self._take()
        except OSError as error:
            return run.entry.set_back(run.claim, ProcessDied(f"No process can be made: {error}."))
        run.servant = servant
        if run.why is not None:
            self._put(servant)
            return None
        try:
            return self._do(run, servant)
        except BaseException:
            servant.kill()
            servant.bury()
            raise

    def stop(self, run: Run) -> None:
        """Ask it to stop, or kill it where it has had its time."""
        servant = run.servant
        if servant is None:
            return
        if run.why == "cancelled":
            servant.send(wire.Stop(run.id))
        else:
            servant.kill()

    def kill(self, run: Run) -> None:
        if run.servant is not None:
            run.servant.kill()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for servant in idle:
            servant.kill()
            servant.bury()

    def _do(self, run: Run, servant: Servant) -> Outcome | None:
        entry, claim = run.entry, run.claim
        assert entry is not None
        handler, settings = entry.handler, self._settings
        module, name = address(handler)
        servant.send(
            wire.Task(
                module,
                name,
                claim,
                settings.payload_bytes_max,
                settings.compress_above_bytes,
                handler.result_seconds,
            )
        )
        deadline = time.monotonic() + BEGIN_SECONDS
        while True:
            try:
                said = servant.receive(max(0.001, deadline - time.monotonic()))
            except TimeoutError:
                servant.kill()
                servant.bury()
                return entry.timed_out(claim)
            except (OSError, ValueError, PenstockError):
                said = None
            if said is None:
                how = servant.bury()
                if run.why is not None:
                    return None
                return entry.set_back(
                    claim, ProcessDied(f"The process that did the job has died: {how}.")
                )
            if isinstance(said, wire.Begun):
                limit = entry.limit_seconds(claim)
                deadline = time.monotonic() + (limit if limit is not None else 10 * 365 * 86_400)
            elif isinstance(said, wire.Said):
                self._report(run, said.progress)
            else:
                run.is_settled = said.is_settled
                run.servant = None
                self._put(servant)
                return said.answer or said.setback

    def _take(self) -> Servant:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Servant()

    def _put(self, servant: Servant) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(servant)
                return
        servant.kill()
        servant.bury()


def address(handler: Handler) -> tuple[str, str]:
    """Where another process finds the function."""
    return handler.function.__module__, handler.function.__qualname__


def _main_file() -> str | None:
    file = getattr(sys.modules["__main__"], "__file__", None)
    return None if file is None else str(Path(file).absolute())
