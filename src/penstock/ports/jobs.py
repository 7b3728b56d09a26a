"""Jobs: work for one worker at a time, done at least once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.clock import Micros
    from penstock.job import (
        Answer,
        Claim,
        Enqueued,
        Job,
        JobEvent,
        JobFilter,
        NewJob,
        Progress,
        QueueLimits,
        QueueStats,
        Ran,
        Setback,
        State,
        Worker,
    )
    from penstock.model import Instance


PRUNE_STRETCH = 10
"""How many finished jobs a call of `prune` looks at, for each that it may remove."""


class JobWriter(Protocol):
    """Each change of a job's state and its line in the history are one transaction.

    Answers of workers (`start`, `complete`, `set_back`, `release`, `report`) count only under the
    token of the claim: after a rescue, a cancellation or a hand-back the token is void, and the
    answer changes nothing. `complete` and `set_back` tell the end of an attempt, so they count
    only for one that was started.
    """

    def enqueue(self, jobs: Sequence[NewJob], *, now: Micros) -> list[Enqueued]:
        """Add jobs, in order. Ids rise, and are never given twice.

        One whose unique key is taken is not added; by its `on_conflict` it raises `JobExists`,
        answers with the id of the job that has the key (`return`), or changes that job, if no
        worker has it: `replace` makes it the new one in all but its id and what it waits for,
        `debounce` gives it the new payload, and the new time if that is later. Both give it all
        its attempts and begin the key's period anew. Where a worker has the other, where it has
        finished, or where it is of another queue, both raise `JobExists`.

        A key is taken until its job has finished, or for `unique_for` if that is given, also
        after the job has finished. A job's own key never stops it from being tried again.

        One with `after` waits until all of those have completed. If one of them has failed or was
        cancelled, or does so later, it is cancelled, or runs all the same, by
        `on_parent_failure`. An unknown parent raises `JobNotFound`.

        Whatever raises has written nothing for its own job.
        """

    def claim(
        self,
        instance: Instance,
        wanted: Mapping[str, int],
        *,
        now: Micros,
        begins: Callable[[Claim], bool] | None = None,
    ) -> list[Claim]:
        """Take up to so many ready jobs of each queue, by priority (lower first), then by id.

        Two callers never receive the same job. Jobs whose time has come are ready. A queue's
        limits hold over all processes, and whatever ends: not more than `concurrency_max` in
        anybody's hands, not more than `rate_max` in any `rate_seconds`, none while it is paused.
        One whose deadline has passed fails instead of being handed out. An attempt does not begin
        before `start`, but for those of which `begins` says so: they are started with their
        claim. It is asked once about each, in this order. A process whose lease has run out gets
        nothing until it has entered again: it would be taken away at once.
        """

    def start(self, claims: Sequence[Claim], *, now: Micros) -> list[int]:
        """Begin the attempts. Returns the ids of those that were still held and were not asked
        to stop; only they may run. To say it again of one that has begun changes nothing."""

    def complete(
        self, answers: Sequence[Answer], *, now: Micros, result_until: Micros
    ) -> list[int]:
        """Done. Returns the ids that were still held; the others' work was somebody else's.

        Results are kept until `result_until`, or for as long as the answer itself says. One that
        was asked to stop and is done all the same is completed. Jobs that waited for them, and
        for nothing else, become ready.
        """

    def set_back(self, setbacks: Sequence[Setback], *, now: Micros) -> list[int]:
        """Failed, snoozed or given up, each by its kind. Returns the ids that were still held.

        A failure at the last attempt is the end, whatever it asks for. A snooze burns no attempt.
        One that was asked to stop is cancelled.
        """

    def release(self, claims: Sequence[Claim | Answer], *, now: Micros) -> list[int]:
        """Hand back jobs without burning an attempt, started or not. Returns those held."""

    def report(self, id: int, token: int, progress: Progress, *, now: Micros) -> bool:
        """How far it is. False if it is not held any more."""

    def enter(self, worker: Worker, *, lease_seconds: float, now: Micros) -> None:
        """Say that this process takes jobs, and renew its lease on those it has."""

    def leave(self, instance: Instance, *, now: Micros) -> list[int]:
        """This process takes no more jobs. What it still has is released; returns that."""

    def rescue(self, *, now: Micros, limit: int) -> list[int]:
        """Take up to `limit` jobs out of the hands of processes that ended or whose lease ran out.

        A job that had started is a crash: it is tried again after a pause, or fails when its
        attempts are used up. One that had not started is ready again. One that was asked to stop
        is cancelled. Each is rescued once, whoever calls.
        """

    def cancel(
        self, ids: Sequence[int], *, reason: str, now: Micros, states: Sequence[State] = ()
    ) -> list[int]:
        """Those not started are cancelled at once. Those that run are asked to stop, and are
        cancelled when their worker has answered or is gone. Returns the ids of both.

        With `states`, only those that are in one of them now, whatever they were when found.
        """

    def retry(self, ids: Sequence[int], *, now: Micros, states: Sequence[State] = ()) -> list[int]:
        """Make finished or scheduled jobs ready, with all their attempts and their history.

        A deadline that has passed is lifted. One whose unique key another job has by now stays as
        it is. With `states`, so does one that is in none of them now, whatever it was when found.
        Returns the ids of those that are ready.
        """

    def set_priority(self, id: int, priority: int) -> bool:
        """False if it is not waiting for a worker."""

    def set_limits(self, queue: str, limits: QueueLimits, *, now: Micros) -> None: ...

    def prune(
        self,
        *,
        before: Mapping[int, Micros],
        now: Micros,
        limit: int,
        after: int | None = None,
    ) -> int:
        """Remove up to `limit` jobs that have finished before the time for their state, with
        their history, and results whose time is over. Returns how many jobs.

        A state that is not named is kept; so is a job whose unique key is taken for longer. Each
        call looks at a stretch of `PRUNE_STRETCH * limit` finished jobs above the id `after`, or
        if that is None where the last call through the same writer ended: what cannot be removed
        hides nothing. `pruned_to` says where to go on.
        """

    @property
    def pruned_to(self) -> int:
        """The id up to which the last `prune` has looked. 0: it has come to the end."""

    @property
    def made_ready(self) -> bool:
        """Whether this transaction has made jobs ready, so that workers must be woken."""


class JobReader(Protocol):
    def get(self, id: int) -> Job | None: ...

    def find(self, filter: JobFilter, *, before: int | None, limit: int) -> list[Job]:
        """Newest first, below the id `before`."""

    def find_ids(self, filter: JobFilter, *, after: int, limit: int) -> list[int]:
        """By id, above `after`; for operations on many."""

    def events(self, *, after: int, limit: int, job_id: int | None = None) -> list[JobEvent]:
        """History by event id, of one job or of all.

        Whoever reads it can tell when a job was ready: ENQUEUED and REPLACED have a `run_at` that
        is to come, and `waiting` if the job waits for others; what put it back has a `retry_at`.
        """

    def stats(self, *, now: Micros) -> list[QueueStats]:
        """Every queue's exact counts."""

    def limits(self, queue: str) -> QueueLimits: ...

    def look(self, queues: Sequence[str], *, now: Micros) -> bool:
        """Whether there may be something to claim: jobs that are ready or due, of a queue that is
        not paused or at its limits. Reads only, and takes microseconds."""

    def free_in(self, queues: Sequence[str]) -> Micros | None:
        """How long until rates may let more of the ready jobs of these queues be claimed."""

    def next_at(self) -> Micros | None:
        """When the next scheduled job is due; a time that has passed, if one is overdue."""

    def held(self, instance: Instance) -> dict[int, int]:
        """The jobs in this process's hands, each with the token of its claim."""

    def cancelling(self, instance: Instance) -> list[int]:
        """Jobs in this process's hands that were asked to stop."""

    def has_lost(self) -> bool:
        """Whether `rescue` has something to do. Reads only."""

    def workers(self) -> list[Worker]: ...

    def finished(self, ids: Sequence[int]) -> set[int]:
        """Which of these have finished, or are not there any more."""

    def ahead(self, id: int, *, limit: int) -> int:
        """How many ready jobs are handed out before this one; counts up to `limit`."""

    def rate_wait(self, queue: str) -> Micros:
        """How long until the queue's rate lets another job out. 0: it does now."""

    def recent_runs(self, *, since: Micros, limit: int) -> tuple[list[Ran], Micros]:
        """Jobs completed since then, found among the last `limit` events, and the time from
        which on that is all of them."""

    def parents(self, id: int) -> list[int]:
        """What a waiting job still waits for."""
