"""Keeps this process's jobs its own, from a thread that no handler can block.

One row with a lease stands for all the jobs a process has in hand. While it is renewed, the jobs
are this process's; when it is not, any other process rescues them, and what this one says later
about them is refused. A process that was suspended finds out here, and stops its copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.clock import micros
from penstock.errors import PenstockError
from penstock.job import Answer, Worker
from penstock.jobs.run import Phase, Run, Why
from penstock.jobs.runtime import Runtime
from penstock.service import Service

RENEWALS = 3
"""How many renewals fit into a lease."""
LOOK_SECONDS = 1.0
"""How often jobs that were asked to stop, and jobs that have become due, are looked for without
a bell."""
YIELD_SECONDS = 0.01
BELL_SECONDS = 0.05
"""How soon after a bell."""

Stops = list[tuple[int, int, Why]]


class Member(Protocol):
    """A crew, as its keeper sees it. From the keeper's thread."""

    queues: dict[str, int]

    @property
    def types(self) -> tuple[str, ...]:
        """Which jobs it has handlers for."""

    def known(self) -> dict[int, Run]:
        """A copy of what is in its hands."""

    def tell(self, stops: Stops) -> None: ...

    def look(self) -> bool:
        """Look for jobs, and wake the worker if there are any."""

    @property
    def is_failing(self) -> bool: ...


class WorkerKeeper(Service):
    """For all crews of a process."""

    name = "worker-keeper"

    def __init__(self, runtime: Runtime, members: Callable[[], tuple[Member, ...]]) -> None:
        super().__init__(runtime.telemetry)
        self._runtime = runtime
        self._members = members
        runtime.start_reading()
        instance = runtime.instance
        assert instance is not None
        self._instance = instance
        self._worker = Worker(instance.id, runtime.name, {}, runtime.clock.now())
        self._renewed_at = 0
        self._has_checked = False
        self._strangers: set[tuple[int, int]] = set()

    def enter(self) -> None:
        """Before the first claim, and when a crew comes or goes."""
        self._renew()

    def run_once(self) -> float:
        clock = self._runtime.clock
        lease = micros(self._runtime.settings.job_lease_seconds)
        passed = clock.monotonic() - self._renewed_at
        was_late = passed >= lease
        is_failing = any(member.is_failing for member in self._members())
        if passed >= lease // RENEWALS:
            self._renew()
            self._has_checked = False
        if not self._has_checked or was_late or is_failing:
            self._compare()
            self._has_checked = not is_failing
        self._stop_cancelled()
        for member in self._members():
            member.look()
        return min(LOOK_SECONDS, lease / RENEWALS / 1_000_000, self._until_next())

    def _pause(self, seconds: float) -> None:
        super()._pause(seconds)
        # After a bell the workers come first: they want the interpreter now.
        self._stopping.wait(YIELD_SECONDS)

    def _on_stop(self) -> None:
        """After the last answer."""
        instance, now = self._instance, self._runtime.clock.now()
        try:
            self._runtime.committer.run_now(lambda tx: tx.jobs.leave(instance, now=now))
        except PenstockError as error:
            # It is forgotten by the others when the process has ended.
            self._telemetry.emit("service_failed", service=self.name, error=repr(error))

    def _until_next(self) -> float:
        """Jobs that are due later are never held here: only the time of the next is known."""
        jobs = self._runtime.store.jobs
        next_at = jobs.next_at()
        found = [LOOK_SECONDS]
        if next_at is not None:
            found.append((next_at - self._runtime.clock.now()) / 1_000_000)
        queues = {queue for member in self._members() for queue in member.queues}
        free_in = jobs.free_in(sorted(queues))
        if free_in is not None:
            found.append(free_in / 1_000_000)
        return max(0.001, min(found))

    def _stop_cancelled(self) -> None:
        members = self._members()
        if not any(member.known() for member in members):
            return
        asked = self._runtime.store.jobs.cancelling(self._instance)
        for member in members if asked else ():
            known = member.known()
            stops: Stops = [
                (number, known[number].token, "cancelled") for number in asked if number in known
            ]
            if stops:
                member.tell(stops)

    def _compare(self) -> None:
        """What the store says is ours against what we have."""
        members = self._members()
        before = [(member, member.known()) for member in members]
        held = self._runtime.store.jobs.held(self._instance)
        for member, known in before:
            lost: Stops = [
                (run.id, run.token, "lost")
                for run in known.values()
                if held.get(run.id) != run.token and run.phase in (Phase.RUNNING, Phase.BEGUN)
            ]
            if lost:
                self._telemetry.emit("jobs_lost", jobs=len(lost))
                member.tell(lost)
        self._return_strangers(held)

    def _return_strangers(self, held: dict[int, int]) -> None:
        """A commit that failed may have happened: its claims are ours, and nobody knows them.

        Seen twice in a row, so that those just on their way to a crew do not count.
        """
        known = {
            (run.id, run.token) for member in self._members() for run in member.known().values()
        }
        strangers = set(held.items()) - known
        again, self._strangers = strangers & self._strangers, strangers
        if again:
            now = self._runtime.clock.now()
            claims = [Answer(number, token) for number, token in again]
            self._runtime.committer.run_now(lambda tx: tx.jobs.release(claims, now=now))

    def _renew(self) -> None:
        clock, lease = self._runtime.clock, self._runtime.settings.job_lease_seconds
        now = clock.now()
        queues: dict[str, int] = {}
        for member in self._members():
            for queue, slots in member.queues.items():
                queues[queue] = queues.get(queue, 0) + slots
        types = tuple(sorted({type for member in self._members() for type in member.types}))
        worker = msgspec.structs.replace(self._worker, seen_at=now, queues=queues, types=types)
        self._runtime.committer.run_now(
            lambda tx: tx.jobs.enter(worker, lease_seconds=lease, now=now)
        )
        self._renewed_at = clock.monotonic()
