"""Where a remote hub's claims come from, and what becomes of work done while the server was
away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from penstock.client.exchange import Exchange
from penstock.client.ledger_claims import AsyncRemoteClaim, RemoteClaim
from penstock.client.ledger_values import RemoteClaimed, outcome_of
from penstock.client.portal import Portal
from penstock.client.rest import path
from penstock.errors import Disconnected, InProgress, LeaseLost
from penstock.ledger.fallback import Done, Fallback
from penstock.ledger.terms import UNREACHABLE, Terms
from penstock.settings import Settings


class RemoteSource:
    """For the decorator, on threads and on event loops."""

    unreachable: tuple[type[Exception], ...] = (*UNREACHABLE, Disconnected)

    def __init__(
        self,
        open_exchange: Callable[[], Exchange],
        bridge: Callable[[], tuple[Portal, Any]],
        settings: Settings,
        fallback: Fallback,
    ) -> None:
        self._open = open_exchange
        self._bridge = bridge
        self._settings = settings
        self._fallback = fallback

    def claim(self, terms: Terms) -> RemoteClaim:
        return RemoteClaim(self._bridge, self.claim_async(terms))

    def claim_async(self, terms: Terms) -> AsyncRemoteClaim:
        return AsyncRemoteClaim(self._open, self._settings, terms)

    def flush(self) -> None:
        """Enter what was done meanwhile. Raises if the server cannot be asked still."""
        while pending := self._fallback.pending():
            portal, _ = self._bridge()
            portal.run(self._enter(pending))
            self._fallback.entered(pending)

    async def _enter(self, pending: list[tuple[tuple[str, str], Done]]) -> None:
        for (scope, key), done in pending:
            token = None if done.claim is None else done.claim.token
            if token is not None:
                with suppress(LeaseLost):
                    await self._complete(scope, key, token, done)
                    continue
            # Not under a claim, or it has run out since: unless somebody else has been there.
            with suppress(InProgress):
                answer = await self._post(scope, "claims", key=key)
                found = msgspec.json.decode(answer, type=RemoteClaimed)
                if found.is_mine and found.token is not None:
                    await self._complete(scope, key, found.token, done)

    async def _complete(self, scope: str, key: str, token: int, done: Done) -> None:
        said = outcome_of(done.outcome)
        await self._post(scope, "claims", "complete", key=key, token=token, **said)

    async def _post(self, scope: str, *what: str, **body: Any) -> bytes:
        return await self._open().rest.call("POST", path("ledger", scope, *what), body=body)
