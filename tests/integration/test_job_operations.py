"""Jobs in an operator's hands: explained, waited for, counted, pruned, retried (J5, J7, J8)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.errors import InvalidInput, JobFailed, JobNotFound, WaitTimeout
from penstock.job import Enqueued, State, Worker
from penstock.model import Instance
from penstock.testing import FakeClock
from tests.factories import hub_on
from tests.processes import Child
from tests.waiting import wait_until


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[penstock.Hub]:
    with hub_on(tmp_path / "hub.db") as hub:
        yield hub


class Gate:
    """A handler that waits until it is let through."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def pass_through(self) -> None:
        self.entered.set()
        assert self.open.wait(60)


def codes(hub: penstock.Hub, job: Enqueued) -> list[str]:
    return [reason.code for reason in hub.jobs.explain(job).reasons]


# Why it is not running


def test_a_job_that_nobody_takes_says_so(hub: penstock.Hub) -> None:
    added = hub.jobs.enqueue("mail", "send", 1)

    found = hub.jobs.explain(added)

    assert (found.id, found.queue, found.type, found.state) == (
        *(added.id, "mail", "send"),
        State.PENDING,
    )
    assert found.reasons[0].code == "no_worker"
    assert found.answer == found.reasons[0].text
    assert "'mail'" in found.answer
    assert "\n" not in found.answer


def test_a_paused_queue_comes_before_everything_else(hub: penstock.Hub) -> None:
    hub.jobs.pause("mail")
    added = hub.jobs.enqueue("mail", "send", 1)
    assert codes(hub, added) == ["paused", "no_worker"]
    hub.jobs.resume("mail")
    assert codes(hub, added) == ["no_worker"]


def test_a_worker_without_a_handler_is_told_from_no_worker(hub: penstock.Hub) -> None:
    """Failure mode: deployed without its module. Workers report the types they know."""

    @hub.job(queue="mail", name="other")
    def other(payload: int) -> None: ...

    hub.jobs.pause("mail")
    added = hub.jobs.enqueue("mail", "send", 1)
    with hub.start_workers({"mail": 1}):
        [worker] = hub.jobs.workers()
        assert worker.types == ("other",)
        assert codes(hub, added) == ["paused", "no_handler"]
        assert worker.name in hub.jobs.explain(added).reasons[1].text


def test_who_holds_the_slots_of_a_full_queue(hub: penstock.Hub) -> None:
    gate = Gate()

    @hub.job(queue="q", name="slow")
    def slow(payload: int) -> None:
        gate.pass_through()

    hub.jobs.limit("q", concurrency=1)
    first = hub.jobs.enqueue("q", "slow", 1)
    with hub.start_workers({"q": 5}):
        assert gate.entered.wait(60)
        second, third = (hub.jobs.enqueue("q", "slow", n) for n in (2, 3))
        [worker] = hub.jobs.workers()

        running = hub.jobs.explain(first)
        assert [reason.code for reason in running.reasons] == ["running"]
        assert worker.name in running.answer
        blocked = hub.jobs.explain(second)
        assert blocked.reasons[0].code == "concurrency"
        assert blocked.reasons[0].jobs == (first.id,)
        assert worker.name in blocked.answer
        assert codes(hub, third) == ["concurrency", "behind"]

        hub.jobs.cancel(first.id, reason="enough")
        assert codes(hub, first) == ["cancelling", "running"]
        gate.open.set()
        hub.jobs.wait_all([second, third], timeout=60)


def present(hub: penstock.Hub, clock: FakeClock, *types: str) -> Instance:
    """A worker that is there, and takes nothing by itself."""
    runtime = hub._open()
    runtime.start_reading()
    assert runtime.instance is not None
    worker = Worker(runtime.instance.id, "w-1", {"q": 5}, clock.now(), types=types)
    runtime.committer.run(
        lambda tx: tx.jobs.enter(worker, lease_seconds=60, now=clock.now())
    ).wait()
    return runtime.instance


def test_a_job_that_nothing_keeps_is_ready(tmp_path: Path, clock: FakeClock) -> None:
    """J7: also one whose time has come, and that nobody has looked for yet."""
    with hub_on(tmp_path / "hub.db", clock=clock) as hub:
        present(hub, clock, "t")
        now = hub.jobs.enqueue("q", "t", 1)
        later = hub.jobs.enqueue("q", "t", 2, delay=60)
        ready = hub.jobs.explain(now)
        assert [reason.code for reason in ready.reasons] == ["ready"]
        assert ready.reasons[0].at == hub.jobs.get(now.id).created_at
        assert codes(hub, later) == ["scheduled"]
        clock.advance(61)
        present(hub, clock, "t")
        due = hub.jobs.explain(later)
        assert (due.state, [reason.code for reason in due.reasons]) == (State.SCHEDULED, ["ready"])
        assert "due since" in due.answer
        hub.jobs.limit("q", rate=1, per_seconds=60)
        hub.jobs.pause("q")
        assert codes(hub, later) == ["paused"], "being due is not enough"
        hub.jobs.resume("q")
        present(hub, clock, "another")
        assert codes(hub, later) == ["no_handler"]


