"""Plain functions on threads, which can be told to stop.

A thread is struck with an exception that it raises between two steps of Python code. While it is
inside a call of C code (a long query, `time.sleep`), nothing can be raised in it: it goes on until
that call returns. Its attempt ends on time all the same, and its slot is free when it has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from penstock.jobs.handling import Outcome
from penstock.jobs.run import Run
from penstock.jobs.striking import strike, undo_strike

STRIKE_AGAIN_SECONDS: Final = 0.001

Work = Callable[[Run], Outcome | None]


class Stopped(BaseException):
    """Raised in a handler on a thread: it ran out of time, or was cancelled.

    Not an `Exception`, so that a handler which catches those does not take it for a failure.
    """


class Threads:
    """There are as many as runs at once, and they are kept for the next ones.

    They do not keep the program from ending.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_end: Callable[[Run, Outcome | None], None]
    ) -> None:
        self._loop = loop
        self._on_end = on_end
        self._inbox: SimpleQueue[tuple[Run, Work] | None] = SimpleQueue()
        self._ended: deque[tuple[Run, Outcome | None]] = deque()
        self._is_collecting = False
        self._idle = 0
        self._count = 0

    def add(self, run: Run, work: Work) -> None:
        """Do it as soon as a thread has it."""
        if self._idle:
            self._idle -= 1
        else:
            self._count += 1
            name = f"penstock-job-{self._count}"
            threading.Thread(target=self._live, name=name, daemon=True).start()
        self._inbox.put((run, work))

    def stop(self, run: Run) -> None:
        if run.is_struck:
            return
        run.is_being_struck = True
        run.is_struck = not run.is_inside or strike(run.ident, Stopped)
        run.is_being_struck = False
        if not run.is_struck:
            self._loop.call_later(STRIKE_AGAIN_SECONDS, self.stop, run)

    def close(self) -> None:
        for _ in range(self._count):
            self._inbox.put(None)

    def _live(self) -> None:
        while (given := self._inbox.get()) is not None:
            self._ended.append((given[0], _do(*given)))
            if not self._is_collecting:
                # One wake for all that end meanwhile.
                self._is_collecting = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    return  # The loop has ended.

    def _collect(self) -> None:
        self._is_collecting = False
        while self._ended:
            self._idle += 1
            self._on_end(*self._ended.popleft())


def _do(run: Run, work: Work) -> Outcome | None:
    outcome: Outcome | None = None
    run.ident = threading.get_ident()
    try:
        run.is_inside = True
        if run.why is None:
            outcome = contextvars.copy_context().run(work, run)
    except Stopped:
        outcome = None  # Whoever struck it knows why.
    while True:
        try:
            # From here on it is not struck any more; what was on its way arrives, or is undone.
            run.is_inside = False
            while run.is_being_struck:
                time.sleep(0)
            if run.is_struck:
                undo_strike()
            return outcome
        except Stopped:
            continue
