"""`hub.lock(name)`: one holder at a time, over all processes on the database.

A lock is a lease: it is renewed by itself while its object lives, is free at once when its process
ends, and after its lease when the process hangs. So a holder that was suspended may wake
up to find that somebody else has it: `check()` says so, and `token`, which rises with each
holder, lets another system refuse the older one.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.committer import Committer
from penstock.errors import HubClosed, InvalidInput, LeaseLost, LockTimeout
from penstock.leases import Kept, LeaseKeeper
from penstock.model import Lease, check_name
from penstock.ports import Store, Transaction
from penstock.service import Service
from penstock.telemetry import Telemetry

LEASE_SECONDS = 30.0
LOOK_SECONDS = 0.005
LOOK_SECONDS_MAX = 0.1
CAMPAIGN_SECONDS = 0.5


class Runtime(Protocol):
    store: Store
    committer: Committer
    keeper: LeaseKeeper
    telemetry: Telemetry
    name: str

    def start_reading(self) -> None: ...


OpenRuntime = Callable[[], Runtime]


class _Holder:
    """What both kinds of lock have in common: the lease, once there is one."""

    def __init__(
        self,
        open_runtime: OpenRuntime,
        name: str,
        lease_seconds: float = LEASE_SECONDS,
        timeout: float | None = None,
    ) -> None:
        if not 0 < lease_seconds < 1e6:
            raise InvalidInput(f"lease_seconds is above 0, not {lease_seconds!r}.")
        self.name = check_name(name, "lock name")
        self.lease_seconds = lease_seconds
        self._timeout = timeout
        self._open = open_runtime
        self._kept: Kept | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object certainly has the lock. Asks nobody, and takes no time."""
        return self._kept is not None and self._kept.is_held

    @property
    def token(self) -> int:
        """Rises with each holder. Raises `LeaseLost` when it is not held."""
        self.check()
        assert self._kept is not None
        return self._kept.lease.token

    def check(self) -> None:
        """Raises `LeaseLost` if it is not held, or not any more."""
        if not self.is_held:
            raise LeaseLost(f"The lock {self.name!r} is not held here.")

    def _may_ask(self) -> Runtime:
        if self._kept is not None:
            raise InvalidInput(
                f"This lock {self.name!r} was acquired already.",
                hint="Each user of a lock makes one of its own with hub.lock().",
            )
        return self._open()

    def _too_late(self) -> LockTimeout:
        return LockTimeout(f"The lock {self.name!r} was not free within {self._timeout:g} seconds.")

    def _pauses(self, blocking: bool, timeout: float | None) -> Iterable[float]:
        return Pauses(self._timeout if timeout is None else timeout) if blocking else (0.0,)

    def _key(self) -> str:
        return f"lock\x1f{self.name}"

    def _take(self, transaction: Transaction, owner: str) -> Lease | None:
        return transaction.leases.acquire(self._key(), owner=owner, seconds=self.lease_seconds)

    def _keep(self, runtime: Runtime, lease: Lease | None, asked_at: float) -> bool:
        if lease is None:
            return False
        self._kept = runtime.keeper.keep(
            lease, _nothing, seconds=self.lease_seconds, asked_at=asked_at, holder=self
        )
        return True

    def _drop(self, runtime: Runtime) -> tuple[Lease, bool]:
        """The lease, and whether it was still held."""
        kept = self._kept
        if kept is None:
            raise LeaseLost(f"The lock {self.name!r} is not held here.")
        was_held = kept.is_held
        self._kept = None
        runtime.keeper.drop(kept.lease)
        return kept.lease, was_held

    def _let_go(self, runtime: Runtime, lease: Lease | None) -> None:
        """Soon, without waiting for it."""
        self._kept = None
        if lease is not None:
            runtime.keeper.drop(lease)
            runtime.committer.run_quietly(lambda tx: tx.leases.release(lease))