def test_a_job_that_was_claimed_and_not_started(tmp_path: Path, clock: FakeClock) -> None:
    """J7: who has it, since when; and that its worker is gone, if it is."""
    with hub_on(tmp_path / "hub.db", clock=clock) as hub:
        instance = present(hub, clock, "t")
        added = hub.jobs.enqueue("q", "t", 1)
        runtime = hub._open()
        claimed = clock.now()
        runtime.committer.run(lambda tx: tx.jobs.claim(instance, {"q": 1}, now=claimed)).wait()
        clock.advance(5)
        found = hub.jobs.explain(added)
        assert (found.state, [reason.code for reason in found.reasons]) == (
            State.PROCESSING,
            ["claimed"],
        )
        assert found.reasons[0].at == claimed
        assert found.answer.startswith("w-1 has it since ")
        assert found.answer.endswith("(5 s), not started.")
        hub.jobs.cancel(added.id, reason="enough")
        assert "enough" in hub.jobs.explain(added).answer


def test_a_rate_says_until_when(hub: penstock.Hub) -> None:
    @hub.job(queue="q", name="quick")
    def quick(payload: int) -> None: ...

    hub.jobs.limit("q", rate=1, per_seconds=3600)
    first, second = hub.jobs.enqueue_many("q", "quick", [1, 2])
    with hub.start_workers({"q": 2}):
        hub.jobs.wait(first, timeout=60)
        [reason] = hub.jobs.explain(second).reasons
    assert reason.code == "rate"
    assert reason.at is not None
    assert "1 in 3600 s" in reason.text


def test_later_waiting_and_finished(hub: penstock.Hub) -> None:
    @hub.job(queue="q", name="fail", max_attempts=1)
    def fail(payload: int) -> None:
        raise ValueError("no such order\nsecond line")

    @hub.job(queue="q", name="good")
    def good(payload: int) -> str:
        return "done"

    later = hub.jobs.enqueue("q", "good", 1, delay=3600)
    child = hub.jobs.enqueue("q", "good", 1, after=[later])
    bad = hub.jobs.enqueue("q", "fail", 1, max_attempts=1)
    fine = hub.jobs.enqueue("q", "good", 1)
    again = hub.jobs.enqueue("q", "fail", 1, max_attempts=9)
    gone = hub.jobs.enqueue("q", "good", 1, delay=60)
    hub.jobs.cancel(gone.id, reason="not needed")
    with hub.start_workers({"q": 5}):
        hub.jobs.wait_all([bad, fine], timeout=60)
        wait_until(lambda: hub.jobs.get(again.id).state == State.SCHEDULED)
        tries = hub.jobs.explain(again)
    run_at = hub.jobs.get(later.id).run_at

    assert codes(hub, later) == ["scheduled"]
    assert hub.jobs.explain(later).reasons[0].at == run_at
    waits = hub.jobs.explain(child).reasons[0]
    assert (waits.code, waits.jobs) == ("waiting", (later.id,))
    assert f"{later.id} (scheduled)" in waits.text
    assert codes(hub, bad) == ["failed"]
    assert hub.jobs.explain(bad).answer.endswith("1 of 1 attempts: ValueError: no such order.")
    assert codes(hub, fine) == ["completed"]
    assert tries.reasons[0].code == "backing_off"
    assert "Attempt 1 of 9 failed (ValueError: no such order)" in tries.answer
    assert codes(hub, gone) == ["cancelled"]
    assert "not needed" in hub.jobs.explain(gone).answer


def test_a_deadline_that_has_passed(tmp_path: Path, clock: FakeClock) -> None:
    with hub_on(tmp_path / "hub.db", clock=clock) as hub:
        added = hub.jobs.enqueue("q", "t", 1, deadline=clock.now() / 1e6 + 10)
        clock.advance(11)
        assert codes(hub, added)[0] == "deadline"


def test_an_unknown_job_cannot_be_explained(hub: penstock.Hub) -> None:
    with pytest.raises(JobNotFound):
        hub.jobs.explain(99)


