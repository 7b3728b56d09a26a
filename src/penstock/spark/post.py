"""The post of a pipeline: whoever holds it runs the pipeline, and says how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from penstock.clock import Clock
from penstock.committer import Committer
from penstock.errors import LeaseLost, PenstockError, PipelineBusy
from penstock.leases import LeaseKeeper
from penstock.model import Lease
from penstock.ports import Store, Transaction
from penstock.ports.pipelines import Ending, PipelineRun, PipelineStatus, pipeline_lease
from penstock.spark.runner import Report


class Runtime(Protocol):
    """What it needs of an open hub."""

    store: Store
    committer: Committer
    keeper: LeaseKeeper
    clock: Clock
    name: str


class Post:
    """Held until `end()`; free at once if this process dies."""

    def __init__(
        self,
        runtime: Runtime,
        run: PipelineRun,
        *,
        lease_seconds: float,
        on_lost: Callable[[], None],
    ) -> None:
        """Raises `PipelineBusy` if somebody else has it."""
        self._runtime = runtime
        self._name = run.name
        runtime.store.register(runtime.name)
        asked_at = time.monotonic()
        key, now = pipeline_lease(run.name), runtime.clock.now()

        def take(tx: Transaction) -> Lease | None:
            lease = tx.leases.acquire(key, owner=runtime.name, seconds=lease_seconds)
            if lease is not None:
                tx.pipelines.begin(run, token=lease.token, now=now)
            return lease

        lease = runtime.committer.run_now(take)
        if lease is None:
            holder = runtime.store.leases.holder(key) or "somebody who is just ending"
            raise PipelineBusy(f"The pipeline {run.name} is being run by {holder}.")
        self._lease = lease
        self._kept = runtime.keeper.keep(lease, on_lost, seconds=lease_seconds, asked_at=asked_at)

    @property
    def status(self) -> PipelineStatus:
        [found] = self._runtime.store.pipelines.find(self._name)
        return found

    def report(self, report: Report) -> None:
        """Raises `LeaseLost` if somebody else runs the pipeline now."""
        now = self._runtime.clock.now()
        self._say(
            lambda tx: tx.pipelines.report(
                self._name,
                token=self._lease.token,
                rows=report.rows,
                batch=report.batch,
                lag=report.lag,
                seconds=report.seconds,
                now=now,
            )
        )

    def beat(self, lag: int | None) -> None:
        """Raises `LeaseLost` if somebody else runs the pipeline now."""
        now = self._runtime.clock.now()
        token = self._lease.token
        self._say(lambda tx: tx.pipelines.beat(self._name, token=token, lag=lag, now=now))

    def end(self, state: Ending, error: str = "") -> None:
        """Say how it ended, and let go. What was lost before stays with whoever has it."""
        name, lease, now = self._name, self._lease, self._runtime.clock.now()
        self._runtime.keeper.drop(lease)

        def leave(tx: Transaction) -> None:
            tx.pipelines.end(name, token=lease.token, state=state, error=error, now=now)
            tx.leases.release(lease)

        self._runtime.committer.run_now(leave)

    def _say(self, write: Callable[[Transaction], bool]) -> None:
        if not self._runtime.committer.run_now(write):
            raise LeaseLost(
                f"The pipeline {self._name} was taken over by somebody else.",
                hint="This process was suspended for longer than pipeline_lease_seconds.",
            )


def check_free(runtime: Runtime, name: str) -> None:
    """Raises `PipelineBusy` if somebody runs it now. For who wants to know before Spark starts."""
    holder = runtime.store.leases.holder(pipeline_lease(name))
    if holder is not None:
        raise PipelineBusy(f"The pipeline {name} is being run by {holder}.")


def describe(error: PenstockError) -> str:
    """For the status: what it is, and what it says."""
    return f"{type(error).__name__}: {error.message}"
