"""Group commit: one writing thread per process, many callers, one transaction.

The committer takes whatever waits, runs it in one transaction and answers all callers when it is
on disk. One failing operation fails its own caller only: what can fail by its nature runs in a
savepoint, and when the store undoes a whole transaction (a full disk does that), the group is
run again one by one.
"""

from __future__ import annotations

import asyncio
import enum
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Generic, TypeVar

import msgspec

from penstock.callers import answer, held_lock, refuse_all, take
from penstock.clock import Clock, Micros
from penstock.entry import NewMark
from penstock.errors import (
    HubClosed,
    InsideTransaction,
    OutcomeUnknown,
    PenstockError,
    QueueFull,
    StoreBusy,
    StoreReplaced,
    WriteTimeout,
)
from penstock.job import Enqueued, NewJob
from penstock.model import Alike, Message, NewMessage, Receipt
from penstock.ports import Store, Transaction, Writer
from penstock.service import Service
from penstock.settings import Settings
from penstock.telemetry import Telemetry

T = TypeVar("T")


class Inside:
    """True until the transaction ends, also for tasks that were started in it and live on."""

    __slots__ = ("is_open",)

    def __init__(self) -> None:
        self.is_open = True

    def __bool__(self) -> bool:
        return self.is_open


inside_transaction: ContextVar[Inside | None] = ContextVar(
    "penstock_inside_transaction", default=None
)
"""True in the code of a `with hub.transaction()` block, where waiting for the committer is a
deadlock: it waits for that very transaction."""

_UNSET: Any = object()


class Kind(enum.IntEnum):
    """What an operation writes: many of one kind go to the store in one call."""

    APPEND = 0
    ENQUEUE = 1
    MARK = 2
    RUN = 3


class Operation(msgspec.Struct, Generic[T]):
    """Something to write, and who waits for it. Answered once.

    A struct, because one is made for each publish: it costs a third of a class.
    """

    run: Callable[[Transaction], T] | None
    items: Sequence[Any]
    kind: Kind = Kind.APPEND
    future: asyncio.Future[T] | None = None
    is_single: bool = False
    """Its result is the receipt itself, not a list of receipts."""
    can_fail: bool = False
    """Whether the store may refuse it for what it says, as under a key that is taken."""
    weight: int = 0
    """Bytes of its payloads."""
    is_light: bool = False
    """It may be lost with the power: whoever would miss it is lost, too."""
    done: threading.Lock | None = None
    result: T = _UNSET
    error: BaseException | None = None

    def wait(self, timeout_seconds: float | None = None) -> T:
        """The result, once it is on disk. The write goes on if the caller stops waiting."""
        assert self.done is not None, "an asyncio caller awaits its future"
        if not self.done.acquire(timeout=-1 if timeout_seconds is None else timeout_seconds):
            raise WriteTimeout(f"The write was not acknowledged within {timeout_seconds} seconds.")
        self.done.release()
        if self.error is not None:
            raise self.error
        return self.result

    @property
    def is_done(self) -> bool:
        return self.result is not _UNSET or self.error is not None


class Batch(msgspec.Struct, gc=False):
    """Operations of one kind that go to the store in one call; or one that can fail, alone."""

    kind: Kind
    operations: list[Operation[Any]]
    items: Sequence[Any]
    can_fail: bool


