"""`hub.ledger`: what has been processed, and claims on what is to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from penstock.entry import Entry, EntryEvent, ScopeStats, check_entry_key
from penstock.ledger.atomic import Atomic
from penstock.ledger.claim import Claim
from penstock.ledger.fallback import Fallback
from penstock.ledger.idempotent import OwnSource, Rules, make_idempotent
from penstock.ledger.prune import Pruner
from penstock.ledger.runtime import Runtime
from penstock.ledger.shadow import Shadow, Tracker
from penstock.ledger.terms import (
    LEASE_SECONDS,
    OnBusy,
    OnDone,
    OnError,
    OnFailure,
    check_known,
    duration,
    make_mark,
    make_marks,
    make_terms,
)
from penstock.model import check_count

LIST_LIMIT = 100
EVENTS_LIMIT = 1_000

F = TypeVar("F", bound=Callable[..., Any])

# `list` is a method below.
Answers = list[bool]
Entries = list[Entry]
Events = list[EntryEvent]
Stats = list[ScopeStats]


class Ledger:
    def __init__(
        self,
        open_runtime: Callable[[], Runtime],
        fallback: Fallback,
        begin: Callable[[float | None], Any],
    ) -> None:
        self._open = open_runtime
        self._fallback = fallback
        self._begin = begin

    # Marks

    def mark_processed(
        self, scope: str, key: str, *, ttl: float | None = None, payload: Any = None
    ) -> bool:
        """Enter the key as processed; returns when it is on disk.

        True for exactly one caller, of all processes, until the entry expires: after `ttl`
        seconds, or as long as the scope or the setting `ledger_seconds` says. With `payload`,
        the same key for something else raises `LedgerConflict`.
        """
        mark = make_mark(scope, key, ttl, payload)
        return self._ready().committer.mark_now((mark,))[0]

    def mark_many(self, scope: str, keys: Iterable[str], *, ttl: float | None = None) -> Answers:
        """The same for many keys, in transactions of up to `commit_group_max`."""
        marks = make_marks(scope, keys, ttl)
        runtime = self._ready()
        size = runtime.settings.commit_group_max
        waiting = [
            runtime.committer.mark(marks[start : start + size])
            for start in range(0, len(marks), size)
        ]
        return [answer for operation in waiting for answer in operation.wait()]

    def is_processed(self, scope: str, key: str) -> bool:
        """Whether the key was marked, completed, or has failed for good."""
        found = self.get(scope, key)
        return found is not None and found.state.is_final

    # Claims

    def claim(
        self,
        scope: str,
        key: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        payload: Any = None,
        on_busy: OnBusy = "raise",
        on_done: OnDone = "raise",
        timeout: float | None = None,
        result_ttl: float | None = None,
        on_failure: OnFailure = "release",
    ) -> Claim:
        """A block that does the work of a key: `with hub.ledger.claim("billing", id) as claim`.

        The key is in progress while the block runs, and renewed by itself; then completed, with
        `claim.result` if that was set. If the block raises it is released, or with
        `on_failure="keep"` the failure is the answer for all who come later. If this process
        dies, the next caller takes over: at once, or after `lease_seconds` if it is suspended.

        If somebody else is at it: `InProgress`, or with `on_busy="wait"` up to `timeout` seconds
        of waiting. If it was done before: `AlreadyProcessed`, or with `on_done="result"` the block
        is entered with `claim.is_done` and the stored `claim.result`.
        """
        terms = make_terms(
            scope,
            key,
            lease_seconds=lease_seconds,
            payload=payload,
            on_busy=on_busy,
            on_done=on_done,
            timeout=timeout,
            result_ttl=result_ttl,
            on_failure=on_failure,
        )
        return Claim(self._open, terms)

    def idempotent(
        self,
        scope: str,
        *,
        key: Callable[..., str],
        lease_seconds: float = LEASE_SECONDS,
        payload: Callable[..., Any] | None = None,
        on_busy: OnBusy = "wait",
        on_done: OnDone = "result",
        timeout: float | None = None,
        result_ttl: float | None = None,
        on_failure: OnFailure = "release",
        on_error: OnError = "process",
        store_result: bool = True,
    ) -> Callable[[F], F]:
        """Decorator: the function runs once per key, and later callers get its stored result.

        `key`, and `payload` to tell different calls under one key, get the call's arguments. The
        function may be a coroutine function. If the ledger cannot be asked, `on_error="process"`
        runs it all the same and remembers it in memory; `"raise"` does not.
        """
        rules = Rules(
            check_known(scope),
            key,
            lease_seconds,
            payload,
            on_busy,
            on_done,
            timeout,
            result_ttl,
            on_failure,
            on_error,
            store_result,
        )
        return make_idempotent(OwnSource(self._open, self._fallback), self._fallback, rules)

    def atomic(
        self,
        scope: str,
        key: str,
        *,
        ttl: float | None = None,
        payload: Any = None,
        limit_seconds: float | None = None,
    ) -> Atomic[Any]:
        """A transaction that begins with the mark: `with hub.ledger.atomic("billing", id) as tx`.

        The mark, your own writes, publishes and enqueues happen together or not at all. Entering
        raises `AlreadyProcessed`, and the block is not run.
        """
        make_mark(scope, key, ttl, payload)
        return Atomic(
            lambda: self._begin(limit_seconds),
            lambda tx: tx.mark_processed(scope, key, ttl=ttl, payload=payload),
        )

    # Looking

    def get(self, scope: str, key: str) -> Entry | None:
        """What the ledger says about a key. None: nothing, or it has expired."""
        runtime = self._open()
        return runtime.store.ledger.get(
            check_known(scope), check_entry_key(key), now=runtime.clock.now()
        )

    def count(self, scope: str | None = None) -> int:
        """How many keys are processed, overall or in a scope."""
        if scope is not None:
            check_known(scope)
        return sum(found.processed for found in self.stats() if scope in (None, found.scope))

    def stats(self) -> Stats:
        """Every scope's exact counts. What has expired counts until it is pruned."""
        return self._open().store.ledger.stats()

    def list(self, scope: str, *, after: str = "", limit: int = LIST_LIMIT) -> Entries:
        """A scope's entries by key, `after` one to read on."""
        check_count(limit, "limit")
        runtime = self._open()
        now = runtime.clock.now()
        return runtime.store.ledger.find(check_known(scope), after=after, limit=limit, now=now)

    def events(self, *, after: int = 0, limit: int = EVENTS_LIMIT) -> Events:
        """The ledger's history by id: marked, claimed, completed, taken over, …"""
        check_count(limit, "limit")
        return self._open().store.ledger.events(after=after, limit=limit)

    # By hand

    def forget(self, scope: str, *keys: str) -> int:
        """Remove entries, so that they can be processed again. Returns how many there were.

        What is in progress loses its claim: its completion is refused.
        """
        check_known(scope)
        for key in keys:
            check_entry_key(key)
        runtime = self._ready()
        now = runtime.clock.now()
        return runtime.committer.run_now(lambda tx: tx.ledger.forget(scope, keys, now=now))

    def configure(self, scope: str, *, keep_seconds: float | None) -> None:
        """How long entries of the scope are kept that are made from now on, in every process.

        `math.inf` for ever; None as the setting `ledger_seconds` says.
        """
        check_known(scope)
        keep = duration(keep_seconds, "keep_seconds")
        self._ready().committer.run_now(lambda tx: tx.ledger.configure(scope, keep=keep))

    def prune(
        self, progress: Callable[[int], None] | None = None, *, limit: int | None = None
    ) -> int:
        """Remove what has expired now, without waiting for the sweeper; all of it, or up to
        `limit`. Returns how many."""
        if limit is not None:
            check_count(limit, "limit")
        runtime = self._ready()
        pruner = Pruner(runtime.store, runtime.settings, runtime.clock, runtime.telemetry)
        writer = runtime.store.open_writer()
        try:
            return pruner.prune(writer, progress=progress, limit=limit)
        finally:
            writer.close()

    def shadow(self, existing: Tracker) -> Shadow:
        """For moving over: answers as the existing tracker does, asks this ledger the same, and
        counts and logs where they differ. `report()` says whether it can be trusted."""
        return Shadow(self, existing, self._open().telemetry)

    def _ready(self) -> Runtime:
        runtime = self._open()
        runtime.keep_up()
        return runtime
