"""A claim: the right to do the work of one key, held under a lease and a token.

Renewed by itself while the block runs, by a thread that the work cannot block.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from penstock.committer import inside_transaction
from penstock.entry import Entry, Outcome
from penstock.errors import HubClosed, InsideTransaction, PenstockError
from penstock.ledger.runtime import Runtime
from penstock.ledger.terms import Terms
from penstock.ledger.work import Work, pauses
from penstock.ports import Transaction
from penstock.settings import Settings


class Holding(Work):
    """What both kinds of claim are: work whose ledger is in this process's own database."""

    def __init__(self, open_runtime: Callable[[], Runtime], terms: Terms) -> None:
        super().__init__(terms)
        self._open = open_runtime

    # For the two kinds

    def _settings(self) -> Settings:
        return self._open().settings

    def _prepare(self) -> tuple[Runtime, Callable[[Transaction], tuple[Entry, bool]]]:
        if inside_transaction.get():
            raise InsideTransaction
        assert self._entry is None, "a claim is used once"
        runtime = self._open()
        runtime.keep_up()
        terms = self._terms
        instance = runtime.store.register(runtime.name)
        return runtime, lambda tx: tx.ledger.claim(
            terms.scope,
            terms.key,
            instance=instance,
            lease_seconds=terms.lease_seconds,
            hash=terms.hash,
            now=runtime.clock.now(),
        )

    def _take_on(self, runtime: Runtime, entry: Entry, is_mine: bool) -> bool:
        """False: somebody else is at it, and we wait."""
        is_settled = self._accept(entry, is_mine)
        if is_mine:
            runtime.claims.keep(entry, self._terms.lease_seconds, self._lose)
        return is_settled

    def _is_free(self, runtime: Runtime) -> bool:
        """Whether another attempt to take it is worth a write."""
        found = runtime.store.ledger.get(self.scope, self.key, now=runtime.clock.now())
        return found is None or not found.is_held

    def _end(self, outcome: Outcome | None) -> Callable[[Transaction], bool]:
        """Stop renewing; the last write: completion, or without an outcome the release."""
        if not self._is_mine:
            raise self._lost()
        runtime, entry = self._open(), self.entry
        runtime.claims.drop(entry)
        now = runtime.clock.now()
        if outcome is None:
            return lambda tx: tx.ledger.release(entry, now=now)
        return lambda tx: tx.ledger.complete(entry, outcome, now=now)

    def _go_on(self) -> None:
        """The last write failed: it is still ours, and can be tried again in the block."""
        with suppress(HubClosed):
            self._open().claims.keep(self.entry, self._terms.lease_seconds, self._lose)

    def _let_go(self) -> None:
        """After the block nobody tries again: the lease runs out by itself."""
        if self._is_mine:
            self._is_mine = False
            with suppress(HubClosed):
                self._open().claims.drop(self.entry)

    # For `tx.complete`

    def belongs_to(self, runtime: object) -> bool:
        return self._open() is runtime

    def complete_in(self, transaction: Transaction) -> None:
        """Complete it in somebody's transaction."""
        if not self._is_mine:
            raise self._lost()
        now = self._open().clock.now()
        if not transaction.ledger.complete(self.entry, self._outcome, now=now):
            raise self._lost()

    def completed(self) -> None:
        """That transaction is on disk."""
        self._is_mine = False
        self._open().claims.drop(self.entry)


class Claim(Holding):
    """`with hub.ledger.claim(scope, key) as claim`."""

    def complete(self) -> None:
        """Done, now. Leaving the block without an error does the same."""
        self._ended(self._write(self._end(self._outcome)))

    def release(self) -> None:
        """Not done, now: anybody may claim it. An error in the block does the same."""
        if self._is_mine:
            self._write(self._end(None))
            self._is_mine = False

    def __enter__(self) -> Claim:
        runtime, take = self._prepare()
        deadline = _deadline(self._terms.timeout)
        while not self._take_on(runtime, *runtime.committer.run_now(take)):
            for pause in pauses():
                if time.monotonic() >= deadline:
                    raise self._busy()
                time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
                if self._is_free(runtime):
                    break
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if not self._is_to_end():
            return
        try:
            if error is None:
                self.complete()
            else:
                self._write(self._end(self._failure(error)))
        except PenstockError as second:
            if error is None:
                raise
            error.add_note(f"Its claim was not given back, and runs out by itself: {second}")
        finally:
            self._let_go()

    def _write(self, write: Callable[[Transaction], bool]) -> bool:
        try:
            return self._open().committer.run_now(write)
        except BaseException:
            self._go_on()
            raise


class AsyncClaim(Holding):
    """`async with hub.aio.ledger.claim(scope, key) as claim`."""

    async def complete(self) -> None:
        """Done, now. Leaving the block without an error does the same."""
        self._ended(await self._write(self._end(self._outcome)))

    async def release(self) -> None:
        """Not done, now: anybody may claim it. An error in the block does the same."""
        if self._is_mine:
            await self._write(self._end(None))
            self._is_mine = False

    async def __aenter__(self) -> AsyncClaim:
        loop = asyncio.get_running_loop()
        if inside_transaction.get():
            raise InsideTransaction
        runtime, take = await loop.run_in_executor(self._open().executor, self._prepare)
        deadline = _deadline(self._terms.timeout)
        while not self._take_on(runtime, *await self._take(runtime, take)):
            for pause in pauses():
                if time.monotonic() >= deadline:
                    raise self._busy()
                await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
                if await loop.run_in_executor(runtime.executor, self._is_free, runtime):
                    break
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if not self._is_to_end():
            return
        try:
            if error is None:
                await self.complete()
            else:
                await self._write(self._end(self._failure(error)))
        except PenstockError as second:
            if error is None:
                raise
            error.add_note(f"Its claim was not given back, and runs out by itself: {second}")
        finally:
            self._let_go()

    async def _take(
        self, runtime: Runtime, take: Callable[[Transaction], tuple[Entry, bool]]
    ) -> tuple[Entry, bool]:
        taking = runtime.committer.run_async(take)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            # It is written all the same; nobody is there to do the work.
            taking.add_done_callback(lambda done: self._give_back(runtime, done))
            raise

    def _give_back(self, runtime: Runtime, done: asyncio.Future[tuple[Entry, bool]]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        entry, is_mine = done.result()
        if is_mine:
            now = runtime.clock.now()
            runtime.committer.run_quietly(lambda tx: tx.ledger.release(entry, now=now))

    async def _write(self, write: Callable[[Transaction], bool]) -> bool:
        try:
            return await self._open().committer.run_async(write)
        except PenstockError:
            self._go_on()
            raise


def _deadline(timeout: float | None) -> float:
    return float("inf") if timeout is None else time.monotonic() + timeout
