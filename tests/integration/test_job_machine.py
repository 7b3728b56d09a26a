"""The job store against a plain model, in any order hypothesis finds (J1-J4, J6, J8, J10).

Three processes share a file; any of them may die or be suspended beyond its lease, and old claims
are answered for at any time. After every step, the store shows what the model does, and an audit
counts it all anew: each job in one table, exact counts, no two live claims on a job, attempts
within bounds, histories that follow the table of transitions.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import penstock
from penstock.clock import SECOND
from penstock.errors import JobExists
from penstock.job import TRANSITIONS, Claim, Kind, State
from penstock.testing import FakeClock
from tests.audit import audit_jobs
from tests.conformance.desk import Desk, new_job
from tests.factories import file_url, store_at
from tests.integration.job_model import OPEN, JobModel, ModelJob, ModelWorker

PROCESSES = 3
LEASE_SECONDS = 30

queues = st.sampled_from(("a", "b"))
picks = st.integers(0, 1_000_000)
processes = st.integers(0, PROCESSES - 1)
delays = st.sampled_from((None, None, 0, 5, 60))
ends = st.sampled_from((Kind.FAILED, Kind.FAILED, Kind.DIED, Kind.SNOOZED, Kind.CANCELLED))


class JobMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.clock = FakeClock()
        self.model = JobModel()
        self.claims: list[Claim] = []
        self.body = 0
        self.sync()
        self.desks = [self.open() for _ in range(PROCESSES)]

    def open(self) -> Desk:
        store = store_at(file_url(self.folder / "hub.db"), clock=self.clock, durability="os")
        desk = Desk(store, store.open_writer(), self.clock, "worker")
        self.model.workers[desk.instance.id] = ModelWorker(desk.instance.id)
        desk.enter(LEASE_SECONDS)
        self.model.enter(desk.instance.id, LEASE_SECONDS * SECOND)
        return desk

    def close(self, desk: Desk) -> None:
        desk._writer.close()
        desk.store.close()

    def sync(self) -> None:
        self.model.now, self.model.monotonic = self.clock.now(), self.clock.monotonic()

    def pick(self, number: int) -> int:
        """An id, of a job that is there if there is one."""
        ids = sorted(self.model.jobs)
        return ids[number % len(ids)] if ids else 99

    def pick_claim(self, number: int) -> Claim:
        # The latest ones more often: they are the living.
        recent = self.claims[-6:] if number % 4 else self.claims
        return recent[number % len(recent)]

    # In

    @rule(
        at=processes,
        queue=queues,
        priority=st.integers(-1, 1),
        delay=delays,
        deadline=st.sampled_from((None, None, None, 1, 20)),
        max_attempts=st.integers(1, 3),
        key=st.sampled_from((None, None, "k", "l")),
        unique_for=st.sampled_from((None, None, 15)),
        on_conflict=st.sampled_from(("reject", "return", "replace", "debounce")),
        parents=st.lists(picks, max_size=2),
        policy=st.sampled_from(("cancel", "run")),
    )
    def enqueue(
        self,
        at: int,
        queue: str,
        priority: int,
        delay: float | None,
        deadline: float | None,
        max_attempts: int,
        key: str | None,
        unique_for: int | None,
        on_conflict: str,
        parents: list[int],
        policy: str,
    ) -> None:
        desk, model = self.desks[at], self.model
        self.body += 1
        after = sorted({self.pick(number) for number in parents}) if model.jobs else []
        period = None if unique_for is None or key is None else unique_for * SECOND
        job = ModelJob(
            0,
            queue,
            b"%d" % self.body,
            priority,
            max_attempts,
            None if delay is None else desk.at(delay),
            None if deadline is None else desk.at(deadline),
            key,
            policy,
        )
        new = new_job(
            queue,
            job.body,
            priority=priority,
            max_attempts=max_attempts,
            run_at=job.run_at,
            deadline=job.deadline,
            unique_key=key,
            unique_for=period,
            on_conflict=on_conflict,
            after=tuple(after),
            on_parent_failure=policy,
        )
        holder = None if key is None else model.holder(key)
        if holder is None:
            (added,) = desk.put(new)
            job.id = added.id
            assert added.id > max(model.jobs, default=0)
            assert (added.state, added.duplicate) == (model.add(job, after, period), False)
            return
        changes = on_conflict in ("replace", "debounce")
        if on_conflict == "reject" or (
            changes and (holder.state not in OPEN or holder.queue != queue)
        ):
            with pytest.raises(JobExists) as caught:
                desk.put(new)
            assert caught.value.job_id == holder.id
            return
        (added,) = desk.put(new)
        if changes:
            model.change(holder, job, period, later=on_conflict == "debounce")
        assert (added.id, added.state, added.duplicate) == (holder.id, holder.state, True)

    # Out and back

    @rule(at=processes, queue=queues, count=st.integers(1, 4), is_started=st.booleans())
    def claim(self, at: int, queue: str, count: int, is_started: bool) -> None:
        desk = self.desks[at]
        expected = self.model.claim(desk.instance.id, queue, count)
        claims = desk.claim(count, queue)
        assert [claim.id for claim in claims] == expected
        for claim in claims:
            job = self.model.jobs[claim.id]
            assert claim.token > job.token
            assert (claim.attempt, claim.body) == (job.attempts + 1, job.body)
            assert claim.attempt <= claim.max_attempts
            job.token = claim.token
        self.claims += claims
        if is_started and claims:
            assert sorted(desk.start(*claims)) == sorted(expected)
            for claim in claims:
                assert self.model.start(claim.id, claim.token)

    @precondition(lambda self: self.claims)
    @rule(at=processes, pick=picks)
    def start(self, at: int, pick: int) -> None:
        claim = self.pick_claim(pick)
        expected = self.model.start(claim.id, claim.token)
        assert self.desks[at].start(claim) == [claim.id] * expected

    @precondition(lambda self: self.claims)
    @rule(at=processes, pick=picks)
    def complete(self, at: int, pick: int) -> None:
        claim = self.pick_claim(pick)
        expected = self.model.complete(claim.id, claim.token)
        assert self.desks[at].complete(claim) == [claim.id] * expected

    @precondition(lambda self: self.claims)
    @rule(at=processes, pick=picks, kind=ends, retry=st.sampled_from((0, 7)))
    def set_back(self, at: int, pick: int, kind: Kind, retry: int) -> None:
        claim, desk = self.pick_claim(pick), self.desks[at]
        expected = self.model.set_back(claim.id, claim.token, kind, desk.at(retry))
        assert desk.set_back(claim, kind, retry=retry) == [claim.id] * expected

    @precondition(lambda self: self.claims)
    @rule(at=processes, pick=picks)
    def release(self, at: int, pick: int) -> None:
        claim = self.pick_claim(pick)
        expected = self.model.release(claim.id, claim.token)
        assert self.desks[at].release(claim) == [claim.id] * expected

    # Workers

    @rule(at=processes)
    def renew(self, at: int) -> None:
        desk = self.desks[at]
        desk.enter(LEASE_SECONDS)
        self.model.enter(desk.instance.id, LEASE_SECONDS * SECOND)

    @rule(at=processes)
    def leave(self, at: int) -> None:
        desk = self.desks[at]
        assert sorted(desk.leave()) == self.model.leave(desk.instance.id)

    @rule(at=processes)
    def die(self, at: int) -> None:
        self.close(self.desks[at])
        self.model.workers[self.desks[at].instance.id].is_alive = False
        self.desks[at] = self.open()

    @rule(at=processes)
    def rescue(self, at: int) -> None:
        expected = self.model.rescue()
        assert self.desks[at].store.jobs.has_lost() == bool(expected)
        assert sorted(self.desks[at].rescue()) == expected

    # Time

    @rule(seconds=st.sampled_from((1, 6, 12, LEASE_SECONDS, 100)))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.sync()

    @rule(seconds=st.sampled_from((1, 60)))
    def set_clock_back(self, seconds: int) -> None:
        self.clock.set_back(seconds)
        self.sync()

    # By hand

    @rule(at=processes, pick=picks)
    def cancel(self, at: int, pick: int) -> None:
        number = self.pick(pick)
        assert self.desks[at].cancel(number) == [number] * self.model.cancel(number)

    @rule(at=processes, pick=picks)
    def retry(self, at: int, pick: int) -> None:
        number = self.pick(pick)
        assert self.desks[at].retry(number) == [number] * self.model.retry(number)

    @rule(at=processes, pick=picks, priority=st.integers(-2, 2))
    def set_priority(self, at: int, pick: int, priority: int) -> None:
        number = self.pick(pick)
        job = self.model.jobs.get(number)
        is_open = job is not None and job.state in OPEN
        if job is not None and is_open:
            job.priority = priority
        found = self.desks[at].write(lambda tx: tx.jobs.set_priority(number, priority))
        assert found == is_open

    @rule(at=processes, queue=queues, most=st.sampled_from((None, 1, 2)), paused=st.booleans())
    def limit(self, at: int, queue: str, most: int | None, paused: bool) -> None:
        self.desks[at].limit(queue, concurrency_max=most, is_paused=paused)
        self.model.concurrency.pop(queue, None)
        self.model.paused.discard(queue)
        if most is not None:
            self.model.concurrency[queue] = most
        if paused:
            self.model.paused.add(queue)

    @rule(at=processes, age=st.sampled_from((0, 10, 100)))
    def prune(self, at: int, age: int) -> None:
        desk = self.desks[at]
        ages = {State.COMPLETED: age, State.FAILED: 2 * age, State.CANCELLED: age}
        expected = self.model.prune({state: desk.at(-value) for state, value in ages.items()})
        assert desk.prune(ages) == expected

    # What is always true

    @invariant()
    def store_and_model_agree(self) -> None:
        store = self.desks[0].store
        assert audit_jobs(store) == {job.id: job.state for job in self.model.jobs.values()}
        for job in self.model.jobs.values():
            found = store.jobs.get(job.id)
            assert found is not None
            assert (found.attempts, found.crashes) == (job.shown_attempts, job.crashes)
            assert (found.priority, found.body) == (job.priority, job.body)
            assert (found.run_at, found.deadline) == (job.run_at, job.deadline)
            assert found.is_cancelling == job.is_cancelling
            if job.state == State.WAITING:
                assert set(store.jobs.parents(job.id)) == job.parents

    def teardown(self) -> None:
        for desk in self.desks:
            self.close(desk)
        shutil.rmtree(self.folder)


TestJobs = JobMachine.TestCase
TestJobs.settings = settings(max_examples=60, stateful_step_count=50)


def test_a_way_that_is_not_in_the_table_is_not_gone(memory: penstock.Hub) -> None:
    """The control: the store itself refuses what no rule above may find."""
    writer = memory._open().store.open_writer()
    with writer.transaction() as tx:
        for way in itertools.product((None, *State), repeat=2):
            if way not in TRANSITIONS:
                with pytest.raises(AssertionError, match="no way leads from"):
                    tx.jobs._move("q", *way)
    writer.close()
