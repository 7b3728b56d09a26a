"""A job in this process's hands, from its claim to its answer."""

from __future__ import annotations

import asyncio
import enum
import threading
from typing import TYPE_CHECKING, Literal

from penstock.job import Claim

if TYPE_CHECKING:
    from penstock.jobs.context import JobContext
    from penstock.jobs.handling import Entry
    from penstock.jobs.processes import Servant

Why = Literal["timeout", "cancelled", "lost", "handed_back"]
"""Why a handler is told to stop."""


class Phase(enum.Enum):
    CLAIMED = 1
    """Its attempt has not begun: it can be handed back free."""
    BEGUN = 2
    """Its start is on disk, and it waits for a slot."""
    RUNNING = 3
    ANSWERED = 4
    """The handler has ended, and its answer is on the way to the disk."""
    STUCK = 5
    """Its answer was given for it, but its handler does not end: its slot is not free."""
    OVER = 6


class Run:
    """Changed on the event loop's thread only, but for what the strike of a thread needs."""

    __slots__ = (
        "began",
        "claim",
        "context",
        "entry",
        "id",
        "ident",
        "is_inside",
        "is_settled",
        "phase",
        "servant",
        "strike",
        "task",
        "timer",
        "token",
        "why",
    )

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.id = claim.id
        self.token = claim.token
        self.phase = Phase.CLAIMED
        self.began = 0.0
        """When its handler was called, in the event loop's time."""
        self.why: Why | None = None
        self.entry: Entry | None = None
        self.context: JobContext | None = None
        self.is_settled = False
        """The handler has completed the job itself, in a transaction of its own."""
        self.timer: asyncio.TimerHandle | None = None
        # Where it runs: one of these.
        self.task: asyncio.Task[None] | None = None
        self.ident = 0
        self.is_inside = False
        self.strike: threading.Event | None = None
        self.servant: Servant | None = None
