"""Claims on the ledger of a server.

A claim is known to the server by its lease alone: it is renewed from here while the block runs,
and if this process dies, others wait for the end of the lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec

from penstock.client.exchange import Exchange
from penstock.client.ledger_values import RemoteClaimed, RemoteLook, outcome_of
from penstock.client.portal import Portal
from penstock.client.rest import path
from penstock.entry import Entry, Outcome
from penstock.errors import InProgress, LeaseLost, PenstockError
from penstock.ledger.terms import Terms
from penstock.ledger.work import Work, pauses
from penstock.settings import Settings

RENEWALS = 3
"""How many renewals fit into a lease."""
PAUSE_SECONDS_MAX = 0.5
"""Between looks whether somebody else is done: each is a request."""


_releasing: set[asyncio.Task[None]] = set()


class AsyncRemoteClaim(Work):
    """`async with hub.aio.ledger.claim(scope, key) as claim`.

    It is renewed by a task of the event loop, so work must not block that for as long as a lease.
    """

    def __init__(
        self, open_exchange: Callable[[], Exchange], settings: Settings, terms: Terms
    ) -> None:
        super().__init__(terms)
        self._open = open_exchange
        self._own_settings = settings
        self._renewing: asyncio.Task[None] | None = None

    async def complete(self) -> None:
        """Done, now. Leaving the block without an error does the same."""
        if not self._is_mine:
            raise self._lost()
        await self._finish(self._outcome)

    async def release(self) -> None:
        """Not done, now: anybody may claim it. An error in the block does the same."""
        if self._is_mine:
            with suppress(LeaseLost):
                await self._finish(None)

    async def __aenter__(self) -> AsyncRemoteClaim:
        assert self._entry is None, "a claim is used once"
        timeout = self._terms.timeout
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while not await self._take():
            for pause in pauses(PAUSE_SECONDS_MAX):
                if time.monotonic() >= deadline:
                    raise self._busy()
                await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
                if await self._is_free():
                    break
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if not self._is_to_end():
            return
        try:
            await self._finish(self._outcome if error is None else self._failure(error))
        except PenstockError as second:
            if error is None:
                raise
            error.add_note(f"Its claim was not given back, and runs out by itself: {second}")
        finally:
            self._is_mine = False
            await self._stop_renewing()

    @property
    def is_to_end(self) -> bool:
        """Whether leaving the block still has something to say to the server."""
        return self._is_to_end()

    # Inside

    def _settings(self) -> Settings:
        return self._own_settings

    async def _take(self) -> bool:
        """False: somebody else is at it, and we wait."""
        terms = self._terms
        body: dict[str, Any] = {"key": terms.key, "lease_seconds": terms.lease_seconds}
        if terms.hash is not None:
            body["hash"] = terms.hash.hex()
        taking = asyncio.ensure_future(self._call("claims", body))
        try:
            answer = await asyncio.shield(taking)
        except InProgress:
            if terms.on_busy == "wait":
                return False
            raise self._busy() from None
        except asyncio.CancelledError:
            # It may be made all the same; nobody is there to do the work.
            taking.add_done_callback(self._give_back)
            raise
        found = msgspec.json.decode(answer, type=RemoteClaimed)
        is_settled = self._accept(found.entry.as_entry(found.token), found.is_mine)
        if found.is_mine:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
        return is_settled

    def _give_back(self, taking: asyncio.Future[bytes]) -> None:
        if taking.cancelled() or taking.exception() is not None:
            return
        found = msgspec.json.decode(taking.result(), type=RemoteClaimed)
        if found.is_mine:
            self._accept(found.entry.as_entry(found.token), True)
            releasing = taking.get_loop().create_task(self._release_quietly())
            _releasing.add(releasing)
            releasing.add_done_callback(_releasing.discard)

    async def _release_quietly(self) -> None:
        with suppress(PenstockError):
            await self.release()

    async def _is_free(self) -> bool:
        where = path("ledger", self.scope, "entry")
        answer = await self._open().rest.call("GET", where, parameters={"key": self.key})
        entry = msgspec.json.decode(answer, type=RemoteLook).entry
        return entry is None or not entry.is_held

    async def _finish(self, outcome: Outcome | None) -> None:
        """Complete it, or without an outcome release it."""
        body: dict[str, Any] = {"key": self.key, "token": self.token}
        try:
            if outcome is None:
                await self._call("claims/release", body)
            else:
                await self._call("claims/complete", body | outcome_of(outcome))
        except LeaseLost:
            self._is_mine = False
            raise self._lost() from None
        self._is_mine = False
        await self._stop_renewing()

    async def _renew(self) -> None:
        """Until it is lost, or stopped. A server that does not answer is asked again."""
        seconds = self._terms.lease_seconds
        body = {"key": self.key, "token": self.token, "lease_seconds": seconds}
        good_until = time.monotonic() + seconds
        while True:
            await asyncio.sleep(seconds / RENEWALS)
            asked_at = time.monotonic()
            try:
                await self._call("claims/renew", body)
            except LeaseLost:
                self._lose()
                return
            except PenstockError:
                if time.monotonic() >= good_until:
                    # Nobody knows better: from now on somebody else may have it.
                    self._lose()
            else:
                good_until = asked_at + seconds

    async def _stop_renewing(self) -> None:
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.wait([renewing])

    async def _call(self, what: str, body: dict[str, Any]) -> bytes:
        where = path("ledger", self.scope, *what.split("/"))
        return await self._open().rest.call("POST", where, body=body)


class RemoteClaim:
    """`with hub.ledger.claim(scope, key) as claim`: renewed by a thread that the work cannot
    block."""

    def __init__(self, bridge: Callable[[], tuple[Portal, Any]], claim: AsyncRemoteClaim) -> None:
        self._bridge = bridge
        self._claim = claim

    @property
    def scope(self) -> str:
        return self._claim.scope

    @property
    def key(self) -> str:
        return self._claim.key

    @property
    def token(self) -> int:
        """Rises with every claim in this database: a remote system can refuse a lower one."""
        return self._claim.token

    @property
    def attempt(self) -> int:
        """1, and one more each time it was taken over."""
        return self._claim.attempt

    @property
    def entry(self) -> Entry:
        """What the ledger said when the block was entered."""
        return self._claim.entry

    @property
    def is_done(self) -> bool:
        """It had been processed before; `result` is what was stored. Only with
        `on_done="result"`."""
        return self._claim.is_done

    @property
    def is_lost(self) -> bool:
        """The lease ran out, and somebody else has it: what the block still does is in vain."""
        return self._claim.is_lost

    @property
    def result(self) -> Any:
        """Set it in the block: it is stored with the completion, for later callers."""
        return self._claim.result

    @result.setter
    def result(self, value: Any) -> None:
        self._claim.result = value

    def check(self) -> None:
        """Raise `LeaseLost` if somebody else has it: before a step that cannot be undone."""
        self._claim.check()

    def complete(self) -> None:
        """Done, now. Leaving the block without an error does the same."""
        portal, _ = self._bridge()
        portal.run(self._claim.complete())

    def release(self) -> None:
        """Not done, now: anybody may claim it. An error in the block does the same."""
        portal, _ = self._bridge()
        portal.run(self._claim.release())

    def __enter__(self) -> RemoteClaim:
        portal, _ = self._bridge()
        portal.run(self._claim.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._claim.is_to_end:
            portal, _ = self._bridge()
            portal.run(self._claim.__aexit__(kind, error, traceback))
