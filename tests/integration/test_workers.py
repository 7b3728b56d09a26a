"""Workers: woken, bounded, stopped gracefully, several in a process, on a loop or a thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import HubClosed, InvalidInput
from penstock.job import State
from penstock.jobs.run import Run
from penstock.jobs.slots import AHEAD_SECONDS, CLAIM_MAX, Room, Slots
from tests.factories import file_url
from tests.waiting import SOON, wait_until

OpenHub = Callable[..., penstock.Hub]


async def until(condition: Callable[[], bool]) -> None:
    """On an event loop, which must go on meanwhile."""
    while not condition():  # noqa: ASYNC110 - other threads make it true
        await asyncio.sleep(0.002)


class Gate:
    """Handlers that wait until a test lets them go on."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.open = threading.Event()

    def function(self, payload: Any, job: Any) -> Any:
        self.begun.append(payload)
        assert self.open.wait(SOON)
        return payload

    async def coroutine(self, payload: Any, job: Any) -> Any:
        self.begun.append(payload)
        await until(self.open.is_set)
        return payload


def kinds(hub: penstock.Hub, number: int) -> list[str]:
    return [event.kind.name for event in hub.jobs.history(number)]


def total(hub: penstock.Hub, queue: str = "default") -> dict[str, int]:
    (stats,) = hub.jobs.stats(queue)
    names = ("pending", "scheduled", "processing", "completed", "failed", "cancelled")
    return {name: count for name in names if (count := getattr(stats, name))}


# How many, and which


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_not_more_run_at_once_than_there_are_slots(memory: penstock.Hub, kind: str) -> None:
    gate = Gate()
    memory.job(name="waits")(getattr(gate, kind))
    memory.jobs.enqueue_many("default", "waits", range(20))
    with memory.start_workers({"default": 3}) as crew:
        wait_until(lambda: len(gate.begun) == 3, "three run")
        # A slow job says nothing about how many will be done soon: nothing is hoarded.
        assert total(memory)["processing"] == 3
        assert crew.stats.claimed == 0
        gate.open.set()
        wait_until(lambda: total(memory) == {"completed": 20}, "all are done")
    assert sorted(gate.begun) == list(range(20))


@pytest.mark.parametrize(("max_attempts", "is_synced"), [(3, False), (1, True)])
def test_only_a_last_attempt_waits_for_the_disk_to_begin(
    open_hub: OpenHub, max_attempts: int, is_synced: bool
) -> None:
    """A start that is lost with the power was no start; but what may run once runs once (J2)."""
    hub = open_hub()
    commits: list[bool] = []
    at_start: list[bool] = []
    hub.telemetry.attach(
        lambda event, said: commits.append(said["is_synced"]) if event == "commit" else None
    )

    @hub.job(max_attempts=max_attempts)
    async def note(payload: object) -> None:
        at_start.extend(commits)

    with hub.start_workers() as crew:
        assert crew._crew is not None
        worker = crew._crew._worker
        assert worker is not None
        wait_until(lambda: bool(worker._order), "it has nothing to do")
        commits.clear()
        note.enqueue(1)
        wait_until(lambda: bool(at_start), "it has run")
    # Of the enqueue, of the claim, and of the start where that is apart.
    assert (at_start[0], at_start[-1]) == (True, is_synced)
    assert False in at_start


def test_a_worker_leaves_other_queues_alone(memory: penstock.Hub) -> None:
    @memory.job(queue="mine")
    async def done(n: int) -> None: ...

    memory.jobs.enqueue("other", "done", 1)
    with memory.start_workers({"mine": 1}):
        memory.jobs.wait(done.enqueue(2), timeout=SOON)
    assert total(memory, "other") == {"pending": 1}


def test_queues_have_slots_of_their_own(memory: penstock.Hub) -> None:
    gate = Gate()
    memory.job(name="waits", queue="slow")(gate.coroutine)

    @memory.job(queue="quick")
    async def quick(n: int) -> int:
        return n

    memory.jobs.enqueue_many("slow", "waits", range(5))
    with memory.start_workers({"slow": 1, "quick": 1}):
        wait_until(lambda: gate.begun, "the slow queue is busy")
        assert memory.jobs.wait(quick.enqueue(3), timeout=SOON) == 3
        gate.open.set()


def a_claim(attempt: int = 1) -> Any:
    return penstock.job.Claim(1, 1, "q", "t", b"", 0, attempt, 3, 0, 0, 0)


