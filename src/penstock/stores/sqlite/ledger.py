"""The ledger in SQLite. BEGIN IMMEDIATE admits one writer, so a look and a change are one step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

import apsw
import msgspec

from penstock.clock import SECOND, Micros, micros
from penstock.entry import (
    NEVER,
    Entry,
    EntryEvent,
    EntryKind,
    EntryState,
    NewMark,
    Outcome,
    ScopeStats,
)
from penstock.errors import LedgerConflict
from penstock.model import Instance
from penstock.stores import queries
from penstock.stores.sqlite.connection import (
    ReaderPool,
    fetch_all,
    fetch_one,
    fetch_value,
    translated,
)
from penstock.stores.sqlite.leases import NEXT_TOKEN
from penstock.stores.sqlite.liveness import Leasing

SQL = queries.load("penstock.stores.sqlite", "ledger.sql")

Counts = defaultdict[tuple[str, EntryState], int]

POSTPONED: Micros = 3_600 * SECOND
"""How much longer an old claim in living hands is left alone."""


class SqliteLedgerWriter:
    """Counts are collected per transaction and written at its end."""

    def __init__(self, connection: apsw.Connection, leasing: Leasing, keep: Micros) -> None:
        self._connection = connection
        self._leasing = leasing
        self._keep = keep
        self.begin()

    # The transaction's own life, called by its owner

    def begin(self) -> None:
        self._counted: Counts = defaultdict(int)
        self._keeps: dict[str, Micros] = {}

    def flush(self) -> None:
        for (scope, state), entries in self._counted.items():
            if entries:
                self._connection.execute(SQL["count"], (scope, state, entries))

    def mark_place(self) -> Counts:
        return self._counted.copy()

    def return_to(self, place: Counts) -> None:
        self._counted = place
        self._keeps.clear()

    # The port

    def mark(self, marks: Sequence[NewMark], *, now: Micros) -> list[bool]:
        # A damaged ledger must not look like a driver's problem: consumers go on without it.
        with translated("the ledger"):
            answers: list[bool] = []
            for scope, ttl, keys in _runs(marks):
                if keys is None:
                    answers.append(self._mark(marks[len(answers)], now))
                else:
                    answers += self._mark_run(scope, ttl, keys, now)
            return answers

    def _mark_run(self, scope: str, ttl: Micros | None, keys: list[str], now: Micros) -> list[bool]:
        """Keys of one scope, in two statements if none of them has been there before."""
        unique = dict.fromkeys(keys, True)
        array = apsw.carray(tuple(unique), flags=apsw.SQLITE_CARRAY_TEXT)
        self._connection.execute(SQL["mark_events"], (scope, now, array))
        new = self._connection.changes()
        if new:
            expires_at = self._expiry(scope, ttl, now)
            self._connection.execute(SQL["mark_run"], (scope, now, array, expires_at))
            self._counted[scope, EntryState.COMPLETED] += new
        if new == len(keys):
            return [True] * new
        if new < len(unique):
            marked = self._marked_last(new)
            for key in unique:
                if key not in marked:
                    unique[key] = self._mark_again(NewMark(scope, key, ttl), now)
        # The first of several calls with one key wins.
        return [unique.pop(key, False) for key in keys]

    def _marked_last(self, count: int) -> set[str]:
        if not count:
            return set()
        last = fetch_value(self._connection, SQL["last_event"])
        found = fetch_value(self._connection, SQL["marked_since"], (last - count,))
        return set(msgspec.json.decode(found, type=list[str]))

    def _mark(self, mark: NewMark, now: Micros) -> bool:
        if self._get(mark.scope, mark.key) is not None:
            return self._mark_again(mark, now)
        self._put_mark(mark, now)
        return True

    def _mark_again(self, mark: NewMark, now: Micros) -> bool:
        """There is an entry: it counts unless it has expired, or its holder is gone."""
        found = self._get(mark.scope, mark.key)
        assert found is not None
        if not _has_expired(found, now):
            _check_hash(found, mark.hash)
            if found.state.is_final or found.is_held:
                return False
        self._remove(found)
        self._put_mark(mark, now)
        return True

    def _put_mark(self, mark: NewMark, now: Micros) -> None:
        expires_at = self._expiry(mark.scope, mark.ttl, now)
        self._connection.execute(SQL["mark"], (mark.scope, mark.key, now, expires_at, mark.hash))
        self._counted[mark.scope, EntryState.COMPLETED] += 1
        self._event(mark.scope, mark.key, EntryKind.MARKED, now, 1)

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
        with translated("the ledger"):
            found = self._get(scope, key)
            attempt, kind = 1, EntryKind.CLAIMED
            if found is not None:
                if not _has_expired(found, now):
                    _check_hash(found, hash)
                    if found.state.is_final or found.is_held:
                        return found, False
                    attempt = found.attempts + 1
                    kind = EntryKind.TAKEN_OVER
                self._remove(found)
            token = int(fetch_value(self._connection, NEXT_TOKEN))
            expires_at = self._expiry(scope, None, now)
            until = self._leasing.now() + micros(lease_seconds)
            number = None if instance is None else instance.id
            held = (token, number, self._leasing.boot_id, until, hash)
            self._connection.execute(
                SQL["put_claim"], (scope, key, now, expires_at, attempt, *held)
            )
            self._counted[scope, EntryState.IN_PROGRESS] += 1
            self._event(scope, key, kind, now, attempt)
        state = EntryState.IN_PROGRESS
        return Entry(scope, key, state, now, attempt, expires_at, token, hash, is_held=True), True

    def renew(self, claims: Sequence[Entry], *, lease_seconds: float) -> list[Entry]:
        until = self._leasing.now() + micros(lease_seconds)
        return [
            claim
            for claim in claims
            if fetch_one(
                self._connection,
                SQL["renew_claim"],
                (claim.scope, claim.key, claim.token, until, self._leasing.boot_id),
            )
        ]

    def complete(self, claim: Entry, outcome: Outcome, *, now: Micros) -> bool:
        scope, key = claim.scope, claim.key
        state = EntryState.FAILED if outcome.is_failure else EntryState.COMPLETED
        expires_at = self._expiry(scope, outcome.ttl, now)
        values = (scope, key, claim.token, state, now, expires_at)
        result = (outcome.result_encoding, outcome.raw_result)
        row = fetch_one(self._connection, SQL["complete"], (*values, *result))
        if row is None:
            return False
        self._counted[scope, EntryState.IN_PROGRESS] -= 1
        self._counted[scope, state] += 1
        kind = EntryKind.FAILED if outcome.is_failure else EntryKind.COMPLETED
        self._event(scope, key, kind, now, row[0])
        return True

    def release(self, claim: Entry, *, now: Micros) -> bool:
        row = fetch_one(self._connection, SQL["release"], (claim.scope, claim.key, claim.token))
        if row is None:
            return False
        self._counted[claim.scope, EntryState.IN_PROGRESS] -= 1
        self._event(claim.scope, claim.key, EntryKind.RELEASED, now, row[0])
        return True

    def forget(self, scope: str, keys: Sequence[str], *, now: Micros) -> int:
        removed = 0
        for key in keys:
            row = fetch_one(self._connection, SQL["remove_entry"], (scope, key))
            if row is not None:
                self._counted[scope, EntryState(row[0])] -= 1
                self._event(scope, key, EntryKind.FORGOTTEN, now, row[1])
                removed += 1
        return removed

    def configure(self, scope: str, *, keep: Micros | None) -> None:
        if keep is None:
            self._connection.execute(SQL["drop_keep"], (scope,))
        else:
            self._connection.execute(SQL["set_keep"], (scope, keep))
        self._keeps.pop(scope, None)

    def prune(self, *, now: Micros, limit: int) -> int:
        removed = 0
        rows = fetch_all(self._connection, SQL["expired"], (now, limit))
        for scope, group in groupby(sorted(rows, key=_by_scope), key=_by_scope):
            keys: list[str] = []
            for _, key, state, *holder in group:
                if state == EntryState.IN_PROGRESS and _is_held(holder, self._leasing):
                    self._connection.execute(SQL["postpone"], (scope, key, now + POSTPONED))
                    continue
                self._counted[scope, EntryState(state)] -= 1
                removed += 1
                if "\0" in key:
                    self._connection.execute(SQL["remove_entry"], (scope, key))
                else:
                    keys.append(key)
            if keys:
                array = apsw.carray(tuple(keys), flags=apsw.SQLITE_CARRAY_TEXT)
                self._connection.execute(SQL["remove_run"], (scope, array))
        return removed

    def prune_events(self, *, before: Micros, limit: int) -> int:
        self._connection.execute(SQL["note_events"], (before, limit))
        self._connection.execute(SQL["prune_events"], (before, limit))
        return self._connection.changes()

    # Inside

    def _expiry(self, scope: str, ttl: Micros | None, now: Micros) -> Micros | None:
        if ttl is None:
            ttl = self._keeps.get(scope)
        if ttl is None:
            row = fetch_one(self._connection, SQL["keep"], (scope,))
            ttl = self._keeps[scope] = self._keep if row is None else row[0]
        return None if ttl == NEVER else now + ttl

    def _get(self, scope: str, key: str) -> Entry | None:
        row = fetch_one(self._connection, SQL["entry"], (scope, key))
        return None if row is None else _entry(row, self._leasing)

    def _remove(self, entry: Entry) -> None:
        self._connection.execute(SQL["remove_entry"], (entry.scope, entry.key))
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

    def processed(self, scope: str, keys: Collection[str], *, now: Micros) -> set[str]:
        plain = tuple(key for key in keys if "\0" not in key)
        found: set[str] = set()
        if plain:
            array = apsw.carray(plain, flags=apsw.SQLITE_CARRAY_TEXT)
            ((answer,),) = self._pool.fetch(SQL["processed"], (scope, array, now))
            found.update(msgspec.json.decode(answer, type=list[str]))
        for key in keys:
            if "\0" in key:
                entry = self.get(scope, key, now=now)
                if entry is not None and entry.state.is_final:
                    found.add(key)
        return found

    def find(self, scope: str, *, after: str, limit: int, now: Micros) -> list[Entry]:
        found: list[Entry] = []
        with self._pool.read() as connection:
            while len(found) < limit:
                rows = fetch_all(connection, SQL["entries"], (scope, after, limit, now))
                entries = [_entry(row, self._leasing) for row in rows]
                found += [entry for entry in entries if not _has_expired(entry, now)]
                if len(rows) < limit:
                    break
                after = entries[-1].key
        return found[:limit]

    def stats(self) -> list[ScopeStats]:
        with self._pool.read() as connection:
            counted = fetch_all(connection, SQL["counts"])
            keeps = dict(fetch_all(connection, SQL["keeps"]))
        counts: dict[str, dict[int, int]] = {scope: {} for scope in keeps}
        for scope, state, entries in counted:
            counts.setdefault(scope, {})[state] = entries
        return [
            ScopeStats(
                scope,
                found.get(EntryState.COMPLETED, 0),
                found.get(EntryState.IN_PROGRESS, 0),
                found.get(EntryState.FAILED, 0),
                _seconds(keeps.get(scope)),
            )
            for scope, found in sorted(counts.items())
        ]

    def expired(self, *, now: Micros) -> bool:
        return bool(self._pool.fetch(SQL["has_expired"], (now,)))

    def events(self, *, after: int, limit: int) -> list[EntryEvent]:
        with self._pool.read() as connection:
            rows = fetch_all(connection, SQL["events"], (after, limit))
        return [
            EntryEvent(id, scope, key, EntryKind(kind), at, attempt)
            for id, scope, key, kind, at, attempt in rows
        ]


def _runs(marks: Sequence[NewMark]) -> Iterator[tuple[str, Micros | None, list[str] | None]]:
    """Marks that differ in their keys alone, together; None for one that goes by itself."""
    scope, ttl = "", None
    keys: list[str] = []
    for mark in marks:
        # An array of text ends each at its first NUL.
        if mark.hash is not None or "\0" in mark.key:
            if keys:
                yield scope, ttl, keys
                keys = []
            yield mark.scope, mark.ttl, None
            continue
        if keys and (mark.scope != scope or mark.ttl != ttl):
            yield scope, ttl, keys
            keys = []
        scope, ttl = mark.scope, mark.ttl
        keys.append(mark.key)
    if keys:
        yield scope, ttl, keys


def _entry(row: Sequence[Any], leasing: Leasing) -> Entry:
    scope, key, state, at, expires_at, attempts, token, *holder, hash, encoding, result = row
    return Entry(
        scope,
        key,
        EntryState(state),
        at,
        attempts,
        expires_at,
        token,
        hash,
        result,
        encoding or 0,
        state == EntryState.IN_PROGRESS and _is_held(holder, leasing),
    )


def _is_held(holder: Sequence[Any], leasing: Leasing) -> bool:
    instance, boot, until = holder
    if boot != leasing.boot_id or until <= leasing.now():
        return False
    return instance is None or leasing.liveness.is_alive(instance)


def _has_expired(entry: Entry, now: Micros) -> bool:
    """What somebody is at has not."""
    return entry.expires_at is not None and entry.expires_at <= now and not entry.is_held


def _seconds(keep: Micros | None) -> float | None:
    if keep is None:
        return None
    return float("inf") if keep == NEVER else keep / SECOND


def _by_scope(row: Sequence[Any]) -> str:
    return str(row[0])


def _check_hash(entry: Entry, hash: bytes | None) -> None:
    if hash is not None and entry.hash is not None and hash != entry.hash:
        raise LedgerConflict(
            f"{entry.key!r} in {entry.scope!r} was processed with another payload."
        )
