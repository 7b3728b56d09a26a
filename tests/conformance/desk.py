"""A process that works with jobs, as the tests of the job store have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.clock import Micros, micros
from penstock.job import (
    Answer,
    Claim,
    Enqueued,
    Failure,
    Job,
    JobFilter,
    Kind,
    NewJob,
    QueueLimits,
    Setback,
    State,
    Worker,
)
from penstock.model import Instance
from penstock.ports import Store, Transaction, Writer
from penstock.testing import FakeClock

T = TypeVar("T")

LEASE_SECONDS = 30.0
BROKEN = Failure("ValueError", "broken", "Traceback …")


def new_job(queue: str = "q", body: bytes = b"1", **options: Any) -> NewJob:
    return NewJob(queue, options.pop("type", "work"), body, 1, **options)


class Desk:
    """Each call is a transaction of its own. Times are seconds from now."""

    def __init__(self, store: Store, writer: Writer, clock: FakeClock, name: str) -> None:
        self.store = store
        self.clock = clock
        self.instance: Instance = store.register(name)
        self._writer = writer

    def write(self, work: Callable[[Transaction], T]) -> T:
        with self._writer.transaction() as transaction:
            return work(transaction)

    def at(self, seconds: float) -> Micros:
        return self.clock.now() + micros(seconds)

    # In

    def put(self, *jobs: NewJob) -> list[Enqueued]:
        now = self.clock.now()
        return self.write(lambda tx: tx.jobs.enqueue(jobs, now=now))

    def enqueue(self, queue: str = "q", *, delay: float | None = None, **options: Any) -> int:
        if delay is not None:
            options["run_at"] = self.at(delay)
        return self.put(new_job(queue, **options))[0].id

    # Work

    def enter(self, lease_seconds: float = LEASE_SECONDS, **queues: int) -> None:
        worker = Worker(self.instance.id, self.instance.name, queues or {"q": 10}, self.at(0))
        now = self.clock.now()
        self.write(lambda tx: tx.jobs.enter(worker, lease_seconds=lease_seconds, now=now))

    def leave(self) -> list[int]:
        now = self.clock.now()
        return self.write(lambda tx: tx.jobs.leave(self.instance, now=now))

    def claim(self, count: int = 1, queue: str = "q", **wanted: int) -> list[Claim]:
        now = self.clock.now()
        return self.write(
            lambda tx: tx.jobs.claim(self.instance, wanted or {queue: count}, now=now)
        )

    def claim_and_start(self, count: int, begins: Callable[[Claim], bool]) -> list[Claim]:
        now = self.clock.now()
        return self.write(
            lambda tx: tx.jobs.claim(self.instance, {"q": count}, now=now, begins=begins)
        )

    def claimed(self, count: int = 1_000, queue: str = "q") -> list[int]:
        return [claim.id for claim in self.claim(count, queue)]

    def start(self, *claims: Claim) -> list[int]:
        now = self.clock.now()
        return self.write(lambda tx: tx.jobs.start(claims, now=now))

    def take(self, queue: str = "q") -> Claim:
        """Claim one and start it."""
        (claim,) = self.claim(1, queue)
        assert self.start(claim) == [claim.id]
        return claim

    def take_many(self, count: int, queue: str = "q") -> list[Claim]:
        claims = self.claim(count, queue)
        self.start(*claims)
        return claims

    def complete(self, *claims: Claim, result: bytes | None = None, keep: float = 60) -> list[int]:
        now, until = self.at(0), self.at(keep)
        answers = [Answer(claim.id, claim.token, result, 1) for claim in claims]
        return self.write(lambda tx: tx.jobs.complete(answers, now=now, result_until=until))

    def set_back(
        self,
        claim: Claim,
        kind: Kind = Kind.FAILED,
        *,
        retry: float | None = None,
        failure: Failure | None = BROKEN,
    ) -> list[int]:
        now, at = self.at(0), None if retry is None else self.at(retry)
        setback = Setback(claim.id, claim.token, kind, at, failure)
        return self.write(lambda tx: tx.jobs.set_back([setback], now=now))

    def release(self, *claims: Claim) -> list[int]:
        now = self.clock.now()
        return self.write(lambda tx: tx.jobs.release(claims, now=now))

    def rescue(self, limit: int = 100) -> list[int]:
        now = self.clock.now()
        return self.write(lambda tx: tx.jobs.rescue(now=now, limit=limit))

    # By hand

    def cancel(self, *ids: int, reason: str = "enough", states: Sequence[State] = ()) -> list[int]:
        now = self.clock.now()
        return self.write(lambda tx: tx.jobs.cancel(ids, reason=reason, now=now, states=states))

    def retry(self, *ids: int, states: Sequence[State] = ()) -> list[int]:
        now = self.clock.now()
        return self.write(lambda tx: tx.jobs.retry(ids, now=now, states=states))

    def limit(self, queue: str = "q", **limits: Any) -> None:
        now = self.clock.now()
        self.write(lambda tx: tx.jobs.set_limits(queue, QueueLimits(**limits), now=now))

    def prune(self, ages: dict[State, float], limit: int = 100) -> int:
        """Jobs that finished longer ago than this."""
        before = {int(state): self.at(-age) for state, age in ages.items()}
        now = self.clock.now()
        return self.write(lambda tx: tx.jobs.prune(before=before, now=now, limit=limit))

    # Looking

    def get(self, id: int) -> Job:
        found = self.store.jobs.get(id)
        assert found is not None
        return found

    def state(self, id: int) -> State:
        return self.get(id).state

    def states(self, *ids: int) -> list[State]:
        return [self.state(id) for id in ids]

    def told(self, id: int) -> str:
        """Its history, in words."""
        events = self.store.jobs.events(after=0, limit=10_000, job_id=id)
        return " ".join(event.kind.name.lower() for event in events)

    def last(self, id: int) -> dict[str, Any]:
        """What the last event of its history has to say."""
        return self.store.jobs.events(after=0, limit=10_000, job_id=id)[-1].data

    def find(self, before: int | None = None, limit: int = 100, **filter: Any) -> list[int]:
        found = self.store.jobs.find(JobFilter(**filter), before=before, limit=limit)
        ids = self.store.jobs.find_ids(JobFilter(**filter), after=0, limit=10_000)
        if before is None and limit == 100:
            assert sorted(job.id for job in found) == ids, "find and find_ids agree"
        return [job.id for job in found]

    # Ready-made

    def done(self, kind: State, **options: Any) -> int:
        """A job that has ended in this way."""
        number = self.enqueue(queue="ready-made", **options)
        if kind == State.CANCELLED:
            self.cancel(number)
            return number
        claim = self.take("ready-made")
        if kind == State.COMPLETED:
            self.complete(claim)
        else:
            self.set_back(claim, Kind.DIED)
        assert (claim.id, self.state(number)) == (number, kind)
        return number
