"""A process that does jobs for a worker, one after the other. Run with the number of a socket.

It ends with the worker: when the socket closes, or, where the kernel offers it, at once.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import runpy
import signal
import socket
import sys
import threading
from queue import SimpleQueue
from typing import Any

import msgspec

from penstock.clock import SystemClock
from penstock.errors import UnknownJobType
from penstock.job import Answer, Claim, Progress
from penstock.jobs import wire
from penstock.jobs.context import JobContext
from penstock.jobs.handling import Entry, set_back
from penstock.jobs.registry import Handler, JobFunction
from penstock.jobs.run import Run
from penstock.settings import Settings

_DIE_WITH_PARENT = 1
MAIN = "__penstock_main__"


class Servant:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._tasks: SimpleQueue[wire.Task] = SimpleQueue()
        self._entries: dict[tuple[str, str], tuple[Entry, JobFunction[Any]]] = {}
        self._main: str | None = None
        self._run: Run | None = None
        self._clock = SystemClock()

    def live(self) -> None:
        hello = self._hear()
        assert isinstance(hello, wire.Hello)
        sys.path[:] = hello.path
        self._main = hello.main
        threading.Thread(target=self._listen, daemon=True).start()
        while True:
            self._do(self._tasks.get())

    def _hear(self) -> wire.ToProcess:
        frame = wire.receive(self._connection)
        if frame is None:
            os._exit(0)  # The worker is gone, and nobody waits for what this does.
        said: wire.ToProcess = wire.to_process.decode(frame)
        return said

    def _listen(self) -> None:
        while True:
            said = self._hear()
            if isinstance(said, wire.Task):
                self._tasks.put(said)
            elif isinstance(said, wire.Stop):
                run = self._run
                if run is not None and run.id == said.id and run.context is not None:
                    run.context.stop()

    def _say(self, message: wire.FromProcess) -> None:
        with self._sending:
            try:
                wire.send(self._connection, message)
            except OSError:
                os._exit(0)

    def _do(self, task: wire.Task) -> None:
        claim = task.claim
        run = Run(claim)
        handler: Handler | None = None
        try:
            run.entry, function = self._find(task)
            handler = run.entry.handler
            run.context = JobContext(claim, self._report, run=run, runtime=function.runtime)
            self._run = run
            self._say(wire.Begun())
            payload = run.entry.payload(claim)
            arguments = (payload, run.context) if run.entry.takes_job else (payload,)
            outcome = run.entry.judge(claim, run.entry.function(*arguments))
        except BaseException as error:  # noqa: BLE001 - also SystemExit: it ends a job, no process
            outcome = set_back(claim, error, self._clock, handler)
        self._run = None
        if isinstance(outcome, Answer):
            self._say(wire.Ended(answer=outcome, is_settled=run.is_settled))
        else:
            self._say(wire.Ended(setback=outcome, is_settled=run.is_settled))

    def _report(self, claim: Claim, progress: Progress) -> None:
        self._say(wire.Said(progress))

    def _find(self, task: wire.Task) -> tuple[Entry, JobFunction[Any]]:
        key = task.module, task.name
        if key not in self._entries:
            found: Any = self._import(task.module)
            for part in task.name.split("."):
                found = getattr(found, part, None)
            if not isinstance(found, JobFunction):
                raise UnknownJobType(f"{task.module}:{task.name} is no job in a fresh process.")
            settings = Settings(
                payload_bytes_max=task.payload_bytes_max,
                compress_above_bytes=task.compress_above_bytes,
            )
            handler = msgspec.structs.replace(found.handler, result_seconds=task.result_seconds)
            self._entries[key] = Entry(handler, settings, self._clock), found
        return self._entries[key]

    def _import(self, module: str) -> Any:
        if module != "__main__":
            return importlib.import_module(module)
        if MAIN not in sys.modules:
            assert self._main is not None, "a program without a file has no process handlers"
            # Under another name, so that it defines its handlers and does not start its work.
            names = runpy.run_path(self._main, run_name=MAIN)
            found = type(sys)(MAIN)
            found.__dict__.update(names)
            sys.modules[MAIN] = found
        return sys.modules[MAIN]


def main() -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        # For the worker to decide. A function and not SIG_IGN, which programs that a handler
        # starts would inherit.
        signal.signal(number, lambda *_: None)
    Servant(socket.socket(fileno=int(sys.argv[1]))).live()


if __name__ == "__main__":
    main()
