"""The ledger in SQLite. BEGIN IMMEDIATE admits one writer, so a look and a change are one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import apsw

from penstock.clock import Micros, micros
from penstock.entry import Entry, EntryEvent, EntryKind, EntryState, NewMark, ScopeStats
from penstock.errors import LedgerConflict
from penstock.model import Instance
from penstock.stores import queries
from penstock.stores.sqlite.connection import ReaderPool, fetch_all, fetch_one, fetch_value
from penstock.stores.sqlite.leases import NEXT_TOKEN, is_alive
from penstock.stores.sqlite.liveness import Leasing

SQL = queries.load("penstock.stores.sqlite", "ledger.sql")


class SqliteLedgerWriter:
    """Counts are collected per transaction and written at its end."""

    def __init__(self, connection: apsw.Connection, leasing: Leasing) -> None:
        self._connection = connection
        self._leasing = leasing
        self.begin()

    def begin(self) -> None:
        self._counted: Counter[tuple[str, EntryState]] = Counter()

    def flush(self) -> None:
        for (scope, state), entries in self._counted.items():
            if entries:
                self._connection.execute(SQL["count"], (scope, state, entries))

    def mark_place(self) -> Counter[tuple[str, EntryState]]:
        return self._counted.copy()

    def return_to(self, place: Counter[tuple[str, EntryState]]) -> None:
        self._counted = place

    def mark(self, marks: Sequence[NewMark], *, now: Micros) -> list[bool]:
        return [self._mark(mark, now) for mark in marks]

    def _mark(self, mark: NewMark, now: Micros) -> bool:
        values = (mark.scope, mark.key, now, mark.expires_at, mark.hash)
        if fetch_one(self._connection, SQL["mark"], values) is None:
            found = self._get(mark.scope, mark.key)
            assert found is not None
            _check_hash(found, mark.hash)
            if found.state == EntryState.COMPLETED and not _has_expired(found, now):
                return False
            if found.is_held:
                return False
            self._remove(found)
            self._connection.execute(SQL["mark"], values)
        self._counted[mark.scope, EntryState.COMPLETED] += 1
        self._event(mark.scope, mark.key, EntryKind.MARKED, now, 1)
        return True

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
        found = self._get(scope, key)
        attempt = 1
        if found is not None and not _has_expired(found, now):
            _check_hash(found, hash)
            if found.state == EntryState.COMPLETED or found.is_held:
                return found
            attempt = found.attempts + 1
        kind = EntryKind.CLAIMED
        if found is not None:
            if found.state == EntryState.IN_PROGRESS:
                kind = EntryKind.TAKEN_OVER
            self._remove(found)
        token = int(fetch_value(self._connection, NEXT_TOKEN))
        until = self._leasing.now() + micros(lease_seconds)
        self._connection.execute(
            SQL["put_claim"],
            (scope, key, now, attempt, token, instance.id, self._leasing.boot_id, until, hash),
        )
        self._counted[scope, EntryState.IN_PROGRESS] += 1
        self._event(scope, key, kind, now, attempt)
        return Entry(
            scope, key, EntryState.IN_PROGRESS, now, attempt, None, token, hash, is_held=True
        )

    def renew(self, claims: Sequence[Entry], *, lease_seconds: float) -> list[Entry]:
        until = self._leasing.now() + micros(lease_seconds)
        return [
            claim
            for claim in claims
            if fetch_one(
                self._connection,
                SQL["renew"],
                (claim.scope, claim.key, claim.token, until, self._leasing.boot_id),
            )
        ]

    def complete(
        self,
        claim: Entry,
        *,
        result: bytes | None,
        encoding: int,
        expires_at: Micros | None,
        now: Micros,
    ) -> bool:
        values = (claim.scope, claim.key, claim.token, now, expires_at, encoding, result)
        row = fetch_one(self._connection, SQL["complete"], values)
        if row is None:
            return False
        self._counted[claim.scope, EntryState.IN_PROGRESS] -= 1
        self._counted[claim.scope, EntryState.COMPLETED] += 1
        self._event(claim.scope, claim.key, EntryKind.COMPLETED, now, row[0])
        return True

    def release(self, claim: Entry, *, now: Micros) -> bool:
        row = fetch_one(self._connection, SQL["release"], (claim.scope, claim.key, claim.token))
        if row is None:
            return False
        self._counted[claim.scope, EntryState.IN_PROGRESS] -= 1
        self._event(claim.scope, claim.key, EntryKind.RELEASED, now, row[0])
        return True

    def forget(self, scope: str, keys: Sequence[str]) -> int:
        removed = 0
        for key in keys:
            row = fetch_one(self._connection, SQL["remove"], (scope, key))
            if row is not None:
                self._counted[scope, EntryState(row[0])] -= 1
                removed += 1
        return removed

    def prune(self, *, now: Micros, limit: int) -> int:
        rows = fetch_all(self._connection, SQL["expired"], (now, limit))
        for scope, key, state in rows:
            self._connection.execute(SQL["remove"], (scope, key))
            self._counted[scope, EntryState(state)] -= 1
        return len(rows)

    def _get(self, scope: str, key: str) -> Entry | None:
        row = fetch_one(self._connection, SQL["entry"], (scope, key))
        return None if row is None else _entry(row, self._leasing)

    def _remove(self, entry: Entry) -> None:
        self._connection.execute(SQL["remove"], (entry.scope, entry.key))
        self._counted[entry.scope, entry.state] -= 1

    def _event(self, scope: str, key: str, kind: EntryKind, now: Micros, attempt: int) -> None:
        self._connection.execute(SQL["add_event"], (scope, key, kind, now, attempt))


class SqliteLedgerReader:
    def __init__(self, pool: ReaderPool, leasing: Leasing) -> None:
        self._pool = pool
        self._leasing = leasing

    def get(self, scope: str, key: str, *, now: Micros) -> Entry | None:
        rows = self._pool.fetch(SQL["entry"], (scope, key))
        if not rows:
            return None
        found = _entry(rows[0], self._leasing)
        return None if _has_expired(found, now) else found

    def find(self, scope: str, *, after: str, limit: int, now: Micros) -> list[Entry]:
        with self._pool.read() as connection:
            rows = fetch_all(connection, SQL["entries"], (scope, after, limit, now))
        return [_entry(row, self._leasing) for row in rows]

    def stats(self) -> list[ScopeStats]:
        counts: dict[str, dict[int, int]] = {}
        for scope, state, entries in self._pool.fetch(SQL["counts"]):
            counts.setdefault(scope, {})[state] = entries
        return [
            ScopeStats(
                scope, found.get(EntryState.COMPLETED, 0), found.get(EntryState.IN_PROGRESS, 0)
            )
            for scope, found in counts.items()
        ]

    def events(self, *, after: int, limit: int) -> list[EntryEvent]:
        with self._pool.read() as connection:
            rows = fetch_all(connection, SQL["events"], (after, limit))
        return [
            EntryEvent(id, scope, key, EntryKind(kind), at, attempt)
            for id, scope, key, kind, at, attempt in rows
        ]


def _entry(row: Sequence[Any], leasing: Leasing) -> Entry:
    scope, key, state, at, expires_at, attempts, token, instance, boot, until, hash = row[:11]
    is_held = (
        state == EntryState.IN_PROGRESS
        and until > leasing.now()
        and is_alive(instance, boot, leasing)
    )
    return Entry(
        scope,
        key,
        EntryState(state),
        at,
        attempts,
        expires_at,
        token,
        hash,
        row[12],
        row[11] or 0,
        is_held,
    )


def _has_expired(entry: Entry, now: Micros) -> bool:
    return entry.expires_at is not None and entry.expires_at <= now


def _check_hash(entry: Entry, hash: bytes | None) -> None:
    if hash is not None and entry.hash is not None and hash != entry.hash:
        raise LedgerConflict(
            f"{entry.key!r} in {entry.scope!r} was processed with another payload."
        )
