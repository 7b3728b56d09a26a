"""The ledger as it comes over HTTP, made into the values of a local hub."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock import codec
from penstock.client.job_values import stored
from penstock.entry import NEVER, Entry, EntryEvent, EntryKind, EntryState, Outcome, ScopeStats
from penstock.model import Format

SECOND = 1_000_000
Keep = float | Literal["forever"]


class RemoteScope(msgspec.Struct):
    scope: str
    completed: int
    in_progress: int
    failed: int
    keep_seconds: Keep | None

    def as_stats(self) -> ScopeStats:
        keep = math.inf if self.keep_seconds == "forever" else self.keep_seconds
        return ScopeStats(self.scope, self.completed, self.in_progress, self.failed, keep)


class RemoteScopes(msgspec.Struct):
    scopes: list[RemoteScope]


class RemoteEntry(msgspec.Struct, kw_only=True):
    scope: str
    key: str
    state: str
    at: int
    attempts: int
    expires_at: int | None
    is_held: bool
    result: Raw | UnsetType = UNSET
    result_base64: str | UnsetType = UNSET
    result_format: Format | None = None

    def as_entry(self, token: int | None = None) -> Entry:
        body, encoding = None, 0
        if self.result_format is not None:
            body, encoding = stored(self.result, self.result_base64, self.result_format)
        return Entry(
            self.scope,
            self.key,
            EntryState[self.state.upper()],
            self.at,
            self.attempts,
            self.expires_at,
            token,
            raw_result=body,
            result_encoding=encoding,
            is_held=self.is_held,
        )


class RemoteLook(msgspec.Struct):
    is_processed: bool
    entry: RemoteEntry | None


class RemoteEntries(msgspec.Struct):
    entries: list[RemoteEntry]
    is_complete: bool


class RemoteMarked(msgspec.Struct):
    marked: list[bool]


class RemoteClaimed(msgspec.Struct):
    is_mine: bool
    token: int | None
    entry: RemoteEntry


class RemoteForgotten(msgspec.Struct):
    removed: int


class RemotePruned(msgspec.Struct):
    removed: int
    is_complete: bool


class RemoteEntryEvent(msgspec.Struct):
    id: int
    scope: str
    key: str
    kind: str
    at: int
    attempt: int

    def as_event(self) -> EntryEvent:
        kind = EntryKind[self.kind.upper()]
        return EntryEvent(self.id, self.scope, self.key, kind, self.at, self.attempt)


class RemoteEntryEvents(msgspec.Struct):
    events: list[RemoteEntryEvent]
    after: int


def keep_of(seconds: float | None) -> Keep | None:
    """A time to live, as a request has it: JSON has no infinity."""
    return "forever" if seconds == math.inf else seconds


def ttl_of(ttl: int | None) -> Keep | None:
    """The same, of microseconds."""
    if ttl is None:
        return None
    return "forever" if ttl == NEVER else ttl / SECOND


def outcome_of(outcome: Outcome) -> dict[str, Any]:
    """How work ended, as a request says it."""
    said: dict[str, Any] = {"is_failure": outcome.is_failure}
    if outcome.ttl is not None:
        said["ttl_seconds"] = ttl_of(outcome.ttl)
    if outcome.raw_result is not None:
        body = codec.decompress(outcome.raw_result, outcome.result_encoding)
        if outcome.result_encoding & codec.FORMAT_MASK == codec.JSON:
            said["result"] = Raw(body)
        else:
            said["result_base64"] = codec.to_base64(body)
    return said
