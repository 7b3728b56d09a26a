"""What is to be written, and who waits for it."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Generic, TypeVar

import msgspec

from penstock.callers import held_lock
from penstock.entry import NewMark
from penstock.errors import WriteTimeout
from penstock.job import Enqueued, NewJob
from penstock.model import Alike, NewMessage, Receipt
from penstock.ports import Transaction

T = TypeVar("T")

UNSET: Any = object()


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
    count: int = 1
    """So many things are written for it."""
    is_light: bool = False
    """It may be lost with the power: whoever would miss it is lost, too."""
    done: threading.Lock | None = None
    result: T = UNSET
    error: BaseException | None = None

    def wait(self, timeout_seconds: float | None = None) -> T:
        """The result, once it is on disk. The write goes on if the caller stops waiting."""
        assert self.done is not None, "an asyncio caller awaits its future"
        if not self.done.acquire(timeout=-1 if timeout_seconds is None else timeout_seconds):
            raise WriteTimeout(f"The write was not acknowledged within {timeout_seconds} seconds.")
        self.done.release()
        return self.outcome()

    def outcome(self) -> T:
        """Of one that is done."""
        if self.error is not None:
            raise self.error
        return self.result

    @property
    def is_done(self) -> bool:
        return self.result is not UNSET or self.error is not None


class Batch(msgspec.Struct, gc=False):
    """Operations of one kind that go to the store in one call; or one that can fail, alone."""

    kind: Kind
    operations: list[Operation[Any]]
    items: Sequence[Any]
    can_fail: bool


def appending(
    messages: Sequence[NewMessage], future: asyncio.Future[list[Receipt]] | None = None
) -> Operation[list[Receipt]]:
    assert messages, "nothing to append"
    can_fail = not isinstance(messages, Alike) and any(
        message.idempotency_key is not None for message in messages
    )
    return _many(Kind.APPEND, messages, can_fail, _weigh(messages), future)


def enqueueing(jobs: Sequence[NewJob]) -> Operation[list[Enqueued]]:
    assert jobs, "nothing to enqueue"
    can_fail = not all(job.is_plain for job in jobs)
    return _many(Kind.ENQUEUE, jobs, can_fail, _weigh(jobs))


def marking(
    marks: Sequence[NewMark], future: asyncio.Future[list[bool]] | None = None
) -> Operation[list[bool]]:
    assert marks, "nothing to mark"
    can_fail = any(mark.hash is not None for mark in marks)
    return _many(Kind.MARK, marks, can_fail, 0, future)


def running(
    write: Callable[[Transaction], T],
    future: asyncio.Future[T] | None = None,
    *,
    is_light: bool = False,
) -> Operation[T]:
    return Operation(
        write,
        (),
        Kind.RUN,
        future,
        can_fail=True,
        is_light=is_light,
        done=held_lock() if future is None else None,
    )


def _many(
    kind: Kind,
    items: Sequence[Any],
    can_fail: bool,
    weight: int,
    future: asyncio.Future[Any] | None = None,
) -> Operation[Any]:
    return Operation(
        None,
        items,
        kind,
        future,
        can_fail=can_fail,
        weight=weight,
        count=len(items),
        done=held_lock() if future is None else None,
    )


def _weigh(items: Sequence[NewMessage] | Sequence[NewJob]) -> int:
    if isinstance(items, Alike):
        return sum(map(len, items.bodies))
    return sum(len(item.body) for item in items)


def in_batches(group: list[Operation[Any]]) -> list[Batch]:
    """Neighbours of one kind together; what can fail stays alone. Most groups are one batch."""
    kinds = {operation.kind for operation in group}
    if len(kinds) == 1 and {operation.can_fail for operation in group} == {False}:
        return [as_batch(group)]
    batches: list[Batch] = []
    for (_, can_fail), same in groupby(group, key=lambda one: (one.kind, one.can_fail)):
        operations = list(same)
        if can_fail:
            batches += [as_batch([operation]) for operation in operations]
        else:
            batches.append(as_batch(operations))
    return batches


def as_batch(operations: list[Operation[Any]]) -> Batch:
    first = operations[0]
    if len(operations) == 1:
        return Batch(first.kind, operations, first.items, first.can_fail)
    items = [item for operation in operations for item in operation.items]
    return Batch(first.kind, operations, items, False)