def test_what_is_claimed_ahead_follows_what_was_done_a_moment_ago() -> None:
    """The hoarding rule: free slots, and what was completed in the last 5 ms (of the 50 there may
    be)."""
    slots = Slots("q", 10)
    assert slots.wanted(100.0) == 10
    slots.finished = 30
    slots.note(100.0)
    assert slots.wanted(100.0 + AHEAD_SECONDS / 2) == 40
    assert slots.idle == 10, "what may be carried out at any time is for free slots alone"
    slots.note(100.0 + 2 * AHEAD_SECONDS)
    assert slots.wanted(100.0 + 2 * AHEAD_SECONDS) == 10
    slots.finished = 100_000
    assert slots.wanted(200.0) == CLAIM_MAX


def test_a_job_on_its_last_attempt_is_started_only_for_a_free_slot() -> None:
    """What is started ahead and not run is a crash if the worker dies: the last attempt is not
    risked for speed."""
    room = Room(left=3, free=1)
    assert [room.take(a_claim(attempt)) for attempt in (3, 3, 1, 2, 1)] == [
        True,
        False,
        True,
        True,
        False,
    ]


def test_a_job_that_waits_for_a_free_slot_makes_no_work_before() -> None:
    """On its last attempt, claimed ahead: a turn that starts nothing would follow another."""
    slots = Slots("q", 1)
    slots.free, slots.finished = 0, 5
    slots.claimed.append(Run(a_claim(attempt=3)))
    assert not slots.can_start(100.0)
    slots.free = 1
    assert slots.can_start(100.0)


def test_only_short_jobs_let_others_be_started_ahead() -> None:
    """A worker that has just done a long job takes one for its free slot, and none that would
    wait for that one to end."""
    slots = Slots("q", 1)
    for took, wanted in ((AHEAD_SECONDS * 2, 1), (AHEAD_SECONDS / 2, 2)):
        run = Run(a_claim())
        slots.free, run.took = 0, took
        slots.give_back(run)
        assert slots.wanted(100.0 + took) == wanted


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_no_job_waits_as_started_behind_a_long_one(memory: penstock.Hub, kind: str) -> None:
    """One slot, three jobs: the one that runs is the only one that has begun."""
    gates = [Gate() for _ in range(3)]

    def function(n: int, job: Any) -> Any:
        time.sleep(2 * AHEAD_SECONDS)
        return gates[n].function(n, job)

    async def coroutine(n: int, job: Any) -> Any:
        await asyncio.sleep(2 * AHEAD_SECONDS)
        return await gates[n].coroutine(n, job)

    memory.job(name="long")(function if kind == "function" else coroutine)
    numbers = [memory.jobs.enqueue("default", "long", n).id for n in range(3)]
    with memory.start_workers({"default": 1}):
        for done, gate in enumerate(gates):
            wait_until(lambda gate=gate: gate.begun, "it runs")  # type: ignore[misc]
            states = [memory.jobs.get(number).state for number in numbers]
            assert states.count(State.PROCESSING) == 1, states
            assert states.count(State.PENDING) == 2 - done, states
            gate.open.set()
        memory.jobs.wait_all(numbers, timeout=SOON)


def test_delayed_jobs_stay_in_the_database(memory: penstock.Hub) -> None:
    """Failure mode 9: a worker knows when the next is due, and nothing else of it."""

    @memory.job
    async def later(n: int) -> int:
        return n

    with memory.start_workers({"default": 5}) as crew:
        far = later.enqueue(1, delay=3600)
        soon = later.enqueue(2, delay=0.05)
        assert memory.jobs.wait(soon, timeout=SOON) == 2
        assert crew.stats.claimed == 0
        assert memory.jobs.get(far.id).state == State.SCHEDULED


def test_idle_workers_write_nothing(memory: penstock.Hub) -> None:
    """No herd: whoever has nothing to claim looks, and does not take the writer's turn."""

    @memory.job
    async def done(n: int) -> None: ...

    with memory.start_workers({"default": 5}):
        memory.jobs.wait(done.enqueue(1), timeout=SOON)
        memory.jobs.pause("paused")
        looks = memory._open().roster
        commits: list[int] = []
        detach = memory.telemetry.attach(
            lambda event, facts: commits.append(1) if event == "commit" else None
        )
        keeper = looks._keeper
        assert keeper is not None
        for _ in range(20):
            keeper.run_once()
        detach()
    assert commits == []


