"""Leases kept alive from a thread of their own, so that busy user code cannot lose them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.model import Lease
from penstock.ports import Transaction
from penstock.service import Service
from penstock.telemetry import Telemetry

T = TypeVar("T")


class Write(Protocol):
    def __call__(self, write: Callable[[Transaction], T], /) -> T:
        """Run it in a transaction and return when it is on disk."""


class LeaseKeeper(Service):
    """Renews the leases it was given at a third of their time. A lost one is told to its holder."""

    name = "leases"

    def __init__(self, write: Write, lease_seconds: float, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._write = write
        self._seconds = lease_seconds
        self._held: dict[Lease, Callable[[], None]] = {}
        self._lock = threading.Lock()

    def keep(self, lease: Lease, on_lost: Callable[[], None]) -> None:
        with self._lock:
            self._held[lease] = on_lost
        self.start()

    def drop(self, lease: Lease) -> None:
        """Stop renewing. The caller releases it."""
        with self._lock:
            self._held.pop(lease, None)

    def run_once(self) -> float:
        with self._lock:
            leases = list(self._held)
        if leases:
            kept = set(self._write(lambda tx: tx.leases.renew(leases, seconds=self._seconds)))
            for lost in set(leases) - kept:
                with self._lock:
                    on_lost = self._held.pop(lost, None)
                if on_lost is not None:
                    on_lost()
        return self._seconds / 3
