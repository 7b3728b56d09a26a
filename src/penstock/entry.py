"""An entry of the ledger as a value: what a scope has processed, or is at. Frozen and typed."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from penstock import codec
from penstock.clock import Micros


class EntryState(enum.IntEnum):
    IN_PROGRESS = 1
    """Somebody has claimed it and is at it."""
    COMPLETED = 2


class EntryKind(enum.IntEnum):
    """What an event of the ledger tells."""

    MARKED = 1
    CLAIMED = 2
    COMPLETED = 3
    RELEASED = 4
    """Given back: the work failed."""
    TAKEN_OVER = 5
    """The one who had claimed it is gone."""


class NewMark(msgspec.Struct, frozen=True, gc=False):
    """Something processed, on its way in."""

    scope: str
    key: str
    expires_at: Micros | None = None
    hash: bytes | None = None


class Entry(msgspec.Struct, frozen=True):
    """What the ledger says about a key."""

    scope: str
    key: str
    state: EntryState
    at: Micros
    """When it was completed; while it is not, when it was claimed."""
    attempts: int
    expires_at: Micros | None = None
    token: int | None = None
    hash: bytes | None = None
    raw_result: bytes | None = None
    result_encoding: int = 0
    is_held: bool = False
    """In progress, and whoever has claimed it is alive and in time."""

    @property
    def result(self) -> Any:
        """What was stored with the completion."""
        if self.raw_result is None:
            return None
        return codec.decode(self.raw_result, self.result_encoding)


class EntryEvent(msgspec.Struct, frozen=True):
    """One line of the ledger's history."""

    id: int
    scope: str
    key: str
    kind: EntryKind
    at: Micros
    attempt: int


class ScopeStats(msgspec.Struct, frozen=True):
    scope: str
    completed: int = 0
    in_progress: int = 0