# Waiting


_WORKER = """
    import sys
    import penstock
    hub = penstock.connect(sys.argv[1])

    @hub.job(queue="q", name="double")
    def double(payload: int) -> int:
        return payload * 2

    with hub.start_workers({"q": 5}):
        print("ready", flush=True)
        sys.stdin.readline()
    hub.close()
    """


def test_wait_gets_the_result_of_a_job_that_another_process_did(
    hub: penstock.Hub, tmp_path: Path
) -> None:
    with Child(_WORKER, hub.url) as worker:
        assert worker.hear() == "ready"
        added = [hub.jobs.enqueue("q", "double", n) for n in range(5)]
        assert [hub.jobs.wait(one, timeout=60) for one in added] == [0, 2, 4, 6, 8]
        jobs = hub.jobs.wait_all(reversed(added), timeout=60)
        assert [job.id for job in jobs] == [one.id for one in reversed(added)]

        async def main() -> list[object]:
            found = await hub.aio.jobs.enqueue("q", "double", 21)
            return [
                await hub.aio.jobs.wait(found, timeout=60),
                *[job.result for job in await hub.aio.jobs.wait_all([found, added[1]])],
            ]

        assert asyncio.run(main()) == [42, 42, 2]


def test_waiting_ends_with_the_job_or_the_time(hub: penstock.Hub) -> None:
    added = hub.jobs.enqueue("q", "t", 1)
    with pytest.raises(WaitTimeout, match="pending"):
        hub.jobs.wait(added, timeout=0.05)
    with pytest.raises(JobNotFound):
        hub.jobs.wait(999, timeout=5)

    waiter: list[BaseException] = []

    def wait() -> None:
        try:
            hub.jobs.wait(added, timeout=60)
        except JobFailed as error:
            waiter.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    hub.jobs.cancel(added.id)
    thread.join(60)
    assert "cancelled" in str(waiter[0])


def test_whoever_waited_leaves_nothing_behind(hub: penstock.Hub) -> None:
    """The doorbell looks as seldom as before, and calls nobody who is gone."""
    added = hub.jobs.enqueue("q", "t", 1)
    with pytest.raises(WaitTimeout):
        hub.jobs.wait(added, timeout=0.05)
    runtime = hub._open()
    assert not runtime.waiting_room._waiting
    assert not runtime.doorbell._hurries
    assert runtime.waiting_room._look not in runtime.doorbell._listeners


def test_many_wait_at_once_each_for_its_own(hub: penstock.Hub) -> None:
    """A waiter is not woken for good by another's job, and none is forgotten."""

    @hub.job(queue="q", name="echo")
    def echo(payload: int) -> int:
        return payload

    added = echo.enqueue_many(range(60))
    results: dict[int, object] = {}

    def wait(n: int) -> None:
        results[n] = hub.jobs.wait(added[n], timeout=60)

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(60)]
    for thread in threads:
        thread.start()

    async def main() -> list[object]:
        return await asyncio.gather(*(hub.aio.jobs.wait(one, timeout=60) for one in added))

    wait_until(lambda: len(hub._open().waiting_room._waiting) == 60)
    with hub.start_workers({"q": 3}):
        assert asyncio.run(main()) == [*range(60)]
        for thread in threads:
            thread.join(60)
    assert results == {n: n for n in range(60)}
    assert not hub._open().waiting_room._waiting


def test_a_job_that_is_pruned_while_waited_for_is_told_of(hub: penstock.Hub) -> None:
    added = hub.jobs.enqueue("q", "t", 1)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            hub.jobs.wait_all([added], timeout=60)
        except JobNotFound as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: hub._open().waiting_room._waiting)
    writer = hub._open().store.open_writer()
    now = hub._open().clock.now()
    with writer.transaction() as transaction:
        transaction.jobs.cancel([added.id], reason="", now=now)
        transaction.jobs.prune(before={State.CANCELLED: now + 1}, now=now, limit=10)
    writer.close()
    thread.join(60)
    assert told


# Dead letters


