"""Batches that are written once, whoever brings them how often: what exactly-once sinks rest on.

A sink has a name; its batches are numbered. A batch is entered before anything of it is written,
and each part of it is counted in the transaction that writes the part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from penstock.clock import Micros


class SinkBatch(msgspec.Struct, frozen=True):
    """A batch as it was entered first, and how much of it has been written."""

    sink: str
    number: int
    query: str
    """Who wrote it: another one may not go on under the sink's name."""
    rows: int
    digest: bytes
    chunks: int
    chunks_done: int = 0
    plan: bytes = b""
    """Where its rows lie until all are written."""
    started_at: Micros = 0
    finished_at: Micros | None = None

    @property
    def is_done(self) -> bool:
        return self.chunks_done == self.chunks


class SinkWriter(Protocol):
    def enter(self, batch: SinkBatch, *, now: Micros) -> SinkBatch:
        """The batch of this number as it was entered first; this one if it is new.

        Raises `SinkReused` if the sink's batches are of another query, if a query has already
        got further, or if the number is so low that what was written is not known any more.
        """

    def advance(self, sink: str, number: int, *, chunk: int, now: Micros) -> None:
        """Count one chunk as written, in the transaction that writes it. They go in order."""

    def forget(self, sink: str) -> int:
        """Forget the sink's batches, so that its name can be used anew. Returns how many."""


class SinkReader(Protocol):
    def get(self, sink: str, number: int) -> SinkBatch | None: ...

    def last(self, sink: str) -> SinkBatch | None:
        """The batch with the highest number."""

    def unfinished(self) -> list[SinkBatch]:
        """Those of which some rows are still to be written."""
