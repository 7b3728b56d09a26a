"""Waiting for jobs to finish, woken by commits.

A completed job rings no bell, because each ring wakes every process. So whoever waits has its
own doorbell look for commits more often, which costs a microsecond a look, and only while it
waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.errors import JobFailed, JobNotFound, WaitTimeout
from penstock.job import Enqueued, Job, State
from penstock.jobs.runtime import Runtime

LOOK_SECONDS = 0.005
"""How soon a commit is noticed that rang no bell."""
PAUSE_SECONDS = 0.001
"""Between two looks at the jobs, however often the bell rings."""
SAFETY_SECONDS = 1.0
"""A look without any commit."""


def number_of(id: int | Enqueued) -> int:
    return id.id if isinstance(id, Enqueued) else id


def numbers_of(ids: Iterable[int | Enqueued]) -> list[int]:
    return [number_of(id) for id in ids]


class Watch:
    """Jobs that are waited for: asks only for those that have not finished."""

    def __init__(self, runtime: Runtime, ids: Sequence[int], timeout: float | None) -> None:
        self._runtime = runtime
        self._ids = ids
        self._open = list(dict.fromkeys(ids))
        self._found: dict[int, Job] = {}
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def look(self) -> list[Job] | None:
        """All jobs, in the order they were asked for, once all have finished."""
        for number in tuple(self._open):
            job = self._runtime.store.jobs.get(number)
            if job is None:
                raise JobNotFound(f"There is no job {number}.")
            if not job.state.is_final:
                self._found[number] = job
                break  # The others cannot make it complete; they are asked when this one is done.
            self._found[number] = job
            self._open.remove(number)
        return [self._found[number] for number in self._ids] if not self._open else None

    def left(self) -> float:
        """How long to wait for a commit. Raises `WaitTimeout`."""
        if self._deadline is None:
            return SAFETY_SECONDS
        left = self._deadline - time.monotonic()
        if left <= 0:
            job = self._found[self._open[0]]
            raise WaitTimeout(f"The job {job.id} is {job.state.name.lower()}.")
        return min(left, SAFETY_SECONDS)


def wait_for(runtime: Runtime, ids: Sequence[int], timeout: float | None) -> list[Job]:
    watch = Watch(runtime, ids, timeout)
    if (found := watch.look()) is not None:
        return found
    rung = threading.Event()
    with _listening(runtime, rung.set):
        while True:
            rung.clear()
            if (found := watch.look()) is not None:
                return found
            rung.wait(watch.left())
            time.sleep(PAUSE_SECONDS)


async def wait_for_async(runtime: Runtime, ids: Sequence[int], timeout: float | None) -> list[Job]:
    loop = asyncio.get_running_loop()
    rung = asyncio.Event()
    watch = Watch(runtime, ids, timeout)

    def ring() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(rung.set)

    with _listening(runtime, ring):
        while True:
            rung.clear()
            found = await loop.run_in_executor(runtime.executor, watch.look)
            if found is not None:
                return found
            left = watch.left()
            try:
                async with asyncio.timeout(left):
                    await rung.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(PAUSE_SECONDS)


@contextmanager
def _listening(runtime: Runtime, ring: Any) -> Iterator[None]:
    def listen() -> bool:
        ring()
        return False

    runtime.doorbell.listen(listen, within_seconds=LOOK_SECONDS)
    try:
        yield
    finally:
        runtime.doorbell.forget(listen)


def result_of(job: Job) -> Any:
    """What its handler returned. Raises `JobFailed`."""
    if job.state == State.COMPLETED:
        return job.result
    why = "" if job.failure is None else f": {job.failure.error}: {job.failure.message}"
    raise JobFailed(f"The job {job.id} is {job.state.name.lower()}{why}.")
