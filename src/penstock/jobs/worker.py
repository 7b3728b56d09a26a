"""A worker: takes jobs, runs them, and answers for them.

One transaction does everything that is due: it completes what is done, starts what was claimed,
and claims what comes next. A handler runs only after its start is on disk, so a crash is known
for what it is. While one transaction is on its way to the disk, the handlers of the last one run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.clock import micros
from penstock.errors import HubClosed
from penstock.job import Answer, Claim, Progress, Setback
from penstock.jobs.executor import Executor, Outcome
from penstock.jobs.run import Phase, Run, Why
from penstock.jobs.runtime import Runtime
from penstock.ports import Transaction

HOARD_SECONDS = 0.05
"""A worker claims ahead what it completed in this time, and no more."""
AHEAD_SECONDS = 0.005
"""It starts ahead what it completed in this time: handlers shorter than a write to the disk do
not wait for one each. A job on its last attempt is started only when a slot is free."""
CLAIM_MAX = 500
"""Jobs of a queue claimed in one transaction."""
RETRY_SECONDS = 0.1
RETRY_SECONDS_MAX = 2.0


OnOutcome = Callable[[Run, Setback | None], None]


class Turn(msgspec.Struct, frozen=True):
    """What one transaction did."""

    held: int
    """How many of the answers counted."""
    started: list[int]
    claims: list[Claim]
    begun: list[int]
    """Of the new claims, those that were started with them."""


class Room(msgspec.Struct, gc=False):
    """How many jobs of a queue may be started, and how many of them have a slot at once."""

    left: int
    free: int

    def take(self, claim: Claim) -> bool:
        if self.left <= 0 or (self.free <= 0 and claim.attempt >= claim.max_attempts):
            return False
        self.left -= 1
        self.free -= 1
        return True


class Bench:
    """One queue's slots, and the jobs that are for them."""

    __slots__ = ("_done", "begun", "claimed", "finished", "free", "queue", "slots", "stuck")

    def __init__(self, queue: str, slots: int) -> None:
        self.queue = queue
        self.slots = slots
        self.free = slots
        self.stuck = 0
        self.claimed: deque[Run] = deque()
        self.begun: deque[Run] = deque()
        self.finished = 0
        self._done: deque[tuple[float, int]] = deque()

    def note(self, now: float) -> None:
        """With each turn: remember how many have finished since the last."""
        if self.finished:
            self._done.append((now, self.finished))
            self.finished = 0
        while self._done and self._done[0][0] < now - HOARD_SECONDS:
            self._done.popleft()

    def pace(self, now: float, seconds: float) -> int:
        """How many have finished in the last so many seconds."""
        return self.finished + sum(count for at, count in self._done if at >= now - seconds)

    def wanted(self, now: float) -> int:
        have = len(self.claimed) + len(self.begun)
        return min(CLAIM_MAX, self.free + self.pace(now, HOARD_SECONDS) - have)

    def room(self, now: float) -> int:
        """How many may be started."""
        return self.free + self.pace(now, AHEAD_SECONDS) - len(self.begun)


