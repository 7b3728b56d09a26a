"""One transaction across topics and the user's own tables.

It has its own connection in the caller's thread and takes its turn at the first statement. While
it is open, every other writer waits; a watchdog rolls it back when that takes too long.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextvars import Token
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from penstock.committer import Inside, inside_transaction
from penstock.errors import (
    AlreadyProcessed,
    InProgress,
    InsideTransaction,
    InvalidInput,
    LeaseLost,
    LedgerError,
    TransactionClosed,
    TransactionTimeout,
    Unsupported,
)
from penstock.job import Enqueued, OnConflict, OnParentFailure
from penstock.jobs.enqueueing import encode_job
from penstock.ledger.claim import AsyncClaim, Claim, Holding
from penstock.ledger.terms import make_mark
from penstock.model import Format, NewMessage, Receipt
from penstock.ports import Store, Transaction, Writer
from penstock.service import Service
from penstock.telemetry import Telemetry
from penstock.topics.conflate import Entries
from penstock.topics.followers import AsyncFollower, Follower, Progress
from penstock.topics.publishing import encode_message, prepare_many
from penstock.topics.runtime import Runtime

T = TypeVar("T")

IDLE_WRITERS_MAX = 4
WATCH_SECONDS = 60.0


class HubTransaction:
    """`with hub.transaction() as tx`: all of it happens, or nothing does."""

    def __init__(
        self,
        runtime: Runtime,
        desk: Desk,
        limit_seconds: float,
        *,
        before_commit: Callable[[Transaction], None] | None = None,
        after_commit: Callable[[], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._desk = desk
        self._limit_seconds = limit_seconds
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._mutex = threading.Lock()
        self._writer: Writer | None = None
        self._transaction: Transaction | None = None
        self._taken: dict[str, Entries] = {}
        self._acked: list[tuple[Progress, int, int]] = []
        self._completed: list[Holding] = []
        self._state = "new"
        self._token: Token[Inside | None] | None = None

    # What the user calls

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Run your own statement; returns its rows."""
        if not self._runtime.store.capabilities.sql:
            raise Unsupported("This store runs no SQL.")
        with self._mutex:
            return self._begun().execute(sql, parameters)

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        ttl: float | None = None,
        idempotency_key: str | None = None,
        format: Format | None = None,
    ) -> Receipt:
        """Publish with the transaction: on disk, and visible, when it has been committed."""
        message = encode_message(
            self._runtime.settings, topic, payload, type, key, headers, ttl, idempotency_key, format
        )
        return self._append(topic, [message])[-1]

    def publish_many(
        self,
        topic: str,
        payloads: Iterable[Any],
        *,
        type: str | None = None,
        format: Format | None = None,
    ) -> list[Receipt]:
        """Publish many messages with the transaction."""
        groups = list(prepare_many(self._runtime, topic, payloads, type, format))
        return [receipt for group in groups for receipt in self._append(topic, group)]

    def enqueue(
        self,
        queue: str,
        type: str,
        payload: Any = None,
        *,
        delay: float | None = None,
        at: datetime | float | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        deadline: datetime | float | None = None,
        timeout: float | None = None,
        unique_key: str | None = None,
        unique_seconds: float | None = None,
        on_conflict: OnConflict = "reject",
        after: Iterable[int | Enqueued] = (),
        on_parent_failure: OnParentFailure = "cancel",
    ) -> Enqueued:
        """Enqueue a job with the transaction: workers see it when it has been committed."""
        runtime = self._runtime
        job = encode_job(
            runtime.settings,
            runtime.clock,
            queue,
            type,
            payload,
            delay=delay,
            at=at,
            priority=priority,
            max_attempts=max_attempts,
            deadline=deadline,
            timeout=timeout,
            unique_key=unique_key,
            unique_seconds=unique_seconds,
            on_conflict=on_conflict,
            after=after,
            on_parent_failure=on_parent_failure,
        )
        with self._mutex:
            transaction = self._begun()
            with transaction.savepoint():
                return transaction.jobs.enqueue([job], now=runtime.clock.now())[0]

    def ack(self, follower: Follower | AsyncFollower) -> None:
        """Commit what the follower has handed out with the transaction: both happen, or neither.

        So the effects of a message on your own tables, and on topics, happen exactly once.
        """
        if not follower.belongs_to(self._runtime):
            # Another file may know a consumer of this name, and would believe it.
            raise InvalidInput(
                "The follower belongs to another hub.",
                hint="Acknowledge in a transaction of the hub that it was made with.",
            )
        with self._mutex:
            try:
                position = follower.ack_in(self._begun())
                self._acked.append((follower, position, follower.to_mark))
            except LeaseLost:
                # Somebody else does this work now: these effects must not stay, come what may.
                self._roll_back("closed")
                raise

    def mark_processed(
        self, scope: str, key: str, *, ttl: float | None = None, payload: Any = None
    ) -> None:
        """Enter the key in the ledger with the transaction.

        Raises `AlreadyProcessed`, or `InProgress` if somebody has claimed it; then all of the
        transaction is rolled back.
        """
        runtime = self._runtime
        mark = make_mark(scope, key, ttl, payload)
        with self._mutex:
            transaction = self._begun()
            try:
                with transaction.savepoint():
                    if not transaction.ledger.mark([mark], now=runtime.clock.now())[0]:
                        raise self._known(scope, key)
            except LedgerError:
                self._roll_back("closed")
                raise

    def complete(self, claim: Claim | AsyncClaim) -> None:
        """Complete a claim with the transaction, so that its work's effects happen exactly once.

        Raises `LeaseLost` if somebody else has taken over; then all of it is rolled back.
        """
        if not claim.belongs_to(self._runtime):
            raise InvalidInput(
                "The claim belongs to another hub.",
                hint="Complete it in a transaction of the hub that it was made with.",
            )
        with self._mutex:
            try:
                claim.complete_in(self._begun())
            except LeaseLost:
                self._roll_back("closed")
                raise
            self._completed.append(claim)

    # Its life

    def __enter__(self) -> HubTransaction:
        if inside_transaction.get():
            raise InsideTransaction("Transactions cannot be nested.")
        assert self._state == "new", "a transaction is used once"
        self._state = "open"
        self._inside = Inside()
        self._token = inside_transaction.set(self._inside)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave()
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def commit(self) -> None:
        with self._mutex:
            self._check_open()
            if self._before_commit is not None:
                try:
                    self._before_commit(self._begun())
                except BaseException:
                    self._roll_back("closed")
                    raise
            self._state = "closed"
            if self._writer is None:
                return
            assert self._transaction is not None
            try:
                appended = self._transaction.topics.appended()
                self._writer.commit()
            except BaseException:
                self._writer.rollback()  # If a thread was struck before it came to commit.
                self._give_back_entries()
                raise
            finally:
                self._desk.leave(self)
                self._desk.return_writer(self._writer)
        if self._after_commit is not None:
            self._after_commit()
        for follower, position, marked in self._acked:
            follower.acked(position, marked)
        for claim in self._completed:
            claim.completed()
        self._runtime.committer.announce(appended)

    def rollback(self) -> None:
        with self._mutex:
            self._roll_back("closed")

    def expire(self) -> None:
        """From the watchdog: end it, whatever its thread is doing."""
        while not self._mutex.acquire(timeout=0.01):
            # Whoever holds the mutex is running a statement of this transaction.
            writer = self._writer
            if writer is not None and self._state == "open":
                writer.interrupt()
        try:
            self._roll_back("expired")
        finally:
            self._mutex.release()

    def _append(self, topic: str, messages: Sequence[NewMessage]) -> list[Receipt]:
        with self._mutex:
            transaction = self._begun()
            conflator = self._runtime.conflator
            entries = conflator.take(topic)
            try:
                batch = conflator.messages(topic, entries)
                # A refused key may be caught, and the transaction go on without these messages.
                with transaction.savepoint():
                    receipts = transaction.topics.append(
                        [*batch, *messages] if batch else messages,
                        producer=self._runtime.name,
                        now=self._runtime.clock.now(),
                    )
            except BaseException:
                conflator.give_back(topic, entries)
                raise
            if entries:
                self._taken.setdefault(topic, {}).update(entries)
        return [msgspec.structs.replace(r, durable=False) for r in receipts[len(batch) :]]

    def _known(self, scope: str, key: str) -> LedgerError:
        """Why it was not marked."""
        now = self._runtime.clock.now()
        found = self._runtime.store.ledger.get(scope, key, now=now)
        if found is not None and found.is_held:
            return InProgress(f"Somebody else is at {key!r} in {scope!r}.")
        return AlreadyProcessed(f"{key!r} in {scope!r} was processed before.")

    def _begun(self) -> Transaction:
        """Under the mutex: the store's transaction, begun with the first statement."""
        self._check_open()
        if self._transaction is None:
            writer = self._desk.take_writer()
            try:
                self._transaction = writer.begin()
            except BaseException:
                # It may have begun, if it is this thread that is told to stop.
                writer.rollback()
                self._desk.return_writer(writer)
                raise
            self._writer = writer
            self._desk.watch(self, time.monotonic() + self._limit_seconds)
        return self._transaction

    def _check_open(self) -> None:
        if self._state == "expired":
            raise TransactionTimeout(
                f"The transaction was open for more than {self._limit_seconds} seconds "
                "and was rolled back."
            )
        if self._state != "open":
            raise TransactionClosed

    def _roll_back(self, state: str) -> None:
        if self._state != "open":
            return
        self._state = state
        if self._writer is not None:
            try:
                self._writer.rollback()
            finally:
                self._desk.leave(self)
                self._desk.return_writer(self._writer)
                self._give_back_entries()

    def _give_back_entries(self) -> None:
        for topic, entries in self._taken.items():
            self._runtime.conflator.give_back(topic, entries)

    def _leave(self) -> None:
        assert self._token is not None
        self._inside.is_open = False
        inside_transaction.reset(self._token)