def test_dead_letters_are_listed_and_brought_back(hub: penstock.Hub) -> None:
    """J8: one, many, by filter; with all their attempts and their history."""
    broken = threading.Event()
    broken.set()

    @hub.job(queue="q", name="send", max_attempts=1)
    def send(payload: int) -> int:
        if broken.is_set():
            raise ConnectionError(f"host {payload % 2} is down")
        return payload

    added = send.enqueue_many(range(6))
    with hub.start_workers({"q": 6}):
        hub.jobs.wait_all(added, timeout=60)
        assert {job.id for job in hub.jobs.dead("q")} == {one.id for one in added}
        down = hub.jobs.dead(error="host 1")
        assert [job.payload for job in down] == [5, 3, 1]
        assert hub.jobs.dead(error="host 1", before=down[0].id, limit=1) == [down[1]]
        assert down[0].failure is not None
        assert "ConnectionError" in down[0].failure.traceback
        broken.clear()
        assert hub.jobs.retry(added[0].id) == [added[0].id]
        seen: list[int] = []
        assert hub.jobs.retry_all("q", error="host 1", progress=seen.append) == 3
        assert seen == [3]
        done = [added[n] for n in (0, 1, 3, 5)]
        assert [job.result for job in hub.jobs.wait_all(done, timeout=60)] == [0, 1, 3, 5]
    kinds = [event.kind.name for event in hub.jobs.history(added[0].id)]
    assert kinds == ["ENQUEUED", "STARTED", "DIED", "RETRIED", "STARTED", "COMPLETED"]
    assert len(hub.jobs.dead()) == 2


# Stats


def test_the_overview_has_queues_sums_and_pace(hub: penstock.Hub) -> None:
    """J7."""

    @hub.job(queue="a", name="t")
    def t(payload: int) -> None: ...

    added = t.enqueue_many(range(7))
    with hub.start_workers({"a": 3}):
        hub.jobs.wait_all(added, timeout=60)
        hub.jobs.enqueue("b", "t", 1)
        found = hub.jobs.overview()
    assert [(queue.queue, queue.pending, queue.completed) for queue in found.queues] == [
        ("a", 0, 7),
        ("b", 1, 0),
    ]
    assert (found.overall.pending, found.overall.completed, found.overall.total) == (1, 7, 8)
    assert found.overall.oldest_pending_seconds is not None
    assert found.pace.completed == 7
    assert found.pace.completed_per_second > 0
    assert found.pace.wait_p95_seconds is not None
    assert set(found.paces) == {"a"}
    assert (found.workers, found.unattended) == (1, ("b",))


def test_health_warns_of_jobs_that_nobody_takes(hub: penstock.Hub) -> None:
    hub.jobs.enqueue("mail", "send", 1)
    found = hub.health()
    [check] = [check for check in found.checks if check.name == "queue mail"]
    assert (found.status, check.status) == ("warning", "warning")
    assert "no worker" in check.found
    assert "--queues mail" in check.advice
    assert hub.metrics().jobs.overall.pending == 1

    hub.jobs.pause("mail")
    assert hub.health().status == "ok"


def test_health_warns_of_a_queue_that_is_too_slow(tmp_path: Path, clock: FakeClock) -> None:
    with hub_on(tmp_path / "hub.db", clock=clock, job_lease_seconds=10_000.0) as hub:
        gate = Gate()

        @hub.job(queue="q", name="slow")
        def slow(payload: int) -> None:
            gate.pass_through()

        with hub.start_workers({"q": 1}):
            hub.jobs.enqueue("q", "slow", 1)
            assert gate.entered.wait(60)
            hub.jobs.limit("q", concurrency=1)
            hub.jobs.enqueue("q", "slow", 2)
            assert not [c for c in hub.health().checks if c.name == "queue q"]
            clock.advance(hub.settings.job_wait_warning_seconds + 1)
            [check] = [c for c in hub.health().checks if c.name == "queue q"]
            assert check.status == "warning"
            assert "301 s" in check.found
            gate.open.set()


# Limits


def test_two_who_change_different_things_do_not_undo_each_other(
    hub: penstock.Hub, tmp_path: Path
) -> None:
    """Two hubs, as two processes: one pauses, one limits, at the same moment."""
    with hub_on(tmp_path / "hub.db") as other:
        for n in range(1, 31):
            both = threading.Barrier(2)

            def pause(both: threading.Barrier = both) -> None:
                both.wait(60)
                other.jobs.pause("q")

            thread = threading.Thread(target=pause)
            thread.start()
            both.wait(60)
            hub.jobs.limit("q", concurrency=n)
            thread.join(60)
            [stats] = hub.jobs.stats("q")
            assert (stats.limits.concurrency_max, stats.limits.is_paused) == (n, True)
            hub.jobs.resume("q")


# Retention


