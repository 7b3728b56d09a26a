"""Waiting for a condition with a deadline, instead of sleeping for a while and hoping."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import IO, TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 60.0
SOON = DEADLINE_SECONDS
"""What happens at once on a machine that has nothing else to do."""
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


def is_readable(pipe: IO[bytes] | IO[str], seconds: float) -> bool:
    """Whether something, or the end, came in time.

    By poll: `select` takes no descriptor above 1,023, and a test may have opened as many.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(1000 * max(0.0, seconds)))
