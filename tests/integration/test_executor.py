"""What handlers can do, and what becomes of it: on the loop, on threads, in processes (J5)."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import JobFailed
from penstock.job import Kind, State
from penstock.jobs.handling import MESSAGE_CHARACTERS_MAX, TRACEBACK_CHARACTERS_MAX
from penstock.jobs.registry import Cancel, Snooze
from penstock.jobs.retry import fixed
from penstock.testing import override
from tests import job_handlers
from tests.waiting import SOON, wait_until

QUEUES = {"default": 4}


def kinds(hub: penstock.Hub, number: int) -> list[str]:
    return [event.kind.name for event in hub.jobs.history(number)]


def finished(hub: penstock.Hub, number: int) -> penstock.job.Job:
    return wait_until(lambda: (j := hub.jobs.get(number)).state.is_final and j, "it has finished")


# Answers


def test_a_result_is_kept(memory: penstock.Hub) -> None:
    @memory.job
    async def on_loop(n: int) -> dict[str, int]:
        return {"n": n}

    @memory.job
    def on_thread(n: int) -> list[int]:
        return [n]

    with memory.start_workers(QUEUES):
        first, second = on_loop.enqueue(1), on_thread.enqueue(2)
        assert memory.jobs.wait(first, timeout=SOON) == {"n": 1}
        assert memory.jobs.wait(second, timeout=SOON) == [2]


def test_a_result_is_kept_as_long_as_its_handler_says(memory: penstock.Hub) -> None:
    @memory.job(result_seconds=0)
    async def forgets(n: int) -> int:
        return n

    @memory.job(result_seconds=1000)
    async def keeps(n: int) -> int:
        return n

    with memory.start_workers(QUEUES):
        gone, kept = forgets.enqueue(1), keeps.enqueue(2)
        assert memory.jobs.wait(kept, timeout=SOON) == 2
        assert memory.jobs.wait(gone, timeout=SOON) is None


@pytest.mark.parametrize("is_async", [True, False])
def test_snooze_burns_no_attempt(memory: penstock.Hub, is_async: bool) -> None:
    seen: list[int] = []

    def decide(job: Any) -> Any:
        seen.append(job.attempt)
        return Snooze(0.01) if len(seen) < 3 else "awake"

    define(memory, is_async, "naps", decide, max_attempts=1)
    with memory.start_workers(QUEUES):
        job = memory.jobs.enqueue("default", "naps", max_attempts=1)
        assert memory.jobs.wait(job, timeout=SOON) == "awake"
    assert seen == [1, 1, 1]
    assert kinds(memory, job.id).count("SNOOZED") == 2


@pytest.mark.parametrize("is_async", [True, False])
def test_cancel_ends_a_job_for_good(memory: penstock.Hub, is_async: bool) -> None:
    define(memory, is_async, "stops", lambda job: Cancel("of no use"))
    with memory.start_workers(QUEUES):
        number = memory.jobs.enqueue("default", "stops").id
        job = finished(memory, number)
    assert job.state == State.CANCELLED
    assert job.failure is not None
    assert job.failure.message == "of no use"
    assert job.attempts == 1


def define(
    hub: penstock.Hub, is_async: bool, name: str, work: Callable[[Any], Any], **options: Any
) -> None:
    """The same handler as a coroutine or as a function."""
    if is_async:

        async def coroutine(payload: Any, job: Any) -> Any:
            return work(job)

        hub.job(name=name, **options)(coroutine)
    else:

        def function(payload: Any, job: Any) -> Any:
            return work(job)

        hub.job(name=name, **options)(function)


# Whatever goes wrong is in the history, and the worker goes on


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Odd(BaseException):
    """Neither an Exception nor one of Python's own ways out."""


def fail_with(error: BaseException) -> Callable[[Any], None]:
    def work(job: Any) -> None:
        # A new one each time: an error collects the frames it was raised through.
        raise type(error)(*error.args)

    return work


