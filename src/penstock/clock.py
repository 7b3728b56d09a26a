"""Time is passed in, never asked for elsewhere: what depends on a clock takes one."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

Micros = int
"""Microseconds: since 1970 for wall time, since an arbitrary point for monotonic time."""

SECOND: Micros = 1_000_000


class Clock(Protocol):
    def now(self) -> Micros:
        """Wall time, for what people read."""

    def monotonic(self) -> Micros:
        """Time that never jumps, the same for all processes of one boot: for leases."""


class SystemClock:
    def now(self) -> Micros:
        return time.time_ns() // 1000

    def monotonic(self) -> Micros:
        return time.monotonic_ns() // 1000


def micros(seconds: float) -> Micros:
    return round(seconds * SECOND)


def seconds(duration: Micros) -> float:
    return duration / SECOND


def as_datetime(at: Micros) -> datetime:
    return datetime.fromtimestamp(at / SECOND, tz=UTC)
