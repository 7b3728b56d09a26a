"""One thread that works for many callers: how much it takes at once, and how it answers them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Protocol


class Caller(Protocol):
    """Somebody who waits: a task for its future, a thread for its lock."""

    future: asyncio.Future[Any] | None
    done: threading.Lock | None
    result: Any
    error: BaseException | None


def fitting(counts: list[int], sizes: list[int], *, count_max: int, bytes_max: int) -> int:
    """How many of these, from the first on, stay within the limits; the first does in any case."""
    if sum(counts) <= count_max and sum(sizes) <= bytes_max:
        return len(counts)
    count = size = 0
    for place, (more, larger) in enumerate(zip(counts, sizes, strict=True)):
        count += more
        size += larger
        if place and (count > count_max or size > bytes_max):
            return place
    return len(counts)


def answer(callers: Sequence[Caller]) -> None:
    """All at once: one wake for each event loop, whatever the number of its tasks."""
    loops: dict[asyncio.AbstractEventLoop, list[Caller]] = {}
    for caller in callers:
        future = caller.future
        if future is None:
            assert caller.done is not None, "it is a thread that waits"
            caller.done.release()
            continue
        loop = future.get_loop()
        if loop in loops:
            loops[loop].append(caller)
        else:
            loops[loop] = [caller]
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
