"""A function in a process of its own: so that no measurement inherits another's caches or garbage.

The parent starts `python -m bench.process MODULE:FUNCTION ARGUMENTS`; the two talk in lines of
JSON over the child's standard input and output. The child runs with shipped defaults: without
`PENSTOCK_*` variables, and in a folder that has no settings file.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 900.0


class Worker:
    """The parent's side. Leaving the `with` block ends the process, whatever it is doing."""

    def __init__(self, target: str, folder: Path, **arguments: Any) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(ROOT), environment.get("PYTHONPATH")])
        )
        self._target = target
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.process", target, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=environment,
        )
        self._watchdog = threading.Timer(TIMEOUT_SECONDS, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        self._read("ready")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Tell it to come to an end; `result()` has what it found."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = self._read("result")
        self._process.wait()
        return found

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _read(self, wanted: str) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._target} ended with code {self._process.wait()}.")
        found = json.loads(line)
        if wanted not in found:
            raise RuntimeError(f"{self._target} answered {line[:200]!r} instead of {wanted!r}.")
        return found[wanted]


class Link:
    """The child's side: `ready`, then `wait_go`, then work, perhaps until `stopping`."""

    def __init__(self) -> None:
        self.stopping = threading.Event()

    def ready(self) -> None:
        self._write({"ready": True})

    def wait_go(self) -> None:
        sys.stdin.readline()

    def watch(self) -> None:
        """From now on, set `stopping` when the parent says stop."""
        threading.Thread(target=self._watch, daemon=True).start()

    def finish(self, result: dict[str, Any]) -> None:
        self._write({"result": result})

    def _watch(self) -> None:
        sys.stdin.read()
        self.stopping.set()

    def _write(self, message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


class Meter:
    """Wall and processor seconds of a stretch of work in this process."""

    def __enter__(self) -> Meter:
        self._started, self._used = time.perf_counter(), _processor_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self.cores = (_processor_seconds() - self._used) / self.seconds


def call(target: str, folder: Path, **arguments: Any) -> dict[str, Any]:
    """Run the function alone, from start to end."""
    with Worker(target, folder, **arguments) as worker:
        worker.wait_ready()
        worker.go()
        return worker.result()


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    target, arguments = sys.argv[1:]
    module, _, function = target.partition(":")
    link = Link()
    result = getattr(importlib.import_module(module), function)(link, **json.loads(arguments))
    link.finish(result)


if __name__ == "__main__":
    main()