def recurse(depth: int) -> None:
    if depth == 0:
        raise ValueError("x" * 1_000_000)
    recurse(depth - 1)


FAILURES: list[tuple[str, Callable[[Any], Any], str]] = [
    ("ValueError", fail_with(ValueError("plain")), "plain"),
    ("SystemExit", fail_with(SystemExit(3)), "3"),
    ("KeyboardInterrupt", fail_with(KeyboardInterrupt()), ""),
    ("GeneratorExit", fail_with(GeneratorExit()), ""),
    ("CancelledError", fail_with(asyncio.CancelledError("mine")), "mine"),
    ("StopIteration", fail_with(StopIteration(1)), ""),
    ("Odd", fail_with(Odd("odd")), "odd"),
    ("Unprintable", fail_with(Unprintable()), "raises RuntimeError"),
    ("UnicodeError", fail_with(UnicodeError("lone \udc80 half")), "lone \\udc80 half"),
    ("ValueError", lambda job: recurse(200), "xxx"),
    ("InvalidPayload", lambda job: object(), "cannot be encoded"),
    ("PayloadTooLarge", lambda job: "x" * 2_000_000, "bytes"),
    ("InvalidPayload", lambda job: float("nan"), "nan"),
    ("RecursionError", lambda job: recurse(100_000), "recursion"),
]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
@pytest.mark.parametrize(("name", "work", "text"), FAILURES, ids=[f[0] for f in FAILURES])
def test_whatever_a_handler_raises_fails_its_attempt_only(
    memory: penstock.Hub, is_async: bool, name: str, work: Callable[[Any], Any], text: str
) -> None:
    """Failure mode 10: the reason is in the history, bounded, and the worker lives."""
    if is_async and name == "StopIteration":
        name, text = "RuntimeError", "StopIteration"  # What Python makes of it in a coroutine.
    define(memory, is_async, "bad", work, max_attempts=1)
    define(memory, is_async, "good", lambda job: "fine")
    with memory.start_workers({"default": 1}):
        number = memory.jobs.enqueue("default", "bad", max_attempts=1).id
        job = finished(memory, number)
        after = memory.jobs.enqueue("default", "good")
        assert memory.jobs.wait(after, timeout=SOON) == "fine"
    assert job.state == State.FAILED
    assert job.failure is not None
    assert job.failure.error.endswith(name)
    assert text in job.failure.message
    assert len(job.failure.message) <= MESSAGE_CHARACTERS_MAX + 100
    assert len(job.failure.traceback) <= TRACEBACK_CHARACTERS_MAX + 100
    if name != "RuntimeError":  # Python raises that one beside the coroutine, not in it.
        assert "penstock/jobs/lanes.py" not in job.failure.traceback
    (event,) = [e for e in memory.jobs.history(number) if e.kind == Kind.DIED]
    assert event.data["error"] == job.failure.error


def test_a_coroutine_that_raises_after_waiting_gives_its_slot_back(memory: penstock.Hub) -> None:
    """Also with what Python uses to close a coroutine."""

    @memory.job(max_attempts=1)
    async def waits_and_raises(n: int) -> None:
        await asyncio.sleep(0.001)
        raise (GeneratorExit, SystemExit, asyncio.CancelledError)[n]

    with memory.start_workers({"default": 1}) as crew:
        for n, name in enumerate(("GeneratorExit", "SystemExit", "CancelledError")):
            job = finished(memory, waits_and_raises.enqueue(n).id)
            assert job.failure is not None
            assert job.failure.error.endswith(name)
        assert crew.stats.running == 0


