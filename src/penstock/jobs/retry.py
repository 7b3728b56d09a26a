"""When a failed attempt is tried again: a function of the attempt and the error.

A policy returns seconds, or None to give up. The default is the square of the attempt, with some
jitter so that what failed together does not come back together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.errors import InvalidInput

DELAY_SECONDS_MAX = 24 * 3600.0
JITTER = 0.1


class RetryPolicy(Protocol):
    def __call__(self, attempt: int, error: BaseException) -> float | None:
        """Seconds to wait after this attempt, the first being 1; None: do not try again."""


def squared(*, jitter: float = JITTER) -> RetryPolicy:
    """1, 4, 9, 16 … seconds."""
    return _spread(lambda attempt: float(attempt * attempt), jitter)


def fixed(seconds: float, *, jitter: float = 0.0) -> RetryPolicy:
    """Always the same."""
    _check(seconds)
    return _spread(lambda _: seconds, jitter)


def exponential(
    base_seconds: float = 1.0,
    *,
    factor: float = 2.0,
    max_seconds: float = 3600.0,
    jitter: float = JITTER,
) -> RetryPolicy:
    """base, base * factor, base * factor² … up to the maximum."""
    _check(base_seconds)
    _check(max_seconds)

    def seconds(attempt: int) -> float:
        # The exponent is bounded: a float overflows long before an attempt does.
        return min(max_seconds, base_seconds * factor ** min(attempt - 1, 64))

    return _spread(seconds, jitter)


def only_on(
    errors: type[BaseException] | Sequence[type[BaseException]], policy: RetryPolicy | None = None
) -> RetryPolicy:
    """Try again after these errors; give up at once after any other."""
    kinds = tuple(errors) if isinstance(errors, (list, tuple)) else (errors,)
    wrapped = policy or squared()

    def decide(attempt: int, error: BaseException) -> float | None:
        return wrapped(attempt, error) if isinstance(error, kinds) else None

    return decide


def never() -> RetryPolicy:
    return lambda attempt, error: None


def decide(policy: RetryPolicy, attempt: int, error: BaseException) -> float | None:
    """A policy's answer, whatever it is, as a delay that can be used."""
    seconds = policy(attempt, error)
    if seconds is None:
        return None
    if not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise InvalidInput(f"A retry policy answers with seconds or None, not {seconds!r}.")
    return min(float(seconds), DELAY_SECONDS_MAX)


def _spread(seconds: Callable[[int], float], jitter: float) -> RetryPolicy:
    if not 0 <= jitter <= 1:
        raise InvalidInput(f"jitter is a share from 0 to 1, not {jitter!r}.")

    def decide(attempt: int, error: BaseException) -> float | None:
        delay = seconds(attempt)
        return delay + random.uniform(0, jitter) * delay

    return decide


def _check(seconds: float) -> None:
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not seconds > 0:
        raise InvalidInput(f"{seconds!r} are no seconds to wait.")
