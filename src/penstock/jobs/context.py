"""What a handler knows of the job it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.job import Claim, Progress


class JobContext:
    """The second argument of a handler."""

    __slots__ = ("_claim", "_report", "_stop")

    def __init__(self, claim: Claim, report: Callable[[Claim, Progress], None]) -> None:
        self._claim = claim
        self._report = report
        self._stop = False

    @property
    def id(self) -> int:
        return self._claim.id

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def type(self) -> str:
        return self._claim.type

    @property
    def attempt(self) -> int:
        """From 1."""
        return self._claim.attempt

    @property
    def max_attempts(self) -> int:
        return self._claim.max_attempts

    @property
    def is_last_attempt(self) -> bool:
        return self._claim.attempt >= self._claim.max_attempts

    @property
    def crashes(self) -> int:
        """How many of the attempts ended with their worker."""
        return self._claim.crashes

    @property
    def token(self) -> int:
        """Rises with each claim: a fence for systems that can refuse an older one."""
        return self._claim.token

    @property
    def is_cancelled(self) -> bool:
        """Whether the job was asked to stop, or is not this worker's any more."""
        return self._stop

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far it is. Written soon; never waits."""
        self._report(self._claim, Progress(done, total, note))

    def stop(self) -> None:
        self._stop = True

    def __repr__(self) -> str:
        claim: Any = self._claim
        return f"<job {claim.id} {claim.type} attempt {claim.attempt}>"
