"""Servers as processes of their own, and what they use of the machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from bench.process import ROOT
from bench.workload import url

START_SECONDS = 20.0
STOP_SECONDS = 20.0


class Server:
    """Runs within the `with` block, on one core if one is named."""

    name = ""
    port: int

    def __init__(self, command: list[str], folder: Path, *, core: int | None = None) -> None:
        self._command = command
        self._folder = folder
        self._core = core

    def __enter__(self) -> Server:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(ROOT), environment.get("PYTHONPATH")])
        )
        with (self._folder / f"{self.name}.log").open("ab") as log, on_core(self._core):
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        """Until it answers."""
        raise NotImplementedError

    def wait_port(self, port: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.02)
            else:
                return


class PenstockServer(Server):
    """`penstock serve` on the database in `folder`; as shipped, but for what is passed."""

    name = "penstock"

    def __init__(self, folder: Path, *, core: int | None = None, **settings: object) -> None:
        self._settings = settings
        command = [sys.executable, "-m", "penstock", "--url", url(folder), "serve"]
        super().__init__([*command, "--port", "0", "--json"], folder, core=core)

    def __enter__(self) -> Server:
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in self._settings.items()]
        if lines:
            (self._folder / "penstock.toml").write_text("".join(lines))
        return super().__enter__()

    def wait(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            log = (self._folder / f"{self.name}.log").read_text()[-2000:]
            raise RuntimeError(f"penstock serve did not start:\n{log}")
        self.port = urlsplit(json.loads(line)["address"]).port or 0


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """What this thread starts meanwhile stays on that core, with all its threads."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processor_seconds(pid: int) -> float:
    """User and system, of all threads of a process."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
