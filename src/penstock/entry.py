"""An entry of the ledger as a value: what a scope has processed, or is at. Frozen and typed."""

from __future__ import annotations

import enum
import math
from datetime import datetime
from typing import Any

import msgspec

from penstock import codec
from penstock.clock import Micros, as_datetime, micros
from penstock.errors import InvalidInput
from penstock.model import check_key, check_name

NEVER: Micros = -1
"""As a time to live: the entry is kept until it is forgotten by hand."""


class EntryState(enum.IntEnum):
    IN_PROGRESS = 1
    """Somebody has claimed it and is at it."""
    COMPLETED = 2
    FAILED = 3
    """The work failed, and its failure was kept as the answer."""

    @property
    def is_final(self) -> bool:
        return self is not EntryState.IN_PROGRESS


class EntryKind(enum.IntEnum):
    """What an event of the ledger tells."""

    MARKED = 1
    CLAIMED = 2
    COMPLETED = 3
    RELEASED = 4
    """Given back: the work failed."""
    TAKEN_OVER = 5
    """Claimed by somebody else: the one who had claimed it is gone, or late."""
    FAILED = 6
    FORGOTTEN = 7
    """Removed by hand."""


class NewMark(msgspec.Struct, frozen=True, gc=False):
    """Something processed, on its way in."""

    scope: str
    key: str
    ttl: Micros | None = None
    """How long it is remembered. None: as long as its scope says. `NEVER`: for ever."""
    hash: bytes | None = None


class Outcome(msgspec.Struct, frozen=True):
    """How claimed work ended, on its way in."""

    raw_result: bytes | None = None
    result_encoding: int = 0
    ttl: Micros | None = None
    is_failure: bool = False


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
        return self.decode(Any)

    @property
    def time(self) -> datetime:
        return as_datetime(self.at)

    def decode(self, to: Any) -> Any:
        """The result as a type. None if none was stored."""
        if self.raw_result is None:
            return None
        return codec.decode(self.raw_result, self.result_encoding, to)


class EntryEvent(msgspec.Struct, frozen=True):
    """One line of the ledger's history."""

    id: int
    scope: str
    key: str
    kind: EntryKind
    at: Micros
    attempt: int


class ScopeStats(msgspec.Struct, frozen=True):
    """A scope in figures. What has expired counts until it is pruned."""

    scope: str
    completed: int = 0
    in_progress: int = 0
    failed: int = 0
    keep_seconds: float | None = None
    """How long its entries are kept, if that was set for it."""

    @property
    def processed(self) -> int:
        return self.completed + self.failed


def keep_for(seconds: float) -> Micros:
    """A time to live, of which infinity is one."""
    return NEVER if seconds == math.inf else micros(seconds)


def check_scope(scope: str) -> str:
    return check_name(scope, "scope")


def check_entry_key(key: str) -> str:
    """The key, if it may stand in the ledger."""
    if check_key(key) == "":
        raise InvalidInput("The key is empty.", hint="It says what was processed.")
    return key
