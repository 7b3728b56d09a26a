"""A job in this process's hands, from its claim to its answer."""

from __future__ import annotations

import asyncio
import enum
import math
from typing import TYPE_CHECKING, Literal

import msgspec

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


class Run(msgspec.Struct, eq=False):
    """Changed on the event loop's thread only, but for what the strike of a thread needs.

    A struct, because one is made for each job: it costs a third of a class.
    """

    claim: Claim
    phase: Phase = Phase.CLAIMED
    began: float = 0.0
    took: float = math.inf
    """How many seconds its handler ran."""
    why: Why | None = None
    entry: Entry | None = None
    context: JobContext | None = None
    is_settled: bool = False
    """The handler has completed the job itself, in a transaction of its own."""
    timer: asyncio.TimerHandle | None = None
    # Where it runs: one of these.
    task: asyncio.Task[None] | None = None
    ident: int = 0
    is_inside: bool = False
    is_being_struck: bool = False
    is_struck: bool = False
    servant: Servant | None = None

    @property
    def id(self) -> int:
        return self.claim.id

    @property
    def token(self) -> int:
        return self.claim.token
