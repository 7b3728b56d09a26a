"""Leases, and the processes that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.clock import Micros
    from penstock.model import Instance, Lease


class LeaseWriter(Protocol):
    def acquire(self, name: str, *, owner: str, seconds: float) -> Lease | None:
        """Take the lease if it is free, has run out, or its holder's process has ended.

        Tokens rise: a later lease of the same name has a higher one. None if somebody has it.
        """

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        """Extend these leases. Returns those that are still held under their tokens."""

    def release(self, lease: Lease) -> bool:
        """Give it back. False if it was no longer held."""


class LeaseReader(Protocol):
    def holder(self, name: str) -> str | None:
        """Who holds the lease now, if anybody does."""


class InstanceWriter(Protocol):
    def report(
        self, instance: Instance, *, position: int, poll_latency_ms: float, now: Micros
    ) -> None:
        """Say that the process is reading, and how far it has come."""

    def forget(self, *, now: Micros, after_seconds: float) -> int:
        """Drop processes that have ended, or were not seen for so long. Returns how many."""


class InstanceReader(Protocol):
    def alive(self) -> list[Instance]:
        """The live processes that read the log."""

    def lowest_position(self) -> int | None:
        """How far the slowest live process has read."""
