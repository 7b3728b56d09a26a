"""Runs handlers: coroutines on the event loop, functions on threads or in processes.

Nothing a handler does can end the worker. One that is told to stop, because its time is up or its
job was cancelled, has a second to end. After that its attempt ends without it, and its slot is
free when the handler has ended, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from penstock.clock import Clock
from penstock.errors import UnknownJobType
from penstock.job import Claim, Kind, Progress, Setback
from penstock.jobs.context import JobContext
from penstock.jobs.handling import Entry, Outcome, describe, set_back
from penstock.jobs.lanes import Lanes
from penstock.jobs.processes import Processes
from penstock.jobs.registry import Registry
from penstock.jobs.run import Phase, Run, Why
from penstock.jobs.runtime import Runtime
from penstock.jobs.threads import Stopped, Threads
from penstock.settings import Settings

STOP_SECONDS = 1.0
"""How long a handler that was told to stop has to end."""

OnDone = Callable[[Run, Outcome | None], None]

__all__ = ["Executor", "OnDone", "Outcome", "describe"]


class Executor:
    """On one event loop. `on_done` gets the outcome, None if nobody wants one; `on_free` is called
    when a run that was stuck has ended after all."""

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        clock: Clock,
        *,
        runtime: Callable[[], Runtime] | None = None,
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._clock = clock
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._entries: dict[str, Entry] = {}
        self._lanes = Lanes(self._loop, self._limit, self._ended)
        self._threads = Threads(self._loop, self._ended_aside)
        self._processes = Processes(settings, self._said)
        self.on_done: OnDone = _nobody
        self.on_free: Callable[[Run], None] = _nobody_
        self.on_progress: Callable[[Claim, Progress], None] = _nobody

    def submit(self, run: Run) -> None:
        """Call the handler; its start is on disk."""
        run.phase = Phase.RUNNING
        entry = self._entries.get(run.claim.type)
        if entry is None:
            try:
                handler = self._registry.find(run.claim.type)
            except UnknownJobType as error:
                # Soon and not now: whoever submits many is not called back in between.
                outcome = set_back(run.claim, error, self._clock)
                self._loop.call_soon(self._ended, run, outcome)
                return
            entry = self._entries[handler.type] = Entry(handler, self._settings, self._clock)
        run.entry = entry
        if entry.takes_job:
            run.context = JobContext(run.claim, self.on_progress, run=run, runtime=self._runtime)
        isolation = entry.handler.isolation
        if isolation == "async":
            self._lanes.add(run)
            return
        run.began = monotonic()
        if isolation == "thread":
            self._limit(run)
            self._threads.add(run, _call)
        else:
            self._threads.add(run, self._processes.do)

    def stop(self, run: Run, why: Why) -> None:
        """Tell a handler to stop. Once: the first reason counts."""
        if run.phase is not Phase.RUNNING or run.why is not None:
            return
        run.why = why
        if run.context is not None:
            run.context.stop()
        if run.entry is None:
            return
        if run.timer is not None:
            run.timer.cancel()
        run.timer = self._loop.call_later(STOP_SECONDS, self._give_up, run)
        isolation = run.entry.handler.isolation
        if isolation == "async":
            self._lanes.stop(run)
        elif isolation == "thread":
            self._threads.stop(run)
        else:
            self._processes.stop(run)

    def close(self) -> None:
        self._lanes.close()
        self._threads.close()
        self._processes.close()

    def _limit(self, run: Run) -> None:
        assert run.entry is not None
        limit = run.entry.limit_seconds(run.claim)
        if limit is not None:
            run.timer = self._loop.call_later(limit, self.stop, run, "timeout")

    def _give_up(self, run: Run) -> None:
        """It was told to stop and has not: go on without it."""
        if run.phase is not Phase.RUNNING:
            return
        assert run.entry is not None
        if run.entry.handler.isolation == "process":
            self._processes.kill(run)
            return
        outcome = self._stopped(run)
        run.phase = Phase.STUCK
        self.on_done(run, None if run.is_settled else outcome)

    def _ended_aside(self, run: Run, outcome: Outcome | None) -> None:
        """On a thread, or in a process."""
        run.took = monotonic() - run.began
        self._ended(run, outcome)

    def _ended(self, run: Run, outcome: Outcome | None) -> None:
        if run.phase is Phase.STUCK:
            run.phase = Phase.OVER
            self.on_free(run)
            return
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        if run.is_settled:
            outcome = None
        elif run.why is not None:
            outcome = self._stopped(run)
        self.on_done(run, outcome)

    def _stopped(self, run: Run) -> Outcome | None:
        """What a run that was told to stop has come to, whatever the handler made of it."""
        if run.why == "timeout":
            assert run.entry is not None
            return run.entry.timed_out(run.claim)
        if run.why == "cancelled":
            return Setback(run.id, run.token, Kind.CANCELLED)
        return None

    def _said(self, run: Run, progress: Progress) -> None:
        self.on_progress(run.claim, progress)


def _call(run: Run) -> Outcome:
    """On a thread."""
    entry, claim = run.entry, run.claim
    assert entry is not None
    try:
        payload = entry.payload(claim)
        arguments = (payload, run.context) if entry.takes_job else (payload,)
        return entry.judge(claim, entry.function(*arguments))
    except Stopped:
        raise
    except BaseException as error:  # noqa: BLE001 - also SystemExit: it ends a job, no thread
        return entry.set_back(claim, error)


def _nobody(first: object, second: object) -> None:
    """Before there is a worker."""


def _nobody_(first: object) -> None:
    """Before there is a worker."""
