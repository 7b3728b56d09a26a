"""What workers get to do while they are killed, and what must be true of it afterwards.

Beside the jobs of the total-queue check there is a queue with a limit of concurrency, one with a
rate, one whose handlers take a lock, and a schedule that ticks every second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import penstock
from penstock.clock import SECOND
from penstock.job import Kind
from penstock.ports import Store
from tests.crash.workers import WorkerProcess

TYPES = ("long", "plain", "fails-once", "snoozes", "settles")
ATTEMPTS = 1_000
PENDING_MAX = 200
"""More is not enqueued before some are done: the queue must be empty soon after the end."""
NARROW_MAX = 2
PACED_MAX = 10
PACED_SECONDS = 0.5
ASK_SECONDS = 1.0

_ENDS = frozenset(
    {
        Kind.COMPLETED,
        Kind.FAILED,
        Kind.SNOOZED,
        Kind.RESCUED,
        Kind.RELEASED,
        Kind.DIED,
        Kind.CANCELLED,
    }
)


class Load:
    """Enqueues, and remembers what was acknowledged."""

    def __init__(self, hub: penstock.Hub) -> None:
        self._hub = hub
        self._store = hub._open().store
        self._chance = random.Random(7)
        self.acked: dict[int, str] = {}
        self._asks_at = 0.0
        hub.jobs.limit("narrow", concurrency=NARROW_MAX)
        hub.jobs.limit("paced", rate=PACED_MAX, per_seconds=PACED_SECONDS)
        tick = hub.schedules.put(
            "tick", "* * * * * *", "cron", "tick", missed="all", max_attempts=ATTEMPTS
        )
        assert tick.next_at is not None
        self.first_tick = tick.next_at

    def add(self) -> None:
        """A few more of each, unless many wait; and a look whether a limit holds just now."""
        pending = {stats.queue: stats.pending for stats in self._hub.jobs.stats()}
        self._enqueue("q", self._chance.choice(TYPES), self._chance.randint(1, 12), pending)
        for queue, count in (("narrow", 5), ("paced", 20), ("gate", 2)):
            self._enqueue(queue, queue, count, pending)
        ((held,),) = self._store.query(
            "SELECT count(*) FROM penstock_job_claims WHERE queue = 'narrow'"
        )
        assert held <= NARROW_MAX, f"{held} jobs of a queue for {NARROW_MAX} in workers' hands"

    def _enqueue(self, queue: str, type: str, count: int, pending: dict[str, int]) -> None:
        if pending.get(queue, 0) < (PENDING_MAX if queue == "q" else 3 * count):
            payloads = range(len(self.acked), len(self.acked) + count)
            added = self._hub.jobs.enqueue_many(queue, type, payloads, max_attempts=ATTEMPTS)
            self.acked.update((job.id, type) for job in added)

    def end(self) -> None:
        """No more ticks, and no limits: what is left is to be done soon."""
        self._hub.schedules.pause("tick")
        self._hub.jobs.limit("narrow")
        self._hub.jobs.limit("paced")

    def ticks(self) -> list[tuple[int, int]]:
        """Id and time of making of each job of the schedule, in order."""
        return [
            (int(number), int(at))
            for number, at in self._store.query(
                "SELECT id, created_at FROM penstock_jobs WHERE schedule = 'tick' ORDER BY id"
            )
        ]

    def is_done(self) -> bool:
        # Those that crashed often would come back later: they are asked to come now. Seldom: asked
        # again, one that fails at its first attempt is at its first attempt again.
        if time.monotonic() > self._asks_at:
            self._hub.jobs.retry_all(state="scheduled")
            self._asks_at = time.monotonic() + ASK_SECONDS
        completed = sum(stats.completed for stats in self._hub.jobs.stats())
        return completed == len(self.acked) + len(self.ticks())

    def check_cron(self) -> int:
        """One job for each second. Returns how many."""
        last = self._hub.schedules.get("tick").last_at
        assert last is not None
        expected = range(self.first_tick, last + 1, SECOND)
        ticks = self.ticks()
        assert len(ticks) == len(expected), "a tick was enqueued twice, or not at all"
        # If one was left out and another came twice, the second of those came before its time.
        early = [number for (number, at), due in zip(ticks, expected, strict=True) if at < due]
        assert not early, f"enqueued before their tick: {early}"
        return len(ticks)


def check_concurrency(store: Store, numbers: set[int], last_event: int) -> int:
    """Never more than its limit, up to this event, had begun and not ended. Returns the most."""
    running: set[int] = set()
    most = after = 0
    while events := store.jobs.events(after=after, limit=10_000):
        for event in events:
            if event.job_id not in numbers or event.id > last_event:
                continue
            if event.kind == Kind.STARTED:
                running.add(event.job_id)
                most = max(most, len(running))
                assert most <= NARROW_MAX, f"{most} jobs at once at event {event.id}"
            elif event.kind in _ENDS:
                running.discard(event.job_id)
        after = events[-1].id
    return most


def check_rate(lives: Sequence[WorkerProcess]) -> int:
    """Never more than its rate in any window of its time, over all processes. Returns the most.

    Each process tells what it took as soon as that is on disk, with the time at which the store
    counted it.
    """
    spent = sorted((int(at), int(jobs)) for life in lives for at, jobs in life.heard("spent"))
    most = begin = inside = 0
    for index, (at, jobs) in enumerate(spent):
        inside += jobs
        while at - spent[begin][0] >= PACED_SECONDS * 1e9:
            inside -= spent[begin][1]
            begin += 1
        most = max(most, inside)
        assert most <= PACED_MAX, f"{inside} jobs in one window: {spent[begin : index + 1]}"
    return most


def check_lock(lives: Sequence[WorkerProcess]) -> int:
    """Never held twice. Returns how many held it.

    Whoever is certain to hold it tells since when it was certain. Tokens rise with each holder, so
    a lower one after a higher one means that both held it.
    """
    held = sorted((int(at), int(token)) for life in lives for at, token in life.heard("held"))
    tokens = [token for _, token in held]
    assert tokens == sorted(tokens), "a lock was held twice"
    return len(set(tokens))
