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
from time import monotonic
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
            began = monotonic()
            until = began + SLICE_SECONDS
            while self._waiting:
                run = self._waiting.popleft()
                outcome = None if run.why is not None else self._step(run, task)
                if outcome.__class__ is _Rest:
                    outcome = await self._finish(run, task, outcome)
                now = monotonic()
                run.took, began = now - began, now
                self._on_end(run, outcome)
                if task.cancelling():
                    # It was meant for the handler. A lane that was told to end does end.
                    if self._waiting and not self._is_waking:
                        self._wake()
                    return
                if now > until:
                    await asyncio.sleep(0)
                    began = monotonic()
                    until = began + SLICE_SECONDS
            if self._is_waking:
                continue
            place = self._loop.create_future()
            self._parked.append(place)
            try:
                await place
            except asyncio.CancelledError:
                return

    def _step(self, run: Run, task: asyncio.Task[None]) -> Any:
        """Call the handler. Its outcome, or what is left of it if it has to wait.

        No coroutine of our own: most handlers of a busy worker never wait.
        """
        entry, claim = run.entry, run.claim
        assert entry is not None
        try:
            payload = entry.payload(claim)
            coroutine = (
                entry.function(payload, run.context) if entry.takes_job else entry.function(payload)
            )
            step = contextvars.copy_context().run
            try:
                yielded = step(coroutine.send, None)
            except StopIteration as stop:
                given = stop.value
            else:
                return _Rest(coroutine, step, yielded)
            return entry.judge(claim, given)
        except BaseException as error:  # noqa: BLE001 - also SystemExit: it ends a job, no worker
            return self._ended_badly(run, task, error)

    async def _finish(self, run: Run, task: asyncio.Task[None], rest: _Rest) -> Outcome | None:
        """It waits, and has the lane for itself."""
        entry, claim = run.entry, run.claim
        assert entry is not None
        run.task = task
        self._on_wait(run)
        if self._waiting and not self._is_waking:
            self._wake()
        try:
            return entry.judge(claim, await rest)
        except BaseException as error:  # As above
            if rest.is_closed:
                raise  # The loop is gone.
            return self._ended_badly(run, task, error)
        finally:
            run.task = None

    def _ended_badly(
        self, run: Run, task: asyncio.Task[None], error: BaseException
    ) -> Outcome | None:
        if isinstance(error, asyncio.CancelledError) and task.cancelling():
            if run.why is None:
                # By whoever ends the loop, not by us: nobody's fault.
                run.why = "handed_back"
            return None
        assert run.entry is not None
        return run.entry.set_back(run.claim, error)


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
