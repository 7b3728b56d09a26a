"""Waiting for jobs to finish, woken by commits.

A completed job rings no bell, because each ring wakes every process. So a process in which
somebody waits has its doorbell look for commits more often, which costs microseconds, and only
as long. All that is waited for is asked for together: a thousand who wait are one query.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.alarm import Alarm
from penstock.doorbell import Doorbell
from penstock.errors import JobFailed, JobNotFound, WaitTimeout
from penstock.job import Enqueued, Job, State
from penstock.jobs.runtime import Runtime
from penstock.ports import Store

LOOK_SECONDS = 0.005
"""How soon a commit is noticed that rang no bell."""

Wake = Callable[[], None]


def number_of(id: int | Enqueued) -> int:
    return id.id if isinstance(id, Enqueued) else id


def numbers_of(ids: Iterable[int | Enqueued]) -> list[int]:
    return [number_of(id) for id in ids]


class WaitingRoom:
    """Who waits for which job, in this process."""

    def __init__(self, store: Store, doorbell: Doorbell) -> None:
        self._store = store
        self._doorbell = doorbell
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Wake]] = {}

    @contextmanager
    def wait(self, ids: Sequence[int], wake: Wake) -> Iterator[None]:
        """Inside, `wake` is called, on another thread, when one of the jobs has finished or is
        gone; also if it was so before."""
        with self._lock:
            is_first = not self._waiting
            for number in ids:
                self._waiting.setdefault(number, []).append(wake)
            if is_first:
                self._doorbell.listen(self._look, within_seconds=LOOK_SECONDS)
        self._doorbell.look()
        try:
            yield
        finally:
            with self._lock:
                for number in ids:
                    self._waiting[number].remove(wake)
                    if not self._waiting[number]:
                        del self._waiting[number]
                if not self._waiting:
                    self._doorbell.forget(self._look)

    def _look(self) -> bool:
        with self._lock:
            watched = list(self._waiting)
        done = self._store.jobs.finished(watched)
        with self._lock:
            wakes = {wake for number in done for wake in self._waiting.get(number, ())}
        for wake in wakes:
            wake()
        return False


class Watch:
    """Some jobs, of which those that have finished are not asked for again."""

    def __init__(self, runtime: Runtime, ids: Sequence[int], timeout: float | None) -> None:
        self._runtime = runtime
        self._ids = ids
        self._found: dict[int, Job] = {}
        self._deadline = None if timeout is None else time.monotonic() + timeout

    @property
    def open(self) -> list[int]:
        return [
            number
            for number in dict.fromkeys(self._ids)
            if number not in self._found or not self._found[number].state.is_final
        ]

    def look(self) -> list[Job] | None:
        """All jobs, in the order they were asked for, once all have finished."""
        still = self.open
        done = self._runtime.store.jobs.finished(still)
        for number in still:
            if number in done or number not in self._found:
                job = self._runtime.store.jobs.get(number)
                if job is None:
                    raise JobNotFound(f"There is no job {number}.")
                self._found[number] = job
        return None if self.open else [self._found[number] for number in self._ids]

    def left(self) -> float | None:
        """How long there is to wait. Raises `WaitTimeout`."""
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left > 0:
            return left
        number = self.open[0]
        job = self._runtime.store.jobs.get(number)
        state = "gone" if job is None else job.state.name.lower()
        raise WaitTimeout(f"The job {number} is {state}.")


def wait_for(runtime: Runtime, ids: Sequence[int], timeout: float | None) -> list[Job]:
    watch = Watch(runtime, ids, timeout)
    while (found := watch.look()) is None:
        woken = Alarm()
        with runtime.waiting_room.wait(watch.open, woken.ring):
            woken.sleep(watch.left())
    return found


async def wait_for_async(runtime: Runtime, ids: Sequence[int], timeout: float | None) -> list[Job]:
    loop = asyncio.get_running_loop()
    watch = Watch(runtime, ids, timeout)
    while (found := await loop.run_in_executor(runtime.executor, watch.look)) is None:
        woken = asyncio.Event()

        def wake(woken: asyncio.Event = woken) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(woken.set)

        left = watch.left()
        with runtime.waiting_room.wait(watch.open, wake):
            try:
                async with asyncio.timeout(left):
                    await woken.wait()
            except TimeoutError:
                continue
    return found


def result_of(job: Job) -> Any:
    """What its handler returned. Raises `JobFailed`."""
    if job.state == State.COMPLETED:
        return job.result
    why = "" if job.failure is None else f": {job.failure.error}: {job.failure.message}"
    raise JobFailed(f"The job {job.id} is {job.state.name.lower()}{why}.")