class AsyncHubTransaction:
    """`async with hub.aio.transaction() as tx`: the same, with statements run by a thread."""

    def __init__(self, transaction: HubTransaction, executor: Executor) -> None:
        self._transaction = transaction
        self._executor = executor

    async def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Run your own statement; returns its rows."""
        return await self._call(lambda: self._transaction.execute(sql, parameters))

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        ttl: float | None = None,
        idempotency_key: str | None = None,
        format: Format | None = None,
    ) -> Receipt:
        """Publish with the transaction: on disk, and visible, when it has been committed."""
        return await self._call(
            lambda: self._transaction.publish(
                topic,
                payload,
                type=type,
                key=key,
                headers=headers,
                ttl=ttl,
                idempotency_key=idempotency_key,
                format=format,
            )
        )

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[Any],
        *,
        type: str | None = None,
        format: Format | None = None,
    ) -> list[Receipt]:
        """Publish many messages with the transaction."""
        return await self._call(
            lambda: self._transaction.publish_many(topic, payloads, type=type, format=format)
        )

    async def enqueue(
        self,
        queue: str,
        type: str,
        payload: Any = None,
        *,
        delay: float | None = None,
        at: datetime | float | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        deadline: datetime | float | None = None,
        timeout: float | None = None,
        unique_key: str | None = None,
        unique_seconds: float | None = None,
        on_conflict: OnConflict = "reject",
        after: Iterable[int | Enqueued] = (),
        on_parent_failure: OnParentFailure = "cancel",
    ) -> Enqueued:
        """Enqueue a job with the transaction: workers see it when it has been committed."""
        return await self._call(
            lambda: self._transaction.enqueue(
                queue,
                type,
                payload,
                delay=delay,
                at=at,
                priority=priority,
                max_attempts=max_attempts,
                deadline=deadline,
                timeout=timeout,
                unique_key=unique_key,
                unique_seconds=unique_seconds,
                on_conflict=on_conflict,
                after=after,
                on_parent_failure=on_parent_failure,
            )
        )

    async def ack(self, follower: Follower | AsyncFollower) -> None:
        """Commit what the follower has handed out with the transaction: both happen, or neither."""
        await self._call(lambda: self._transaction.ack(follower))

    async def mark_processed(
        self, scope: str, key: str, *, ttl: float | None = None, payload: Any = None
    ) -> None:
        """Enter the key in the ledger with the transaction. Raises `AlreadyProcessed`."""
        await self._call(
            lambda: self._transaction.mark_processed(scope, key, ttl=ttl, payload=payload)
        )

    async def complete(self, claim: Claim | AsyncClaim) -> None:
        """Complete a claim with the transaction, so that its work's effects happen exactly once."""
        await self._call(lambda: self._transaction.complete(claim))

    async def __aenter__(self) -> AsyncHubTransaction:
        self._transaction.__enter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._transaction._leave()
        end = self._transaction.commit if kind is None else self._transaction.rollback
        # Also if this task is cancelled before a thread has come to it: one that nobody ends keeps
        # all others from writing.
        await asyncio.shield(self._call(end))

    async def _call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


