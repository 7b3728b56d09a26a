"""Actors as processes: started, listened to, killed, and never left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ACTORS = Path(__file__).with_name("actors.py")
PATIENCE_SECONDS = 60.0


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Poll until the condition holds; its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)


class Actor:
    """One process of a role. Its reports arrive while it lives and stay after its death."""

    def __init__(self, role: str, url: str, **options: Any) -> None:
        self.role = role
        self.reports: list[list[str]] = []
        self._arrived = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, str(ACTORS), role, url, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._readers = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._collect, daemon=True),
        ]
        self.complaint = b""
        for reader in self._readers:
            reader.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def heard(self, word: str) -> list[list[str]]:
        """The reports of this kind so far, without their first word."""
        with self._arrived:
            return [line[1:] for line in self.reports if line[0] == word]

    def expect(self, word: str, count: int = 1, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for so many reports of this kind."""
        with self._arrived:
            is_there = self._arrived.wait_for(
                lambda: (
                    sum(line[0] == word for line in self.reports) >= count
                    or not self._readers[0].is_alive()
                ),
                seconds,
            )
            enough = sum(line[0] == word for line in self.reports) >= count
        assert is_there, f"{self.role} said {word!r} less than {count} times in {seconds} s"
        assert enough, f"{self.role} ended early: {self.complaint.decode()}"

    def expect_anything(self, seconds: float = PATIENCE_SECONDS) -> None:
        with self._arrived:
            self._arrived.wait_for(
                lambda: bool(self.reports) or not self._readers[0].is_alive(), seconds
            )
        assert self.reports, f"{self.role} said nothing: {self.complaint.decode()}"

    def tell(self, word: str = "go") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")
        self._process.stdin.flush()

    def suspend(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{self._process.pid}/stat")
        until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "suspended")

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self, after_seconds: float = 0.0) -> None:
        """SIGKILL; returns when the process is gone and its last report has been read.

        `after_seconds`, chosen at random, puts it at a random instant of what the actor does.
        """
        try:
            self._process.wait(after_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._finish()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Until it ends by itself; its exit status, negative for a signal."""
        self._process.wait(seconds)
        self._finish()
        return self._process.returncode

    def _finish(self) -> None:
        self._process.wait(PATIENCE_SECONDS)
        for reader in self._readers:
            reader.join(PATIENCE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                with self._arrived:
                    self.reports.append(line.decode().split())
                    self._arrived.notify_all()
        with self._arrived:
            self._arrived.notify_all()

    def _collect(self) -> None:
        assert self._process.stderr is not None
        self.complaint = self._process.stderr.read()


@contextmanager
def company() -> Iterator[Callable[..., Actor]]:
    """`start(role, url, **options)`; whoever still runs at the end is killed."""
    started: list[Actor] = []

    def start(role: str, url: str, **options: Any) -> Actor:
        actor = Actor(role, url, **options)
        started.append(actor)
        return actor

    try:
        yield start
    finally:
        for actor in started:
            if actor.is_running:
                actor.kill()


class Victim(threading.Thread):
    """One actor, killed at random instants and started again, until told to stop.

    `lives` are its incarnations, in order, all dead at the end.
    """

    def __init__(
        self,
        role: str,
        url: str,
        *,
        seed: int,
        life_seconds: tuple[float, float] = (0.0, 0.35),
        **options: Any,
    ) -> None:
        super().__init__(name=f"victim-{role}", daemon=True)
        self.role, self.url, self.options = role, url, options
        self.lives: list[Actor] = []
        self.failure: BaseException | None = None
        self._chance = random.Random(seed)
        self._life_seconds = life_seconds
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._live()
        except BaseException as error:  # noqa: BLE001 - told to the test by stop()
            self.failure = error

    def end(self) -> None:
        """Its last life ends; `check` says whether all went well."""
        self._stopping.set()
        self.join(2 * PATIENCE_SECONDS)

    def check(self) -> None:
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure

    def _live(self) -> None:
        options = (
            self.options if "pattern" in self.options else {**self.options, "run": len(self.lives)}
        )
        actor = Actor(self.role, self.url, **options)
        self.lives.append(actor)
        try:
            # One life in eight ends before it has said anything: during opening.
            if self._chance.random() < 0.125:
                self._stopping.wait(self._chance.uniform(0.05, 0.4))
            else:
                actor.expect_anything()
                self._stopping.wait(self._chance.uniform(*self._life_seconds))
            assert actor.is_running, f"{self.role} died by itself: {actor.complaint.decode()}"
        finally:
            actor.kill()


@contextmanager
def doomed(*victims: Victim) -> Iterator[Callable[[int], None]]:
    """They die and live again, until the end, whatever happens inside.

    `await_lives(count)` returns when each has begun so many lives.
    """

    def await_lives(count: int) -> None:
        until(
            lambda: all(len(one.lives) >= count or one.failure for one in victims),
            f"{count} lives of each",
            8 * PATIENCE_SECONDS,
        )

    for one in victims:
        one.start()
    try:
        yield await_lives
    finally:
        for one in victims:
            one.end()
    for one in victims:
        one.check()


def wal_bytes(path: Path) -> int:
    try:
        return os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return 0
