"""The crews of one process: they share its lease, its keeper and its clock for schedules."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from penstock.jobs.keeper import BELL_SECONDS, Member, WorkerKeeper
from penstock.jobs.runtime import Runtime
from penstock.jobs.schedule import Ticker

STOP_SECONDS = 10.0


class Closable(Member, Protocol):
    def close(self) -> None:
        """From outside of its event loop if it can be: stop, and return when it has."""


class Roster:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._members: tuple[Closable, ...] = ()
        self._keeper: WorkerKeeper | None = None
        self._ticker: Ticker | None = None
        self._nudged_at = 0.0

    def enter(self, member: Closable) -> None:
        """Before its first claim."""
        with self._lock:
            self._members = (*self._members, member)
            try:
                if self._keeper is None:
                    self._keeper = WorkerKeeper(self._runtime, lambda: self._members)
                    self._ticker = Ticker(self._runtime)
                self._keeper.enter()
            except BaseException:
                self._remove(member)
                raise
            self._keeper.start()
            assert self._ticker is not None
            self._ticker.start()

    def leave(self, member: Closable) -> None:
        """After its last answer."""
        with self._lock:
            if member in self._members:
                self._remove(member)

    def _remove(self, member: Closable) -> None:
        self._members = tuple(found for found in self._members if found is not member)
        if self._members:
            return
        keeper, self._keeper = self._keeper, None
        ticker, self._ticker = self._ticker, None
        for service in (ticker, keeper):
            if service is not None:
                service.stop(STOP_SECONDS)

    def rang(self) -> None:
        """A job may have been cancelled, or put off: the keeper looks soon, but not for each
        bell of a busy time."""
        keeper, now = self._keeper, time.monotonic()
        if keeper is not None and now - self._nudged_at >= BELL_SECONDS:
            self._nudged_at = now
            keeper.nudge()

    def close(self) -> None:
        """With the hub."""
        for member in self._members:
            member.close()
