"""Leases kept alive from a thread of their own, so that busy user code cannot lose them."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.model import Lease
from penstock.ports import Transaction
from penstock.service import Service
from penstock.telemetry import Telemetry

T = TypeVar("T")

RENEWALS = 3
"""How many renewals fit into a lease."""
LOOK_SECONDS = 60.0


class Write(Protocol):
    def __call__(self, write: Callable[[Transaction], T], /) -> T:
        """Run it in a transaction and return when it is on disk."""


class Kept:
    """A lease, as its holder knows it without asking the store."""

    def __init__(
        self,
        lease: Lease,
        seconds: float,
        asked_at: float,
        on_lost: Callable[[], None],
        holder: object | None = None,
    ) -> None:
        self.lease = lease
        self.seconds = seconds
        self.on_lost = on_lost
        self._holder = None if holder is None else weakref.ref(holder)
        self.is_lost = False
        self._until = asked_at + seconds

    @property
    def is_held(self) -> bool:
        """False from the moment on in which somebody else may have it: also right after this
        process was suspended for too long, before anybody has noticed."""
        return not self.is_lost and time.monotonic() < self._until

    @property
    def is_wanted(self) -> bool:
        """Whether anybody is left who could give it back."""
        return self._holder is None or self._holder() is not None

    def renewed(self, asked_at: float) -> None:
        self._until = asked_at + self.seconds


class LeaseKeeper(Service):
    """Renews the leases it was given at a third of their time. A lost one is told to its holder."""

    name = "leases"

    def __init__(self, write: Write, lease_seconds: float, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._write = write
        self._seconds = lease_seconds
        self._held: dict[Lease, Kept] = {}
        self._lock = threading.Lock()
        self._next_look = math.inf
        """When all leases are renewed again; while that is under way, whoever comes asks for it."""

    def keep(
        self,
        lease: Lease,
        on_lost: Callable[[], None],
        *,
        seconds: float | None = None,
        asked_at: float | None = None,
        holder: object | None = None,
    ) -> Kept:
        """Renew it from now on, for `seconds` each time. `asked_at` is the monotonic time before
        it was acquired: it certainly lasts so long from then on. With a `holder`, it is renewed
        as long as that object is there."""
        kept = Kept(
            lease,
            self._seconds if seconds is None else seconds,
            time.monotonic() if asked_at is None else asked_at,
            on_lost,
            holder,
        )
        with self._lock:
            self._held[lease] = kept
            is_next = time.monotonic() + kept.seconds / RENEWALS < self._next_look
        self.start()
        if is_next:
            self.nudge()
        return kept

    def drop(self, lease: Lease) -> None:
        """Stop renewing. The caller releases it."""
        with self._lock:
            self._held.pop(lease, None)

    def run_once(self) -> float:
        with self._lock:
            self._held = {lease: kept for lease, kept in self._held.items() if kept.is_wanted}
            held = list(self._held.values())
            self._next_look = math.inf
        groups: defaultdict[float, list[Kept]] = defaultdict(list)
        for kept in held:
            groups[kept.seconds].append(kept)
        for seconds, group in groups.items():
            self._renew(seconds, group)
        pause = min(groups, default=LOOK_SECONDS * RENEWALS) / RENEWALS
        with self._lock:
            self._next_look = time.monotonic() + pause
        return pause

    def _renew(self, seconds: float, group: list[Kept]) -> None:
        leases = [kept.lease for kept in group]
        asked_at = time.monotonic()
        renewed = set(self._write(lambda tx: tx.leases.renew(leases, seconds=seconds)))
        for kept in group:
            if kept.lease in renewed:
                kept.renewed(asked_at)
                continue
            with self._lock:
                is_news = self._held.pop(kept.lease, None) is not None
            if is_news:
                kept.is_lost = True
                kept.on_lost()
