"""Pipelines: who runs which, and how far each has come. One runner at a time, by a lease.

The status is for people and for health. Where a stream goes on is in its checkpoint alone.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from penstock.clock import Micros

State = Literal["starting", "running", "finished", "stopped", "failed", "lost"]
"""`finished`: read what there was. `stopped`: was told to. `lost`: its process ended, or hangs,
and has said nothing."""
Ending = Literal["finished", "stopped", "failed"]


def pipeline_lease(name: str) -> str:
    """The lease that the runner of a pipeline holds."""
    return f"pipeline\x1f{name}"


class PipelineRun(msgspec.Struct, frozen=True):
    """What is known of a run when it begins."""

    name: str
    home: str
    """Where the pipeline is from: a module, or 'built in'."""
    runner: str
    """The process that runs it."""
    is_continuous: bool
    trigger: str
    checkpoint: str
    options: str = "{}"
    """As JSON."""


class PipelineStatus(msgspec.Struct, frozen=True):
    """A pipeline as of its last word."""

    name: str
    home: str
    state: State
    runner: str
    is_continuous: bool
    trigger: str
    checkpoint: str
    options: str
    runs: int
    """How often it was started."""
    rows: int
    """Of this run."""
    rows_total: int
    """Of all runs."""
    batches: int
    """Of this run."""
    batch: int | None
    """The number of the last batch."""
    batch_rows: int
    batch_seconds: float
    lag: int | None
    """Rows that were still to be read after the last batch; None if that is not known."""
    started_at: Micros
    updated_at: Micros
    """When it last said something."""
    ended_at: Micros | None
    error: str
    """What the last run that failed has failed with."""
    error_at: Micros | None

    @property
    def is_running(self) -> bool:
        return self.state in ("starting", "running")


class PipelineWriter(Protocol):
    def begin(self, run: PipelineRun, *, token: int, now: Micros) -> None:
        """Enter a run of one who holds the pipeline's lease under this token.

        The figures of the run before it go; the total and the last error stay.
        """

    def report(
        self,
        name: str,
        *,
        token: int,
        rows: int,
        batch: int,
        lag: int | None,
        seconds: float,
        now: Micros,
    ) -> bool:
        """Count a batch. False if another run has begun since, and nothing is changed."""

    def beat(self, name: str, *, token: int, lag: int | None, now: Micros) -> bool:
        """Say that it is there, and has had nothing to do. False as with `report`."""

    def end(self, name: str, *, token: int, state: Ending, error: str = "", now: Micros) -> bool:
        """Say how the run ended. False as with `report`."""

    def forget(self, name: str) -> bool:
        """Drop what is known of it. False if nothing was."""


class PipelineReader(Protocol):
    def find(self, name: str | None = None) -> list[PipelineStatus]:
        """Those that were ever run, by name; or the one of this name."""
