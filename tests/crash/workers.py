"""Worker processes that are listened to, and the disorder they live in."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from penstock.job import Kind
from tests.crash import worker_actors
from tests.crash.processes import PATIENCE_SECONDS, until

SCRIPT = Path(worker_actors.__file__)


class WorkerProcess:
    """The script above, listened to."""

    def __init__(self, url: str, point: str = "none") -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), url, point],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.lines: list[list[str]] = []
        self.complaint = b""
        self._readers = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._collect, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode().split())

    def _collect(self) -> None:
        assert self.process.stderr is not None
        self.complaint = self.process.stderr.read()

    def heard(self, word: str) -> list[list[str]]:
        """What it said of this, without the word."""
        return [line[1:] for line in self.lines if line[0] == word]

    def runs(self) -> list[tuple[int, int]]:
        """Id and token of each handler that began."""
        return [(int(line[1]), int(line[2])) for line in self.lines if line[0] == "ran"]

    def tell(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"stop\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        code = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(seconds)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue


class Chaos(threading.Thread):
    """One worker process: killed, suspended beyond its lease, or stopped, and started again."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self.lives: list[WorkerProcess] = []
        self.ends: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                life = WorkerProcess(self._url)
                self.lives.append(life)
                try:
                    self._live(life)
                finally:
                    life.close()
        except BaseException as error:  # noqa: BLE001 - told to the test by check()
            self.failure = error

    def _live(self, life: WorkerProcess) -> None:
        until(lambda: life.lines or life.process.poll() is not None, "it speaks")
        self._stopping.wait(self._chance.uniform(0.0, 1.2))
        end = self._chance.choice(["kill", "kill", "suspend", "stop"])
        self.ends[end] += 1
        if end == "suspend":
            life.process.send_signal(signal.SIGSTOP)
            # Longer than its lease: its jobs are rescued, and it wakes up a zombie.
            self._stopping.wait(2.6)
            life.process.send_signal(signal.SIGCONT)
            self._stopping.wait(0.5)
        if end == "kill":
            life.process.kill()
        life.tell()
        life.wait()

    def stop(self) -> None:
        """No process of it is left; `check` says whether it went well."""
        self._stopping.set()
        self.join(2 * PATIENCE_SECONDS)

    def check(self) -> None:
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure


@contextmanager
def disorder(url: str, count: int) -> Iterator[list[Chaos]]:
    """So many workers that come and go, and none at the end, whatever happens inside."""
    chaos = [Chaos(url, seed) for seed in range(count)]
    for one in chaos:
        one.start()
    try:
        yield chaos
    finally:
        for one in chaos:
            one.stop()
    for one in chaos:
        one.check()


class Rescues:
    """Whether a job had to be taken from a worker, read from the history by and by."""

    def __init__(self, hub: penstock.Hub) -> None:
        self._reader = hub._open().store.jobs
        self._after = 0
        self._has_any = False

    def has_any(self) -> bool:
        while not self._has_any and (events := self._reader.events(after=self._after, limit=1_000)):
            self._after = events[-1].id
            self._has_any = any(event.kind == Kind.RESCUED for event in events)
        return self._has_any
