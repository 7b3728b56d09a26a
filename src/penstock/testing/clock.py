"""A clock that moves only when it is told to."""

from __future__ import annotations

import threading

from penstock.clock import SECOND, Micros, micros

STARTS_AT: Micros = 1_767_225_600 * SECOND
"""The first of January 2026, midnight UTC."""
BOOTED_BEFORE: Micros = 3600 * SECOND


class FakeClock:
    """Wall time and monotonic time in step, until `set_back` moves the wall time alone.

    Safe to read from any thread while another one advances it.
    """

    def __init__(self, now: Micros = STARTS_AT) -> None:
        self._now = now
        self._monotonic = BOOTED_BEFORE
        self._lock = threading.Lock()

    def now(self) -> Micros:
        return self._now

    def monotonic(self) -> Micros:
        return self._monotonic

    def advance(self, seconds: float) -> Micros:
        """Let so many seconds pass. Returns the wall time then."""
        if seconds < 0:
            raise ValueError("time passes forward; set_back() is for a clock that was corrected")
        with self._lock:
            self._now += micros(seconds)
            self._monotonic += micros(seconds)
            return self._now

    def set_back(self, seconds: float) -> Micros:
        """Correct the wall clock backwards, as an administrator or NTP does. Returns it."""
        with self._lock:
            self._now -= micros(seconds)
            return self._now