class Desk(Service):
    """Writers for transactions, and the watchdog that ends those that stay too long."""

    name = "transactions"

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._store = store
        self._idle: list[Writer] = []
        self._watched: dict[HubTransaction, float] = {}
        self._lock = threading.Lock()
        self._next_look = 0.0

    def take_writer(self) -> Writer:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._store.open_writer()

    def return_writer(self, writer: Writer) -> None:
        with self._lock:
            if len(self._idle) < IDLE_WRITERS_MAX and not self._stopping.is_set():
                self._idle.append(writer)
                return
        writer.close()

    def watch(self, transaction: HubTransaction, deadline: float) -> None:
        with self._lock:
            self._watched[transaction] = deadline
            is_sooner = deadline < self._next_look
        self.start()
        if is_sooner:
            self.nudge()

    def leave(self, transaction: HubTransaction) -> None:
        with self._lock:
            self._watched.pop(transaction, None)

    def run_once(self) -> float:
        now = time.monotonic()
        with self._lock:
            overdue = [tx for tx, deadline in self._watched.items() if deadline <= now]
        for transaction in overdue:
            transaction.expire()
        with self._lock:
            now = time.monotonic()
            soonest = min(self._watched.values(), default=now + WATCH_SECONDS)
            self._next_look = soonest
        return max(0.001, soonest - now)

    def _on_stop(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for writer in idle:
            writer.close()
