"""Group commit: one writing thread per process, many callers, one transaction.

The committer takes whatever waits, runs it in one transaction and answers all callers when it is
on disk. A thread that comes alone writes by itself. One failing operation fails its own caller
only: what can fail by its nature runs in a savepoint, and when the store undoes a whole
transaction (a full disk does that), the group is run again one by one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from penstock import signals
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
)
from penstock.job import Enqueued, NewJob
from penstock.model import Message, NewMessage, Receipt
from penstock.operation import (
    UNSET,
    Batch,
    Kind,
    Operation,
    appending,
    as_batch,
    enqueueing,
    in_batches,
    marking,
    running,
)
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
        # Whoever has it writes: our thread, or a caller's.
        self._turn = threading.Lock()
        self._was_cut_short = False
        self._who_writes = 0
        self._has_begun = False
        self._is_closed = False
        self._has_ended = False
        self.on_appended: Callable[[list[Message]], None] | None = None
        """Gets what was just committed, in id order, on the thread that wrote it."""
        self.on_start: Callable[[], None] | None = None
        """Called before the first write."""
        self.on_commit: Callable[[int], None] | None = None
        """Gets the number of messages just committed."""

    # What callers use

    def append(self, messages: Sequence[NewMessage]) -> Operation[list[Receipt]]:
        """Append them, in order, in one transaction."""
        return self._submit(appending(messages))

    def append_now(
        self, messages: Sequence[NewMessage], timeout_seconds: float | None = None
    ) -> list[Receipt]:
        """The same, and wait for it."""
        return self._do(appending(messages), timeout_seconds)

    def append_one_now(self, message: NewMessage, timeout_seconds: float | None = None) -> Receipt:
        operation: Operation[Receipt] = Operation(
            None,
            (message,),
            is_single=True,
            can_fail=message.idempotency_key is not None,
            weight=len(message.body),
            done=held_lock(),
        )
        return self._do(operation, timeout_seconds)

    def enqueue(self, jobs: Sequence[NewJob]) -> Operation[list[Enqueued]]:
        """Enqueue them, in order, in one transaction."""
        return self._submit(enqueueing(jobs))

    def enqueue_now(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._do(enqueueing(jobs))

    def enqueue_one_async(self, job: NewJob) -> asyncio.Future[Enqueued]:
        future: asyncio.Future[Enqueued] = asyncio.Future()
        can_fail = not job.is_plain
        self._submit(Operation(None, (job,), Kind.ENQUEUE, future, True, can_fail, len(job.body)))
        return future

    def mark(self, marks: Sequence[NewMark]) -> Operation[list[bool]]:
        """Mark them in the ledger, in one transaction."""
        return self._submit(marking(marks))

    def mark_now(self, marks: Sequence[NewMark]) -> list[bool]:
        return self._do(marking(marks))

    def mark_one_async(self, mark: NewMark) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.Future()
        self._submit(Operation(None, (mark,), Kind.MARK, future, True, mark.hash is not None))
        return future

    def mark_async(self, marks: Sequence[NewMark]) -> asyncio.Future[list[bool]]:
        future: asyncio.Future[list[bool]] = asyncio.Future()
        self._submit(marking(marks, future))
        return future

    def run(self, write: Callable[[Transaction], T]) -> Operation[T]:
        """Run `write` inside the next transaction; its failure is its caller's alone."""
        return self._submit(running(write))

    def run_now(self, write: Callable[[Transaction], T]) -> T:
        return self._do(running(write))

    def append_async(self, messages: Sequence[NewMessage]) -> asyncio.Future[list[Receipt]]:
        future: asyncio.Future[list[Receipt]] = asyncio.Future()
        self._submit(appending(messages, future))
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
        future: asyncio.Future[T] = asyncio.Future()
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
        self._submit(running(write, future, is_light=is_light))

    def run_quietly(self, write: Callable[[Transaction], object]) -> None:
        """From a finalizer: nobody waits, and nothing is raised if there is no room or no hub."""
        if not self._is_closed and len(self._queue) < self._queue_max:
            self._queue.append(running(write))
            self.nudge()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_idle(self) -> bool:
        """Whether nobody writes, and nobody waits for it."""
        return self._is_asleep and not self._queue and not self._turn.locked()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def stop(self, timeout_seconds: float | None = None) -> None:
        """Write what waits, then end. Later calls raise `HubClosed`."""
        self._is_closed = True
        super().stop(timeout_seconds)

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
                self._alarm.sleep()
        self._is_asleep = False
        self._commit_all()
        return 0.0

    def _on_start(self) -> None:
        if self.on_start is not None:
            self.on_start()
        self._has_begun = True

    def _on_stop(self) -> None:
        self._commit_all()
        with self._turn:
            self._has_ended = True
            self._is_asleep = True
            refuse_all(self._queue)
            self._leave_desk()

    def _commit_all(self) -> None:
        while self._queue:
            with self._turn:
                self._tidy_up()
                self._who_writes = threading.get_ident()
                self._commit(*self._next_group())
                self._who_writes = 0

    # A caller's thread

    def _do(self, operation: Operation[T], timeout_seconds: float | None = None) -> T:
        """The result, once it is on disk.

        If nobody is writing, the calling thread does it by itself: to wake ours, and to be woken
        by it, takes a good part of the time that a commit takes. Not if it wants to stop waiting
        at some time, which it can only beside somebody who goes on; nor where a signal's handler
        may run in the middle of it, and want to write.
        """
        if timeout_seconds is None and self.is_idle and not signals.may_run_here():
            self._check_open()
            # Nothing but `with` gives a lock back wherever a signal strikes.
            with self._turn:
                if self._has_begun and not self._queue and not self._has_ended:
                    self._tidy_up()
                    self._commit_alone(operation)
                    return operation.outcome()
        return self._submit(operation).wait(timeout_seconds)

    def _commit_alone(self, operation: Operation[Any]) -> None:
        """Other than ours, this thread can be struck anywhere: by a signal, by the end of a job's
        time. Then nobody knows how far it came, and the next begins from scratch."""
        self._was_cut_short = True
        self._who_writes = threading.get_ident()
        try:
            self._commit([operation], [as_batch([operation])])
        except BaseException:
            self._tidy_up()
            raise
        self._who_writes = 0
        self._was_cut_short = False

    def _tidy_up(self) -> None:
        if self._was_cut_short:
            self._who_writes = 0
            self._leave_desk()
            self._was_cut_short = False

    def _leave_desk(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _check_open(self) -> None:
        if inside_transaction.get():
            raise InsideTransaction
        if self._is_closed:
            raise HubClosed

    # For both

    def _submit(self, operation: Operation[T]) -> Operation[T]:
        self._check_open()
        if operation.done is not None and self._who_writes == threading.get_ident():
            raise InsideTransaction(
                "This thread is in the middle of another write.",
                hint="It was called from a finalizer, a signal's handler or a telemetry handler; "
                "have another thread write.",
            )
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
        try:
            # Once per sleep: the thread itself may be long in getting the interpreter's lock. And
            # with no step in between: whoever was struck there would leave it asleep for good.
            self._is_asleep = False
            self._alarm.bed.release()
        except RuntimeError:
            pass  # It was rung for.
        if self._has_ended or self._thread is None:
            self._is_asleep = True
            refuse_all(self._queue)

    def _next_group(self) -> tuple[list[Operation[Any]], list[Batch]]:
        """As much as one transaction may hold; at least one operation. And the same in batches."""
        group, _, _ = take(
            self._queue,
            count_max=self._settings.commit_group_max,
            bytes_max=self._settings.commit_bytes_max,
        )
        return group, in_batches(group)

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
                    operation.result, operation.error = UNSET, None
                    self._commit([operation], [as_batch([operation])])
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
            operation.result, operation.error = UNSET, error