def test_an_undecodable_payload_is_tried_again_and_then_a_dead_letter(
    memory: penstock.Hub,
) -> None:
    """Failure mode 10."""

    @memory.job(retry=fixed(0.01), max_attempts=2)
    async def wants_number(n: int) -> None:
        raise AssertionError("never called")

    with memory.start_workers(QUEUES):
        jobs = [
            memory.jobs.enqueue("default", "wants_number", payload, max_attempts=2).id
            for payload in ("text", {"a": 1}, b"\xff\xfe")
        ]
        for number in jobs:
            job = finished(memory, number)
            assert job.failure is not None
            assert job.failure.error.endswith("UndecodablePayload")
            assert kinds(memory, number)[-4:] == ["STARTED", "FAILED", "STARTED", "DIED"]


def test_an_unknown_type_backs_off_and_is_a_dead_letter_in_the_end(memory: penstock.Hub) -> None:
    """Failure mode 10: an older worker beside a newer producer must not lose its jobs at once."""

    @memory.job
    async def known(n: int) -> None: ...

    with memory.start_workers(QUEUES):
        first = memory.jobs.enqueue("default", "nosuch", max_attempts=2).id
        last = memory.jobs.enqueue("default", "nosuch", max_attempts=1).id
        job = finished(memory, last)
        wait_until(lambda: "FAILED" in kinds(memory, first), "it backs off")
        assert memory.jobs.get(first).state == State.SCHEDULED
    assert job.state == State.FAILED
    assert job.failure is not None
    assert "nosuch" in job.failure.message


def test_a_retry_policy_that_fails_does_not_lose_the_job(memory: penstock.Hub) -> None:
    def broken(attempt: int, error: BaseException) -> float:
        raise ZeroDivisionError

    @memory.job(retry=broken, max_attempts=2)
    async def bad(n: int) -> None:
        raise ValueError("own")

    with memory.start_workers(QUEUES):
        number = bad.enqueue(1).id
        wait_until(lambda: "FAILED" in kinds(memory, number), "the first attempt has failed")
        job = memory.jobs.get(number)
        assert job.state == State.SCHEDULED
        assert job.failure is not None
        assert (job.failure.error, "ZeroDivisionError" in job.failure.message) == (
            "ValueError",
            True,
        )


def test_contexts_of_handlers_do_not_mix(memory: penstock.Hub) -> None:
    """A lane and a thread are used again: what a handler has set is gone."""
    variable = contextvars.ContextVar("variable", default="clean")

    def work(job: Any) -> str:
        before = variable.get()
        variable.set("dirty")
        return before

    for is_async in (True, False):
        define(memory, is_async, f"sets-{is_async}", work)
    with memory.start_workers({"default": 1}):
        for is_async in (True, False):
            for _ in range(3):
                job = memory.jobs.enqueue("default", f"sets-{is_async}")
                assert memory.jobs.wait(job, timeout=SOON) == "clean"


def test_a_coroutine_has_a_task_and_may_wait_in_every_way(memory: penstock.Hub) -> None:
    """Also in its first step, which runs without a task of its own."""

    @memory.job
    async def waits(n: int) -> str:
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(asyncio.sleep(0.001, x)) for x in "ab"]
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(10)
        except TimeoutError:
            parts.append(asyncio.create_task(asyncio.sleep(0, "c")))
        return "".join([await part for part in parts])

    with memory.start_workers(QUEUES):
        jobs = waits.enqueue_many(range(20))
        assert [memory.jobs.wait(job, timeout=SOON) for job in jobs] == ["abc"] * 20


# Time is up


def test_a_coroutine_is_cancelled_when_its_time_is_up(memory: penstock.Hub) -> None:
    ended: list[str] = []

    @memory.job(timeout=0.05, max_attempts=1)
    async def slow(n: int) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @memory.job(timeout=0.05, max_attempts=1)
    async def swallows(n: int) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("swallowed")
        return "as if nothing had been"

    with memory.start_workers({"default": 1}):
        for function in (slow, swallows, slow):
            job = finished(memory, function.enqueue(1).id)
            assert job.state == State.FAILED
            assert job.failure is not None
            assert job.failure.error.endswith("JobTimeout")
    assert ended == ["cancelled", "swallowed", "cancelled"]


