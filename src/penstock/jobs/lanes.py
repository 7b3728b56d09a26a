"""Coroutine handlers on the event loop.

A lane is a task that runs one handler after the other. A handler that never has to wait costs no
task and no turn of the loop; one that waits has its lane for itself, and another lane goes on
with the rest. Each handler has a context of its own: what it sets is not seen by the next.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from penstock.jobs.handling import Outcome
from penstock.jobs.run import Run

SLICE_SECONDS = 0.005
"""How long handlers that never wait may keep the loop before others get their turn."""

OnEnd = Callable[[Run, Outcome | None], None]


class Lanes:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_wait: Callable[[Run], None],
        on_end: OnEnd,
    ) -> None:
        self._loop = loop
        self._on_wait = on_wait
        self._on_end = on_end
        self._waiting: deque[Run] = deque()
        self._parked: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_waking = False

    def add(self, run: Run) -> None:
        self._waiting.append(run)
        if not self._is_waking:
            self._wake()

    def stop(self, run: Run) -> None:
        if run.task is not None:
            run.task.cancel()

    def close(self) -> None:
        for place in self._parked:
            if not place.done():
                place.cancel()

    def _wake(self) -> None:
        self._is_waking = True
        while self._parked:
            place = self._parked.pop()
            if not place.done():
                place.set_result(None)
                return
        task = self._loop.create_task(self._live())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _live(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while True:
            self._is_waking = False
            now = self._loop.time()
            until = now + SLICE_SECONDS
            while self._waiting:
                run = self._waiting.popleft()
                run.began = now
                self._on_end(run, await self._do(run, task))
                now = self._loop.time()
                if task.cancelling():
                    # It was meant for the handler. A lane that was told to end does end.
                    if self._waiting and not self._is_waking:
                        self._wake()
                    return
                if now > until:
                    await asyncio.sleep(0)
                    now = self._loop.time()
                    until = now + SLICE_SECONDS
            if self._is_waking:
                continue
            place = self._loop.create_future()
            self._parked.append(place)
            try:
                await place
            except asyncio.CancelledError:
                return

    async def _do(self, run: Run, task: asyncio.Task[None]) -> Outcome | None:
        entry, claim = run.entry, run.claim
        assert entry is not None
        if run.why is not None:
            return None
        rest: _Rest | None = None
        try:
            payload = entry.payload(claim)
            coroutine = (
                entry.function(payload, run.context) if entry.takes_job else entry.function(payload)
            )
            step = contextvars.copy_context().run
            is_waiting = True
            try:
                given = step(coroutine.send, None)
            except StopIteration as stop:
                is_waiting, given = False, stop.value
            if is_waiting:
                run.task = task
                self._on_wait(run)
                if self._waiting and not self._is_waking:
                    self._wake()
                rest = _Rest(coroutine, step, given)
                given = await rest
            return entry.judge(claim, given)
        except BaseException as error:  # Also SystemExit: it ends a job, no worker
            if rest is not None and rest.is_closed:
                raise  # The loop is gone.
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                if run.why is None:
                    # By whoever ends the loop, not by us: nobody's fault.
                    run.why = "handed_back"
                return None
            return entry.set_back(claim, error)
        finally:
            run.task = None


class _Rest:
    """What is left of a coroutine after its first step, run in the same context."""

    __slots__ = ("_coroutine", "_step", "_yielded", "is_closed")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], step: Callable[..., Any], yielded: Any
    ) -> None:
        self._coroutine = coroutine
        self._step = step
        self._yielded = yielded
        self.is_closed = False
        """Whether the lane was closed under it: a handler may raise the same by itself."""

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, step, yielded = self._coroutine, self._step, self._yielded
        go_on: Callable[[Any], Any]
        while True:
            try:
                value = yield yielded
            except GeneratorExit:
                self.is_closed = True
                step(coroutine.close)
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation, for the handler
                go_on, value = coroutine.throw, error
            else:
                go_on = coroutine.send
            try:
                yielded = step(go_on, value)
            except StopIteration as stop:
                return stop.value