class Worker:
    """Lives on one event loop. `run` returns when it was stopped and everything is answered."""

    def __init__(self, runtime: Runtime, queues: Mapping[str, int], executor: Executor) -> None:
        self._runtime = runtime
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._benches = {queue: Bench(queue, slots) for queue, slots in queues.items()}
        self.known: dict[int, Run] = {}
        """Every job in its hands, until its answer is on disk. Others may copy it."""
        self.running = 0
        self.completed = 0
        self.failed = 0
        self.refused = 0
        self._answers: list[Answer] = []
        self._setbacks: list[Setback] = []
        self._returned: list[Claim] = []
        self._progress: dict[int, tuple[Claim, Progress]] = {}
        self._wake = asyncio.Event()
        self._may_claim = True
        self._is_stopping = False
        self._failures = 0
        self.on_outcome: OnOutcome | None = None
        """Gets each run that has ended and, unless it completed, its setback."""
        executor.on_done = self._done
        executor.on_free = self._freed
        executor.on_progress = self._report

    @property
    def stuck(self) -> int:
        """Slots whose handlers were told to stop and have not ended."""
        return sum(bench.stuck for bench in self._benches.values())

    @property
    def claimed(self) -> int:
        return sum(len(b.claimed) + len(b.begun) for b in self._benches.values())

    @property
    def is_failing(self) -> bool:
        """Whether the last turn failed, so that its outcome may not be known."""
        return self._failures > 0

    # From outside, on the loop's thread

    def look(self) -> None:
        """There may be something to claim."""
        self._may_claim = True
        self._wake.set()

    def stop(self) -> None:
        """Claim no more, hand back what has not begun to run, end when what runs has ended."""
        self._is_stopping = True
        for bench in self._benches.values():
            self._returned += [run.claim for run in (*bench.claimed, *bench.begun)]
            bench.claimed.clear()
            bench.begun.clear()
        self._wake.set()

    def abandon(self) -> None:
        """Time is up: tell what runs to stop, and hand it back."""
        self.stop()
        for run in tuple(self.known.values()):
            self._executor.stop(run, "handed_back")

    def tell(self, stops: Sequence[tuple[int, int, Why]]) -> None:
        """These jobs, by id and token, were cancelled or are somebody else's now."""
        for number, token, why in stops:
            run = self.known.get(number)
            if run is None or run.token != token:
                continue
            if run.phase is Phase.RUNNING:
                self._executor.stop(run, why)
            elif run.phase is Phase.BEGUN:
                # Told when its turn comes; it never gets a slot.
                run.why = why
                self._fill(self._benches[run.claim.queue])

    # The loop

    async def run(self) -> None:
        while True:
            self._wake.clear()
            if self._has_work():
                try:
                    await self._take_turn()
                except HubClosed:
                    return
            elif self._is_stopping and not self.running:
                return
            else:
                await self._wake.wait()

    def _has_work(self) -> bool:
        if self._answers or self._setbacks or self._returned or self._progress:
            return True
        if self._is_stopping:
            return False
        now = self._loop.time()
        for bench in self._benches.values():
            if bench.claimed and bench.room(now) > 0:
                return True
            if self._may_claim and bench.wanted(now) > 0:
                return True
        return False

    async def _take_turn(self) -> None:
        answers, self._answers = self._answers, []
        setbacks, self._setbacks = self._setbacks, []
        returned, self._returned = self._returned, []
        progress, self._progress = self._progress, {}
        starting: list[Run] = []
        wanted: dict[str, int] = {}
        room: dict[str, Room] = {}
        # A transaction that is made anyway may as well look for more: where a limit held jobs back,
        # the one that has just ended makes room.
        may_claim = self._may_claim or bool(answers or setbacks)
        if not self._is_stopping:
            now = self._loop.time()
            for bench in self._benches.values():
                bench.note(now)
                count, free = bench.room(now), bench.free - len(bench.begun)
                taken = _next_to_start(bench, Room(count, free))
                room[bench.queue] = Room(count - len(taken), free - len(taken))
                if may_claim and (more := bench.wanted(now) - len(taken)) > 0:
                    wanted[bench.queue] = more
                starting += taken
        claims = [run.claim for run in starting]
        try:
            turn = await self._runtime.committer.run_async(
                lambda tx: self._write(
                    tx, answers, setbacks, returned, progress, claims, wanted, room
                )
            )
        except Exception as error:
            # The database is busy, full or away: the answers stand, and are given again. Whatever
            # else it may be: a worker that ended here would keep its jobs for ever.
            self._answers = answers + self._answers
            self._setbacks = setbacks + self._setbacks
            self._returned = returned + self._returned
            self._progress = {**progress, **self._progress}
            for run in reversed(starting):
                self._benches[run.claim.queue].claimed.appendleft(run)
            if self._is_stopping:
                self.stop()
            if isinstance(error, HubClosed):
                raise
            self._failures += 1
            self._runtime.telemetry.emit("service_failed", service="worker", error=repr(error))
            pause = min(RETRY_SECONDS_MAX, RETRY_SECONDS * 2 ** min(self._failures, 10))
            await asyncio.sleep(pause)
            return
        self._failures = 0
        self._answered(answers, setbacks, returned, turn.held)
        self._begin(starting, turn, wanted)

    def _write(
        self,
        transaction: Transaction,
        answers: list[Answer],
        setbacks: list[Setback],
        returned: list[Claim],
        progress: dict[int, tuple[Claim, Progress]],
        starting: list[Claim],
        wanted: dict[str, int],
        room: dict[str, Room],
    ) -> Turn:
        """On the committer's thread, in one transaction."""
        jobs, now = transaction.jobs, self._runtime.clock.now()
        held = 0
        if answers:
            until = now + micros(self._runtime.settings.job_result_seconds)
            held += len(jobs.complete(answers, now=now, result_until=until))
        if setbacks:
            held += len(jobs.set_back(setbacks, now=now))
        if returned:
            jobs.release(returned, now=now)
        for claim, reported in progress.values():
            jobs.report(claim.id, claim.token, reported, now=now)
        started = jobs.start(starting, now=now) if starting else []
        instance = self._runtime.instance
        assert instance is not None
        claims = jobs.claim(instance, wanted, now=now) if wanted else []
        at_once = [claim for claim in claims if room[claim.queue].take(claim)]
        begun = jobs.start(at_once, now=now) if at_once else []
        return Turn(held, started, claims, begun)

    def _answered(
        self,
        answers: list[Answer],
        setbacks: list[Setback],
        returned: list[Claim],
        held: int,
    ) -> None:
        known = self.known
        for answer in answers:
            known.pop(answer.id, None)
        for setback in setbacks:
            known.pop(setback.id, None)
        for claim in returned:
            known.pop(claim.id, None)
        refused = len(answers) + len(setbacks) - held
        if refused:
            self.refused += refused
            self._runtime.telemetry.emit("refused", jobs=refused)

    def _begin(self, starting: list[Run], turn: Turn, wanted: dict[str, int]) -> None:
        started = set(turn.started)
        for run in starting:
            if run.id in started:
                self._benches[run.claim.queue].begun.append(run)
                run.phase = Phase.BEGUN
            else:
                # Rescued, or cancelled while it waited here: the second ends with this.
                self._returned.append(run.claim)
        begun = set(turn.begun)
        got = dict.fromkeys(wanted, 0)
        for claim in turn.claims:
            got[claim.queue] += 1
            run = self.known[claim.id] = Run(claim)
            bench = self._benches[claim.queue]
            if claim.id in begun:
                run.phase = Phase.BEGUN
                bench.begun.append(run)
            else:
                bench.claimed.append(run)
        if wanted:
            # Less than was asked for: the rest comes with the next wake.
            self._may_claim = any(got[queue] >= count for queue, count in wanted.items())
            if not self._may_claim:
                self._runtime.roster.rang()  # It may be a rate: the keeper knows when to look.
        if self._is_stopping:
            self.stop()
        else:
            for bench in self._benches.values():
                self._fill(bench)

    def _fill(self, bench: Bench) -> None:
        """Give free slots to jobs that have begun."""
        begun = bench.begun
        while begun and (bench.free > 0 or begun[0].why is not None):
            run = begun.popleft()
            if run.why is not None:
                self._returned.append(run.claim)
                self._wake.set()
                continue
            bench.free -= 1
            self.running += 1
            self._executor.submit(run)

    # From the executor

    def _done(self, run: Run, outcome: Outcome | None) -> None:
        """The handler has ended, in whatever way, or has had its time."""
        self.running -= 1
        bench = self._benches[run.claim.queue]
        if run.phase is Phase.STUCK:
            bench.stuck += 1
            self._runtime.telemetry.emit("job_stuck", job=run.id, type=run.claim.type)
        else:
            run.phase = Phase.ANSWERED
            bench.free += 1
            bench.finished += 1
            if bench.begun:
                self._fill(bench)
        if self._progress:
            self._progress.pop(run.id, None)
        if outcome is None:
            if run.why == "handed_back" and not run.is_settled:
                self._returned.append(run.claim)
            else:
                self.known.pop(run.id, None)
                self.completed += run.is_settled
        elif isinstance(outcome, Answer):
            self.completed += 1
            self._answers.append(outcome)
        else:
            self.failed += 1
            self._setbacks.append(outcome)
        if self.on_outcome is not None and (outcome is not None or run.is_settled):
            self._tell(run, outcome if isinstance(outcome, Setback) else None)
        self._wake.set()

    def _tell(self, run: Run, setback: Setback | None) -> None:
        assert self.on_outcome is not None
        try:
            self.on_outcome(run, setback)
        except Exception as error:  # noqa: BLE001 - whoever listens must not stop the work
            self._runtime.telemetry.emit("listener_failed", error=repr(error))

    def _freed(self, run: Run) -> None:
        """One that was stuck has ended."""
        bench = self._benches[run.claim.queue]
        bench.stuck -= 1
        bench.free += 1
        self._fill(bench)
        self._wake.set()

    def _report(self, claim: Claim, progress: Progress) -> None:
        """From any thread."""

        def note() -> None:
            run = self.known.get(claim.id)
            if run is not None and run.token == claim.token and run.phase is Phase.RUNNING:
                self._progress[claim.id] = (claim, progress)
                self._wake.set()

        self._loop.call_soon_threadsafe(note)


def _next_to_start(bench: Bench, room: Room) -> list[Run]:
    starting: list[Run] = []
    while bench.claimed and room.take(bench.claimed[0].claim):
        starting.append(bench.claimed.popleft())
    return starting
