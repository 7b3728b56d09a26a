"""A worker: takes jobs, runs them, and answers for them.

One transaction does everything that is due: it completes what is done, starts what was claimed,
and claims what comes next. A handler runs only after its start is on disk, so a crash is known
for what it is; and its slot is free as soon as it returns, so the disk and the handlers work at
the same time.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping

import msgspec

from penstock.clock import micros, seconds
from penstock.errors import PenstockError
from penstock.job import Answer, Claim, Progress, Setback
from penstock.jobs.context import JobContext
from penstock.jobs.executor import Executor, Outcome
from penstock.jobs.registry import Registry
from penstock.jobs.runtime import Runtime
from penstock.ports import Transaction

HOARD_SECONDS = 0.05
"""A worker claims ahead what it completed in this time, and no more."""
IDLE_SECONDS = 1.0
"""How long a worker with nothing to do waits before it looks again by itself."""
RETRY_SECONDS = 0.5


class Turn(msgspec.Struct, frozen=True):
    """What one transaction did."""

    started: list[int]
    claims: list[Claim]
    begun: list[int]
    """Of the new claims, those that were started with them."""


class Running:
    """A job whose handler runs."""

    __slots__ = ("claim", "context", "task")

    def __init__(self, claim: Claim, context: JobContext) -> None:
        self.claim = claim
        self.context = context
        self.task: asyncio.Future[Outcome] | None = None


class Worker:
    """Lives on one event loop. `run` returns when it was stopped and everything is answered."""

    def __init__(
        self, runtime: Runtime, registry: Registry, queues: Mapping[str, int], executor: Executor
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._slots = dict(queues)
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._free = dict(queues)
        self._claimed: dict[str, deque[Claim]] = {queue: deque() for queue in queues}
        self._running: dict[int, Running] = {}
        self._answers: list[Answer] = []
        self._setbacks: list[Setback] = []
        self._progress: dict[int, tuple[Claim, Progress]] = {}
        self._done: deque[tuple[float, str]] = deque()
        self._wake = asyncio.Event()
        self._may_claim = True
        self._is_stopping = False
        self.completed = 0

    @property
    def running(self) -> int:
        return len(self._running)

    # From outside, on the loop's thread

    def look(self) -> None:
        """There may be something to claim."""
        self._may_claim = True
        self._wake.set()

    def stop(self) -> None:
        """Claim no more; end when what runs has ended."""
        self._is_stopping = True
        self._wake.set()

    def cancel(self, ids: list[int]) -> None:
        """These were asked to stop, or are somebody else's now."""
        for number in ids:
            running = self._running.get(number)
            if running is not None:
                running.context.stop()
                self._executor.cancel(running.task)

    # The loop

    async def run(self) -> None:
        while True:
            if not self._has_work():
                if self._is_stopping and not self._running:
                    break
                await self._rest()
                continue
            self._wake.clear()
            await self._take_turn()
        await self._hand_back()

    async def abandon(self) -> None:
        """Time is up: stop what runs and hand it back without burning an attempt."""
        self.stop()
        for running in tuple(self._running.values()):
            running.context.stop()
            self._executor.cancel(running.task)
        claims = [running.claim for running in self._running.values()]
        self._running.clear()
        await self._release(claims)

    def _has_work(self) -> bool:
        if self._answers or self._setbacks or self._progress:
            return True
        if self._is_stopping:
            return False
        for queue, free in self._free.items():
            if free > 0 and self._claimed[queue]:
                return True
        return self._may_claim and any(self._wanted().values())

    async def _rest(self) -> None:
        delay = IDLE_SECONDS
        if not self._is_stopping:
            due = await self._loop.run_in_executor(None, self._runtime.store.jobs.next_at)
            if due is not None:
                delay = min(delay, max(0.0, seconds(due - self._runtime.clock.now())))
        try:
            async with asyncio.timeout(delay):
                await self._wake.wait()
        except TimeoutError:
            self._may_claim = True
        self._wake.clear()

    def _wanted(self) -> dict[str, int]:
        """How many of each queue to claim: what fits, and a little ahead while it goes well."""
        horizon = self._loop.time() - HOARD_SECONDS
        while self._done and self._done[0][0] < horizon:
            self._done.popleft()
        ahead = Counter(queue for _, queue in self._done)
        return {
            queue: wanted
            for queue, free in self._free.items()
            if (wanted := free + ahead[queue] - len(self._claimed[queue])) > 0
        }

    async def _take_turn(self) -> None:
        answers, self._answers = self._answers, []
        setbacks, self._setbacks = self._setbacks, []
        progress, self._progress = self._progress, {}
        starting = [] if self._is_stopping else self._next_to_start()
        room = dict(self._free)
        wanted = self._wanted() if self._may_claim and not self._is_stopping else {}
        try:
            turn = await self._runtime.committer.run_async(
                lambda tx: self._write(tx, answers, setbacks, progress, starting, wanted, room)
            )
        except PenstockError as error:
            # The database is busy, full or away: the answers stand, and are given again.
            self._answers = answers + self._answers
            self._setbacks = setbacks + self._setbacks
            for claim in reversed(starting):
                self._free[claim.queue] += 1
                self._claimed[claim.queue].appendleft(claim)
            self._runtime.telemetry.emit("service_failed", service="worker", error=repr(error))
            await asyncio.sleep(RETRY_SECONDS)
            return
        self._begin(starting, turn, wanted)

    def _next_to_start(self) -> list[Claim]:
        starting: list[Claim] = []
        for queue, claimed in self._claimed.items():
            while claimed and self._free[queue] > 0:
                starting.append(claimed.popleft())
                self._free[queue] -= 1
        return starting

    def _write(
        self,
        transaction: Transaction,
        answers: list[Answer],
        setbacks: list[Setback],
        progress: dict[int, tuple[Claim, Progress]],
        starting: list[Claim],
        wanted: dict[str, int],
        room: dict[str, int],
    ) -> Turn:
        """On the committer's thread, in one transaction."""
        jobs, now = transaction.jobs, self._runtime.clock.now()
        if answers:
            until = now + micros(self._runtime.settings.job_result_seconds)
            jobs.complete(answers, now=now, result_until=until)
        if setbacks:
            jobs.set_back(setbacks, now=now)
        for claim, reported in progress.values():
            jobs.report(claim.id, claim.token, reported, now=now)
        started = jobs.start(starting, now=now) if starting else []
        instance = self._runtime.instance
        assert instance is not None
        claims = jobs.claim(instance, wanted, now=now) if wanted else []
        at_once: list[Claim] = []
        for claim in claims:
            if room[claim.queue] > 0:
                room[claim.queue] -= 1
                at_once.append(claim)
        begun = jobs.start(at_once, now=now) if at_once else []
        return Turn(started, claims, begun)

    def _begin(self, starting: list[Claim], turn: Turn, wanted: dict[str, int]) -> None:
        started = set(turn.started)
        for claim in starting:
            if claim.id in started:
                self._start(claim)
            else:
                self._free[claim.queue] += 1  # Rescued or cancelled while it waited here.
        begun = set(turn.begun)
        got: Counter[str] = Counter()
        for claim in turn.claims:
            got[claim.queue] += 1
            if claim.id in begun:
                self._free[claim.queue] -= 1
                self._start(claim)
            else:
                self._claimed[claim.queue].append(claim)
        if wanted:
            # Less than was asked for: the rest comes with the next wake.
            self._may_claim = any(got[queue] >= count for queue, count in wanted.items())

    def _start(self, claim: Claim) -> None:
        context = JobContext(claim, self._report)
        running = self._running[claim.id] = Running(claim, context)
        running.task = self._executor.run(claim, context, self._finish)

    def _report(self, claim: Claim, progress: Progress) -> None:
        def note() -> None:
            if claim.id in self._running:
                self._progress[claim.id] = (claim, progress)
                self._wake.set()

        self._loop.call_soon_threadsafe(note)

    def _finish(self, claim: Claim, outcome: Outcome) -> None:
        """The handler has ended, in whatever way."""
        if self._running.pop(claim.id, None) is None:
            return  # Handed back already.
        self._progress.pop(claim.id, None)
        self._free[claim.queue] += 1
        self._done.append((self._loop.time(), claim.queue))
        self.completed += 1
        if isinstance(outcome, Answer):
            self._answers.append(outcome)
        else:
            self._setbacks.append(outcome)
        self._wake.set()

    async def _hand_back(self) -> None:
        """What was claimed ahead and never started."""
        claims = [claim for claimed in self._claimed.values() for claim in claimed]
        for claimed in self._claimed.values():
            claimed.clear()
        await self._release(claims)

    async def _release(self, claims: list[Claim]) -> None:
        if claims:
            runtime = self._runtime
            await runtime.committer.run_async(
                lambda tx: tx.jobs.release(claims, now=runtime.clock.now())
            )
