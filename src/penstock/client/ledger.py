"""`hub.aio.ledger` of a remote hub: a local hub's names over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from penstock.client.exchange import Exchange
from penstock.client.ledger_claims import AsyncRemoteClaim
from penstock.client.ledger_source import RemoteSource
from penstock.client.ledger_values import (
    RemoteEntries,
    RemoteEntryEvents,
    RemoteForgotten,
    RemoteLook,
    RemoteMarked,
    RemotePruned,
    RemoteScope,
    RemoteScopes,
    keep_of,
)
from penstock.client.rest import path
from penstock.entry import Entry, check_entry_key
from penstock.errors import Unsupported
from penstock.ledger.atomic import AsyncAtomic
from penstock.ledger.fallback import Fallback
from penstock.ledger.idempotent import Rules, make_idempotent
from penstock.ledger.ledger import EVENTS_LIMIT, LIST_LIMIT, Answers, Entries, Events, Stats
from penstock.ledger.shadow import AsyncShadow, Tracker
from penstock.ledger.terms import (
    LEASE_SECONDS,
    OnBusy,
    OnDone,
    OnError,
    OnFailure,
    check_known,
    duration,
    hash_of,
    make_terms,
)
from penstock.model import check_count
from penstock.telemetry import Telemetry

LIST_MAX = 1_000
"""What one request lists."""
GROUP_MAX = 500
GROUP_BYTES_MAX = 512 * 1024
"""Of one request with many keys. A server takes 1,000 of them and 2 MiB by default."""
PRUNE_MAX = 10_000
"""What one request removes."""

F = TypeVar("F", bound=Callable[..., Any])


class AsyncRemoteLedger:
    def __init__(
        self,
        open_exchange: Callable[[], Exchange],
        telemetry: Telemetry,
        fallback: Fallback,
        source: RemoteSource,
    ) -> None:
        self._open = open_exchange
        self._telemetry = telemetry
        self._fallback = fallback
        self._source = source

    async def mark_processed(
        self, scope: str, key: str, *, ttl: float | None = None, payload: Any = None
    ) -> bool:
        """Enter the key as processed; returns when it is on disk. True for exactly one caller.

        If the connection is lost before the answer, it may have been entered: `Disconnected`.
        """
        duration(ttl, "ttl")
        body: dict[str, Any] = {"key": check_entry_key(key), "ttl_seconds": keep_of(ttl)}
        hash = hash_of(payload)
        if hash is not None:
            body["hash"] = hash.hex()
        answer = await self._post(scope, "marks", body=body)
        return msgspec.json.decode(answer, type=RemoteMarked).marked[0]

    async def mark_many(
        self, scope: str, keys: Iterable[str], *, ttl: float | None = None
    ) -> Answers:
        """The same for many keys, in several transactions if they are very many."""
        duration(ttl, "ttl")
        marked: Answers = []
        for group in _groups([check_entry_key(key) for key in keys]):
            body = {"keys": group, "ttl_seconds": keep_of(ttl)}
            answer = await self._post(scope, "marks", body=body)
            marked += msgspec.json.decode(answer, type=RemoteMarked).marked
        return marked

    async def is_processed(self, scope: str, key: str) -> bool:
        """Whether the key was marked, completed, or has failed for good."""
        return (await self._look(scope, key)).is_processed

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
    ) -> AsyncRemoteClaim:
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
        return self._source.claim_async(terms)

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
        return make_idempotent(self._source, self._fallback, rules)

    def atomic(
        self,
        scope: str,
        key: str,
        *,
        ttl: float | None = None,
        payload: Any = None,
        limit_seconds: float | None = None,
    ) -> AsyncAtomic[Any]:
        """Not over a network: a transaction is for the process that has the database."""
        raise Unsupported(
            "A remote hub has no transactions.",
            hint="Use claim(), or open the database where it is.",
        )

    async def get(self, scope: str, key: str) -> Entry | None:
        """What the ledger says about a key. None: nothing, or it has expired."""
        found = (await self._look(scope, key)).entry
        return None if found is None else found.as_entry()

    async def count(self, scope: str | None = None) -> int:
        """How many keys are processed, overall or in a scope."""
        if scope is None:
            return sum(found.processed for found in await self.stats())
        answer = await self._open().rest.call("GET", path("ledger", check_known(scope)))
        return msgspec.json.decode(answer, type=RemoteScope).as_stats().processed

    async def stats(self) -> Stats:
        """Every scope's exact counts, of those that the token may use."""
        answer = await self._open().rest.call("GET", path("ledger"))
        found = msgspec.json.decode(answer, type=RemoteScopes).scopes
        return [one.as_stats() for one in found]

    async def list(self, scope: str, *, after: str = "", limit: int = LIST_LIMIT) -> Entries:
        """A scope's entries by key, `after` one to read on."""
        check_count(limit, "limit")
        found: Entries = []
        where = path("ledger", check_known(scope), "entries")
        while True:
            size = min(LIST_MAX, limit - len(found))
            answer = await self._open().rest.call(
                "GET", where, parameters={"after": after, "limit": size}
            )
            part = msgspec.json.decode(answer, type=RemoteEntries)
            found += [entry.as_entry() for entry in part.entries]
            if part.is_complete or len(found) >= limit:
                return found
            after = found[-1].key

    async def events(self, *, after: int = 0, limit: int = EVENTS_LIMIT) -> Events:
        """The ledger's history by id, of scopes that the token may use."""
        check_count(limit, "limit")
        found: Events = []
        while True:
            parameters = {"after": after, "limit": min(LIST_MAX, limit - len(found))}
            answer = await self._open().rest.call(
                "GET", path("ledger-events"), parameters=parameters
            )
            part = msgspec.json.decode(answer, type=RemoteEntryEvents)
            found += [event.as_event() for event in part.events]
            if len(found) >= limit or part.after == after:
                return found
            after = part.after

    async def forget(self, scope: str, *keys: str) -> int:
        """Remove entries, so that they can be processed again. Returns how many there were."""
        removed = 0
        for group in _groups([check_entry_key(key) for key in keys]):
            answer = await self._post(scope, "forget", body={"keys": group})
            removed += msgspec.json.decode(answer, type=RemoteForgotten).removed
        return removed

    async def configure(self, scope: str, *, keep_seconds: float | None) -> None:
        """How long entries of the scope are kept that are made from now on, in every process."""
        duration(keep_seconds, "keep_seconds")
        where = path("ledger", check_known(scope))
        body = {"keep_seconds": keep_of(keep_seconds)}
        await self._open().rest.call("PUT", where, body=body)

    async def prune(
        self, progress: Callable[[int], None] | None = None, *, limit: int | None = None
    ) -> int:
        """Remove what has expired now; all of it, or up to `limit`. Returns how many."""
        if limit is not None:
            check_count(limit, "limit")
        removed = 0
        while limit is None or removed < limit:
            size = PRUNE_MAX if limit is None else min(PRUNE_MAX, limit - removed)
            answer = await self._open().rest.call(
                "POST", path("ledger-prune"), body={"limit": size}
            )
            part = msgspec.json.decode(answer, type=RemotePruned)
            removed += part.removed
            if progress is not None:
                progress(removed)
            if part.is_complete:
                break
        return removed

    def shadow(self, existing: Tracker) -> AsyncShadow:
        """For moving over from an existing tracker: it is believed, and the ledger compared."""
        return AsyncShadow(self, existing, self._telemetry)

    async def _look(self, scope: str, key: str) -> RemoteLook:
        where = path("ledger", check_known(scope), "entry")
        answer = await self._open().rest.call(
            "GET", where, parameters={"key": check_entry_key(key)}
        )
        return msgspec.json.decode(answer, type=RemoteLook)

    async def _post(self, scope: str, what: str, *, body: dict[str, Any]) -> bytes:
        where = path("ledger", check_known(scope), what)
        return await self._open().rest.call("POST", where, body=body)


def _groups(keys: list[str]) -> Iterable[list[str]]:
    """As many at once as a server takes."""
    group: list[str] = []
    size = 0
    for key in keys:
        length = len(key.encode()) + 8
        if group and (len(group) == GROUP_MAX or size + length > GROUP_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(key)
        size += length
    if group:
        yield group
