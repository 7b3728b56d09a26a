"""What requests and replies about the ledger look like over HTTP."""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from penstock import codec
from penstock.entry import Entry, EntryEvent, Outcome, ScopeStats
from penstock.errors import BadRequest
from penstock.ledger.terms import LEASE_SECONDS, duration, hash_of
from penstock.model import Format
from penstock.server.routes.job_shapes import as_json, format_of
from penstock.settings import Settings

EntryStateName = Literal["in_progress", "completed", "failed"]
Keep = float | Literal["forever"]
HASH_HEX_MAX = 128


class ScopeReply(msgspec.Struct, frozen=True):
    """A scope in figures. What has expired counts until it is pruned."""

    scope: str
    processed: int
    """Completed, or failed for good."""
    completed: int
    in_progress: int
    failed: int
    keep_seconds: Keep | None
    """How long its entries are kept, if that was set for it."""

    @classmethod
    def of(cls, stats: ScopeStats) -> ScopeReply:
        keep: Keep | None = stats.keep_seconds
        if keep == math.inf:
            keep = "forever"
        counts = (stats.processed, stats.completed, stats.in_progress, stats.failed)
        return cls(stats.scope, *counts, keep)


class ScopesReply(msgspec.Struct, frozen=True):
    processed: int
    """Of all these scopes."""
    scopes: list[ScopeReply]
    """By name; those that the token may use."""


class ScopeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keep_seconds: Keep | None
    """How long entries are kept that are made from now on. Null: as the server's setting
    `ledger_seconds` says."""

    def keep(self) -> float | None:
        return _seconds(self.keep_seconds)


class EntryReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger says about a key. Times are in microseconds since 1970."""

    scope: str
    key: str
    state: EntryStateName
    at: int
    """When it was completed; while it is not, when it was claimed."""
    attempts: int
    expires_at: int | None
    is_held: bool
    """In progress, and whoever has claimed it is in time."""
    result: Any = UNSET
    """Only if one was stored."""
    result_base64: str | UnsetType = UNSET
    """The result, where it is not JSON."""
    result_format: Format | None = None

    @classmethod
    def of(cls, entry: Entry) -> EntryReply:
        result: Any = UNSET
        result_base64: str | UnsetType = UNSET
        result_format: Format | None = None
        if entry.raw_result is not None:
            result, result_base64 = as_json(entry.raw_result, entry.result_encoding)
            result_format = format_of(entry.result_encoding)
        return cls(
            scope=entry.scope,
            key=entry.key,
            state=cast("EntryStateName", entry.state.name.lower()),
            at=entry.at,
            attempts=entry.attempts,
            expires_at=entry.expires_at,
            is_held=entry.is_held,
            result=result,
            result_base64=result_base64,
            result_format=result_format,
        )


class LookReply(msgspec.Struct, frozen=True):
    is_processed: bool
    entry: EntryReply | None
    """Null: the ledger knows nothing of it, or not any more."""


class EntriesReply(msgspec.Struct, frozen=True):
    entries: list[EntryReply]
    """By key."""
    is_complete: bool
    """False: there are more; ask again with `after` and the last key."""


class Meaning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a key stands for, so that the same key for something else is found out: at most one of
    these. Penstock's own clients send the hash."""

    payload: Any = UNSET
    base64: str | UnsetType = UNSET
    """Bytes, instead of `payload`."""
    hash: str | UnsetType = UNSET
    """In hexadecimal digits, instead of both."""

    def digest(self) -> bytes | None:
        given = [name for name in ("payload", "base64", "hash") if getattr(self, name) is not UNSET]
        if len(given) > 1:
            raise BadRequest("A key has one of payload, base64 and hash.")
        if isinstance(self.base64, str):
            return hash_of(codec.from_base64(self.base64))
        if isinstance(self.hash, str):
            return _from_hex(self.hash)
        return None if self.payload is UNSET else hash_of(self.payload)


class MarkRequest(Meaning, frozen=True, kw_only=True):
    """One key under `key`, or many under `keys`; those have neither payload nor hash."""

    key: str | UnsetType = UNSET
    keys: list[str] | UnsetType = UNSET
    ttl_seconds: Keep | None = None
    """How long it is remembered. Null: as long as its scope says."""

    def ttl(self) -> float | None:
        return _seconds(self.ttl_seconds)


class MarkedReply(msgspec.Struct, frozen=True):
    marked: list[bool]
    """For each key whether this call entered it. False: it had been there."""


class ClaimRequest(Meaning, frozen=True, kw_only=True):
    key: str
    lease_seconds: float = LEASE_SECONDS


class ClaimReply(msgspec.Struct, frozen=True):
    is_mine: bool
    """False: it was processed before, and `entry` says to what result."""
    token: int | None
    """For everything that is said of this claim later. Rises with each claim."""
    entry: EntryReply


class HeldRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim, by its key and token."""

    key: str
    token: int


class RenewRequest(HeldRequest, frozen=True, kw_only=True):
    lease_seconds: float = LEASE_SECONDS


class CompleteRequest(HeldRequest, frozen=True, kw_only=True):
    result: Any = UNSET
    result_base64: str | UnsetType = UNSET
    """Bytes, instead of `result`."""
    ttl_seconds: Keep | None = None
    """How long this is remembered. Null: as long as its scope says."""
    is_failure: bool = False
    """The work failed for good: `result` is `{"error", "message"}`, the answer for all who come
    later."""

    def outcome(self, settings: Settings) -> Outcome:
        if self.result is not UNSET and self.result_base64 is not UNSET:
            raise BadRequest("A claim has either result or result_base64.")
        ttl = duration(_seconds(self.ttl_seconds), "ttl_seconds")
        if self.result is UNSET and self.result_base64 is UNSET:
            return Outcome(ttl=ttl, is_failure=self.is_failure)
        result = self.result
        if isinstance(self.result_base64, str):
            result = codec.from_base64(self.result_base64)
        body, encoding = codec.encode(
            result, None, settings.payload_bytes_max, settings.compress_above_bytes
        )
        return Outcome(body, encoding, ttl, self.is_failure)


class DoneReply(msgspec.Struct, frozen=True):
    """It was written."""

    key: str
    token: int


class ForgetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[str]


class LedgerPruneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: int = 10_000
    """How many entries this request removes at most."""


class LedgerPrunedReply(msgspec.Struct, frozen=True):
    removed: int
    is_complete: bool
    """False: there is more to remove; ask again."""


class LedgerEventReply(msgspec.Struct, frozen=True):
    """One line of the ledger's history."""

    id: int
    scope: str
    key: str
    kind: str
    at: int
    """In microseconds since 1970."""
    attempt: int

    @classmethod
    def of(cls, event: EntryEvent) -> LedgerEventReply:
        kind = event.kind.name.lower()
        return cls(event.id, event.scope, event.key, kind, event.at, event.attempt)


class LedgerEventsReply(msgspec.Struct, frozen=True):
    events: list[LedgerEventReply]
    """By id; those of scopes the token may use."""
    after: int
    """Where to read on."""


def _seconds(keep: Keep | None) -> float | None:
    """JSON has no infinity."""
    return math.inf if keep == "forever" else keep


def _from_hex(text: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if not found or len(text) > HASH_HEX_MAX:
        raise BadRequest(f"hash has up to {HASH_HEX_MAX} hexadecimal digits.")
    return found
