"""Messages on their way to their boxes, and who waits for them: what is taken at once, and who
gets which answer.

A delivery is a tuple and not an object of its own: it is made by one thread and used by another,
and what one core has made the other has to fetch.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from penstock.callers import held_lock
from penstock.errors import WriteTimeout
from penstock.mail import NewMail
from penstock.mailboxes.round import Answer, Group, Request


class Ticket:
    """A thread that waits for its answers."""

    __slots__ = ("_done", "answers", "error")

    def __init__(self) -> None:
        self._done: threading.Lock = held_lock()
        self.answers: list[Answer] = []
        self.error: BaseException | None = None

    def wait(self, timeout_seconds: float | None = None) -> list[Answer]:
        if not self._done.acquire(timeout=-1 if timeout_seconds is None else timeout_seconds):
            raise WriteTimeout(f"The put was not acknowledged within {timeout_seconds} seconds.")
        self._done.release()
        if self.error is not None:
            raise self.error
        return self.answers

    def tell(self) -> None:
        self._done.release()


Waiting = Ticket | asyncio.Future[Any]
Delivery = tuple[str, list[NewMail], Waiting, bool]
"""The box, what is to be put into it, who waits for it, and whether that is one who put a single
message and wants its answer itself, not a list."""


class Round(msgspec.Struct, eq=False):
    """Deliveries that are in their boxes."""

    deliveries: Sequence[Delivery]
    answers: list[Answer]
    """One for each of their messages."""
    group: Group
    """What is to be on disk before they are told."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop that all of them are of, if they are of one."""

    def answer(self) -> None:
        if self.loop is None:
            answer(self.deliveries, self.answers)
            return
        try:
            self.loop.call_soon_threadsafe(self.answer_here)
        except RuntimeError:
            return  # The loop has ended, and its tasks with it.

    def answer_here(self) -> None:
        """On the loop that all are of."""
        answers, start = self.answers, 0
        for _, mails, future, is_single in self.deliveries:
            assert not isinstance(future, Ticket)
            if is_single:
                result: Any = answers[start]
                start += 1
            else:
                end = start + len(mails)
                result = answers[start:end]
                start = end
            try:
                future.set_result(result)
            except asyncio.InvalidStateError:
                continue  # Cancelled, or timed out.


def take(
    queue: deque[Delivery], *, count_max: int, bytes_max: int
) -> tuple[list[Delivery], int, int]:
    """From the queue's beginning, as many as stay within the limits; the first in any case.
    How many messages they bring, and the bytes of these.

    By the one who empties the queue; others may add to it meanwhile.
    """
    taken: list[Delivery] = []
    count = size = 0
    while queue:
        mails = queue[0][1]
        new_count, new_size = count + len(mails), size
        for mail in mails:
            new_size += len(mail.body) + len(mail.attributes)
        if taken and (new_count > count_max or new_size > bytes_max):
            break
        count, size = new_count, new_size
        taken.append(queue.popleft())
    return taken, count, size


def requests_of(group: Sequence[Delivery]) -> Sequence[Request]:
    """One for each box."""
    boxes: dict[str, list[NewMail]] = {delivery[0]: [] for delivery in group}
    if len(boxes) == len(group):
        return group
    # Lists of their own: these are their callers'.
    for box, mails, _, _ in group:
        boxes[box] += mails
    return list(boxes.items())


def in_order(
    group: Sequence[Delivery], requests: Sequence[Request], answers: list[Answer]
) -> list[Answer]:
    """The answers to requests, one for each message, in the order of the deliveries."""
    if len(group) == len(requests):
        return answers
    left = iter(answers)
    of_box = {box: iter([next(left) for _ in mails]) for box, mails, *_ in requests}
    return [next(of_box[box]) for box, mails, _, _ in group for _ in mails]


def parted(
    group: Sequence[Delivery], answers: list[Answer], is_late: Callable[[Delivery], bool]
) -> tuple[list[Delivery], list[Delivery], list[Answer]]:
    """Those that come later, the others, and the answers to these."""
    late: list[Delivery] = []
    others: list[Delivery] = []
    kept: list[Answer] = []
    left = iter(answers)
    for delivery in group:
        own = [next(left) for _ in delivery[1]]
        if is_late(delivery):
            late.append(delivery)
        else:
            others.append(delivery)
            kept += own
    return late, others, kept


def answer(group: Sequence[Delivery], answers: list[Answer]) -> None:
    """Each its own, all at once: one wake for each event loop, whatever the number of its tasks."""
    loops: dict[asyncio.AbstractEventLoop, tuple[list[asyncio.Future[Any]], list[Any]]] = {}
    last: asyncio.AbstractEventLoop | None = None
    futures: list[asyncio.Future[Any]] = []
    results: list[Any] = []
    start = 0
    for _, mails, waiting, is_single in group:
        end = start + len(mails)
        if isinstance(waiting, Ticket):
            waiting.answers = answers[start:end]
            waiting.tell()
        else:
            loop = waiting.get_loop()
            if loop is not last:  # Most are of one loop.
                last = loop
                futures, results = loops.setdefault(loop, ([], []))
            futures.append(waiting)
            results.append(answers[start] if is_single else answers[start:end])
        start = end
    for loop, (futures, results) in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, futures, results)
        except RuntimeError:
            continue  # The loop has ended, and its tasks with it.


def refuse(group: Iterable[Delivery], error: BaseException) -> None:
    for _, _, waiting, _ in group:
        if isinstance(waiting, Ticket):
            waiting.error = error
            waiting.tell()
            continue
        try:
            waiting.get_loop().call_soon_threadsafe(_fail, waiting, error)
        except RuntimeError:
            continue


def refuse_all(queue: deque[Delivery], error: BaseException) -> None:
    """Those who came through the door while it was closing. By anybody."""
    while True:
        try:
            late = queue.popleft()
        except IndexError:
            return
        refuse([late], error)


def _resolve(futures: list[asyncio.Future[Any]], results: list[Any]) -> None:
    for future, result in zip(futures, results, strict=True):
        try:
            future.set_result(result)
        except asyncio.InvalidStateError:
            continue  # Cancelled, or timed out.


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