def test_a_thread_is_struck_when_its_time_is_up(memory: penstock.Hub) -> None:
    ended = threading.Event()

    @memory.job(timeout=0.05, max_attempts=1)
    def spins(n: int) -> None:
        try:
            while True:
                try:
                    time.sleep(0.001)
                except Exception:  # noqa: BLE001 - what careless handlers do
                    continue
        finally:
            ended.set()

    @memory.job
    def quick(n: int) -> int:
        return n

    with memory.start_workers({"default": 1}) as crew:
        job = finished(memory, spins.enqueue(1).id)
        assert job.failure is not None
        assert job.failure.error.endswith("JobTimeout")
        assert ended.wait(SOON)
        # The thread is as good as new.
        jobs = quick.enqueue_many(range(50))
        assert [memory.jobs.wait(job, timeout=SOON) for job in jobs] == list(range(50))
        assert crew.stats.stuck == 0


def test_a_thread_that_cannot_be_stopped_keeps_its_slot_and_not_its_job(
    memory: penstock.Hub,
) -> None:
    """Stuck in C code: the attempt ends on time, the slot comes back with the thread."""
    released = threading.Event()

    @memory.job(timeout=0.05, max_attempts=1)
    def stuck(n: int) -> None:
        lock = threading.Lock()
        lock.acquire()
        threading.Thread(target=lambda: (released.wait(SOON), lock.release())).start()
        lock.acquire()  # No exception reaches it here.

    @memory.job
    async def quick(n: int) -> int:
        return n

    with memory.start_workers({"default": 1}) as crew:
        job = finished(memory, stuck.enqueue(1).id)
        assert job.failure is not None
        assert job.failure.error.endswith("JobTimeout")
        assert (crew.stats.stuck, crew.stats.running) == (1, 0)
        waiting = quick.enqueue(5)
        assert memory.jobs.get(waiting.id).state == State.PENDING
        released.set()
        assert memory.jobs.wait(waiting, timeout=SOON) == 5
        assert crew.stats.stuck == 0


# Cancelled while it runs


