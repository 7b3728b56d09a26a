"""Waiting for a condition with a deadline, instead of sleeping for a while and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 20.0
PAUSE_SECONDS = 0.005


def wait_until(
    condition: Callable[[], T], what: str = "", *, seconds: float = DEADLINE_SECONDS
) -> T:
    """The first true answer of `condition`; fails the test when the deadline has passed."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {seconds} s: {what or condition}")
        time.sleep(PAUSE_SECONDS)
