"""The ledger: what each consumer has already processed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.clock import Micros
    from penstock.entry import Entry, EntryEvent, NewMark, ScopeStats
    from penstock.model import Instance


class LedgerWriter(Protocol):
    def mark(self, marks: Sequence[NewMark], *, now: Micros) -> list[bool]:
        """Enter these as completed. True for exactly one caller per scope and key, for as long
        as the entry has not expired.

        One that is in progress in living hands is not marked: False.
        """

    def claim(
        self,
        scope: str,
        key: str,
        *,
        instance: Instance,
        lease_seconds: float,
        hash: bytes | None,
        now: Micros,
    ) -> Entry:
        """Take it if nobody has, or whoever had it is gone or late. The answer is the entry as
        it stands now: ours if its token is one never seen before and `is_held`.

        A different hash than that of the entry raises `LedgerConflict`.
        """

    def renew(self, claims: Sequence[Entry], *, lease_seconds: float) -> list[Entry]:
        """Extend these. Returns those still held under their tokens."""

    def complete(
        self,
        claim: Entry,
        *,
        result: bytes | None,
        encoding: int,
        expires_at: Micros | None,
        now: Micros,
    ) -> bool:
        """Done. False if the token is void: somebody else has it, or had it since."""

    def release(self, claim: Entry, *, now: Micros) -> bool:
        """Not done: anybody may claim it. False if the token is void."""

    def forget(self, scope: str, keys: Sequence[str]) -> int:
        """Remove entries by hand, so that they can be processed again. Returns how many."""

    def prune(self, *, now: Micros, limit: int) -> int:
        """Remove up to `limit` expired entries. Returns how many."""


class LedgerReader(Protocol):
    def get(self, scope: str, key: str, *, now: Micros) -> Entry | None:
        """None also for what has expired."""

    def find(self, scope: str, *, after: str, limit: int, now: Micros) -> list[Entry]:
        """By key."""

    def stats(self) -> list[ScopeStats]:
        """Every scope's exact counts; what has expired counts until it is pruned."""

    def events(self, *, after: int, limit: int) -> list[EntryEvent]: ...