# Waking


def test_a_worker_in_another_process_is_woken_by_the_commit(
    hub: penstock.Hub, open_hub: OpenHub
) -> None:
    @hub.job
    async def done(n: int) -> int:
        return n

    with hub.start_workers({"default": 1}):
        other = open_hub()
        assert other.jobs.wait(other.jobs.enqueue("default", "done", 4), timeout=SOON) == 4
        with other.transaction() as tx:
            job = tx.enqueue("default", "done", 5)
        assert other.jobs.wait(job, timeout=SOON) == 5


# Stopping


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_stopping_waits_for_what_runs_and_hands_back_the_rest(
    memory: penstock.Hub, kind: str
) -> None:
    """J5: SIGTERM drains."""
    gate = Gate()
    memory.job(name="waits")(getattr(gate, kind))
    crew = memory.start_workers({"default": 2})
    memory.jobs.enqueue_many("default", "waits", range(5))
    wait_until(lambda: len(gate.begun) == 2, "two run")
    stopping = threading.Thread(target=crew.stop)
    stopping.start()
    memory.jobs.enqueue("default", "waits", 5)
    gate.open.set()
    stopping.join(SOON)

    assert not stopping.is_alive()
    assert total(memory) == {"pending": 4, "completed": 2}
    assert memory.jobs.workers() == []


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_what_does_not_end_in_time_is_handed_back_without_burning_an_attempt(
    memory: penstock.Hub, kind: str
) -> None:
    """Failure mode 12: a deployment is nobody's failure."""
    gate = Gate()
    told: list[str] = []

    async def coroutine(payload: Any, job: Any) -> None:
        gate.begun.append(payload)
        try:
            await asyncio.sleep(SOON)
        finally:
            told.append("stopped" if job.is_cancelled else "?")

    def function(payload: Any, job: Any) -> None:
        gate.begun.append(payload)
        try:
            while True:
                gate.open.wait(0.005)
        finally:
            told.append("stopped" if job.is_cancelled else "?")

    memory.job(name="waits", max_attempts=1)(locals()[kind])
    number = memory.jobs.enqueue("default", "waits", 1, max_attempts=1).id
    crew = memory.start_workers({"default": 1})
    wait_until(lambda: gate.begun, "it runs")
    crew.stop(0.0)

    assert told == ["stopped"]
    job = memory.jobs.get(number)
    assert (job.state, job.attempts, job.crashes) == (State.PENDING, 0, 0)
    assert kinds(memory, number)[-1] == "RELEASED"
    # And the next worker does it.
    memory.handlers._handlers.clear()

    @memory.job(name="waits", max_attempts=1)
    async def again(n: int, job: Any) -> int:
        return int(job.attempt)

    with memory.start_workers({"default": 1}):
        assert memory.jobs.wait(number, timeout=SOON) == 1


def test_whoever_asks_a_second_time_has_less_patience(memory: penstock.Hub) -> None:
    gate = Gate()
    memory.job(name="waits")(gate.coroutine)
    crew = memory.start_workers({"default": 1})
    number = memory.jobs.enqueue("default", "waits").id
    wait_until(lambda: gate.begun, "it runs")
    patient = threading.Thread(target=crew.stop)
    patient.start()
    crew.stop(0.0)
    patient.join(SOON)

    assert not patient.is_alive()
    assert memory.jobs.get(number).state == State.PENDING


def test_closing_the_hub_stops_its_workers(open_hub: OpenHub) -> None:
    hub, other = open_hub(worker_stop_seconds=0.01), open_hub()
    gate = Gate()
    hub.job(name="waits")(gate.coroutine)
    crew = hub.start_workers({"default": 1})
    number = other.jobs.enqueue("default", "waits").id
    wait_until(lambda: gate.begun, "it runs")
    hub.close()

    crew._thread.join(SOON)
    assert not crew._thread.is_alive()
    assert other.jobs.get(number).state == State.PENDING
    assert other.jobs.get(number).attempts == 0
    assert other.jobs.workers() == []
    with pytest.raises(HubClosed):
        hub.start_workers({"default": 1})


def test_a_crew_can_be_stopped_twice_and_another_started(memory: penstock.Hub) -> None:
    @memory.job
    async def done(n: int) -> int:
        return n

    for n in range(3):
        crew = memory.start_workers()
        assert memory.jobs.wait(done.enqueue(n), timeout=SOON) == n
        crew.stop()
        crew.stop()
        assert crew.stats.completed == 1


