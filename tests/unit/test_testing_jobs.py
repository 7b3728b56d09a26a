"""The helpers for tests of programs with jobs: drain, inline, assert_enqueued, the fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import penstock
from penstock.errors import AlreadyProcessed
from penstock.job import Kind, State
from penstock.jobs.registry import Cancel, Snooze
from penstock.testing import (
    Drained,
    FakeClock,
    assert_enqueued,
    drain,
    inline,
    memory_hub,
    override,
    refute_enqueued,
)


class Mail(msgspec.Struct):
    to: str
    lines: tuple[str, ...] = ()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def hub(clock: FakeClock) -> Iterator[penstock.Hub]:
    with memory_hub(clock=clock) as hub:
        yield hub


# drain


def test_drain_runs_sync_and_async_handlers_by_priority(hub: penstock.Hub) -> None:
    """J5: in this thread, in the order a worker with one slot would take them."""
    seen: list[Any] = []

    @hub.job
    def plain(payload: int) -> int:
        seen.append(payload)
        return payload * 2

    @hub.job
    async def coroutine(payload: Mail, job: Any) -> None:
        await asyncio.sleep(0)
        seen.append((payload.to, job.attempt))

    first = plain.enqueue(1)
    coroutine.enqueue(Mail("ann"), priority=-10)
    assert drain(hub) == Drained(completed=2)
    assert seen == [("ann", 1), 1]
    assert hub.jobs.get(first.id).result == 2


def test_drain_runs_what_handlers_enqueue_and_what_waits(hub: penstock.Hub) -> None:
    seen: list[str] = []

    @hub.job(name="step")
    def step(payload: str) -> None:
        seen.append(payload)
        if payload == "first":
            step.enqueue("more")

    first = step.enqueue("first")
    step.enqueue("after", after=[first])
    drain(hub)
    assert sorted(seen) == ["after", "first", "more"]
    assert seen[0] == "first"


def test_drain_moves_a_fake_clock_to_retries_until_a_job_is_dead(
    hub: penstock.Hub, clock: FakeClock
) -> None:
    """J3, J8: every attempt is in the history, and nothing was waited for."""
    before = clock.now()

    @hub.job(max_attempts=3)
    def bad(payload: None) -> None:
        raise ValueError("no")

    job = bad.enqueue(None)
    assert drain(hub) == Drained(failed=2, died=1)
    assert hub.jobs.get(job.id).state is State.FAILED
    kinds = [event.kind for event in hub.jobs.history(job.id)]
    assert kinds.count(Kind.FAILED) == 2
    assert kinds[-1] is Kind.DIED
    assert clock.now() - before >= 4_000_000  # 1 and 4 seconds, less the jitter.


def test_drain_can_leave_what_is_due_later(hub: penstock.Hub, clock: FakeClock) -> None:
    seen: list[int] = []
    hub.job(name="note")(lambda payload: seen.append(payload))
    hub.jobs.enqueue("default", "note", 1)
    hub.jobs.enqueue("default", "note", 2, delay=3600)
    before = clock.now()
    assert drain(hub, until_empty=False).completed == 1
    assert clock.now() == before
    assert seen == [1]
    drain(hub)
    assert seen == [1, 2]
    assert clock.now() == before + 3_600_000_000


def test_with_a_real_clock_nothing_is_waited_for() -> None:
    with memory_hub() as hub:
        hub.job(name="note")(lambda payload: None)
        hub.jobs.enqueue("default", "note", 1, delay=3600)
        assert drain(hub) == Drained()


def test_drain_keeps_to_one_queue(hub: penstock.Hub) -> None:
    hub.job(name="note")(lambda payload: None)
    hub.jobs.enqueue("a", "note", 1)
    hub.jobs.enqueue("b", "note", 1, delay=5)
    assert drain(hub, "a").attempts == 1
    assert [stats.scheduled for stats in hub.jobs.stats("b")] == [1]


def test_drain_obeys_limits_and_pauses(hub: penstock.Hub, clock: FakeClock) -> None:
    """J10: two a minute means that five jobs take more than two minutes, by the fake clock."""
    seen: list[int] = []
    hub.job(name="note")(lambda payload: seen.append(clock.now()))
    hub.jobs.limit("default", rate=2, per_seconds=60)
    hub.jobs.enqueue_many("default", "note", range(5))
    drain(hub)
    assert len(seen) == 5
    assert seen[-1] - seen[0] >= 120_000_000
    hub.jobs.enqueue("default", "note", 6)
    hub.jobs.pause("default")
    assert drain(hub) == Drained()


def test_snoozes_cancellations_and_unknown_types_are_told_apart(hub: penstock.Hub) -> None:
    turns: list[int] = []

    @hub.job
    def later(payload: None) -> Snooze | None:
        turns.append(1)
        return Snooze(60) if len(turns) == 1 else None

    @hub.job
    def never(payload: None) -> Cancel:
        return Cancel("of no use")

    later.enqueue(None)
    never.enqueue(None)
    hub.jobs.enqueue("default", "unheard-of", max_attempts=1)
    assert drain(hub) == Drained(completed=1, died=1, snoozed=1, cancelled=1)


def test_drain_can_raise_what_a_handler_raises(hub: penstock.Hub) -> None:
    @hub.job
    def bad(payload: None) -> None:
        raise ValueError("no")

    job = bad.enqueue(None)
    with pytest.raises(ValueError, match="no"):
        drain(hub, raises=True)
    assert hub.jobs.get(job.id).attempts == 1
    assert not hub.jobs.workers()


def test_jobs_without_an_end_are_noticed(hub: penstock.Hub) -> None:
    @hub.job
    def again(payload: None) -> None:
        again.enqueue(None)

    again.enqueue(None)
    with pytest.raises(AssertionError, match="no end"):
        drain(hub, jobs_max=20)


def test_progress_and_a_jobs_own_transaction_work_in_a_drain(hub: penstock.Hub) -> None:
    @hub.job
    def count(payload: int, job: Any) -> None:
        job.progress(1, 2, "half")
        assert hub.jobs.get(job.id).progress.percent == 50
        with job.transaction(result="done") as tx:
            tx.publish("counted", payload)

    job = count.enqueue(7)
    assert drain(hub) == Drained(completed=1)
    assert hub.jobs.get(job.id).result == "done"
    assert [message.payload for message in hub.topics.read("counted")] == [7]


def test_drain_refuses_to_race_with_workers() -> None:
    with memory_hub() as hub:
        hub.job(name="note")(lambda payload: None)
        with hub.start_workers(), pytest.raises(RuntimeError, match="Workers"):
            drain(hub)


async def test_drain_works_where_an_event_loop_runs(hub: penstock.Hub) -> None:
    @hub.job
    async def note(payload: int) -> int:
        await asyncio.sleep(0)
        return payload

    job = await hub.aio.jobs.enqueue("default", "note", 5)
    drain(hub)
    assert hub.jobs.get(job.id).result == 5


# inline


def test_inline_runs_a_job_before_enqueue_returns(hub: penstock.Hub) -> None:
    seen: list[int] = []

    @hub.job
    def note(payload: int) -> None:
        seen.append(payload)

    with inline(hub):
        note.enqueue(1)
        assert seen == [1]
        hub.jobs.enqueue_many("default", "note", [2, 3])
        assert seen == [1, 2, 3]
        note.enqueue(4, delay=60)
    note.enqueue(5)
    assert seen == [1, 2, 3]


def test_inline_raises_what_the_handler_raises(hub: penstock.Hub) -> None:
    @hub.job
    def bad(payload: None) -> None:
        raise KeyError("x")

    with inline(hub), pytest.raises(KeyError):
        bad.enqueue(None)
    with inline(hub, raises=False):
        job = bad.enqueue(None)
    assert hub.jobs.get(job.id).state is State.SCHEDULED


def test_inline_waits_for_the_commit_of_a_transaction(hub: penstock.Hub) -> None:
    seen: list[int] = []

    @hub.job
    def note(payload: int) -> None:
        seen.append(payload)
        if payload == 1:
            note.enqueue(2)

    with inline(hub):
        with hub.transaction() as tx:
            tx.enqueue("default", "note", 1)
            assert seen == []
        assert seen == [1, 2]
        with pytest.raises(ZeroDivisionError), hub.transaction() as tx:
            tx.enqueue("default", "note", 1 // (tx.enqueue("default", "note", 3).id * 0))
    assert seen == [1, 2]


async def test_inline_holds_for_coroutines_too(hub: penstock.Hub) -> None:
    seen: list[int] = []

    @hub.job
    async def note(payload: int) -> None:
        await asyncio.sleep(0)
        seen.append(payload)

    with inline(hub):
        await hub.aio.jobs.enqueue("default", "note", 1)
        assert seen == [1]
        async with hub.aio.transaction() as tx:
            await tx.enqueue("default", "note", 2)
        assert seen == [1, 2]


# assert_enqueued


def test_assert_enqueued_finds_by_type_payload_queue_and_field(hub: penstock.Hub) -> None:
    @hub.job(queue="mails")
    def send(payload: Mail) -> None: ...

    job = send.enqueue(Mail("ann", ("hi",)), priority=-10)
    assert assert_enqueued(hub, send).id == job.id
    assert_enqueued(hub, "send", Mail("ann", ("hi",)), queue="mails", priority=-10, count=1)
    assert_enqueued(hub, "send", lambda mail: mail["to"] == "ann")
    refute_enqueued(hub, "send", Mail("bob"))
    refute_enqueued(hub, "send", queue="other")


def test_what_is_missing_is_said_with_what_is_there(hub: penstock.Hub) -> None:
    hub.jobs.enqueue("mails", "send", {"to": "ann"})
    with pytest.raises(AssertionError, match=r"(?s)with \{'to': 'bob'\}.*none.*'ann'"):
        assert_enqueued(hub, "send", {"to": "bob"})
    with pytest.raises(AssertionError, match="2 jobs"):
        assert_enqueued(hub, "send", count=2)
    with pytest.raises(AssertionError, match="no job"):
        refute_enqueued(hub, "send", queue="mails")
    with pytest.raises(TypeError, match="colour"):
        assert_enqueued(hub, "send", colour="red")


def test_a_job_that_has_finished_is_not_enqueued(hub: penstock.Hub) -> None:
    hub.job(name="send")(lambda payload: None)
    hub.jobs.enqueue("default", "send", 1)
    drain(hub)
    refute_enqueued(hub, "send")
    with pytest.raises(AssertionError, match="No job is waiting"):
        assert_enqueued(hub, "send")


# The fake clock


def test_schedules_tick_by_the_fake_clock(hub: penstock.Hub, clock: FakeClock) -> None:
    """J10: a day passes in no time, and each hour ticks once."""
    seen: list[datetime] = []
    hub.job(name="hourly")(
        lambda payload: seen.append(datetime.fromtimestamp(clock.now() / 1e6, UTC))
    )
    hub.schedules.put("hourly", "0 * * * *", "default", "hourly")
    for _ in range(24):
        clock.advance(3600)
        drain(hub)
    assert [at.hour for at in seen] == [*range(1, 24), 0]


def test_a_ledger_claim_is_taken_over_when_its_lease_has_passed(
    hub: penstock.Hub, clock: FakeClock
) -> None:
    """L3: with the fake clock nobody has to wait for it."""
    first = hub.ledger.claim("mails", "m-1", lease_seconds=30)
    first.__enter__()
    clock.advance(31)
    with hub.ledger.claim("mails", "m-1", lease_seconds=30) as second:
        second.result = "sent"
    with pytest.raises(AlreadyProcessed), hub.ledger.claim("mails", "m-1"):
        pass


def test_a_programs_hub_gets_a_fake_clock_for_a_while(clock: FakeClock) -> None:
    with memory_hub() as hub:
        hub.job(name="note")(lambda payload: None)
        with override(hub, clock=clock):
            hub.jobs.enqueue("default", "note", 1, delay=3600)
            assert drain(hub).completed == 1
        assert hub._clock is not clock
        assert drain(hub) == Drained()


def test_many_of_a_unique_handler_meet_each_other(hub: penstock.Hub) -> None:
    """J6: the key holds however a job is enqueued."""

    @hub.job(unique=True, on_conflict="return")
    def index(payload: str) -> None: ...

    first, second, third = index.enqueue_many(["a", "b", "a"])
    assert third.id == first.id != second.id
    assert (first.duplicate, third.duplicate) == (False, True)
    assert_enqueued(hub, index, count=2)
