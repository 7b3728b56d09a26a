"""A queue's slots in one worker, and how many jobs they are good for."""

from __future__ import annotations

from collections import deque

import msgspec

from penstock.job import Claim
from penstock.jobs.run import Run

AHEAD_SECONDS = 0.005
"""Beyond its free slots, a worker claims and starts as many jobs as it has done in this time that
took no longer than this, and no more: handlers shorter than a write to the disk do not wait for
one each, and nobody hoards. A job on its last attempt is started only when a slot is free."""
CLAIM_MAX = 500
"""Jobs of a queue claimed in one transaction."""


class Room(msgspec.Struct, gc=False):
    """How many jobs of a queue may be started, and how many of them have a slot at once."""

    left: int
    free: int

    def take(self, claim: Claim) -> bool:
        if self.left <= 0 or (self.free <= 0 and claim.attempt >= claim.max_attempts):
            return False
        self.left -= 1
        self.free -= 1
        return True


class Slots:
    """One queue's slots, and the jobs that are for them."""

    __slots__ = ("_done", "begun", "claimed", "count", "finished", "free", "queue", "stuck")

    def __init__(self, queue: str, count: int) -> None:
        self.queue = queue
        self.count = count
        self.free = count
        self.stuck = 0
        self.claimed: deque[Run] = deque()
        """Not started: there was no slot for one on its last attempt."""
        self.begun: deque[Run] = deque()
        """Started, and waiting for a slot."""
        self.finished = 0
        """Short ones, since the last turn."""
        self._done: deque[tuple[float, int]] = deque()

    def note(self, now: float) -> None:
        """With each turn: remember how many have finished since the last."""
        if self.finished:
            self._done.append((now, self.finished))
            self.finished = 0
        while self._done and self._done[0][0] < now - AHEAD_SECONDS:
            self._done.popleft()

    def wanted(self, now: float) -> int:
        """How many may be claimed."""
        return min(CLAIM_MAX, self.room(now) - len(self.claimed))

    def room(self, now: float) -> int:
        """How many may be started."""
        pace = self.finished + sum(count for at, count in self._done if at >= now - AHEAD_SECONDS)
        return self.free + pace - len(self.begun)

    def give_back(self, run: Run) -> None:
        """A slot is free again."""
        self.free += 1
        if run.took < AHEAD_SECONDS:
            self.finished += 1

    @property
    def idle(self) -> int:
        """Slots for which there is nothing at all."""
        return self.free - len(self.begun) - len(self.claimed)

    def can_start(self, now: float) -> bool:
        """Whether one of those claimed may be started now."""
        if not self.claimed:
            return False
        return Room(self.room(now), self.free - len(self.begun)).take(self.claimed[0].claim)

    def starting(self, room: Room) -> list[Run]:
        """Those claimed that may be started now."""
        found: list[Run] = []
        while self.claimed and room.take(self.claimed[0].claim):
            found.append(self.claimed.popleft())
        return found
