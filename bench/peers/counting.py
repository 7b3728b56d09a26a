"""Counting what others do: rates from the first job to the last, so that nobody's start counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

WAIT_SECONDS = 600.0


class Countdown:
    """Counts jobs from any thread, and knows when the first and the last of them was done."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._count = 0
        self._first = self._last = 0.0
        self._all = threading.Event()

    def count(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._first = time.perf_counter()
            if self._count == self._jobs:
                self._last = time.perf_counter()
                self._all.set()

    @property
    def is_over(self) -> bool:
        return self._all.is_set()

    def wait(self) -> dict[str, Any]:
        if not self._all.wait(WAIT_SECONDS):
            raise RuntimeError(f"{self._count} of {self._jobs} jobs were done.")
        return self.result()

    def result(self) -> dict[str, Any]:
        assert self.is_over
        return {"per_second": (self._jobs - 1) / max(1e-9, self._last - self._first)}


def for_seconds(seconds: float, call: Callable[[], object]) -> int:
    """Call it for so long, and once at least. Returns how often."""
    count, until = 0, time.perf_counter() + seconds
    while not count or time.perf_counter() < until:
        call()
        count += 1
    return count
