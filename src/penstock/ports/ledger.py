"""The ledger: what each consumer has already processed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.clock import Micros
    from penstock.entry import Entry, EntryEvent, NewMark, Outcome, ScopeStats
    from penstock.model import Instance


class LedgerWriter(Protocol):
    def mark(self, marks: Sequence[NewMark], *, now: Micros) -> list[bool]:
        """Enter these as completed. True for exactly one caller per scope and key, for as long
        as the entry has not expired.

        One that is in progress in living hands is not marked: False. One whose holder is gone or
        late is. A different hash than that of the entry raises `LedgerConflict`.
        """

    def claim(
        self,
        scope: str,
        key: str,
        *,
        instance: Instance | None,
        lease_seconds: float,
        hash: bytes | None,
        now: Micros,
    ) -> tuple[Entry, bool]:
        """Take it if nobody has, or whoever had it is gone or late. The entry as it stands now,
        and whether it is the caller's: then its token is one never given before.

        Without an instance it is for somebody whose life cannot be seen from here: only the
        lease says whether he is there.

        A different hash than that of the entry raises `LedgerConflict`.
        """

    def renew(self, claims: Sequence[Entry], *, lease_seconds: float) -> list[Entry]:
        """Extend these. Returns those still held under their tokens, also if they were late."""

    def complete(self, claim: Entry, outcome: Outcome, *, now: Micros) -> bool:
        """Done, or failed for good. False, and nothing changes, if the token is void: somebody
        else has it, or had it since.
        """

    def release(self, claim: Entry, *, now: Micros) -> bool:
        """Not done: anybody may claim it. False if the token is void."""

    def forget(self, scope: str, keys: Sequence[str], *, now: Micros) -> int:
        """Remove entries by hand, so that they can be processed again. Returns how many.

        The token of one in progress is void from then on.
        """

    def configure(self, scope: str, *, keep: Micros | None) -> None:
        """How long entries of the scope are kept that are made from now on and do not say it
        themselves; `NEVER` for ever, None as the store's settings say.
        """

    def prune(self, *, now: Micros, limit: int) -> int:
        """Remove up to `limit` expired entries. Returns how many.

        What is in progress in living hands stays, however old.
        """

    def prune_events(self, *, before: Micros, limit: int) -> int:
        """Remove up to `limit` of the oldest events, up to the first that is not before that
        time. Returns how many. Ids leave no gaps, so what is missing is known.
        """


class LedgerReader(Protocol):
    def get(self, scope: str, key: str, *, now: Micros) -> Entry | None:
        """None also for what has expired."""

    def processed(self, scope: str, keys: Collection[str], *, now: Micros) -> set[str]:
        """Which of these are completed, or failed for good."""

    def find(self, scope: str, *, after: str, limit: int, now: Micros) -> list[Entry]:
        """By key, without what has expired."""

    def stats(self) -> list[ScopeStats]:
        """Every scope's exact counts; what has expired counts until it is pruned."""

    def expired(self, *, now: Micros) -> bool:
        """Whether there is something to prune."""

    def events(self, *, after: int, limit: int) -> list[EntryEvent]:
        """By id, which is the order in which they happened."""
