"""`hub.ledger` of a remote hub: the same as `hub.aio.ledger`, for callers without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from penstock.client.ledger import AsyncRemoteLedger
from penstock.client.ledger_claims import RemoteClaim
from penstock.client.ledger_source import RemoteSource
from penstock.client.portal import Portal
from penstock.entry import Entry
from penstock.ledger.atomic import Atomic
from penstock.ledger.ledger import EVENTS_LIMIT, LIST_LIMIT, Answers, Entries, Events, Stats
from penstock.ledger.shadow import Shadow, Tracker
from penstock.ledger.terms import (
    LEASE_SECONDS,
    OnBusy,
    OnDone,
    OnError,
    OnFailure,
    make_terms,
)
from penstock.telemetry import Telemetry

F = TypeVar("F", bound=Callable[..., Any])


class RemoteLedger:
    def __init__(
        self,
        bridge: Callable[[], tuple[Portal, Any]],
        coroutines: AsyncRemoteLedger,
        source: RemoteSource,
        telemetry: Telemetry,
    ) -> None:
        self._bridge = bridge
        self._aio = coroutines
        self._source = source
        self._telemetry = telemetry

    def mark_processed(
        self, scope: str, key: str, *, ttl: float | None = None, payload: Any = None
    ) -> bool:
        """Enter the key as processed; returns when it is on disk. True for exactly one caller.

        If the connection is lost before the answer, it may have been entered: `Disconnected`.
        """
        portal, _ = self._bridge()
        return portal.run(self._aio.mark_processed(scope, key, ttl=ttl, payload=payload))

    def mark_many(self, scope: str, keys: Iterable[str], *, ttl: float | None = None) -> Answers:
        """The same for many keys, in several transactions if they are very many."""
        portal, _ = self._bridge()
        return portal.run(self._aio.mark_many(scope, keys, ttl=ttl))

    def is_processed(self, scope: str, key: str) -> bool:
        """Whether the key was marked, completed, or has failed for good."""
        portal, _ = self._bridge()
        return portal.run(self._aio.is_processed(scope, key))

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
    ) -> RemoteClaim:
        """A block that does the work of a key. As of a local hub, but for this: the server knows
        the claim by its lease alone, so if this process dies, others wait for its end."""
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
        return self._source.claim(terms)

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

        If the server cannot be asked, `on_error="process"` runs it all the same and remembers it
        in memory; `"raise"` does not.
        """
        return self._aio.idempotent(
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
    ) -> Atomic[Any]:
        """Not over a network: a transaction is for the process that has the database."""
        self._aio.atomic(scope, key)
        raise AssertionError("that raises")

    def get(self, scope: str, key: str) -> Entry | None:
        """What the ledger says about a key. None: nothing, or it has expired."""
        portal, _ = self._bridge()
        return portal.run(self._aio.get(scope, key))

    def count(self, scope: str | None = None) -> int:
        """How many keys are processed, overall or in a scope."""
        portal, _ = self._bridge()
        return portal.run(self._aio.count(scope))

    def stats(self) -> Stats:
        """Every scope's exact counts, of those that the token may use."""
        portal, _ = self._bridge()
        return portal.run(self._aio.stats())

    def list(self, scope: str, *, after: str = "", limit: int = LIST_LIMIT) -> Entries:
        """A scope's entries by key, `after` one to read on."""
        portal, _ = self._bridge()
        return portal.run(self._aio.list(scope, after=after, limit=limit))

    def events(self, *, after: int = 0, limit: int = EVENTS_LIMIT) -> Events:
        """The ledger's history by id, of scopes that the token may use."""
        portal, _ = self._bridge()
        return portal.run(self._aio.events(after=after, limit=limit))

    def forget(self, scope: str, *keys: str) -> int:
        """Remove entries, so that they can be processed again. Returns how many there were."""
        portal, _ = self._bridge()
        return portal.run(self._aio.forget(scope, *keys))

    def configure(self, scope: str, *, keep_seconds: float | None) -> None:
        """How long entries of the scope are kept that are made from now on, in every process."""
        portal, _ = self._bridge()
        portal.run(self._aio.configure(scope, keep_seconds=keep_seconds))

    def prune(
        self, progress: Callable[[int], None] | None = None, *, limit: int | None = None
    ) -> int:
        """Remove what has expired now; all of it, or up to `limit`. Returns how many."""
        portal, _ = self._bridge()
        return portal.run(self._aio.prune(progress, limit=limit))

    def shadow(self, existing: Tracker) -> Shadow:
        """For moving over from an existing tracker: it is believed, and the ledger compared."""
        return Shadow(self, existing, self._telemetry)