ENDS_WITHOUT_A_WORD = """
import sys, threading, penstock
hub = penstock.connect(sys.argv[1], worker_stop_seconds=0.2)
begun = threading.Event()

@hub.job
def waits(n):
    begun.set()
    while True:
        threading.Event().wait(0.01)

hub.start_workers({"default": 1})
hub.jobs.enqueue("default", "waits")
assert begun.wait(60)
"""


def test_a_program_that_just_ends_hands_back_its_jobs(path: Path, open_hub: OpenHub) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", ENDS_WITHOUT_A_WORD, file_url(path)],
        timeout=100,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    (job,) = open_hub().jobs.list()
    assert (job.state, job.attempts) == (State.PENDING, 0)


# Several


def test_several_crews_share_a_process(memory: penstock.Hub) -> None:
    @memory.job(queue="a")
    async def first(n: int) -> int:
        return n

    @memory.job(queue="b")
    def second(n: int) -> int:
        return n

    one, two = memory.start_workers({"a": 2}), memory.start_workers({"b": 3, "a": 1})
    (worker,) = memory.jobs.workers()
    assert worker.queues == {"a": 3, "b": 3}
    one.stop()
    (worker,) = wait_until(memory.jobs.workers, "one crew is left")
    assert memory.jobs.wait(second.enqueue(1), timeout=SOON) == 1
    assert memory.jobs.wait(first.enqueue(1), timeout=SOON) == 1
    two.stop()
    assert memory.jobs.workers() == []


def test_two_workers_with_one_name_do_not_meet(open_hub: OpenHub) -> None:
    """Failure mode 2: names are for people; a process is told by its number."""
    hubs = [open_hub(name="twin") for _ in range(2)]
    done: list[int] = []
    for hub in hubs:

        async def work(n: int) -> None:
            done.append(n)

        hub.job(name="work")(work)
    crews = [hub.start_workers({"default": 5}) for hub in hubs]
    assert [worker.name for worker in hubs[0].jobs.workers()] == ["twin", "twin"]
    hubs[0].jobs.enqueue_many("default", "work", range(200))
    wait_until(lambda: total(hubs[0]) == {"completed": 200}, "all are done")
    crews[0].stop()
    assert len(hubs[1].jobs.workers()) == 1
    crews[1].stop()
    assert sorted(done) == list(range(200))


def test_a_rescued_job_of_a_twin_is_not_touched(open_hub: OpenHub) -> None:
    first, second = open_hub(name="twin"), open_hub(name="twin")
    gate = Gate()
    first.job(name="waits")(gate.coroutine)
    second.job(name="waits")(gate.coroutine)
    first.jobs.enqueue("default", "waits", 1)
    with first.start_workers({"default": 1}):
        wait_until(lambda: gate.begun, "the first has it")
        # A twin that comes and goes says nothing about the first one's job.
        second.start_workers({"default": 1}).stop()
        assert total(first) == {"processing": 1}
        gate.open.set()
        wait_until(lambda: total(first) == {"completed": 1}, "it is done")
    assert gate.begun == [1]


# On the caller's loop


async def test_workers_on_the_callers_loop(memory: penstock.Hub) -> None:
    """J9: inside an ASGI server's lifespan."""
    loops: list[object] = []

    @memory.job
    async def here(n: int) -> int:
        loops.append(asyncio.get_running_loop())
        return n

    async with memory.aio.start_workers({"default": 2}) as crew:
        job = await memory.aio.jobs.enqueue("default", "here", 4)
        assert await memory.aio.jobs.wait(job, timeout=SOON) == 4
        assert crew.stats.completed == 1
    assert loops == [asyncio.get_running_loop()]
    assert await memory.aio.jobs.workers() == []
    crew = await memory.aio.start_workers({"default": 2})
    await crew.stop()


async def test_closing_from_the_loop_itself_hands_back(open_hub: OpenHub) -> None:
    hub, other = open_hub(), open_hub()

    @hub.job
    async def waits(n: int) -> None:
        await asyncio.sleep(SOON)

    await hub.aio.start_workers({"default": 1})
    number = waits.enqueue(1).id
    await until(lambda: other.jobs.get(number).state == State.PROCESSING)
    hub.close()

    assert other.jobs.get(number).state == State.PENDING
    await asyncio.sleep(0)


