"""Jobs in tests: run here and now, without workers, threads or waiting.

Every step is the real store's: claims, starts, answers, retries and histories are what a worker
would have made of them. What needs a worker is not here: timeouts, and the cancelling of a job
that runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from penstock.clock import SECOND, Micros, micros
from penstock.errors import UnknownJobType
from penstock.hub import Hub, Runtime
from penstock.job import Answer, Claim, JobFilter, Kind, Progress, Setback, State, Worker
from penstock.jobs.context import JobContext
from penstock.jobs.handling import Entry, Outcome, set_back
from penstock.jobs.run import Phase, Run
from penstock.jobs.schedule import tick
from penstock.testing.clock import FakeClock

JOBS_MAX = 10_000
"""So many in one `drain` are taken for jobs that never come to an end."""
LEASE_SECONDS = 3600.0
LATER_MAX = 10_000

is_draining: contextvars.ContextVar[bool] = contextvars.ContextVar("is_draining", default=False)


class Drained(msgspec.Struct, frozen=True):
    """What became of the attempts that were made."""

    completed: int = 0
    failed: int = 0
    """Attempts that failed and are tried again."""
    died: int = 0
    """Jobs that were given up."""
    snoozed: int = 0
    cancelled: int = 0

    @property
    def attempts(self) -> int:
        return self.completed + self.failed + self.died + self.snoozed + self.cancelled


def drain(
    hub: Hub,
    queue: str | None = None,
    *,
    until_empty: bool = True,
    raises: bool = False,
    jobs_max: int = JOBS_MAX,
) -> Drained:
    """Run the jobs that are ready in this thread, of one queue or of all, until there are none.

    Also those that become ready meanwhile: enqueued by handlers, or waiting for others. If the
    hub's clock is a `FakeClock` and `until_empty` is True, it is advanced to each job that is due
    later, retries among them, until none is left; schedules tick on the way. `raises` raises what
    a handler raises, after its job was set back.
    """
    runtime = hub._open()
    if runtime.roster._members:
        raise RuntimeError("Workers of this hub are running: they and drain() take turns badly.")
    bench = _Bench(hub, runtime, raises)
    token = is_draining.set(True)
    try:
        while True:
            bench.tick()
            if not bench.run_next(queue):
                later = bench.next_at(queue) if until_empty else None
                clock = runtime.clock
                if later is None or not isinstance(clock, FakeClock):
                    return bench.drained
                clock.advance(max(0, later - clock.now()) / SECOND)
            if bench.drained.attempts > jobs_max:
                raise AssertionError(f"{jobs_max:,} jobs were run, and there is no end of them.")
    finally:
        is_draining.reset(token)
        bench.leave()


class _Bench:
    """A worker with one slot, and no thread or loop of its own."""

    def __init__(self, hub: Hub, runtime: Runtime, raises: bool) -> None:
        self._hub = hub
        self._runtime = runtime
        self._raises = raises
        self._counts = dict.fromkeys(Drained.__struct_fields__, 0)
        runtime.start_reading()
        assert runtime.instance is not None
        self._instance = runtime.instance

    @property
    def drained(self) -> Drained:
        return Drained(**self._counts)

    def tick(self) -> None:
        """Enqueue for the schedules that are due."""
        runtime = self._runtime
        next_at = runtime.store.schedules.next_at()
        if next_at is not None and next_at <= runtime.clock.now():
            runtime.committer.run_now(lambda tx: tick(tx, runtime.clock.now()))

    def run_next(self, queue: str | None) -> bool:
        """Claim one job and run it. False if none is ready."""
        for name in self._queues(queue):
            claims = self._claim(name)
            if claims:
                self._run(claims[0])
                return True
        return False

    def next_at(self, queue: str | None) -> Micros | None:
        """When there is something to do again."""
        reader, now = self._runtime.store.jobs, self._runtime.clock.now()
        filter = JobFilter(queue=queue, states=(State.SCHEDULED,))
        scheduled = reader.find(filter, before=None, limit=LATER_MAX)
        found: list[Micros] = []
        for stats in reader.stats(now=now):
            limits = stats.limits
            if limits.is_paused or queue not in (None, stats.queue):
                continue
            times = [job.run_at for job in scheduled if job.queue == stats.queue and job.run_at]
            found += [at for at in times if at > now]
            is_ready = stats.pending or any(at <= now for at in times)
            if is_ready and limits.rate_max is not None:
                found.append(now + micros(limits.rate_seconds))
        return min(found, default=None)

    def leave(self) -> None:
        runtime = self._runtime
        runtime.committer.run_now(lambda tx: tx.jobs.leave(self._instance, now=runtime.clock.now()))

    def _queues(self, queue: str | None) -> list[str]:
        if queue is not None:
            return [queue]
        stats = self._runtime.store.jobs.stats(now=self._runtime.clock.now())
        return [found.queue for found in stats]

    def _claim(self, queue: str) -> list[Claim]:
        runtime, instance = self._runtime, self._instance

        def claim(tx: Any) -> list[Claim]:
            now = runtime.clock.now()
            worker = Worker(instance.id, runtime.name, {queue: 1}, now, now)
            # Anew each time: a handler may have moved the clock beyond the lease.
            tx.jobs.enter(worker, lease_seconds=LEASE_SECONDS, now=now)
            claims: list[Claim] = tx.jobs.claim(instance, {queue: 1}, now=now)
            started = tx.jobs.start(claims, now=now)
            return [claim for claim in claims if claim.id in started]

        return runtime.committer.run_now(claim)

    def _run(self, claim: Claim) -> None:
        run = Run(claim)
        error: BaseException | None = None
        try:
            handler = self._hub.handlers.find(claim.type)
        except UnknownJobType as unknown:
            outcome: Outcome = set_back(claim, unknown, self._runtime.clock)
            error = unknown
        else:
            outcome, error = self._call(run, Entry(handler, self._runtime.settings, self._clock))
        if not run.is_settled:
            self._answer(outcome)
        self._count(Answer(claim.id, claim.token) if run.is_settled else outcome)
        if error is not None and self._raises:
            raise error

    @property
    def _clock(self) -> Any:
        return self._runtime.clock

    def _call(self, run: Run, entry: Entry) -> tuple[Outcome, BaseException | None]:
        run.entry, run.phase = entry, Phase.RUNNING
        run.context = JobContext(run.claim, self._report, run=run, runtime=lambda: self._runtime)
        try:
            payload = entry.payload(run.claim)
            arguments = (payload, run.context) if entry.takes_job else (payload,)
            if entry.handler.isolation == "async":
                result = run_coroutine(lambda: entry.function(*arguments))
            else:
                result = contextvars.copy_context().run(entry.function, *arguments)
            return entry.judge(run.claim, result), None
        except Exception as error:  # noqa: BLE001 - a handler's, and its job's history has it
            return entry.set_back(run.claim, error), error

    def _report(self, claim: Claim, progress: Progress) -> None:
        runtime = self._runtime
        runtime.committer.run_now(
            lambda tx: tx.jobs.report(claim.id, claim.token, progress, now=runtime.clock.now())
        )

    def _answer(self, outcome: Outcome) -> None:
        runtime = self._runtime

        def answer(tx: Any) -> None:
            now = runtime.clock.now()
            if isinstance(outcome, Answer):
                until = now + micros(runtime.settings.job_result_seconds)
                tx.jobs.complete([outcome], now=now, result_until=until)
            else:
                tx.jobs.set_back([outcome], now=now)

        runtime.committer.run_now(answer)

    def _count(self, outcome: Answer | Setback) -> None:
        names = {
            Kind.FAILED: "failed",
            Kind.DIED: "died",
            Kind.SNOOZED: "snoozed",
            Kind.CANCELLED: "cancelled",
        }
        name = "completed" if isinstance(outcome, Answer) else names[outcome.kind]
        self._counts[name] += 1


def run_coroutine(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """To its end; on a thread of its own if an event loop runs in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call())
    results: list[Any] = []
    failures: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        try:
            results.append(context.run(asyncio.run, call()))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]
