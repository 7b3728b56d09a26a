"""One thread that works for many callers: how much it takes at once, and how it answers them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from penstock.errors import HubClosed


class Caller(Protocol):
    """Somebody who waits: a task for its future, a thread for its lock."""

    future: asyncio.Future[Any] | None
    done: threading.Lock | None
    count: int
    """So many things it brings."""
    weight: int
    """Their bytes."""
    result: Any
    error: BaseException | None


C = TypeVar("C", bound=Caller)


def take(queue: deque[C], *, count_max: int, bytes_max: int) -> tuple[list[C], int, int]:
    """From the queue's beginning, as many as stay within the limits; the first in any case.
    How many things they bring, and the bytes of these.

    By the one who empties the queue; others may add to it meanwhile.
    """
    taken: list[C] = []
    count = size = 0
    while queue:
        first = queue[0]
        new_count, new_size = count + first.count, size + first.weight
        if taken and (new_count > count_max or new_size > bytes_max):
            break
        count, size = new_count, new_size
        taken.append(queue.popleft())
    return taken, count, size


def refuse_all(queue: deque[C]) -> None:
    """Those who came through the door while it was closing. By anybody."""
    while True:
        try:
            late = queue.popleft()
        except IndexError:
            return
        late.error = HubClosed()
        answer([late])


def answer(callers: Sequence[Caller]) -> None:
    """All at once: one wake for each event loop, whatever the number of its tasks."""
    loops: dict[asyncio.AbstractEventLoop, list[Caller]] = {}
    last: asyncio.AbstractEventLoop | None = None
    tasks: list[Caller] = []
    for caller in callers:
        future = caller.future
        if future is None:
            assert caller.done is not None, "it is a thread that waits"
            caller.done.release()
            continue
        loop = future.get_loop()
        if loop is not last:  # Most are of one loop.
            last, tasks = loop, loops.setdefault(loop, [])
        tasks.append(caller)
    for loop, tasks in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, tasks)
        except RuntimeError:
            continue  # The loop has ended, and its tasks with it.


def _resolve(callers: list[Caller]) -> None:
    for caller in callers:
        future = caller.future
        assert future is not None, "a thread waits for its lock"
        try:
            if caller.error is None:
                future.set_result(caller.result)
            else:
                future.set_exception(caller.error)
        except asyncio.InvalidStateError:
            continue  # Cancelled, or timed out.


def held_lock() -> threading.Lock:
    """For a thread to wait at, until it is released."""
    lock = threading.Lock()
    lock.acquire()
    return lock
