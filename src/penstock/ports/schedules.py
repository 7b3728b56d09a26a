"""Schedules: jobs that are enqueued by the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.clock import Micros
    from penstock.job import Schedule


class ScheduleWriter(Protocol):
    def put(self, schedule: Schedule) -> None:
        """Make it, or change it. Its next time stays as it was unless cron or zone have
        changed."""

    def due(self, *, now: Micros, limit: int) -> list[Schedule]:
        """Those whose next time has come, for the one transaction that enqueues for them and
        moves them on."""

    def ticked(
        self, name: str, *, next_at: Micros | None, last_at: Micros, job_id: int | None
    ) -> None: ...

    def pause(self, name: str, *, paused_at: Micros | None, next_at: Micros | None) -> bool:
        """False if there is none of this name."""

    def remove(self, name: str) -> bool:
        """False if there is none of this name."""


class ScheduleReader(Protocol):
    def all(self) -> list[Schedule]: ...

    def next_at(self) -> Micros | None:
        """When the next one is due."""
