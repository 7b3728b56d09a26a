"""How much in how much time: the publish rate of one client."""

from __future__ import annotations

from penstock.clock import Micros, seconds

BURST_SECONDS = 3.0
"""What a client has not used for so long, it may use at once."""


class Bucket:
    """A token bucket: `rate` a second on average, a few seconds' worth at once.

    Time is passed in and monotonic. Not thread-safe: a bucket belongs to one event loop. More
    than a full bucket can be taken when it is full, so that one large request is not refused for
    ever; what was taken beyond it is paid back before anything else is given.
    """

    __slots__ = ("_at", "_full", "_held", "_rate")

    def __init__(self, rate: float, *, burst_seconds: float = BURST_SECONDS) -> None:
        assert rate > 0
        self._rate = rate
        self._full = max(1.0, rate * burst_seconds)
        self._held = self._full
        self._at: Micros | None = None

    def take(self, n: int, now: Micros) -> bool:
        """Take `n` if they are there. Taking none is always granted."""
        self._fill(now)
        if self._held < min(n, self._full):
            return False
        self._held -= n
        return True

    def wait_seconds(self, n: int, now: Micros) -> float:
        """How long until `n` can be taken, if nobody else takes any."""
        self._fill(now)
        return max(0.0, (min(n, self._full) - self._held) / self._rate)

    def is_full(self, now: Micros) -> bool:
        """Whether nothing was taken lately: forgetting such a bucket changes nothing."""
        self._fill(now)
        return self._held >= self._full

    def _fill(self, now: Micros) -> None:
        if self._at is not None and now > self._at:
            self._held = min(self._full, self._held + seconds(now - self._at) * self._rate)
        # A clock that stands still or goes back fills nothing, and is not waited for either.
        self._at = now
