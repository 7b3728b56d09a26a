"""Retention of the ledger: removes what has expired, in small steps, off the path of marks."""

from __future__ import annotations

from collections.abc import Callable

from penstock.clock import Clock, micros
from penstock.ports import Store, Writer
from penstock.settings import Settings
from penstock.telemetry import Telemetry


class Pruner:
    """Called by whoever sweeps, one process at a time; or by hand."""

    def __init__(
        self, store: Store, settings: Settings, clock: Clock, telemetry: Telemetry
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry

    def prune(
        self,
        writer: Writer,
        is_stopping: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] | None = None,
        limit: int | None = None,
    ) -> int:
        """Remove all that is due now, or up to `limit` of it. Returns how many entries."""
        removed, left = 0, float("inf") if limit is None else limit
        while left > 0 and not is_stopping():
            now = self._clock.now()
            if not self._store.ledger.expired(now=now):
                break
            size = int(min(left, self._settings.sweep_batch_max))
            with writer.transaction() as transaction:
                step = transaction.ledger.prune(now=now, limit=size)
            removed += step
            left -= step
            if progress is not None:
                progress(removed)
            if step < size:
                break
        self._prune_events(writer, is_stopping)
        if removed:
            self._telemetry.emit("ledger_pruned", entries=removed)
        return removed

    def _prune_events(self, writer: Writer, is_stopping: Callable[[], bool]) -> None:
        keep = min(self._settings.ledger_seconds, EVENTS_SECONDS_MAX)
        before = self._clock.now() - micros(keep)
        limit = self._settings.sweep_batch_max
        oldest = self._store.ledger.events(after=0, limit=1)
        while oldest and oldest[0].at < before and not is_stopping():
            with writer.transaction() as transaction:
                if transaction.ledger.prune_events(before=before, limit=limit) < limit:
                    break


EVENTS_SECONDS_MAX = 30 * 86_400.0
"""Events are for pipelines to read; they are not kept for ever, even if entries are."""
