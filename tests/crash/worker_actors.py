"""A worker that dies at a chosen instant. Run as a script: URL POINT.

A point is `before:NAME` or `after:NAME`: at the commit of the first transaction in which that
method of the store was called; `handler`: inside the user's function; `none`: it lives. The
process ends by SIGKILL, as if the power of this one process had been cut.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import penstock
from penstock.jobs.registry import Snooze
from penstock.stores.sqlite.job_hands import JobHands
from penstock.stores.sqlite.job_writer import SqliteJobWriter
from penstock.stores.sqlite.transaction import SqliteWriter

POINTS = (
    *("before:enter", "after:enter"),
    *("before:claim", "after:claim"),
    *("before:start", "after:start"),
    "handler",
    *("before:report", "after:report"),
    *("before:complete", "after:complete"),
    *("before:set_back", "after:set_back"),
    *("before:release", "after:release"),
    *("before:rescue", "after:rescue"),
    *("before:leave", "after:leave"),
    *("before:transaction", "after:transaction"),
)
"""Every change of a job's state that a worker, or whoever rescues, writes."""
METHODS = (
    "enter",
    "claim",
    "start",
    "report",
    "complete",
    "set_back",
    "release",
    "rescue",
    "leave",
)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


class Trap:
    """Watches every transaction of this process."""

    def __init__(self, point: str) -> None:
        self.when, _, self.name = point.partition(":")
        # A transaction belongs to a thread from its begin to its commit.
        self._called = threading.local()
        for name in METHODS:
            setattr(SqliteJobWriter, name, self._noting(name, getattr(SqliteJobWriter, name)))
        self._commit = SqliteWriter.commit
        trap = self

        def commit(writer: SqliteWriter) -> None:
            is_it = trap.name in vars(trap._called)
            vars(trap._called).clear()
            if is_it and trap.when == "before":
                die()
            trap._commit(writer)
            if is_it and trap.when == "after":
                die()

        SqliteWriter.commit = commit  # type: ignore[method-assign]

    def _noting(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(writer: Any, *arguments: Any, **keywords: Any) -> Any:
            found = real(writer, *arguments, **keywords)
            # What found nothing has changed nothing: it waits for the real one.
            if found or name in ("enter", "leave"):
                setattr(self._called, name, True)
                if keywords.get("begins") is not None:
                    self._called.start = True  # With their claim, as most of them do.
            return found

        return call

    def in_transaction(self) -> None:
        """The next commit is that of a job's own transaction."""
        if self.name == "transaction":
            self._called.transaction = True


class Spending:
    """Tells what this process takes of a rate, as soon as that is on disk, and when the store
    counted it."""

    def __init__(self) -> None:
        self._taken = threading.local()
        spend, begin, commit = JobHands._spend, SqliteWriter.begin, SqliteWriter.commit

        def note(hands: JobHands, queue: str, jobs: int, rate: int) -> None:
            self._noted().append((time.monotonic_ns(), jobs))
            spend(hands, queue, jobs, rate)

        def forget(writer: SqliteWriter, **options: Any) -> Any:
            self._noted().clear()
            return begin(writer, **options)

        def tell(writer: SqliteWriter) -> None:
            commit(writer)
            for at, jobs in self._noted():
                say("spent", at, jobs)

        JobHands._spend = note  # type: ignore[method-assign]
        SqliteWriter.begin = forget  # type: ignore[method-assign]
        SqliteWriter.commit = tell  # type: ignore[method-assign]

    def _noted(self) -> list[tuple[int, int]]:
        if not hasattr(self._taken, "noted"):
            self._taken.noted = []
        noted: list[tuple[int, int]] = self._taken.noted
        return noted


def work(url: str, point: str) -> None:
    hub = penstock.connect(url, job_lease_seconds=2.0)
    trap = Trap(point)
    Spending()

    @hub.job(name="plain", queue="q")
    async def plain(n: int, job: Any) -> int:
        say("ran", job.id, job.token, job.attempt)
        if point == "handler":
            die()
        job.progress(1, 2)
        # What a job reports right before it ends is told with its end, not by itself.
        await asyncio.sleep(60.0 if trap.name == "report" else 0.05 if point == "none" else 0.002)
        return n

    @hub.job(name="fails-once", queue="q", retry=lambda attempt, error: 0.01)
    def fails_once(n: int, job: Any) -> int:
        say("ran", job.id, job.token, job.attempt)
        if job.attempt == 1:
            raise ValueError(n)
        return n

    @hub.job(name="snoozes", queue="q")
    async def snoozes(n: int, job: Any) -> Any:
        say("ran", job.id, job.token, job.attempt)
        return n if hub.jobs.history(job.id)[-2].kind.name == "SNOOZED" else Snooze(0.01)

    @hub.job(name="settles", queue="q")
    def settles(n: int, job: Any) -> None:
        say("ran", job.id, job.token, job.attempt)
        with job.transaction(n) as tx:
            tx.publish("settled", job.id)
            trap.in_transaction()

    @hub.job(name="long", queue="q")
    async def long(n: int, job: Any) -> int:
        say("ran", job.id, job.token, job.attempt)
        if job.attempt == 1:
            # At random moments, somebody should die with one in hand; at a chosen one, surely.
            await asyncio.sleep(0.2 if point == "none" else 60.0)
        return n

    @hub.job(name="narrow", queue="narrow")
    async def narrow(n: int, job: Any) -> None:
        say("ran", job.id, job.token, job.attempt)
        await asyncio.sleep(0.02)

    @hub.job(name="paced", queue="paced")
    async def paced(n: int, job: Any) -> None:
        say("ran", job.id, job.token, job.attempt)

    @hub.job(name="tick", queue="cron")
    async def tick(payload: None, job: Any) -> None:
        say("ran", job.id, job.token, job.attempt)

    @hub.job(name="gate", queue="gate", retry=lambda attempt, error: 0.01)
    def gate(n: int, job: Any) -> None:
        say("ran", job.id, job.token, job.attempt)
        with hub.lock("gate", lease_seconds=1.5, timeout=60) as lock:
            token = lock.token
            for _ in range(5):
                # Before the question: what is true then was true already now.
                at = time.monotonic_ns()
                if lock.is_held:
                    say("held", at, token)
                time.sleep(0.01)

    crew = hub.start_workers({"q": 3, "narrow": 3, "paced": 5, "gate": 2, "cron": 1})
    say("ready")
    for _ in sys.stdin:
        crew.stop(0.0)
        hub.close()
        say("ended")
        return


if __name__ == "__main__":
    work(*sys.argv[1:])