class Committer(Service):
    name = "committer"

    def __init__(
        self, store: Store, settings: Settings, clock: Clock, producer: str, telemetry: Telemetry
    ) -> None:
        super().__init__(telemetry)
        self._store = store
        self._settings = settings
        self._clock = clock
        self._producer = producer
        self._writer: Writer | None = None
        self._queue: deque[Operation[Any]] = deque()
        self._queue_max = settings.write_queue_max
        # Nobody is at the queue: before the thread starts, while it sleeps, after it has ended.
        self._is_asleep = True
        # Locked while there is no reason to wake up: an Event takes five times as long.
        self._bed = held_lock()
        self._is_closed = False
        self._has_ended = False
        self.on_appended: Callable[[list[Message]], None] | None = None
        """Gets what was just committed, in id order, on the committer's thread."""
        self.on_start: Callable[[], None] | None = None
        """Called before the first write."""
        self.on_commit: Callable[[int], None] | None = None
        """Gets the number of messages just committed."""

    # What callers use

    def append(self, messages: Sequence[NewMessage]) -> Operation[list[Receipt]]:
        """Append them, in order, in one transaction."""
        assert messages, "nothing to append"
        return self._submit(
            Operation(
                None,
                messages,
                can_fail=_have_keys(messages),
                weight=_weigh(messages),
                done=held_lock(),
            )
        )

    def append_one(self, message: NewMessage) -> Operation[Receipt]:
        return self._submit(
            Operation(
                None,
                (message,),
                is_single=True,
                can_fail=message.idempotency_key is not None,
                weight=len(message.body),
                done=held_lock(),
            )
        )

    def enqueue(self, jobs: Sequence[NewJob]) -> Operation[list[Enqueued]]:
        """Enqueue them, in order, in one transaction."""
        assert jobs, "nothing to enqueue"
        can_fail = not all(job.is_plain for job in jobs)
        return self._submit(
            Operation(
                None,
                jobs,
                Kind.ENQUEUE,
                can_fail=can_fail,
                weight=_weigh(jobs),
                done=held_lock(),
            )
        )

    def enqueue_one_async(self, job: NewJob) -> asyncio.Future[Enqueued]:
        future: asyncio.Future[Enqueued] = asyncio.Future()
        can_fail = not job.is_plain
        self._submit(Operation(None, (job,), Kind.ENQUEUE, future, True, can_fail, len(job.body)))
        return future

    def mark(self, marks: Sequence[NewMark]) -> Operation[list[bool]]:
        """Mark them in the ledger, in one transaction."""
        assert marks, "nothing to mark"
        can_fail = any(mark.hash is not None for mark in marks)
        return self._submit(Operation(None, marks, Kind.MARK, can_fail=can_fail, done=held_lock()))

    def mark_one_async(self, mark: NewMark) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.Future()
        self._submit(Operation(None, (mark,), Kind.MARK, future, True, mark.hash is not None))
        return future

    def mark_async(self, marks: Sequence[NewMark]) -> asyncio.Future[list[bool]]:
        assert marks, "nothing to mark"
        future: asyncio.Future[list[bool]] = asyncio.Future()
        can_fail = any(mark.hash is not None for mark in marks)
        self._submit(Operation(None, marks, Kind.MARK, future, can_fail=can_fail))
        return future

    def run(self, write: Callable[[Transaction], T]) -> Operation[T]:
        """Run `write` inside the next transaction; its failure is its caller's alone."""
        return self._submit(Operation(write, (), Kind.RUN, can_fail=True, done=held_lock()))

    def append_async(self, messages: Sequence[NewMessage]) -> asyncio.Future[list[Receipt]]:
        assert messages, "nothing to append"
        future: asyncio.Future[list[Receipt]] = asyncio.get_running_loop().create_future()
        can_fail, weight = _have_keys(messages), _weigh(messages)
        self._submit(Operation(None, messages, Kind.APPEND, future, False, can_fail, weight))
        return future

    def append_one_async(self, message: NewMessage) -> asyncio.Future[Receipt]:
        # Belongs to the running loop, too, and asks for it only once.
        future: asyncio.Future[Receipt] = asyncio.Future()
        can_fail, weight = message.idempotency_key is not None, len(message.body)
        self._submit(Operation(None, (message,), Kind.APPEND, future, True, can_fail, weight))
        return future

    def run_async(
        self, write: Callable[[Transaction], T], *, is_light: bool = False
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.run_for(future, write, is_light=is_light)
        return future

    def run_for(
        self,
        future: asyncio.Future[Any],
        write: Callable[[Transaction], object],
        *,
        is_light: bool = False,
    ) -> None:
        """As `run_async`, from any thread, for whoever awaits this future."""
        self._submit(Operation(write, (), Kind.RUN, future, can_fail=True, is_light=is_light))

    def run_quietly(self, write: Callable[[Transaction], object]) -> None:
        """From a finalizer: nobody waits, and nothing is raised if there is no room or no hub."""
        if not self._is_closed and len(self._queue) < self._queue_max:
            self._queue.append(Operation(write, (), Kind.RUN, can_fail=True, done=held_lock()))
            self.nudge()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def stop(self, timeout_seconds: float | None = None) -> None:
        """Write what waits, then end. Later calls raise `HubClosed`."""
        self._is_closed = True
        self._stopping.set()
        self.nudge()
        super().stop(timeout_seconds)

    def nudge(self) -> None:
        try:
            self._bed.release()
        except RuntimeError:
            return  # It is awake already, or about to be.

    def announce(self, appended: list[Message]) -> None:
        """Tell this process about messages that are on disk."""
        if appended:
            if self.on_appended is not None:
                self.on_appended(appended)
            if self.on_commit is not None:
                self.on_commit(len(appended))

    # The thread

    def run_once(self) -> float:
        if not self._queue:
            self._is_asleep = True
            # Whoever appended before seeing the flag is found by this second look.
            if not self._queue and not self._stopping.is_set():
                self._bed.acquire()
            self._is_asleep = False
        while self._queue:
            self._commit(*self._next_group())
        return 0.0

    def _on_start(self) -> None:
        if self.on_start is not None:
            self.on_start()

    def _on_stop(self) -> None:
        while self._queue:
            self._commit(*self._next_group())
        self._has_ended = True
        self._is_asleep = True
        refuse_all(self._queue)
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _submit(self, operation: Operation[T]) -> Operation[T]:
        if inside_transaction.get():
            raise InsideTransaction
        if self._is_closed:
            raise HubClosed
        queue = self._queue
        if len(queue) >= self._queue_max:
            raise QueueFull(f"{len(queue):,} writes are waiting for the disk.")
        queue.append(operation)
        if self._is_asleep:
            self._rouse()
        return operation

    def _rouse(self) -> None:
        if self._thread is None:
            self.start()
        # Once per sleep: the thread itself may be long in getting the interpreter's lock.
        self._is_asleep = False
        self.nudge()
        if self._has_ended or self._thread is None:
            self._is_asleep = True
            refuse_all(self._queue)

    def _next_group(self) -> tuple[list[Operation[Any]], list[Batch]]:
        """As much as one transaction may hold; at least one operation. And the same in batches."""
        group = take(
            self._queue,
            _measure,
            count_max=self._settings.commit_group_max,
            bytes_max=self._settings.commit_bytes_max,
        )
        return group, _batches(group)

    def _commit(self, group: list[Operation[Any]], batches: list[Batch]) -> None:
        appended, count = None, 0
        try:
            appended, count = self._attempt(group, batches)
        except (OutcomeUnknown, StoreBusy, StoreReplaced) as error:
            # Nothing of the group is acknowledged; running it again would not help, or repeat.
            self._fail(group, error)
        except Exception as error:  # noqa: BLE001 - every caller must be answered
            if len(group) == 1:
                if group[0].error is not error:
                    self._fail(group, error)
            else:
                for operation in group:
                    operation.result, operation.error = _UNSET, None
                    self._commit([operation], [_batch([operation])])
                return
        # What goes wrong from here on is no reason to write again: it is on disk.
        try:
            if count:
                self._tell(appended, count)
        finally:
            answer(group)

    def _attempt(
        self, group: list[Operation[Any]], batches: list[Batch]
    ) -> tuple[list[Message] | None, int]:
        started = time.perf_counter()
        if self._writer is None:
            self._writer = self._store.open_writer()
        is_synced = not all(operation.is_light for operation in group)
        with self._writer.transaction(is_synced=is_synced) as transaction:
            now = self._clock.now()
            for batch in batches:
                if not batch.can_fail:
                    self._write(transaction, batch, now)
                elif len(group) == 1:
                    self._write_alone(transaction, batch, now)
                else:
                    self._try(transaction, batch, now)
            appended = transaction.topics.appended() if self.on_appended is not None else None
            count = transaction.topics.appended_count
        self._telemetry.emit(
            "commit",
            operations=len(group),
            messages=count,
            is_synced=is_synced,
            seconds=time.perf_counter() - started,
        )
        return appended, count

    def _tell(self, appended: list[Message] | None, count: int) -> None:
        self._telemetry.count("published", count)
        if appended is not None:
            self.announce(appended)
            return
        if self.on_commit is not None:
            self.on_commit(count)

    def _write_alone(self, transaction: Transaction, batch: Batch, now: Micros) -> None:
        """Without a savepoint: if it fails, there is nothing else to keep."""
        try:
            self._write(transaction, batch, now)
        except PenstockError as error:
            batch.operations[0].error = error
            raise

    def _try(self, transaction: Transaction, batch: Batch, now: Micros) -> None:
        """What can fail by itself fails without the others."""
        try:
            with transaction.savepoint():
                self._write(transaction, batch, now)
        except PenstockError as error:
            batch.operations[0].error = error

    def _write(self, transaction: Transaction, batch: Batch, now: Micros) -> None:
        """Hand items of one kind to the store, and its answers to their operations."""
        kind, operations = batch.kind, batch.operations
        answers: Sequence[Any]
        if kind is Kind.APPEND:
            answers = transaction.topics.append(batch.items, producer=self._producer, now=now)
        elif kind is Kind.ENQUEUE:
            answers = transaction.jobs.enqueue(batch.items, now=now)
        elif kind is Kind.MARK:
            answers = transaction.ledger.mark(batch.items, now=now)
        else:
            operation = operations[0]
            assert operation.run is not None
            operation.result = operation.run(transaction)
            return
        if len(operations) == len(answers):
            for operation, answer in zip(operations, answers, strict=True):
                operation.result = answer if operation.is_single else [answer]
            return
        start = 0
        for operation in operations:
            end = start + len(operation.items)
            operation.result = answers[start] if operation.is_single else answers[start:end]
            start = end

    def _fail(self, group: list[Operation[Any]], error: BaseException) -> None:
        self._telemetry.emit("commit_failed", operations=len(group), error=repr(error))
        for operation in group:
            operation.result, operation.error = _UNSET, error


def _measure(operation: Operation[Any]) -> tuple[int, int]:
    return len(operation.items) or 1, operation.weight


def _batches(group: list[Operation[Any]]) -> list[Batch]:
    """Neighbours of one kind together; what can fail stays alone. Most groups are one batch."""
    kinds = {operation.kind for operation in group}
    if len(kinds) == 1 and {operation.can_fail for operation in group} == {False}:
        return [_batch(group)]
    batches: list[Batch] = []
    for (_, can_fail), same in groupby(group, key=lambda one: (one.kind, one.can_fail)):
        operations = list(same)
        if can_fail:
            batches += [_batch([operation]) for operation in operations]
        else:
            batches.append(_batch(operations))
    return batches


def _batch(operations: list[Operation[Any]]) -> Batch:
    first = operations[0]
    if len(operations) == 1:
        return Batch(first.kind, operations, first.items, first.can_fail)
    items = [item for operation in operations for item in operation.items]
    return Batch(first.kind, operations, items, False)


def _have_keys(messages: Sequence[NewMessage]) -> bool:
    if isinstance(messages, Alike):
        return False
    return any(message.idempotency_key is not None for message in messages)


def _weigh(items: Sequence[NewMessage] | Sequence[NewJob]) -> int:
    if isinstance(items, Alike):
        return sum(map(len, items.bodies))
    return sum(len(item.body) for item in items)