@pytest.mark.parametrize("is_async", [True, False])
def test_a_running_job_is_told_and_cancelled(memory: penstock.Hub, is_async: bool) -> None:
    """Woken by the commit of the cancellation, not by the next look of the keeper."""
    begun = threading.Event()
    told: list[bool] = []

    def wait_on_thread(job: Any) -> None:
        begun.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            told.append(job.is_cancelled)

    async def wait_on_loop(payload: Any, job: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            told.append(job.is_cancelled)

    if is_async:
        memory.job(name="waits")(wait_on_loop)
    else:
        define(memory, False, "waits", wait_on_thread)
    with memory.start_workers(QUEUES):
        number = memory.jobs.enqueue("default", "waits").id
        assert begun.wait(SOON)
        assert memory.jobs.cancel(number, reason="not needed") == [number]
        job = finished(memory, number)
    assert job.state == State.CANCELLED
    assert told == [True]
    assert memory.jobs.history(number)[-1].data["reason"] == "not needed"


def test_a_handler_that_looks_can_end_by_itself(memory: penstock.Hub) -> None:
    begun = threading.Event()

    @memory.job
    def looks(n: int, job: Any) -> str:
        begun.set()
        while not job.is_cancelled:
            pass
        return "ended"

    with memory.start_workers(QUEUES):
        number = looks.enqueue(1).id
        assert begun.wait(SOON)
        memory.jobs.cancel(number)
        assert finished(memory, number).state == State.CANCELLED


def test_progress_is_written_while_it_runs(memory: penstock.Hub) -> None:
    seen = threading.Event()

    @memory.job
    def reports(n: int, job: Any) -> None:
        job.progress(1, 4, "a quarter")
        assert seen.wait(SOON)

    with memory.start_workers(QUEUES):
        number = reports.enqueue(1).id
        progress = wait_until(lambda: memory.jobs.get(number).progress, "progress is written")
        assert (progress.percent, progress.note) == (25.0, "a quarter")
        seen.set()
        assert finished(memory, number).state == State.COMPLETED
    assert "PROGRESS" in kinds(memory, number)


# In processes


@pytest.fixture
def served(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[penstock.Hub]:
    """The hub of tests/job_handlers.py on a file, with workers."""
    url = f"sqlite:///{path}"
    monkeypatch.setenv("JOB_HANDLERS_URL", url)
    with override(job_handlers.hub, url) as hub, hub.start_workers({"p": 2}):
        yield hub


def test_a_process_runs_the_handler_and_is_used_again(served: penstock.Hub) -> None:
    """J5, J9: heavy work does not run in the worker's own process."""
    pids = {served.jobs.wait(job_handlers.pid.enqueue(None), timeout=SOON) for _ in range(3)}
    assert os.getpid() not in pids
    assert len(pids) == 1
    point = job_handlers.Point(2, 3)
    result = served.jobs.wait(job_handlers.total.enqueue(point), timeout=SOON)
    assert result == {"total": 5, "attempt": 1}


@pytest.mark.parametrize(
    ("how", "reason"), [("exit", "exit code 3"), ("kill", "SIGKILL"), ("segv", "SIGSEGV")]
)
def test_a_process_that_dies_fails_its_attempt_and_is_replaced(
    served: penstock.Hub, how: str, reason: str
) -> None:
    job = job_handlers.die.enqueue(how)
    assert served.jobs.wait(job, timeout=SOON) == "lived"
    (failed,) = [e for e in served.jobs.history(job.id) if e.kind == Kind.FAILED]
    assert failed.data["error"].endswith("ProcessDied")
    assert reason in failed.data["message"]


def test_what_a_handler_raises_in_a_process_comes_back_whole(served: penstock.Hub) -> None:
    """Its policy is asked where the error is: it is not carried over."""
    tried = finished(served, job_handlers.raises.enqueue("os").id)
    given_up = finished(served, job_handlers.raises.enqueue("value").id)
    exited = finished(served, job_handlers.raises.enqueue("exit").id)
    unspeakable = finished(served, job_handlers.unspeakable.enqueue(None).id)

    assert (tried.attempts, given_up.attempts) == (5, 1)
    assert given_up.failure is not None
    assert "tests/job_handlers.py" in given_up.failure.traceback
    assert given_up.failure.message == "attempt 1"
    assert exited.failure is not None
    assert exited.failure.error == "SystemExit"
    assert unspeakable.failure is not None
    assert unspeakable.failure.error.endswith("InvalidPayload")


def test_a_process_is_killed_when_its_time_is_up(served: penstock.Hub, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    job = finished(served, job_handlers.hang.enqueue(str(file)).id)

    assert job.failure is not None
    assert job.failure.error.endswith("JobTimeout")
    assert not is_alive(int(file.read_text()))


def test_a_job_in_a_process_is_told_that_it_is_cancelled(
    served: penstock.Hub, tmp_path: Path
) -> None:
    file = tmp_path / "told"
    number = job_handlers.cooperate.enqueue(str(file)).id
    progress = wait_until(lambda: served.jobs.get(number).progress, "progress came through")
    assert progress.note == "begun"
    served.jobs.cancel(number)

    assert finished(served, number).state == State.CANCELLED
    assert file.read_text() == "was told"


def test_one_that_does_not_end_is_killed(served: penstock.Hub, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    number = job_handlers.defy.enqueue(str(file)).id
    wait_until(lambda: file.exists() and file.read_text(), "it runs")
    served.jobs.cancel(number)

    assert finished(served, number).state == State.CANCELLED
    assert not is_alive(int(file.read_text()))


def test_a_handler_in_a_process_completes_its_job_in_a_transaction(
    served: penstock.Hub,
) -> None:
    job = job_handlers.settles.enqueue(7)
    assert served.jobs.wait(job, timeout=SOON) == {"kept": 7}
    assert [message.payload for message in served.topics.read("done")] == [7]
    assert kinds(served, job.id)[-1] == "COMPLETED"


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


# Completed in a transaction


def test_a_job_is_completed_with_the_users_writes(hub: penstock.Hub) -> None:
    """River's JobCompleteTx: what the handler raises afterwards changes nothing."""

    @hub.job(max_attempts=1)
    def on_thread(n: int, job: Any) -> None:
        with job.transaction({"n": n}) as tx:
            tx.execute("CREATE TABLE own (n)")
            tx.execute("INSERT INTO own VALUES (?)", (n,))
            tx.publish("news", n)
            tx.enqueue("default", "on_loop", n + 1)
        raise ValueError("too late to matter")

    @hub.job(max_attempts=1)
    async def on_loop(n: int, job: Any) -> None:
        async with job.transaction() as tx:
            await tx.execute("INSERT INTO own VALUES (?)", (n,))

    with hub.start_workers(QUEUES) as crew:
        first = on_thread.enqueue(1)
        assert hub.jobs.wait(first, timeout=SOON) == {"n": 1}
        assert hub.jobs.wait(first.id + 1, timeout=SOON) is None
        wait_until(lambda: crew.stats.running == 0, "both have ended")
    with hub.connection() as connection:
        assert connection.execute("SELECT n FROM own") == [(1,), (2,)]
    assert [message.payload for message in hub.topics.read("news")] == [1]
    assert kinds(hub, first.id)[-1] == "COMPLETED"
    assert crew.stats.completed == 2


def test_a_transaction_of_a_job_that_is_somebody_elses_is_rolled_back(hub: penstock.Hub) -> None:
    """J4: the token is the fence, also for the user's own writes."""
    raised: list[type[BaseException]] = []

    @hub.job(max_attempts=2, retry=fixed(0.01))
    def fenced(n: int, job: Any) -> str:
        if job.attempt == 2:
            return "second"
        take_away(hub, job)
        try:
            with job.transaction() as tx:
                tx.publish("news", n)
        except penstock.LeaseLost as error:
            raised.append(type(error))
            raise
        return "first"

    with hub.start_workers(QUEUES):
        number = fenced.enqueue(1)
        assert hub.jobs.wait(number, timeout=SOON) == "second"
    assert raised == [penstock.LeaseLost]
    assert hub.topics.read("news") == []


def take_away(hub: penstock.Hub, job: Any) -> None:
    """As a rescue does while the worker is suspended."""
    runtime = hub._open()
    now = runtime.clock.now()
    setback = penstock.job.Setback(job.id, job.token, Kind.FAILED, now)
    runtime.committer.run(lambda tx: tx.jobs.set_back([setback], now=now)).wait()


def test_a_transaction_that_fails_leaves_the_job_to_its_handler(hub: penstock.Hub) -> None:
    @hub.job(max_attempts=1)
    def changes_its_mind(n: int, job: Any) -> str:
        try:
            with job.transaction() as tx:
                tx.publish("news", n)
                raise RuntimeError("no")
        except RuntimeError:
            return "without it"

    with hub.start_workers(QUEUES):
        assert hub.jobs.wait(changes_its_mind.enqueue(1), timeout=SOON) == "without it"
    assert hub.topics.read("news") == []


def test_a_failed_job_says_why_to_whoever_waits(memory: penstock.Hub) -> None:
    @memory.job(max_attempts=1)
    async def bad(n: int) -> None:
        raise ValueError("broken")

    with memory.start_workers(QUEUES), pytest.raises(JobFailed, match="ValueError: broken"):
        memory.jobs.wait(bad.enqueue(1), timeout=SOON)
