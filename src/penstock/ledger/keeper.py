"""Keeps claims alive while their work runs, from a thread that the work cannot block."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable

import msgspec

from penstock.entry import Entry
from penstock.leases import Write
from penstock.service import Service
from penstock.telemetry import Telemetry

RENEWALS = 3
"""How many renewals fit into a lease."""
IDLE_SECONDS = 60.0


class Kept(msgspec.Struct):
    claim: Entry
    lease_seconds: float
    on_lost: Callable[[], None]
    due_at: float


class ClaimKeeper(Service):
    """Renews each claim at a third of its lease. A lost one is told to its holder."""

    name = "claims"

    def __init__(self, write: Write, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._write = write
        self._held: dict[int, Kept] = {}
        self._lock = threading.Lock()
        self._next_look = 0.0

    def keep(self, claim: Entry, lease_seconds: float, on_lost: Callable[[], None]) -> None:
        assert claim.token is not None
        due_at = time.monotonic() + lease_seconds / RENEWALS
        with self._lock:
            self._held[claim.token] = Kept(claim, lease_seconds, on_lost, due_at)
            is_sooner = due_at < self._next_look
        self.start()
        if is_sooner:
            self.nudge()

    def drop(self, claim: Entry) -> None:
        """Stop renewing. The caller completes or releases it."""
        assert claim.token is not None
        with self._lock:
            self._held.pop(claim.token, None)

    @property
    def held(self) -> int:
        return len(self._held)

    def run_once(self) -> float:
        now = time.monotonic()
        due: dict[float, list[Kept]] = defaultdict(list)
        with self._lock:
            for kept in self._held.values():
                if kept.due_at <= now:
                    due[kept.lease_seconds].append(kept)
        for lease_seconds, kept_now in due.items():
            self._renew(lease_seconds, kept_now)
        with self._lock:
            soonest = min((k.due_at for k in self._held.values()), default=now + IDLE_SECONDS)
            self._next_look = soonest
        return max(0.001, soonest - time.monotonic())

    def _renew(self, lease_seconds: float, kept: list[Kept]) -> None:
        claims = [each.claim for each in kept]
        still = self._write(lambda tx: tx.ledger.renew(claims, lease_seconds=lease_seconds))
        tokens = {claim.token for claim in still}
        due_at = time.monotonic() + lease_seconds / RENEWALS
        for each in kept:
            token = each.claim.token
            assert token is not None
            if token in tokens:
                each.due_at = due_at
                continue
            with self._lock:
                lost = self._held.pop(token, None)
            # One that was completed meanwhile is not there any more, and not lost.
            if lost is not None:
                self._telemetry.emit("claim_lost", scope=each.claim.scope, key=each.claim.key)
                lost.on_lost()
