"""What the job store must look like, kept in plain Python: dictionaries, lists and a few rules."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.clock import SECOND
from penstock.job import Kind, State

OPEN = (State.PENDING, State.SCHEDULED, State.WAITING)


@dataclass
class ModelJob:
    id: int
    queue: str
    body: bytes
    priority: int
    max_attempts: int
    run_at: int | None
    deadline: int | None
    key: str | None
    policy: str
    state: State = State.PENDING
    parents: set[int] = field(default_factory=set)
    attempts: int = 0
    crashes: int = 0
    token: int = 0
    owner: int = 0
    is_started: bool = False
    is_cancelling: bool = False
    finished_at: int = 0

    @property
    def shown_attempts(self) -> int:
        return self.attempts + self.is_started


@dataclass
class ModelWorker:
    """A process. `until` None: it has not entered, or was forgotten."""

    id: int
    is_alive: bool = True
    until: int | None = None


class JobModel:
    def __init__(self) -> None:
        self.now = 0
        self.monotonic = 0
        self.jobs: dict[int, ModelJob] = {}
        self.keys: dict[str, tuple[int, int | None]] = {}
        self.workers: dict[int, ModelWorker] = {}
        self.concurrency: dict[str, int] = {}
        self.paused: set[str] = set()

    # In

    def holder(self, key: str) -> ModelJob | None:
        number, until = self.keys.get(key, (0, None))
        if not number or (until is not None and until <= self.now):
            return None
        return self.jobs[number]

    def add(self, job: ModelJob, after: list[int], unique_for: int | None) -> State:
        self.jobs[job.id] = job
        if job.key is not None:
            self.take_key(job.key, job.id, unique_for)
        parents = [self.jobs[number] for number in after]
        bad = any(p.state in (State.FAILED, State.CANCELLED) for p in parents)
        if bad and job.policy == "cancel":
            self.finish(job, State.CANCELLED)
        else:
            job.parents = {p.id for p in parents if not p.state.is_final}
            if job.parents:
                job.state = State.WAITING
            else:
                self.admit(job)
        return job.state

    def take_key(self, key: str, number: int, unique_for: int | None) -> None:
        self.keys[key] = (number, None if unique_for is None else self.now + unique_for)

    def change(self, job: ModelJob, new: ModelJob, unique_for: int | None, *, later: bool) -> None:
        """What `replace` and `debounce` do."""
        job.body, job.attempts, job.crashes = new.body, 0, 0
        if later:
            times = [at for at in (job.run_at, new.run_at) if at is not None]
            job.run_at = max(times, default=None)
        else:
            job.run_at, job.priority = new.run_at, new.priority
            job.max_attempts, job.deadline = new.max_attempts, new.deadline
        assert job.key is not None
        self.take_key(job.key, job.id, unique_for)
        if job.state != State.WAITING:
            self.admit(job)

    def admit(self, job: ModelJob) -> None:
        is_later = job.run_at is not None and job.run_at > self.now
        job.state = State.SCHEDULED if is_later else State.PENDING

    # Out and back

    def claim(self, worker: int, queue: str, count: int) -> list[int]:
        """The ids that must come. The token is told afterwards."""
        if self.is_lost(self.workers[worker]):
            return []
        for job in self.jobs.values():
            if job.state == State.SCHEDULED and job.run_at is not None and job.run_at <= self.now:
                job.state = State.PENDING
        if queue in self.paused:
            return []
        if queue in self.concurrency:
            count = min(count, self.concurrency[queue] - self.held(queue))
        taken: list[int] = []
        while count > len(taken):
            ready = [j for j in self.jobs.values() if (j.queue, j.state) == (queue, State.PENDING)]
            ready.sort(key=lambda job: (job.priority, job.id))
            found = ready[: count - len(taken)]
            if not found:
                break
            late = [j for j in found if j.deadline is not None and j.deadline <= self.now]
            for job in found:
                if job not in late:
                    job.state, job.owner = State.PROCESSING, worker
                    taken.append(job.id)
            for job in late:
                self.finish(job, State.FAILED)
        return taken

    def held(self, queue: str) -> int:
        return sum((j.queue, j.state) == (queue, State.PROCESSING) for j in self.jobs.values())

    def find_held(self, number: int, token: int) -> ModelJob | None:
        job = self.jobs.get(number)
        if job is None or job.state != State.PROCESSING or job.token != token:
            return None
        return job

    def start(self, number: int, token: int) -> bool:
        job = self.find_held(number, token)
        if job is None or job.is_cancelling:
            return False
        job.is_started = True
        return True

    def complete(self, number: int, token: int) -> bool:
        job = self.find_held(number, token)
        if job is None or not job.is_started:
            return False
        job.attempts += 1
        self.finish(job, State.COMPLETED)
        return True

    def set_back(self, number: int, token: int, kind: Kind, retry_at: int) -> bool:
        job = self.find_held(number, token)
        if job is None or not job.is_started:
            return False
        is_last = job.attempts + 1 >= job.max_attempts
        if job.is_cancelling or kind == Kind.CANCELLED:
            job.attempts += 1
            self.finish(job, State.CANCELLED)
        elif kind == Kind.DIED or (kind == Kind.FAILED and is_last):
            job.attempts += 1
            self.finish(job, State.FAILED)
        else:
            job.attempts += kind == Kind.FAILED
            job.run_at = retry_at
            self.let_go(job)
            self.admit(job)
        return True

    def release(self, number: int, token: int) -> bool:
        job = self.find_held(number, token)
        if job is not None:
            self.hand_back(job)
        return job is not None

    def hand_back(self, job: ModelJob) -> None:
        if job.is_cancelling:
            job.attempts += job.is_started
            self.finish(job, State.CANCELLED)
        else:
            self.let_go(job)
            job.state = State.PENDING

    def let_go(self, job: ModelJob) -> None:
        job.token = job.owner = 0
        job.is_started = job.is_cancelling = False

    def finish(self, job: ModelJob, state: State) -> None:
        self.let_go(job)
        job.state, job.finished_at = state, self.now
        job.parents = set()
        if job.key is not None:
            number, until = self.keys.get(job.key, (0, None))
            if number == job.id and (until is None or until <= self.now):
                del self.keys[job.key]
        for child in [j for j in self.jobs.values() if job.id in j.parents]:
            if state != State.COMPLETED and child.policy == "cancel":
                self.finish(child, State.CANCELLED)
                continue
            child.parents.discard(job.id)
            if not child.parents and child.state == State.WAITING:
                self.admit(child)

    # Workers

    def is_lost(self, worker: ModelWorker) -> bool:
        return not worker.is_alive or (worker.until is not None and worker.until <= self.monotonic)

    def enter(self, worker: int, lease: int) -> None:
        self.workers[worker].until = self.monotonic + lease
        self.forget_lost()

    def forget_lost(self) -> None:
        owners = {job.owner for job in self.jobs.values() if job.state == State.PROCESSING}
        for worker in self.workers.values():
            if self.is_lost(worker) and worker.id not in owners:
                worker.until = None

    def leave(self, worker: int) -> list[int]:
        mine = [job for job in self.jobs.values() if job.owner == worker]
        for job in mine:
            self.hand_back(job)
        self.workers[worker].until = None
        return [job.id for job in mine]

    def rescue(self) -> list[int]:
        lost = {worker.id for worker in self.workers.values() if self.is_lost(worker)}
        found = [job for job in self.jobs.values() if job.owner in lost]
        for job in found:
            if not job.is_started or job.is_cancelling:
                self.hand_back(job)
                continue
            job.attempts += 1
            job.crashes += 1
            if job.attempts >= job.max_attempts:
                self.finish(job, State.FAILED)
                continue
            self.let_go(job)
            job.run_at = self.now + job.attempts**2 * SECOND
            self.admit(job)
        self.forget_lost()
        return [job.id for job in found]

    # By hand

    def cancel(self, number: int) -> bool:
        job = self.jobs.get(number)
        if job is None or job.state.is_final:
            return False
        if job.state == State.PROCESSING and job.is_started:
            job.is_cancelling = True
        else:
            self.finish(job, State.CANCELLED)
        return True

    def retry(self, number: int) -> bool:
        job = self.jobs.get(number)
        if job is None or not (job.state.is_final or job.state == State.SCHEDULED):
            return False
        if job.state.is_final and job.key is not None:
            holder = self.holder(job.key)
            if holder is not None and holder is not job:
                return False
            if holder is None or self.keys[job.key][1] is None:
                self.keys[job.key] = (job.id, None)
        job.attempts = job.crashes = 0
        job.run_at = None
        if job.deadline is not None and job.deadline <= self.now:
            job.deadline = None
        job.state = State.PENDING
        return True

    def prune(self, before: dict[State, int]) -> int:
        doomed = [
            job
            for job in self.jobs.values()
            if job.state in before
            and job.finished_at < before[job.state]
            # A period that still runs keeps its job.
            and not (job.key is not None and self.holder(job.key) is job)
        ]
        for job in doomed:
            del self.jobs[job.id]
            if job.key is not None and self.keys.get(job.key, (0,))[0] == job.id:
                del self.keys[job.key]
        return len(doomed)
