"""A worker: takes jobs, runs them, and answers for them.

One transaction does everything that is due: it completes what is done, and claims and starts what
comes next. A handler runs only after its start is on disk, so a crash is known for what it is.
While one transaction is on its way to the disk, the handlers of the last one run. While there is
nothing to do, a transaction that claims lies ready, and whoever hears the bell sends it off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

import msgspec

from penstock.clock import micros
from penstock.errors import HubClosed, PenstockError
from penstock.job import Answer, Claim, Progress, Setback
from penstock.jobs.executor import Executor, Outcome
from penstock.jobs.run import Phase, Run, Why
from penstock.jobs.runtime import Runtime
from penstock.jobs.slots import CLAIM_MAX, Room, Slots
from penstock.ports import Transaction

RETRY_SECONDS = 0.1
RETRY_SECONDS_MAX = 2.0


OnOutcome = Callable[[Run, Setback | None], None]


class Plan(msgspec.Struct, frozen=True):
    """What one transaction is to do."""

    answers: list[Answer]
    setbacks: list[Setback]
    returned: list[Claim]
    progress: dict[int, tuple[Claim, Progress]]
    starting: list[Run]
    wanted: dict[str, int]
    """How many jobs of each queue to claim."""
    room: dict[str, Room]
    """How many of them to start with it."""

    @property
    def is_light(self) -> bool:
        """It only takes jobs. If that is lost with the power, so is this worker: they are ready
        again. Jobs whose last attempt this would be are not started with it."""
        return not (
            self.answers or self.setbacks or self.returned or self.progress or self.starting
        )


class Turn(msgspec.Struct, frozen=True):
    """What one transaction did."""

    held: int
    """How many of the answers counted."""
    started: list[int]
    claims: list[Claim]
    begun: set[int]
    """Of the new claims, those that were started with them."""


class Worker:
    """Lives on one event loop. `run` returns when it was stopped and everything is answered."""

    def __init__(self, runtime: Runtime, queues: Mapping[str, int], executor: Executor) -> None:
        self._runtime = runtime
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._queues = {queue: Slots(queue, count) for queue, count in queues.items()}
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
        self._may_claim = True
        self._sleep: asyncio.Future[Turn | None] | None = None
        self._order: deque[tuple[asyncio.Future[Turn | None], Plan]] = deque()
        self._is_offered = False
        self.is_stopping = False
        """It claims nothing any more."""
        self._failures = 0
        self.on_outcome: OnOutcome | None = None
        """Gets each run that has ended and, unless it completed, its setback."""
        executor.on_done = self._done
        executor.on_free = self._freed
        executor.on_progress = self._report

    @property
    def stuck(self) -> int:
        """Slots whose handlers were told to stop and have not ended."""
        return sum(slots.stuck for slots in self._queues.values())

    @property
    def claimed(self) -> int:
        return sum(len(slots.claimed) + len(slots.begun) for slots in self._queues.values())

    @property
    def is_failing(self) -> bool:
        """Whether the last turn failed, so that its outcome may not be known."""
        return self._failures > 0

    # From outside, on the loop's thread

    def look(self) -> None:
        """There may be something to claim."""
        self._may_claim = True
        self._rouse()

    def stop(self) -> None:
        """Claim no more, hand back what has not begun to run, end when what runs has ended."""
        self.is_stopping = True
        for slots in self._queues.values():
            self._returned += [run.claim for run in (*slots.claimed, *slots.begun)]
            slots.claimed.clear()
            slots.begun.clear()
        self._rouse()

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
                self._fill(self._queues[run.claim.queue])

    # From any thread

    def hear(self) -> bool:
        """There is something to claim. True if it is being claimed from now on, False if the
        worker is awake and must be told on its own thread."""
        try:
            answer, plan = self._order.pop()
        except IndexError:
            return False
        try:
            self._runtime.committer.run_for(
                answer, lambda tx: self._write(tx, plan), is_light=plan.is_light
            )
        except PenstockError as error:
            # Raised where it is awaited.
            self._loop.call_soon_threadsafe(_fail, answer, error)
        return True

    # The loop

    async def run(self) -> None:
        while True:
            try:
                if self._has_work():
                    await self._take_turn()
                elif self.is_stopping and not self.running:
                    return
                else:
                    await self._rest()
            except HubClosed:
                return

    def _has_work(self) -> bool:
        if self._answers or self._setbacks or self._returned or self._progress:
            return True
        if self.is_stopping:
            return False
        now = monotonic()
        for slots in self._queues.values():
            if slots.can_start(now):
                return True
            if self._may_claim and slots.wanted(now) > 0:
                return True
        return False

    async def _take_turn(self) -> None:
        plan = self._plan()
        try:
            turn = await self._runtime.committer.run_async(
                lambda tx: self._write(tx, plan), is_light=plan.is_light
            )
        except Exception as error:  # noqa: BLE001 - a worker that ended would keep its jobs
            await self._put_off(plan, error)
        else:
            self._conclude(plan, turn)

    async def _rest(self) -> None:
        """Until there is something to do."""
        answer = self._sleep = self._loop.create_future()
        plan = self._plan_to_claim()
        self._is_offered = bool(plan.wanted)
        if self._is_offered:
            self._order.append((answer, plan))
        try:
            turn = await answer
        except Exception as error:  # noqa: BLE001 - as above
            await self._put_off(plan, error)
        else:
            if turn is not None:
                self._conclude(plan, turn)
        finally:
            self._sleep = None
            self._order.clear()

    def _rouse(self) -> None:
        """There is something else to do."""
        sleep = self._sleep
        if sleep is None or sleep.done():
            return
        if self._is_offered:
            try:
                self._order.pop()
            except IndexError:
                return  # It is on its way to the disk, and wakes with its answer.
        sleep.set_result(None)

    def _plan_to_claim(self) -> Plan:
        """For the slots that are free, and none ahead: nobody knows when it is carried out."""
        wanted: dict[str, int] = {}
        if not self.is_stopping:
            idle = {queue: slots.idle for queue, slots in self._queues.items()}
            wanted = {queue: min(CLAIM_MAX, count) for queue, count in idle.items() if count > 0}
        return Plan([], [], [], {}, [], wanted, {q: Room(n, n) for q, n in wanted.items()})

    def _plan(self) -> Plan:
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
        if not self.is_stopping:
            now = monotonic()
            for slots in self._queues.values():
                slots.note(now)
                left = room[slots.queue] = Room(slots.room(now), slots.free - len(slots.begun))
                starting += slots.starting(left)
                if may_claim and (more := min(left.left, slots.wanted(now))) > 0:
                    wanted[slots.queue] = more
        return Plan(answers, setbacks, returned, progress, starting, wanted, room)

    async def _put_off(self, plan: Plan, error: Exception) -> None:
        """The database is busy, full or away: the answers stand, and are given again."""
        self._answers = plan.answers + self._answers
        self._setbacks = plan.setbacks + self._setbacks
        self._returned = plan.returned + self._returned
        self._progress = {**plan.progress, **self._progress}
        for run in reversed(plan.starting):
            self._queues[run.claim.queue].claimed.appendleft(run)
        if self.is_stopping:
            self.stop()
        if isinstance(error, HubClosed):
            raise error
        self._failures += 1
        self._may_claim = True
        self._runtime.telemetry.emit("service_failed", service="worker", error=repr(error))
        await asyncio.sleep(min(RETRY_SECONDS_MAX, RETRY_SECONDS * 2 ** min(self._failures, 10)))

    def _conclude(self, plan: Plan, turn: Turn) -> None:
        self._failures = 0
        self._answered(plan.answers, plan.setbacks, plan.returned, turn.held)
        self._begin(plan.starting, turn, plan.wanted)

    def _write(self, transaction: Transaction, plan: Plan) -> Turn:
        """On the committer's thread, in one transaction."""
        jobs, now = transaction.jobs, self._runtime.clock.now()
        held = 0
        if plan.answers:
            until = now + micros(self._runtime.settings.job_result_seconds)
            held += len(jobs.complete(plan.answers, now=now, result_until=until))
        if plan.setbacks:
            held += len(jobs.set_back(plan.setbacks, now=now))
        if plan.returned:
            jobs.release(plan.returned, now=now)
        for claim, reported in plan.progress.values():
            jobs.report(claim.id, claim.token, reported, now=now)
        started: list[int] = []
        if plan.starting:
            started = jobs.start([run.claim for run in plan.starting], now=now)
        claims: list[Claim] = []
        begun: set[int] = set()
        if plan.wanted:
            instance = self._runtime.instance
            assert instance is not None
            # Copied: a transaction that fails is made again.
            room = {queue: msgspec.structs.replace(plan.room[queue]) for queue in plan.wanted}

            is_light = plan.is_light

            def begins(claim: Claim) -> bool:
                if is_light and claim.attempt >= claim.max_attempts:
                    return False  # It must never be taken back: the next turn starts it.
                if room[claim.queue].take(claim):
                    begun.add(claim.id)
                    return True
                return False

            claims = jobs.claim(instance, plan.wanted, now=now, begins=begins)
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
                self._queues[run.claim.queue].begun.append(run)
                run.phase = Phase.BEGUN
            else:
                # Rescued, or cancelled while it waited here: the second ends with this.
                self._returned.append(run.claim)
        begun = turn.begun
        got = dict.fromkeys(wanted, 0)
        for claim in turn.claims:
            got[claim.queue] += 1
            run = self.known[claim.id] = Run(claim)
            slots = self._queues[claim.queue]
            if claim.id in begun:
                run.phase = Phase.BEGUN
                slots.begun.append(run)
            else:
                slots.claimed.append(run)
        if wanted:
            # Less than was asked for: the rest comes with the next wake.
            self._may_claim = any(got[queue] >= count for queue, count in wanted.items())
            if not self._may_claim:
                self._runtime.roster.rang()  # It may be a rate: the keeper knows when to look.
        if self.is_stopping:
            self.stop()
        else:
            for slots in self._queues.values():
                self._fill(slots)

    def _fill(self, slots: Slots) -> None:
        """Give free slots to jobs that have begun."""
        begun = slots.begun
        while begun and (slots.free > 0 or begun[0].why is not None):
            run = begun.popleft()
            if run.why is not None:
                self._returned.append(run.claim)
                self._rouse()
                continue
            slots.free -= 1
            self.running += 1
            self._executor.submit(run)

    # From the executor

    def _done(self, run: Run, outcome: Outcome | None) -> None:
        """The handler has ended, in whatever way, or has had its time."""
        self.running -= 1
        slots = self._queues[run.claim.queue]
        if run.phase is Phase.STUCK:
            slots.stuck += 1
            self._runtime.telemetry.emit("job_stuck", job=run.id, type=run.claim.type)
        else:
            run.phase = Phase.ANSWERED
            slots.give_back(run)
            if slots.begun:
                self._fill(slots)
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
        self._rouse()

    def _tell(self, run: Run, setback: Setback | None) -> None:
        assert self.on_outcome is not None
        try:
            self.on_outcome(run, setback)
        except Exception as error:  # noqa: BLE001 - whoever listens must not stop the work
            self._runtime.telemetry.emit("listener_failed", error=repr(error))

    def _freed(self, run: Run) -> None:
        """One that was stuck has ended."""
        slots = self._queues[run.claim.queue]
        slots.stuck -= 1
        slots.free += 1
        self._fill(slots)
        self._rouse()

    def _report(self, claim: Claim, progress: Progress) -> None:
        """From any thread."""

        def note() -> None:
            run = self.known.get(claim.id)
            if run is not None and run.token == claim.token and run.phase is Phase.RUNNING:
                self._progress[claim.id] = (claim, progress)
                self._rouse()

        self._loop.call_soon_threadsafe(note)


def _fail(answer: asyncio.Future[Turn | None], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