class Lock(_Holder):
    """`with hub.lock("name") as lock`. An object holds it once; make another to share it."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Get it, waiting for whoever has it, at most `timeout` seconds. False if it was not
        to be had."""
        runtime = self._may_ask()
        runtime.start_reading()
        lease: Lease | None = None
        try:
            for pause in self._pauses(blocking, timeout):
                # A look before: those who wait do not crowd the one who writes.
                if runtime.store.leases.holder(self._key()) is None:
                    asked_at = time.monotonic()
                    lease = runtime.committer.run_now(lambda tx: self._take(tx, runtime.name))
                    if self._keep(runtime, lease, asked_at):
                        return True
                time.sleep(pause)
        except BaseException:
            # Of a thread that is struck: nobody would give it back.
            self._let_go(runtime, lease)
            raise
        return False

    def release(self) -> None:
        """Give it back. Raises `LeaseLost` if it was lost before."""
        runtime = self._open()
        lease, was_held = self._drop(runtime)
        is_released = runtime.committer.run_now(lambda tx: tx.leases.release(lease))
        if not (was_held and is_released):
            raise LeaseLost(f"The lock {self.name!r} was lost before it was released.")

    def __enter__(self) -> Lock:
        try:
            if not self.acquire():
                raise self._too_late()
        except BaseException:
            if self._kept is not None:
                self._let_go(self._open(), self._kept.lease)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.release()
        except LeaseLost:
            if kind is None:
                raise


class AsyncLock(_Holder):
    """`async with hub.aio.lock("name") as lock`."""

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Get it, waiting for whoever has it, at most `timeout` seconds. False if it was not
        to be had."""
        runtime = self._may_ask()
        await asyncio.to_thread(runtime.start_reading)
        for pause in self._pauses(blocking, timeout):
            if runtime.store.leases.holder(self._key()) is None:
                asked_at = time.monotonic()
                asking = runtime.committer.run_async(lambda tx: self._take(tx, runtime.name))
                try:
                    lease = await asyncio.shield(asking)
                except asyncio.CancelledError:
                    # It may be ours all the same: nobody would give it back.
                    asking.add_done_callback(lambda done: _undo(runtime, done))
                    raise
                if self._keep(runtime, lease, asked_at):
                    return True
            await asyncio.sleep(pause)
        return False

    async def release(self) -> None:
        """Give it back. Raises `LeaseLost` if it was lost before."""
        runtime = self._open()
        lease, was_held = self._drop(runtime)
        is_released = await asyncio.shield(
            runtime.committer.run_async(lambda tx: tx.leases.release(lease))
        )
        if not (was_held and is_released):
            raise LeaseLost(f"The lock {self.name!r} was lost before it was released.")

    async def __aenter__(self) -> AsyncLock:
        if not await self.acquire():
            raise self._too_late()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.release()
        except LeaseLost:
            if kind is None:
                raise


class Leader(Service):
    """`hub.leader("name")`: of all processes that ask, one leads; when it ends, another does."""

    name = "leader"

    def __init__(self, runtime: Runtime, name: str, lease_seconds: float) -> None:
        super().__init__(runtime.telemetry)
        self._runtime = runtime
        self._lock = Lock(lambda: runtime, name, lease_seconds)
        self._elected = threading.Event()
        self.start()

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now. Asks nobody, and takes no time."""
        return self._lock.is_held

    @property
    def token(self) -> int:
        """Rises with each leader. Raises `LeaseLost` when this process does not lead."""
        return self._lock.token

    def wait(self, timeout: float | None = None) -> bool:
        """Until this process leads. False if it does not after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_leader:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._elected.wait(CAMPAIGN_SECONDS if left is None else min(left, CAMPAIGN_SECONDS))
        return True

    def run_once(self) -> float:
        if not self._lock.is_held:
            self._elected.clear()
            self._let_go()
            try:
                if self._lock.acquire(blocking=False):
                    self._elected.set()
            except HubClosed:
                self._stopping.set()
        return min(CAMPAIGN_SECONDS, self._lock.lease_seconds / 3)

    def __enter__(self) -> Leader:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _on_stop(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        try:
            self._lock.release()
        except (LeaseLost, HubClosed):
            return  # It was not held, or not any more; or the hub has let go of everything.


class Pauses:
    """Between looks: growing, and never in step with others who wait."""

    def __init__(self, timeout: float | None) -> None:
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._pause = LOOK_SECONDS
        self._is_last = False

    def __iter__(self) -> Pauses:
        return self

    def __next__(self) -> float:
        if self._is_last:
            raise StopIteration
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(LOOK_SECONDS_MAX, self._pause * 1.5)
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            # One more look at the end of the time.
            self._is_last = left <= 0
            pause = max(0.0, min(pause, left))
        return pause


def _undo(runtime: Runtime, done: asyncio.Future[Lease | None]) -> None:
    if done.cancelled() or done.exception() is not None:
        return
    lease = done.result()
    if lease is not None:
        runtime.committer.run_quietly(lambda tx: tx.leases.release(lease))


def _nothing() -> None:
    """The lock says it itself: `check()`."""
