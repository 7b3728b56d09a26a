"""Claims for somebody who is not this process: a client of a server.

Nobody here renews them, and nobody can see whether he lives: his lease alone says so.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.entry import Entry, EntryState, NewMark, Outcome, check_entry_key
from penstock.ledger.runtime import Runtime
from penstock.ledger.terms import check_known, duration


class Proxy:
    """Each is one write. Of claims, the caller has checked what it gives."""

    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        self._open = open_runtime

    async def mark(self, scope: str, key: str, *, ttl: float | None, hash: bytes | None) -> bool:
        """As `hub.ledger.mark_processed`, with a hash instead of a payload."""
        runtime = self._open()
        runtime.keep_up()
        keep = duration(ttl, "ttl_seconds")
        mark = NewMark(check_known(scope), check_entry_key(key), keep, hash)
        return await runtime.committer.mark_one_async(mark)

    async def claim(
        self, scope: str, key: str, *, lease_seconds: float, hash: bytes | None
    ) -> tuple[Entry, bool]:
        """The entry as it stands now, and whether it is the caller's."""
        runtime = self._open()
        runtime.keep_up()
        return await runtime.committer.run_async(
            lambda tx: tx.ledger.claim(
                scope,
                key,
                instance=None,
                lease_seconds=lease_seconds,
                hash=hash,
                now=runtime.clock.now(),
            )
        )

    async def renew(self, scope: str, key: str, token: int, *, lease_seconds: float) -> bool:
        """False if the token is void."""
        claim = _held(scope, key, token)
        kept = await self._open().committer.run_async(
            lambda tx: tx.ledger.renew([claim], lease_seconds=lease_seconds)
        )
        return bool(kept)

    async def complete(self, scope: str, key: str, token: int, outcome: Outcome) -> bool:
        """False if the token is void."""
        runtime, claim = self._open(), _held(scope, key, token)
        return await runtime.committer.run_async(
            lambda tx: tx.ledger.complete(claim, outcome, now=runtime.clock.now())
        )

    async def release(self, scope: str, key: str, token: int) -> bool:
        """False if the token is void."""
        runtime, claim = self._open(), _held(scope, key, token)
        return await runtime.committer.run_async(
            lambda tx: tx.ledger.release(claim, now=runtime.clock.now())
        )


def _held(scope: str, key: str, token: int) -> Entry:
    """As far as an answer for it needs to say which it is."""
    return Entry(scope, key, EntryState.IN_PROGRESS, 0, 0, token=token)
