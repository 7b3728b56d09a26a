"""How much is taken at once, and how callers are answered (T4, M12)."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.callers import answer, held_lock, refuse_all, take
from penstock.errors import HubClosed
from tests.waiting import wait_until


@dataclass
class One:
    future: asyncio.Future[Any] | None = None
    done: threading.Lock | None = None
    count: int = 1
    weight: int = 0
    result: Any = None
    error: BaseException | None = None


@pytest.mark.parametrize(
    ("counts", "sizes", "expected"),
    [
        ([], [], 0),
        ([1, 1, 1], [10, 10, 10], 3),
        ([1, 1, 1, 1], [1, 1, 1, 1], 3),
        ([1, 1, 1], [60, 60, 1], 1),
        ([1, 2, 1], [1, 1, 1], 2),
        ([5, 1], [1, 1], 1),
        ([1, 1], [1000, 1], 1),
        ([5], [1000], 1),
    ],
)
def test_as_many_are_taken_as_the_limits_allow_and_at_least_one(
    counts: list[int], sizes: list[int], expected: int
) -> None:
    pairs = zip(counts, sizes, strict=True)
    callers = [One(count=count, weight=size) for count, size in pairs]
    queue = deque(callers)
    taken, count, size = take(queue, count_max=3, bytes_max=100)
    assert taken == callers[:expected]
    assert (count, size) == (sum(counts[:expected]), sum(sizes[:expected]))
    assert list(queue) == callers[expected:]


def test_those_who_came_too_late_are_told() -> None:
    queue = deque([One(done=held_lock()), One(done=held_lock())])
    late = list(queue)
    refuse_all(queue)
    assert not queue
    assert [type(one.error) for one in late] == [HubClosed, HubClosed]
    assert not any(one.done is None or one.done.locked() for one in late)


def test_a_thread_is_released() -> None:
    one = One(done=held_lock())
    assert one.done is not None
    assert one.done.locked()
    answer([one])
    assert not one.done.locked()


async def test_tasks_get_their_results_and_their_errors() -> None:
    good, bad = One(asyncio.Future(), result=7), One(asyncio.Future(), error=ValueError("no"))
    await asyncio.to_thread(answer, [good, bad])
    assert good.future is not None
    assert bad.future is not None
    assert await good.future == 7
    with pytest.raises(ValueError, match="no"):
        await bad.future


async def test_one_that_was_cancelled_does_not_keep_the_others() -> None:
    gone, here = One(asyncio.Future(), result=1), One(asyncio.Future(), result=2)
    assert gone.future is not None
    assert here.future is not None
    gone.future.cancel()
    await asyncio.to_thread(answer, [gone, here])
    assert await here.future == 2


def test_a_loop_that_has_ended_does_not_keep_those_of_another() -> None:
    ended, running = asyncio.new_event_loop(), asyncio.new_event_loop()
    late = One(ended.create_future(), result=1)
    ended.close()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    try:
        one = One(running.create_future(), result=2)
        answer([late, one])
        assert one.future is not None
        wait_until(one.future.done)
        assert one.future.result() == 2
    finally:
        running.call_soon_threadsafe(running.stop)
        thread.join()
        running.close()
