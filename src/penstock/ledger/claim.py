"""A claim: the right to do the work of one key, held under a lease and a token.

In progress while the block runs, renewed by itself; then completed with what the work came to, or
given back. Whoever has lost it in between is told so, and changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec

from penstock import codec
from penstock.committer import inside_transaction
from penstock.entry import Entry, EntryState, Outcome
from penstock.errors import (
    AlreadyProcessed,
    HubClosed,
    InProgress,
    InsideTransaction,
    LeaseLost,
    PenstockError,
    UndecodablePayload,
    WorkFailed,
)
from penstock.ledger.runtime import Runtime
from penstock.ledger.terms import Terms
from penstock.ports import Transaction

PAUSE_SECONDS = 0.005
PAUSE_SECONDS_MAX = 0.1
MESSAGE_MAX = 4_096
"""Characters of an error's text that are kept."""

_UNSET: Any = object()


class StoredFailure(msgspec.Struct, frozen=True):
    """A failure that was kept as the answer."""

    error: str
    message: str


class Holding:
    """What both kinds of claim are: terms, an entry, and writes to be made for them."""

    def __init__(self, open_runtime: Callable[[], Runtime], terms: Terms) -> None:
        self._open = open_runtime
        self._terms = terms
        self._entry: Entry | None = None
        self._is_mine = False
        self._process = 0
        self._is_lost = False
        self._result: Any = _UNSET
        self._outcome = Outcome(ttl=terms.result_ttl)

    @property
    def scope(self) -> str:
        return self._terms.scope

    @property
    def key(self) -> str:
        return self._terms.key

    @property
    def token(self) -> int:
        """Rises with every claim in this database: a remote system can refuse a lower one."""
        return self.entry.token or 0

    @property
    def attempt(self) -> int:
        """1, and one more each time it was taken over."""
        return self.entry.attempts

    @property
    def entry(self) -> Entry:
        """What the ledger said when the block was entered."""
        assert self._entry is not None, "a claim is made by entering its block"
        return self._entry

    @property
    def is_done(self) -> bool:
        """It had been processed before; `result` is what was stored. Only with
        `on_done="result"`."""
        return self._entry is not None and self._entry.state == EntryState.COMPLETED

    @property
    def is_lost(self) -> bool:
        """The lease ran out, and somebody else has it: what the block still does is in vain."""
        return self._is_lost

    @property
    def result(self) -> Any:
        """Set it in the block: it is stored with the completion, for later callers."""
        if self._result is _UNSET:
            return self._entry.result if self._entry is not None else None
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        # Encoded at once: what cannot be stored is the work's error, not the ledger's.
        settings = self._open().settings
        body, encoding = codec.encode(
            value, None, settings.payload_bytes_max, settings.compress_above_bytes
        )
        self._outcome = Outcome(body, encoding, self._terms.result_ttl)
        self._result = value

    def check(self) -> None:
        """Raise `LeaseLost` if somebody else has it: before a step that cannot be undone."""
        if self._is_lost:
            raise self._lost()

    # For the two kinds

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

    def _accept(self, runtime: Runtime, entry: Entry, is_mine: bool) -> bool:
        """False: somebody else is at it, and we wait."""
        if is_mine:
            self._entry, self._is_mine, self._process = entry, True, os.getpid()
            runtime.claims.keep(entry, self._terms.lease_seconds, self._lose)
            return True
        if not entry.state.is_final:
            if self._terms.on_busy == "wait":
                return False
            raise self._busy()
        if self._terms.on_done == "raise":
            raise AlreadyProcessed(f"{self.key!r} in {self.scope!r} was processed before.")
        if entry.state == EntryState.FAILED:
            raise kept_failure(entry)
        self._entry = entry
        return True

    def _is_free(self, runtime: Runtime) -> bool:
        """Whether another attempt to take it is worth a write."""
        found = runtime.store.ledger.get(self.scope, self.key, now=runtime.clock.now())
        return found is None or not found.is_held

    def _is_to_end(self) -> bool:
        """Not if it has ended in the block; nor in a forked child, which leaves it too."""
        return self._is_mine and self._process == os.getpid()

    def _failure(self, error: BaseException) -> Outcome | None:
        """The failure as an outcome, if it is to be kept. Being interrupted is none."""
        if self._terms.on_failure == "release" or not isinstance(error, Exception):
            return None
        body = msgspec.json.encode(StoredFailure(type(error).__qualname__, text_of(error)))
        return Outcome(body, codec.JSON, self._terms.result_ttl, is_failure=True)

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

    def _ended(self, is_accepted: bool) -> None:
        self._is_mine = False
        if not is_accepted:
            raise self._lost()

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

    def _busy(self) -> InProgress:
        return InProgress(f"Somebody else is at {self.key!r} in {self.scope!r}.")

    def _lost(self) -> LeaseLost:
        return LeaseLost(f"Somebody else has {self.key!r} in {self.scope!r}, or had it since.")

    def _lose(self) -> None:
        self._is_lost = True

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
        while not self._accept(runtime, *runtime.committer.run(take).wait()):
            for pause in _pauses():
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
            return self._open().committer.run(write).wait()
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
        while not self._accept(runtime, *await self._take(runtime, take)):
            for pause in _pauses():
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


def kept_failure(entry: Entry) -> WorkFailed:
    stored = StoredFailure("", "")
    with suppress(UndecodablePayload):
        stored = entry.decode(StoredFailure) or stored
    return WorkFailed(
        f"{entry.key!r} in {entry.scope!r} failed before: {stored.error}: {stored.message}.",
        error=stored.error,
    )


def text_of(error: BaseException) -> str:
    """The error's text, whatever it does when it is asked for it."""
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001 - it is the user's class, and must not hide the error
        text = f"its text cannot be had ({type(second).__name__})"
    return text[:MESSAGE_MAX].encode("utf-8", "backslashreplace").decode()


def _deadline(timeout: float | None) -> float:
    return float("inf") if timeout is None else time.monotonic() + timeout


def _pauses() -> Any:
    """Short ones first: most work is short."""
    pause = PAUSE_SECONDS
    while True:
        yield pause
        pause = min(PAUSE_SECONDS_MAX, 2 * pause)
