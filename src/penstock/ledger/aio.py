"""`hub.aio.ledger`: the ledger's names as coroutines, over the same code."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from penstock.entry import Entry
from penstock.ledger.atomic import AsyncAtomic
from penstock.ledger.claim import AsyncClaim
from penstock.ledger.fallback import Fallback
from penstock.ledger.ledger import (
    EVENTS_LIMIT,
    LIST_LIMIT,
    Answers,
    Entries,
    Events,
    Ledger,
    Stats,
)
from penstock.ledger.proxy import Proxy
from penstock.ledger.runtime import Runtime
from penstock.ledger.shadow import AsyncShadow, Tracker
from penstock.ledger.terms import (
    LEASE_SECONDS,
    OnBusy,
    OnDone,
    OnError,
    OnFailure,
    make_mark,
    make_marks,
    make_terms,
)

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class AsyncLedger:
    def __init__(
        self,
        open_runtime: Callable[[], Runtime],
        fallback: Fallback,
        begin: Callable[[float | None], Any],
    ) -> None:
        self._open = open_runtime
        self._begin = begin
        self._ledger = Ledger(open_runtime, fallback, begin)
        self.proxy = Proxy(open_runtime)
        """Claims for others than this process, as a server makes them."""

    async def mark_processed(
        self, scope: str, key: str, *, ttl: float | None = None, payload: Any = None
    ) -> bool:
        """Enter the key as processed; returns when it is on disk. As `Ledger.mark_processed`."""
        mark = make_mark(scope, key, ttl, payload)
        runtime = self._open()
        runtime.keep_up()
        return await runtime.committer.mark_one_async(mark)

    async def mark_many(
        self, scope: str, keys: Iterable[str], *, ttl: float | None = None
    ) -> Answers:
        """The same for many keys, in transactions of up to `commit_group_max`."""
        marks = make_marks(scope, keys, ttl)
        runtime = self._open()
        runtime.keep_up()
        size = runtime.settings.commit_group_max
        waiting = [
            runtime.committer.mark_async(marks[start : start + size])
            for start in range(0, len(marks), size)
        ]
        return [answer for group in await asyncio.gather(*waiting) for answer in group]

    async def is_processed(self, scope: str, key: str) -> bool:
        """Whether the key was marked, completed, or has failed for good."""
        return await self._call(partial(self._ledger.is_processed, scope, key))

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
    ) -> AsyncClaim:
        """A block that does the work of a key. As `Ledger.claim`."""
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
        return AsyncClaim(self._open, terms)

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
        """Decorator: the function runs once per key. As `Ledger.idempotent`."""
        return self._ledger.idempotent(
            scope,
            key=key,
            lease_seconds=lease_seconds,
            payload=payload,
            on_busy=on_busy,
            on_done=on_done,
            timeout=timeout,
            result_ttl=result_ttl,
            on_failure=on_failure,
            on_error=on_error,
            store_result=store_result,
        )

    def atomic(
        self,
        scope: str,
        key: str,
        *,
        ttl: float | None = None,
        payload: Any = None,
        limit_seconds: float | None = None,
    ) -> AsyncAtomic[Any]:
        """A transaction that begins with the mark. As `Ledger.atomic`."""
        make_mark(scope, key, ttl, payload)
        return AsyncAtomic(
            lambda: self._begin(limit_seconds),
            lambda tx: tx.mark_processed(scope, key, ttl=ttl, payload=payload),
        )

    async def get(self, scope: str, key: str) -> Entry | None:
        """What the ledger says about a key. None: nothing, or it has expired."""
        return await self._call(partial(self._ledger.get, scope, key))

    async def count(self, scope: str | None = None) -> int:
        """How many keys are processed, overall or in a scope."""
        return await self._call(partial(self._ledger.count, scope))

    async def stats(self) -> Stats:
        """Every scope's exact counts. What has expired counts until it is pruned."""
        return await self._call(self._ledger.stats)

    async def list(self, scope: str, *, after: str = "", limit: int = LIST_LIMIT) -> Entries:
        """A scope's entries by key, `after` one to read on."""
        return await self._call(partial(self._ledger.list, scope, after=after, limit=limit))

    async def events(self, *, after: int = 0, limit: int = EVENTS_LIMIT) -> Events:
        """The ledger's history by id: marked, claimed, completed, taken over, …"""
        return await self._call(partial(self._ledger.events, after=after, limit=limit))

    async def forget(self, scope: str, *keys: str) -> int:
        """Remove entries, so that they can be processed again. Returns how many there were."""
        return await self._call(partial(self._ledger.forget, scope, *keys))

    async def configure(self, scope: str, *, keep_seconds: float | None) -> None:
        """How long entries of the scope are kept that are made from now on, in every process."""
        await self._call(partial(self._ledger.configure, scope, keep_seconds=keep_seconds))

    async def prune(
        self, progress: Callable[[int], None] | None = None, *, limit: int | None = None
    ) -> int:
        """Remove what has expired now, without waiting for the sweeper; all of it, or up to
        `limit`. Returns how many."""
        return await self._call(partial(self._ledger.prune, progress, limit=limit))

    def shadow(self, existing: Tracker) -> AsyncShadow:
        """For moving over from an existing tracker. As `Ledger.shadow`."""
        return AsyncShadow(self, existing, self._open().telemetry)

    async def _call(self, call: Callable[[], T]) -> T:
        """On a reader thread, with the caller's context: inside a transaction stays inside."""
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        return await loop.run_in_executor(self._open().executor, partial(context.run, call))
