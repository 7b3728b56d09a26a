"""Keeps a worker's jobs its own, from a thread that no handler can block.

One row with a lease stands for all the jobs a process has in hand. While it is renewed, the jobs
are this process's; when it is not, any other process rescues them, and what this one says later
about them is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.job import Worker
from penstock.jobs.runtime import Runtime
from penstock.service import Service

RENEWALS = 3
"""How many renewals fit into a lease."""
LOOK_SECONDS = 1.0
"""How often jobs that were asked to stop are looked for."""


class WorkerKeeper(Service):
    """`on_cancel` gets the ids of jobs in this process's hands that were asked to stop."""

    name = "worker-keeper"

    def __init__(
        self, runtime: Runtime, queues: dict[str, int], on_cancel: Callable[[list[int]], None]
    ) -> None:
        super().__init__(runtime.telemetry)
        self._runtime = runtime
        self._on_cancel = on_cancel
        runtime.start_reading()
        instance = runtime.instance
        assert instance is not None
        self._instance = instance
        self._worker = Worker(instance.id, runtime.name, queues, runtime.clock.now())
        self._renew_at = 0

    def enter(self) -> None:
        """Before the first claim."""
        self._renew()

    def run_once(self) -> float:
        clock, lease = self._runtime.clock, self._runtime.settings.job_lease_seconds
        if clock.monotonic() >= self._renew_at:
            self._renew()
        asked = self._runtime.store.jobs.cancelling(self._instance)
        if asked:
            self._on_cancel(asked)
        return min(LOOK_SECONDS, lease / RENEWALS)

    def leave(self) -> None:
        """After the last answer."""
        instance, now = self._instance, self._runtime.clock.now()
        self._runtime.committer.run(lambda tx: tx.jobs.leave(instance, now=now)).wait()

    def _renew(self) -> None:
        clock, lease = self._runtime.clock, self._runtime.settings.job_lease_seconds
        now = clock.now()
        worker = msgspec.structs.replace(self._worker, seen_at=now)
        self._runtime.committer.run(
            lambda tx: tx.jobs.enter(worker, lease_seconds=lease, now=now)
        ).wait()
        self._renew_at = clock.monotonic() + round(lease / RENEWALS * 1_000_000)