def finish(hub: penstock.Hub, count: int, *, failed: int = 0, cancelled: int = 0) -> None:
    @hub.job(queue="q", name="t", max_attempts=1)
    def t(payload: int) -> int:
        if payload < 0:
            raise ValueError
        return payload

    added = [*t.enqueue_many(range(count)), *t.enqueue_many([-1] * failed)]
    gone = hub.jobs.enqueue_many("other", "t", range(cancelled))
    hub.jobs.cancel(*(one.id for one in gone))
    with hub.start_workers({"q": 5}):
        hub.jobs.wait_all(added, timeout=60)


def test_finished_jobs_are_kept_by_their_state(tmp_path: Path, clock: FakeClock) -> None:
    kept = {
        "job_keep_completed_seconds": 100.0,
        "job_keep_cancelled_seconds": 200.0,
        "job_keep_failed_seconds": float("inf"),
    }
    with hub_on(tmp_path / "hub.db", clock=clock, **kept) as hub:
        finish(hub, 30, failed=3, cancelled=2)
        runtime = hub._open()
        runtime.sweeper.sweep()
        assert hub.jobs.overview().overall.total == 35
        clock.advance(101)
        runtime.sweeper.sweep()
        assert [(q.completed, q.failed, q.cancelled) for q in hub.jobs.stats()] == [
            (0, 0, 2),
            (0, 3, 0),
        ]
        clock.advance(10_000_000)
        runtime.sweeper.sweep()
        assert [(q.queue, q.total) for q in hub.jobs.stats() if q.total] == [("q", 3)]
        assert hub.telemetry.counters()["jobs_pruned"] == 2


def test_pruning_by_hand_goes_through_all(tmp_path: Path, clock: FakeClock) -> None:
    """More than one step, and with what is kept lying in front."""
    with hub_on(tmp_path / "hub.db", clock=clock) as hub:
        finish(hub, 5, failed=2)
        many = hub.jobs.enqueue_many("m", "t", range(1_300))
        hub.jobs.cancel(*(one.id for one in many))
        assert hub.jobs.prune() == 0
        with pytest.raises(InvalidInput):
            hub.jobs.prune(state="pending", older_than_seconds=1)
        clock.advance(10)
        seen: list[int] = []
        assert (
            hub.jobs.prune(state="cancelled", older_than_seconds=5, progress=seen.append) == 1_300
        )
        assert seen[:3] == [500, 1_000, 1_300]
        assert hub.jobs.prune(older_than_seconds=11) == 0
        assert hub.jobs.prune(older_than_seconds=5) == 7
        assert hub.jobs.overview().overall.total == 0


def test_pruning_in_parts_goes_on_where_it_was(tmp_path: Path, clock: FakeClock) -> None:
    """J7: also past what is kept, and each part as short as was asked for."""
    with hub_on(tmp_path / "hub.db", clock=clock) as hub:
        finish(hub, 5, failed=2)
        many = hub.jobs.enqueue_many("m", "t", range(1_300))
        hub.jobs.cancel(*(one.id for one in many))
        clock.advance(10)
        parts, after = [], 0
        while True:
            part = hub.jobs.prune_some(
                state="cancelled", older_than_seconds=5, after=after, seconds_max=0
            )
            parts.append(part.removed)
            if part.after is None:
                break
            assert part.after > after
            after = part.after
        assert parts == [500, 500, 300]
        whole = hub.jobs.prune_some(older_than_seconds=5, seconds_max=60)
        assert (whole.removed, whole.after) == (7, None)
        for wrong in (-1, 2**63, "1"):
            with pytest.raises(InvalidInput):
                hub.jobs.prune_some(after=wrong)  # type: ignore[arg-type]


def test_results_expire_on_their_own(tmp_path: Path, clock: FakeClock) -> None:
    with hub_on(tmp_path / "hub.db", clock=clock, job_result_seconds=50.0) as hub:
        finish(hub, 1)
        [job] = hub.jobs.list()
        assert job.result == 0
        clock.advance(51)
        assert hub.jobs.get(job.id).result is None
        hub._open().sweeper.sweep()
        with hub.connection() as connection:
            rows = connection.execute("SELECT result FROM penstock_job_finished")
        assert rows == [(None,)]
        assert hub.jobs.get(job.id).state == State.COMPLETED


def test_a_schedule_can_be_run_now(hub: penstock.Hub) -> None:
    hub.schedules.put("nightly", "0 3 * * *", "reports", "build", {"day": 1})
    before = hub.schedules.get("nightly")
    hub.schedules.pause("nightly")
    added = hub.schedules.run_now("nightly")
    job = hub.jobs.get(added.id)
    assert (job.queue, job.type, job.payload, job.schedule) == (
        *("reports", "build"),
        {"day": 1},
        "nightly",
    )
    assert hub.schedules.get("nightly").next_at == before.next_at
