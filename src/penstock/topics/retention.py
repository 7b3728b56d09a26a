"""Retention: removes what is past its time, in small steps, off the path of publishers.

One process at a time does it, by lease; any process can take over.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.clock import Clock
from penstock.committer import Committer
from penstock.model import Lease, Retention
from penstock.ports import Store, Writer
from penstock.service import Service
from penstock.settings import Settings
from penstock.telemetry import Telemetry

LEASE = "leader\x1fretention"
# So many messages published here since the last look call for another before the interval is up.
NUDGE_BATCHES = 5


Chore = Callable[[Writer, Callable[[], bool]], object]
"""Gets a writer, and asks between its steps whether it is to stop."""


class Sweeper(Service):
    name = "retention"

    def __init__(
        self,
        store: Store,
        committer: Committer,
        settings: Settings,
        clock: Clock,
        owner: str,
        telemetry: Telemetry,
    ) -> None:
        super().__init__(telemetry)
        self._store = store
        self._committer = committer
        self._settings = settings
        self._clock = clock
        self._owner = owner
        self._lease: Lease | None = None
        self._published = 0
        self.chores: list[Chore] = []
        """What else is removed when it is time: by whoever leads, with a writer of its own."""

    def published(self, count: int) -> None:
        """Called with each commit of this process."""
        self._published += count
        if self._published >= NUDGE_BATCHES * self._settings.sweep_batch_max:
            self._published = 0
            self.nudge()

    def run_once(self) -> float:
        if self._lead():
            self.sweep()
        return self._settings.sweep_interval_seconds

    def sweep(self) -> int:
        """Remove all that is due now. Returns how many messages that were."""
        default = default_retention(self._settings)
        removed = 0
        writer = self._store.open_writer()
        try:
            for topic in self._store.topics.needs_sweep(default, now=self._clock.now()):
                found = self._store.topics.get(topic)
                retention = Retention() if found is None else found.retention
                removed += self.sweep_topic(writer, topic, retention.with_defaults(default))
                if self._stopping.is_set():
                    break
            self._forget(writer)
            for chore in self.chores:
                chore(writer, self._stopping.is_set)
        finally:
            writer.close()
        return removed

    def sweep_topic(
        self,
        writer: Writer,
        topic: str,
        retention: Retention,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove what is due in one topic, a small transaction at a time."""
        removed = 0
        while not self._stopping.is_set():
            with writer.transaction() as transaction:
                step = transaction.topics.sweep(
                    topic,
                    retention,
                    now=self._clock.now(),
                    limit=self._settings.sweep_batch_max,
                )
            removed += step.removed
            if progress is not None:
                progress(removed)
            if step.broken:
                self._telemetry.emit("hold_broken", topic=topic, messages=step.broken)
            if step.removed < self._settings.sweep_batch_max:
                break
        if removed:
            self._telemetry.emit("swept", topic=topic, messages=removed)
        return removed

    def _forget(self, writer: Writer) -> None:
        limit = self._settings.sweep_batch_max
        while True:
            with writer.transaction() as transaction:
                forgotten = transaction.topics.forget_keys(now=self._clock.now(), limit=limit)
                transaction.instances.forget(
                    now=self._clock.now(), after_seconds=self._settings.instance_dropped_seconds
                )
            if forgotten < limit:
                return

    def _lead(self) -> bool:
        """Be the one who sweeps, if nobody else is."""
        seconds = 3 * self._settings.sweep_interval_seconds
        held = self._lease
        if held is not None:
            kept = self._committer.run_now(lambda tx: tx.leases.renew([held], seconds=seconds))
            if kept:
                return True
        if self._store.leases.holder(LEASE) is not None:
            return False
        self._store.register(self._owner)
        self._lease = self._committer.run_now(
            lambda tx: tx.leases.acquire(LEASE, owner=self._owner, seconds=seconds)
        )
        return self._lease is not None

    def _on_start(self) -> None:
        # Programs that end soon leave the sweeping to those that stay.
        self._pause(self._settings.sweep_interval_seconds)

    def _on_stop(self) -> None:
        lease = self._lease
        if lease is not None and not self._committer.is_closed:
            self._committer.run(lambda tx: tx.leases.release(lease))


def default_retention(settings: Settings) -> Retention:
    return Retention(
        age_seconds=settings.retention_seconds,
        hold_seconds_max=settings.hold_seconds_max,
        hold_bytes_max=settings.hold_bytes_max,
    )
