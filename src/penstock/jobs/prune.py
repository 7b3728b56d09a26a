"""Retention of jobs: finished ones are removed after a time by their state, results by their own.

In steps of a millisecond or two, by whichever process leads the sweep, never on the way of a
claim.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

import msgspec

from penstock.clock import Clock, Micros, micros
from penstock.committer import Committer
from penstock.job import State
from penstock.ports import Store, Writer
from penstock.ports.jobs import PRUNE_STRETCH
from penstock.settings import Settings
from penstock.telemetry import Telemetry

STEP = 500
"""Jobs removed in one transaction."""
STRETCH = PRUNE_STRETCH * STEP
"""Finished jobs that a step looks at."""
STRETCHES = 10
"""How many stretches in which nothing was to be removed one sweep looks at; the next sweep goes
on where this one ended."""


class Pruner:
    """Called by whoever sweeps, one process at a time."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        settings: Settings,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._store = store
        self._committer = committer
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry

    def prune(self, _: Writer, is_stopping: Callable[[], bool] = lambda: False) -> int:
        """Remove what is due, as far as one sweep goes. Returns how many jobs."""
        finished = count_finished(self._store, self._clock.now())
        if not finished:
            return 0
        removed, idle = 0, min(STRETCHES, 1 + finished // STRETCH)
        while idle > 0 and not is_stopping():
            now = self._clock.now()
            before = limits_of(self._settings, now)
            # The committer's own writer, which remembers how far the round has come.
            step = self._committer.run_now(
                lambda tx, before=before, now=now: tx.jobs.prune(  # type: ignore[misc]
                    before=before, now=now, limit=STEP
                )
            )
            removed += step
            idle -= step < STEP
        if removed:
            self._telemetry.emit("jobs_pruned", jobs=removed)
        return removed


class Pruned(msgspec.Struct, frozen=True):
    """What one step has removed."""

    removed: int
    after: int | None
    """The id above which to go on. None: that was all."""


def prune_by_hand(
    store: Store, before: Mapping[int, Micros], now: Micros, after: int = 0
) -> Generator[Pruned, None, None]:
    """Step by step to the end, with a writer of its own. Each yields what there is since the
    beginning."""
    removed = 0
    writer = store.open_writer()
    try:
        while True:
            with writer.transaction() as transaction:
                removed += transaction.jobs.prune(before=before, now=now, limit=STEP, after=after)
                after = transaction.jobs.pruned_to
            yield Pruned(removed, after or None)
            if not after:
                return
    finally:
        writer.close()


def count_finished(store: Store, now: Micros) -> int:
    return sum(
        queue.completed + queue.failed + queue.cancelled for queue in store.jobs.stats(now=now)
    )


def limits_of(settings: Settings, now: Micros) -> dict[int, Micros]:
    """Before when jobs of each state are removed. What is kept for ever is not named."""
    kept = {
        State.COMPLETED: settings.job_keep_completed_seconds,
        State.FAILED: settings.job_keep_failed_seconds,
        State.CANCELLED: settings.job_keep_cancelled_seconds,
    }
    return {state: now - micros(length) for state, length in kept.items() if length != float("inf")}