async def test_closing_with_await_waits_for_what_runs(open_hub: OpenHub) -> None:
    hub, other = open_hub(), open_hub()

    @hub.job
    async def waits(n: int) -> None:
        await asyncio.sleep(0.2)

    await hub.aio.start_workers({"default": 1})
    number = waits.enqueue(1).id
    await until(lambda: other.jobs.get(number).state == State.PROCESSING)
    await hub.aio.close()

    assert other.jobs.get(number).state == State.COMPLETED


def test_a_loop_that_ends_without_a_word_hands_back(open_hub: OpenHub) -> None:
    hub, other = open_hub(), open_hub()

    @hub.job
    async def waits(n: int) -> None:
        await asyncio.sleep(SOON)

    async def main() -> None:
        await hub.aio.start_workers({"default": 1})
        number = waits.enqueue(1).id
        await until(lambda: other.jobs.get(number).state == State.PROCESSING)

    asyncio.run(main())
    hub.close()
    assert total(other) == {"pending": 1}


# Refused


@pytest.mark.parametrize("queues", [{}, {"a": 0}, {"a": True}, {"": 1}, {"a": 1.5}])
def test_queues_that_make_no_sense_are_refused(memory: penstock.Hub, queues: Any) -> None:
    with pytest.raises(InvalidInput):
        memory.start_workers(queues)


def test_without_handlers_there_is_nothing_to_work_on(memory: penstock.Hub) -> None:
    with pytest.raises(InvalidInput, match="no queue"):
        memory.start_workers()


def test_whoever_watches_is_told_of_each_outcome(memory: penstock.Hub) -> None:
    told: list[tuple[str, str | None]] = []

    @memory.job(max_attempts=1)
    async def odd(n: int) -> None:
        if n % 2:
            raise ValueError(n)

    def watch(run: Any, setback: Any) -> None:
        told.append((run.claim.type, None if setback is None else setback.failure.error))
        raise RuntimeError("whoever watches does not stop the work")

    with memory.start_workers({"default": 1}, on_outcome=watch):
        odd.enqueue_many(range(3))
        wait_until(lambda: total(memory) == {"completed": 2, "failed": 1}, "all are done")
    assert told == [("odd", None), ("odd", "ValueError"), ("odd", None)]


# Limits


def test_a_queue_at_its_limit_goes_on_as_soon_as_there_is_room(
    memory: penstock.Hub,
) -> None:
    """Not once a second, when the keeper looks: ending and claiming are one transaction."""

    @memory.job
    async def step(n: int) -> None:
        await asyncio.sleep(0)

    memory.jobs.limit("default", concurrency=1)
    step.enqueue_many(range(100))
    with memory.start_workers({"default": 10}):
        wait_until(lambda: total(memory) == {"completed": 100}, "all are done")


def test_room_in_one_process_wakes_another(open_hub: OpenHub) -> None:
    first, second = open_hub(), open_hub()
    gate = Gate()
    first.job(name="held")(gate.coroutine)
    second.job(name="held", queue="other")(gate.coroutine)
    first.jobs.limit("default", concurrency=1)
    with first.start_workers({"default": 1}) as one, second.start_workers({"default": 1}) as two:
        first.jobs.enqueue_many("default", "held", range(2))
        wait_until(lambda: gate.begun, "one of them runs")
        assert one.stats.running + two.stats.running == 1
        gate.open.set()
        wait_until(lambda: total(first) == {"completed": 2}, "both are done")


def test_a_rate_is_used_up_without_waiting_for_the_next_look(memory: penstock.Hub) -> None:
    @memory.job
    async def step(n: int) -> None: ...

    memory.jobs.limit("default", rate=1, per_seconds=0.02)
    step.enqueue_many(range(60))
    with memory.start_workers({"default": 10}):
        # Looked for once a second, it would be a minute.
        wait_until(lambda: total(memory) == {"completed": 60}, "all are done")


def test_paused_queues_are_not_asked_for_again_and_again(memory: penstock.Hub) -> None:
    """Failure mode 7: a look sees that there is nothing to have."""

    @memory.job
    async def step(n: int) -> None: ...

    memory.jobs.pause("default")
    step.enqueue_many(range(5))
    store, now = memory._open().store, memory._open().clock.now()
    assert not store.jobs.look(["default"], now=now)
    memory.jobs.resume("default")
    assert store.jobs.look(["default"], now=now)
