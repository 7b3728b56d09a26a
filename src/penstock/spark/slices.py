"""Slices of jobs on their way to executors and back: claimed, sent, answered.

A slice is one small Spark job, so that slices succeed and fail apart from each other. One whose
task keeps dying is halved, until the job that kills its process is alone: that attempt failed.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from penstock.clock import micros
from penstock.errors import InvalidInput, PenstockError, PipelineFailed, ProcessDied, UnknownJobType
from penstock.job import Claim, Setback
from penstock.jobs.handling import set_back
from penstock.jobs.keeper import Stops
from penstock.jobs.registry import Registry
from penstock.jobs.run import Phase, Run
from penstock.ports import Transaction
from penstock.spark.failures import explain
from penstock.spark.handlers import Outcomes, Slice, decode_outcomes, do_slice, encode_slice

if TYPE_CHECKING:
    from penstock.hub import Runtime
    from penstock.spark.runner import Run as PipelineRun

SLICE_MAX = 1_000
SLICE_FIRST = 10
"""Before it is known how long jobs take."""
SLICE_SECONDS = 1.0
"""Slices are made to take about so long: an idle executor waits for no other."""
CLAIM_MAX = 2_000
"""Jobs claimed in one transaction."""
THREADS_MAX = 64
LOOK_SECONDS = 0.2
BEAT_SECONDS = 5.0
REPORT_SECONDS = 0.5


class Foreman:
    """Claims jobs, has them done on executors, and answers for them.

    For the store this process is one worker, with a lease that the hub's keeper renews.
    """

    def __init__(
        self,
        run: PipelineRun,
        runtime: Runtime,
        handlers: Registry,
        queues: Sequence[str],
        *,
        program: str,
        path: list[str],
    ) -> None:
        self._run = run
        self._runtime = runtime
        self._handlers = handlers
        self._context = run.spark.sparkContext
        self._program = program
        self._path = path
        self._slice_max: int = run.options["slice"]
        self._concurrency: int = run.options["concurrency"]
        self._group = f"drain-{time.time_ns()}"
        self._slots = self._count_slots()
        self.queues: dict[str, int] = dict.fromkeys(queues, self._slots)
        self.types = tuple(sorted(handler.type for handler in handlers))
        self.is_failing = False
        self._known: dict[int, Run] = {}
        self._size = min(SLICE_FIRST, self._slice_max)
        self._waiting: deque[list[Claim]] = deque()
        """Halves of slices that failed."""
        self._flights: dict[Future[list[bytes]], list[list[Claim]]] = {}
        self._tally = Tally()
        self._beat_at = 0.0

    # For the keeper, on its thread

    def known(self) -> dict[int, Run]:
        return self._known.copy()

    def tell(self, stops: Stops) -> None:
        """Handlers on executors cannot be told. Answers for what was lost are refused."""

    def look(self) -> bool:
        return False

    def close(self) -> None:
        self._run.stop.ask()

    # The work

    def work(self) -> None:
        """Until there is nothing to do, or it is to stop."""
        self._runtime.roster.enter(self)
        try:
            with ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="penstock-drain") as threads:
                try:
                    while self._turn(threads):
                        pass
                finally:
                    self._hand_back()
            self._report(is_last=True)
        finally:
            self._runtime.roster.leave(self)

    def _turn(self, threads: ThreadPoolExecutor) -> bool:
        """Send what can be sent, take in what has come back. False when it is over."""
        if self._run.stop.is_urgent:
            return False
        if not self._run.is_stopping:
            self._send(threads)
        if not self._flights:
            return not self._run.is_stopping and self._await_more()
        done, _ = wait(self._flights, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
        for flight in done:
            self._take_in(flight, self._flights.pop(flight))
        self._report()
        return True

    def _await_more(self) -> bool:
        """Nothing is ready, and nothing runs. False if that is the end."""
        if self._has_ready():
            return True
        if self._run.once and not (self._run.options["until_empty"] and self._has_later()):
            return False
        if time.monotonic() - self._beat_at >= BEAT_SECONDS:
            self._beat_at = time.monotonic()
            self._run.beat(lag=0)
        self._run.stop.wait(LOOK_SECONDS)
        return True

    def _has_ready(self) -> bool:
        now = self._runtime.clock.now()
        return self._runtime.store.jobs.look(list(self.queues), now=now)

    def _has_later(self) -> bool:
        stats = self._runtime.store.jobs.stats(now=self._runtime.clock.now())
        return any(
            found.pending + found.scheduled + found.waiting
            for found in stats
            if found.queue in self.queues and not found.limits.is_paused
        )

    # Out

    def _send(self, threads: ThreadPoolExecutor) -> None:
        self._slots = self._count_slots()
        width = math.ceil(self._slots / THREADS_MAX)
        while self._waiting and len(self._flights) < THREADS_MAX:
            # Those that failed go alone, so that they fail alone.
            self._fly(threads, [self._waiting.popleft()])
        free = self._slots - sum(len(slices) for slices in self._flights.values())
        if free <= 0:
            return
        claims = self._claim(min(CLAIM_MAX, free * self._size))
        # Few jobs are spread, too: one slice of all of them would keep the others idle.
        size = max(1, min(self._size, math.ceil(len(claims) / free)))
        slices = [claims[at : at + size] for at in range(0, len(claims), size)]
        for at in range(0, len(slices), width):
            self._fly(threads, slices[at : at + width])

    def _claim(self, count: int) -> list[Claim]:
        """Claimed and started, in one transaction: from here on a crash is an attempt."""
        runtime = self._runtime
        instance = runtime.instance
        assert instance is not None

        def write(tx: Transaction) -> list[Claim]:
            now = runtime.clock.now()
            claims: list[Claim] = []
            queues = list(self.queues)
            while queues and len(claims) < count:
                # All get the same; what one does not need is the others'.
                share = math.ceil((count - len(claims)) / len(queues))
                found = tx.jobs.claim(instance, dict.fromkeys(queues, share), now=now)
                claims += found
                got = Counter(claim.queue for claim in found)
                queues = [queue for queue in queues if got[queue] == share]
            started = set(tx.jobs.start(claims, now=now)) if claims else set()
            stopped = [claim for claim in claims if claim.id not in started]
            if stopped:
                tx.jobs.release(stopped, now=now)
            return [claim for claim in claims if claim.id in started]

        if not self._has_ready():
            return []
        claims = runtime.committer.run_now(write)
        for claim in claims:
            self._known[claim.id] = run = Run(claim)
            run.phase = Phase.RUNNING
        return claims

    def _fly(self, threads: ThreadPoolExecutor, slices: list[list[Claim]]) -> None:
        self._flights[threads.submit(self._do, slices)] = slices

    def _do(self, slices: list[list[Claim]]) -> list[bytes]:
        """On a thread: one Spark job, with a task for each slice."""
        context = self._context
        context.setJobGroup(self._group, f"{self._run.name}: {len(slices)} slices")
        data = [
            encode_slice(Slice(self._program, self._run.url, self._path, claims, self._concurrency))
            for claims in slices
        ]
        return context.parallelize(data, len(data)).map(do_slice).collect()

    # In

    def _take_in(self, flight: Future[list[bytes]], slices: list[list[Claim]]) -> None:
        error = flight.exception()
        if error is not None:
            self._failed(error, slices)
            return
        found = [decode_outcomes(data) for data in flight.result()]
        trouble = next((one.trouble for one in found if one.trouble), "")
        if trouble:
            self._return(claim for claims in slices for claim in claims)
            raise InvalidInput(
                f"The executors cannot do these jobs. {trouble}",
                hint="Ship the program to them: 'penstock pipeline package'.",
            )
        self._answer(found)
        jobs = sum(len(claims) for claims in slices)
        seconds = sum(one.seconds for one in found)
        if seconds > 0:
            wanted = int(jobs / seconds * SLICE_SECONDS)
            # Not by leaps: one quick slice says little of the next.
            self._size = max(1, min(self._slice_max, wanted, self._size * 4))

    def _failed(self, error: BaseException, slices: list[list[Claim]]) -> None:
        if self._run.stop.is_urgent:
            self._return(claim for claims in slices for claim in claims)
            return
        if self._is_spark_gone():
            raise PipelineFailed(f"Spark has ended: {explain(error).message}") from error
        for claims in slices if len(slices) > 1 else _halves(slices[0]):
            if len(slices) == 1 and len(slices[0]) == 1:
                died = ProcessDied(f"The task that did the job has died: {explain(error).message}")
                self._answer([Outcomes(setbacks=[self._set_back(claims[0], died)])])
            else:
                self._waiting.append(claims)

    def _set_back(self, claim: Claim, error: PenstockError) -> Setback:
        try:
            handler = self._handlers.find(claim.type)
        except UnknownJobType:
            handler = None
        return set_back(claim, error, self._runtime.clock, handler)

    def _answer(self, found: Sequence[Outcomes]) -> None:
        runtime = self._runtime
        answers = [answer for one in found for answer in one.answers]
        setbacks = [setback for one in found for setback in one.setbacks]
        settled = [number for one in found for number in one.settled]

        def write(tx: Transaction) -> int:
            now = runtime.clock.now()
            until = now + micros(runtime.settings.job_result_seconds)
            held = len(tx.jobs.complete(answers, now=now, result_until=until)) if answers else 0
            return held + (len(tx.jobs.set_back(setbacks, now=now)) if setbacks else 0)

        self.is_failing = True
        held = runtime.committer.run_now(write) if answers or setbacks else 0
        self.is_failing = False
        for number in (*(a.id for a in answers), *(s.id for s in setbacks), *settled):
            self._known.pop(number, None)
        refused = len(answers) + len(setbacks) - held
        if refused:
            # They were rescued or cancelled meanwhile: somebody else answers for them.
            runtime.telemetry.emit("refused", jobs=refused)
        self._tally.add(len(answers) + len(setbacks) + len(settled))

    def _hand_back(self) -> None:
        """At the end: what has not been answered is free for others, and burns no attempt."""
        if self._flights:
            self._context.cancelJobGroup(self._group)
            wait(self._flights)
        self._return([run.claim for run in self._known.values()])

    def _return(self, claims: Iterable[Claim]) -> None:
        runtime, returned = self._runtime, list(claims)
        if not returned:
            return
        runtime.committer.run_now(lambda tx: tx.jobs.release(returned, now=runtime.clock.now()))
        for claim in returned:
            self._known.pop(claim.id, None)

    # Figures

    def _report(self, *, is_last: bool = False) -> None:
        if not self._tally.rows or not (is_last or self._tally.seconds >= REPORT_SECONDS):
            return
        stats = self._runtime.store.jobs.stats(now=self._runtime.clock.now())
        lag = sum(found.pending + found.processing for found in stats if found.queue in self.queues)
        rows, seconds, number = self._tally.take()
        self._run.report(rows=rows, batch=number, lag=lag, seconds=seconds)

    def _count_slots(self) -> int:
        """Slices under way at once: one on each core, and one behind it."""
        return 2 * max(1, self._context.defaultParallelism)

    def _is_spark_gone(self) -> bool:
        context: Any = self._context
        try:
            return context._jsc is None or bool(context._jsc.sc().isStopped())
        except Exception:  # noqa: BLE001 - py4j's own, when the JVM does not answer
            return True


class Tally:
    """What was done since the last report."""

    def __init__(self) -> None:
        self.rows = 0
        self._number = -1
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    def add(self, rows: int) -> None:
        self.rows += rows

    def take(self) -> tuple[int, float, int]:
        rows, seconds = self.rows, self.seconds
        self.rows, self._since = 0, time.monotonic()
        self._number += 1
        return rows, seconds, self._number


def _halves(claims: list[Claim]) -> list[list[Claim]]:
    if len(claims) == 1:
        return [claims]
    middle = len(claims) // 2
    return [claims[:middle], claims[middle:]]
