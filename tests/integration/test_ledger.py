"""`hub.ledger`: marks, claims, the decorator, atomic work, and what happens by hand and by time."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.entry import EntryKind, EntryState
from penstock.errors import (
    AlreadyProcessed,
    InProgress,
    InsideTransaction,
    InvalidInput,
    InvalidPayload,
    LeaseLost,
    LedgerConflict,
    TransactionClosed,
    WorkFailed,
)
from penstock.ledger import claim as claims
from penstock.ledger.aio import AsyncLedger
from penstock.ledger.ledger import Ledger
from penstock.testing import FakeClock
from tests.integration.test_aio import _names, assert_alike
from tests.processes import in_fork
from tests.waiting import wait_until

OpenHub = Callable[..., penstock.Hub]


# Signatures


def test_the_ledger_has_the_same_names_and_signatures_in_both_worlds() -> None:
    for sync, other in ((Ledger, AsyncLedger), (claims.Claim, claims.AsyncClaim)):
        assert _names(sync) == _names(other)
        for name in _names(sync):
            assert_alike(getattr(sync, name), getattr(other, name))


def test_transactions_have_the_same_signatures(memory: penstock.Hub) -> None:
    sync, other = type(memory.transaction()), type(memory.aio.transaction())
    for name in ("mark_processed", "complete"):
        assert_alike(getattr(sync, name), getattr(other, name))
        assert inspect.iscoroutinefunction(getattr(other, name))


# Marks


def test_a_mark_is_true_for_one_caller_of_many(open_hub: OpenHub) -> None:
    """L2, L5: threads of two hubs on one file, all for the same keys."""
    hubs = [open_hub(), open_hub()]
    start = threading.Barrier(8)

    def work(number: int) -> list[bool]:
        hub = hubs[number % 2]
        start.wait()
        return [hub.ledger.mark_processed("store", f"msg-{n}") for n in range(25)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(work, range(8)))

    assert [sum(column) for column in zip(*answers, strict=True)] == [1] * 25
    assert hubs[0].ledger.count("store") == hubs[1].ledger.count() == 25


async def test_marks_in_flight_are_grouped_and_have_one_winner_each(memory: penstock.Hub) -> None:
    ledger = memory.aio.ledger
    keys = [str(n % 50) for n in range(200)]

    answers = await asyncio.gather(*(ledger.mark_processed("s", key) for key in keys))

    assert answers == [True] * 50 + [False] * 150
    assert await ledger.count("s") == 50


def test_it_survives_a_restart(open_hub: OpenHub) -> None:
    """L1, L2: the document's own test: closed, opened again, still remembered."""
    first = open_hub()
    assert first.ledger.mark_processed("store-test", "msg-test-123") is True
    first.close()
    second = open_hub()

    assert second.ledger.is_processed("store-test", "msg-test-123") is True
    assert second.ledger.mark_processed("store-test", "msg-test-123") is False
    assert second.ledger.is_processed("store-other", "msg-test-123") is False


def test_many_keys_are_marked_over_several_transactions(open_hub: OpenHub) -> None:
    hub = open_hub(commit_group_max=10)
    hub.ledger.mark_processed("s", "7")

    answers = hub.ledger.mark_many("s", [str(n) for n in range(25)])

    assert answers == [n != 7 for n in range(25)]
    assert hub.ledger.mark_many("s", []) == []


def test_another_payload_is_a_conflict_and_hurts_nobody_else(memory: penstock.Hub) -> None:
    memory.ledger.mark_processed("s", "k", payload={"a": 1, "b": 2})

    assert memory.ledger.mark_processed("s", "k", payload={"b": 2, "a": 1}) is False
    with pytest.raises(LedgerConflict):
        memory.ledger.mark_processed("s", "k", payload={"a": 2})
    with pytest.raises(InvalidPayload):
        memory.ledger.mark_processed("s", "k", payload=object())


@pytest.mark.parametrize(
    ("scope", "key", "options"),
    [
        ("", "k", {}),
        ("s\n", "k", {}),
        ("s", "", {}),
        ("s", 7, {}),
        ("s", "k" * 1025, {}),
        ("s", "\ud800", {}),
        ("s", "k", {"ttl": 0}),
        ("s", "k", {"ttl": -1}),
        ("s", "k", {"ttl": math.nan}),
        ("s", "k", {"ttl": "1"}),
    ],
)
def test_what_makes_no_sense_is_refused(
    memory: penstock.Hub, scope: Any, key: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        memory.ledger.mark_processed(scope, key, **options)
    assert memory.ledger.stats() == []


@pytest.mark.parametrize(
    "options",
    [
        {"lease_seconds": 0},
        {"lease_seconds": math.inf},
        {"on_busy": "no"},
        {"on_done": "wait"},
        {"on_failure": "raise"},
        {"timeout": 1},
        {"timeout": -1, "on_busy": "wait"},
        {"result_ttl": 0},
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(
    memory: penstock.Hub, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        memory.ledger.claim("s", "k", **options)


# Claims


def test_a_block_that_ends_well_completes_its_claim(memory: penstock.Hub) -> None:
    with memory.ledger.claim("billing", "evt-1") as claim:
        assert memory.ledger.is_processed("billing", "evt-1") is False
        assert (claim.is_done, claim.attempt, claim.result) == (False, 1, None)
        claim.result = {"invoice": 7}

    assert memory.ledger.is_processed("billing", "evt-1")
    found = memory.ledger.get("billing", "evt-1")
    assert found is not None
    assert found.result == {"invoice": 7}
    with (
        pytest.raises(AlreadyProcessed),
        memory.ledger.claim("billing", "evt-1"),
    ):
        raise AssertionError("the block must not run")
    with memory.ledger.claim("billing", "evt-1", on_done="result") as later:
        assert later.is_done
        assert later.result == {"invoice": 7}


def test_a_block_that_raises_gives_its_claim_back(memory: penstock.Hub) -> None:
    with pytest.raises(ZeroDivisionError), memory.ledger.claim("s", "k"):
        _ = 1 // 0

    assert memory.ledger.get("s", "k") is None
    with memory.ledger.claim("s", "k"):
        pass
    kinds = [event.kind for event in memory.ledger.events()]
    assert kinds == [
        EntryKind.CLAIMED,
        EntryKind.RELEASED,
        EntryKind.CLAIMED,
        EntryKind.COMPLETED,
    ]


def test_a_failure_can_be_the_answer_for_all_who_come_later(memory: penstock.Hub) -> None:
    with pytest.raises(ValueError, match="card"), memory.ledger.claim("s", "k", on_failure="keep"):
        raise ValueError("card declined")

    assert memory.ledger.is_processed("s", "k")
    with pytest.raises(AlreadyProcessed), memory.ledger.claim("s", "k"):
        pass
    with (
        pytest.raises(WorkFailed, match="ValueError: card declined") as caught,
        memory.ledger.claim("s", "k", on_done="result"),
    ):
        pass
    assert caught.value.error == "ValueError"
    assert memory.ledger.forget("s", "k") == 1
    with memory.ledger.claim("s", "k"):
        pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("x" * 2_000_000), "xxx"),
        (ValueError("half \ud800 a pair"), r"half \\ud800 a pair"),
        (Unprintable(), "its text cannot be had"),
    ],
)
def test_a_failure_whose_text_is_a_problem_is_kept_all_the_same(
    memory: penstock.Hub, error: Exception, said: str
) -> None:
    """A megabyte of text, half a surrogate pair, an error that cannot be printed."""
    with pytest.raises(type(error)), memory.ledger.claim("s", "k", on_failure="keep"):
        raise error

    with (
        pytest.raises(WorkFailed, match=said) as caught,
        memory.ledger.claim("s", "k", on_done="result"),
    ):
        pass
    assert len(caught.value.message) < 10_000


def test_being_interrupted_is_no_failure_to_keep(memory: penstock.Hub) -> None:
    with pytest.raises(KeyboardInterrupt), memory.ledger.claim("s", "k", on_failure="keep"):
        raise KeyboardInterrupt

    assert memory.ledger.get("s", "k") is None


def test_a_result_that_cannot_be_stored_is_the_works_own_error(memory: penstock.Hub) -> None:
    with pytest.raises(InvalidPayload), memory.ledger.claim("s", "k") as claim:
        claim.result = object()

    assert memory.ledger.get("s", "k") is None


def test_a_claim_can_be_ended_inside_its_block(memory: penstock.Hub) -> None:
    with memory.ledger.claim("s", "done") as claim:
        claim.complete()
        assert memory.ledger.is_processed("s", "done")
    with memory.ledger.claim("s", "undone") as claim:
        claim.release()
        claim.release()
        assert memory.ledger.get("s", "undone") is None
    with memory.ledger.claim("s", "twice") as claim:
        claim.complete()
        with pytest.raises(LeaseLost):
            claim.complete()


def test_a_key_somebody_is_at_is_refused_or_waited_for(open_hub: OpenHub) -> None:
    first, second = open_hub(), open_hub()
    asked = threading.Event()

    def wait() -> Any:
        asked.set()
        with second.ledger.claim("s", "k", on_busy="wait", on_done="result") as claim:
            return claim.is_done, claim.result

    with ThreadPoolExecutor(1) as pool, first.ledger.claim("s", "k") as claim:
        with pytest.raises(InProgress), second.ledger.claim("s", "k"):
            pass
        with (
            pytest.raises(InProgress),
            second.ledger.claim("s", "k", on_busy="wait", timeout=0.02),
        ):
            pass
        waiting = pool.submit(wait)
        asked.wait()
        claim.result = 42
        claim.complete()
        assert waiting.result(60) == (True, 42)


def test_one_who_waits_takes_over_what_was_given_back(memory: penstock.Hub) -> None:
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ZeroDivisionError), memory.ledger.claim("s", "k"):  # noqa: PT012
            waiting = pool.submit(_work_when_free, memory)
            _ = 1 // 0
        assert waiting.result(60) == "mine"
    assert memory.ledger.is_processed("s", "k")


def _work_when_free(hub: penstock.Hub) -> str:
    with hub.ledger.claim("s", "k", on_busy="wait") as claim:
        return "done before" if claim.is_done else "mine"


def test_a_late_completion_is_refused_and_changes_nothing(
    open_hub: OpenHub, clock: FakeClock
) -> None:
    """L3: it was suspended for longer than its lease, and somebody else has taken over."""
    first, second = open_hub(clock=clock), open_hub(clock=clock)
    late = first.ledger.claim("s", "k", lease_seconds=1_000)
    late.__enter__()
    late.result = "late"
    clock.advance(1_000)
    with second.ledger.claim("s", "k") as taken:
        assert taken.attempt == 2
        assert taken.token > late.token
        taken.result = "second"
        with pytest.raises(LeaseLost):
            late.__exit__(None, None, None)
        assert second.ledger.get("s", "k").state == EntryState.IN_PROGRESS  # type: ignore[union-attr]

    found = first.ledger.get("s", "k")
    assert found is not None
    assert found.result == "second"


def test_a_claim_is_renewed_by_itself_while_its_block_runs(hub: penstock.Hub) -> None:
    def until() -> int:
        with hub.connection() as connection:
            return int(connection.execute("SELECT lease_until FROM penstock_ledger")[0][0])

    with hub.ledger.claim("s", "k", lease_seconds=0.2):
        ends = [until()]
        for _ in range(2):
            wait_until(lambda: until() > ends[-1], "the lease is renewed")
            ends.append(until())
        assert not hub.ledger.claim("s", "k", lease_seconds=0.2).is_lost
        with pytest.raises(InProgress), hub.ledger.claim("s", "k"):
            pass
    assert hub._open().claims.held == 0


def test_a_block_can_find_out_that_its_claim_is_lost(hub: penstock.Hub) -> None:
    events: list[str] = []
    hub.telemetry.attach(lambda event, _: events.append(event))
    with pytest.raises(LeaseLost), hub.ledger.claim("s", "k", lease_seconds=0.1) as claim:  # noqa: PT012
        claim.check()
        hub.ledger.forget("s", "k")
        wait_until(lambda: claim.is_lost, "the renewal is refused")
        claim.check()

    assert "claim_lost" in events
    assert hub.ledger.get("s", "k") is None


def test_a_forked_child_leaves_its_parents_claim_alone(hub: penstock.Hub) -> None:
    with hub.ledger.claim("s", "k") as claim:
        assert in_fork(lambda: claim.__exit__(None, None, None)) == 0
        assert hub.ledger.is_processed("s", "k") is False
        with pytest.raises(InProgress), hub.ledger.claim("s", "k"):
            pass
    assert hub.ledger.is_processed("s", "k")


def test_nothing_waits_for_the_transaction_it_is_in(memory: penstock.Hub) -> None:
    with memory.transaction():
        for call in (
            lambda: memory.ledger.mark_processed("s", "k"),
            lambda: memory.ledger.claim("s", "k").__enter__(),
            lambda: memory.ledger.forget("s", "k"),
        ):
            with pytest.raises(InsideTransaction):
                call()


async def test_claims_on_an_event_loop(memory: penstock.Hub) -> None:
    ledger = memory.aio.ledger

    async def wait() -> Any:
        async with ledger.claim("s", "k", on_busy="wait", on_done="result") as claim:
            return claim.result

    async with ledger.claim("s", "k") as claim:
        with pytest.raises(InProgress):
            async with ledger.claim("s", "k"):
                pass
        with pytest.raises(InProgress):
            async with ledger.claim("s", "k", on_busy="wait", timeout=0.02):
                pass
        waiting = asyncio.create_task(wait())
        claim.result = [1]
    assert await waiting == [1]
    with pytest.raises(ZeroDivisionError):
        async with ledger.claim("s", "raises"):
            _ = 1 // 0
    assert await ledger.get("s", "raises") is None


async def test_a_cancelled_task_gives_its_claim_back(memory: penstock.Hub) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with memory.aio.ledger.claim("s", "k", on_failure="keep"):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await memory.aio.ledger.get("s", "k") is None


async def test_a_task_cancelled_while_it_claims_leaves_nothing_behind(
    memory: penstock.Hub,
) -> None:
    async def work() -> None:
        async with memory.aio.ledger.claim("s", "k"):
            await asyncio.Event().wait()

    for _ in range(20):
        task = asyncio.create_task(work())
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def is_free() -> bool:
        found = await memory.aio.ledger.get("s", "k")
        return found is None

    async with asyncio.timeout(60):
        while not await is_free():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


# The decorator


@dataclass
class Invoice:
    number: int


def test_a_function_runs_once_per_key(memory: penstock.Hub) -> None:
    calls = []

    @memory.ledger.idempotent("billing", key=lambda event: event["id"])
    def bill(event: dict[str, Any]) -> Invoice:
        """Makes an invoice."""
        calls.append(event)
        return Invoice(len(calls))

    assert bill({"id": "a"}) == bill({"id": "a"}) == Invoice(1)
    assert bill({"id": "b"}) == Invoice(2)
    assert len(calls) == 2
    assert (bill.__name__, bill.__doc__) == ("bill", "Makes an invoice.")


async def test_a_coroutine_function_runs_once_per_key(memory: penstock.Hub) -> None:
    calls = []

    @memory.aio.ledger.idempotent("s", key=str)
    async def work(number: int) -> list[int]:
        calls.append(number)
        await asyncio.sleep(0.01)
        return [number]

    found = await asyncio.gather(*(work(n % 3) for n in range(30)))

    assert found == [[n % 3] for n in range(30)]
    assert sorted(calls) == [0, 1, 2]


def test_concurrent_callers_run_it_once_and_all_get_its_result(open_hub: OpenHub) -> None:
    """L5: two hubs on one file, many threads."""
    hubs = [open_hub(), open_hub()]
    calls: list[int] = []
    start = threading.Barrier(8)

    def work(number: int) -> Any:
        @hubs[number % 2].ledger.idempotent("s", key=lambda: "the-one")
        def once() -> int:
            calls.append(number)
            return number

        start.wait()
        return once()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(8)))

    assert len(calls) == 1
    assert found == calls * 8


def test_a_function_that_raises_runs_again(memory: penstock.Hub) -> None:
    calls = []

    @memory.ledger.idempotent("s", key=str)
    def work(key: int) -> int:
        calls.append(key)
        if len(calls) == 1:
            raise OSError("later")
        return 7

    with pytest.raises(OSError, match="later"):
        work(1)
    assert work(1) == work(1) == 7
    assert len(calls) == 2


def test_the_choices_of_a_claim_are_those_of_the_decorator(memory: penstock.Hub) -> None:
    ledger = memory.ledger

    @ledger.idempotent(
        "s", key=lambda key, _: key, payload=lambda _, body: body, on_done="raise", on_busy="raise"
    )
    def work(key: str, body: str) -> None:
        with pytest.raises(InProgress):
            work(key, body)
        with pytest.raises(LedgerConflict):
            work(key, "another")

    work("a", "body")
    with pytest.raises(AlreadyProcessed):
        work("a", "body")

    @ledger.idempotent("t", key=str, on_failure="keep")
    def fail(key: int) -> None:
        raise ValueError(key)

    with pytest.raises(ValueError, match="1"):
        fail(1)
    with pytest.raises(WorkFailed):
        fail(1)

    @ledger.idempotent("u", key=str, store_result=False)
    def no_result(key: int) -> object:
        return object()

    assert no_result(1) is not None
    assert no_result(1) is None
    with pytest.raises(InvalidInput):
        ledger.idempotent("s", key="id")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        ledger.idempotent("s", key=str, on_error="ignore")(print)  # type: ignore[arg-type]


# Atomic


@pytest.fixture
def orders(hub: penstock.Hub) -> penstock.Hub:
    with hub.transaction() as tx:
        tx.execute("CREATE TABLE orders (id TEXT, amount INTEGER CHECK (amount > 0))")
    return hub


def rows(hub: penstock.Hub) -> list[tuple[Any, ...]]:
    with hub.connection() as connection:
        return connection.execute("SELECT id, amount FROM orders")


def test_a_mark_its_rows_messages_and_jobs_happen_together_and_once(orders: penstock.Hub) -> None:
    for _ in range(3):
        try:
            with orders.ledger.atomic("billing", "evt-9") as tx:
                tx.execute("INSERT INTO orders VALUES ('9', 5)")
                tx.publish("orders", {"id": 9})
                tx.enqueue("emails", "send", {"order": 9})
        except AlreadyProcessed:
            continue

    assert rows(orders) == [("9", 5)]
    assert len(orders.topics.read("orders")) == 1
    assert len(orders.jobs.list("emails")) == 1
    assert orders.ledger.count("billing") == 1


def test_a_transaction_that_fails_has_marked_nothing(orders: penstock.Hub) -> None:
    with pytest.raises(penstock.StatementFailed), orders.ledger.atomic("billing", "evt-9") as tx:  # noqa: PT012
        tx.publish("orders", {"id": 9})
        tx.execute("INSERT INTO orders VALUES ('9', -5)")

    assert orders.topics.read("orders") == []
    assert orders.ledger.is_processed("billing", "evt-9") is False
    assert orders.ledger.stats() == []


def test_already_processed_rolls_everything_back_even_if_it_is_swallowed(
    orders: penstock.Hub,
) -> None:
    orders.ledger.mark_processed("billing", "evt-9")
    with pytest.raises(TransactionClosed), orders.transaction() as tx:  # noqa: PT012
        tx.execute("INSERT INTO orders VALUES ('9', 5)")
        with pytest.raises(AlreadyProcessed):
            tx.mark_processed("billing", "evt-9")
    with pytest.raises(LedgerConflict), orders.transaction() as tx:  # noqa: PT012
        tx.mark_processed("s", "k", payload=1)
        tx.mark_processed("s", "k", payload=2)

    assert rows(orders) == []
    assert orders.ledger.is_processed("s", "k") is False


def test_a_key_that_is_claimed_is_in_progress_for_a_transaction(orders: penstock.Hub) -> None:
    with (
        orders.ledger.claim("s", "k"),
        pytest.raises(InProgress),
        orders.ledger.atomic("s", "k"),
    ):
        raise AssertionError("the block must not run")


def test_a_claim_is_completed_with_its_effects(orders: penstock.Hub) -> None:
    """The long work outside of the transaction, its effects and the completion inside."""
    with orders.ledger.claim("s", "k") as claim:
        claim.result = 1
        with pytest.raises(ZeroDivisionError), orders.transaction() as tx:  # noqa: PT012
            tx.complete(claim)
            _ = 1 // 0
        assert orders.ledger.is_processed("s", "k") is False
        with orders.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES ('9', 5)")
            tx.complete(claim)
        assert orders.ledger.is_processed("s", "k")
    assert rows(orders) == [("9", 5)]
    assert orders.ledger.get("s", "k").result == 1  # type: ignore[union-attr]


def test_the_effects_of_a_claim_that_was_lost_are_rolled_back(orders: penstock.Hub) -> None:
    with pytest.raises(LeaseLost), orders.ledger.claim("s", "k") as claim:  # noqa: PT012
        orders.ledger.forget("s", "k")
        with orders.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES ('9', 5)")
            tx.complete(claim)

    assert rows(orders) == []


async def test_atomic_on_an_event_loop(orders: penstock.Hub) -> None:
    ledger = orders.aio.ledger
    async with ledger.atomic("s", "k") as tx:
        await tx.publish("orders", 1)
    with pytest.raises(AlreadyProcessed):
        async with ledger.atomic("s", "k"):
            raise AssertionError("the block must not run")
    async with orders.aio.transaction() as tx:
        await tx.mark_processed("s", "l")
    async with ledger.claim("s", "m") as claim, orders.aio.transaction() as tx:
        await tx.complete(claim)

    assert [entry.key for entry in await ledger.list("s")] == ["k", "l", "m"]


def test_a_claim_of_another_hub_is_refused(orders: penstock.Hub, memory: penstock.Hub) -> None:
    with (
        memory.ledger.claim("s", "k") as claim,
        pytest.raises(InvalidInput),
        orders.transaction() as tx,
    ):
        tx.complete(claim)


# By hand, by time


def test_scopes_are_kept_as_long_as_each_says(open_hub: OpenHub, clock: FakeClock) -> None:
    """L8: retention per scope, shared by all processes, removed in small steps."""
    hub, other = open_hub(clock=clock, ledger_seconds=100, sweep_batch_max=2), open_hub(clock=clock)
    hub.ledger.configure("long", keep_seconds=1_000)
    hub.ledger.configure("ever", keep_seconds=math.inf)
    for scope in ("short", "long", "ever"):
        (other if scope == "long" else hub).ledger.mark_many(scope, ["a", "b", "c"])
    hub.ledger.mark_processed("short", "own", ttl=500)
    clock.advance(100)

    assert hub.ledger.is_processed("short", "a") is False
    assert hub.ledger.count("short") == 4
    steps: list[int] = []
    assert hub.ledger.prune(steps.append) == 3
    assert steps == [2, 3]
    assert {s.scope: s.completed for s in hub.ledger.stats()} == {"short": 1, "long": 3, "ever": 3}
    clock.advance(10_000)
    hub.ledger.prune()
    assert {s.scope: s.completed for s in hub.ledger.stats() if s.completed} == {"ever": 3}
    assert hub.ledger.events() == []


def test_the_sweeper_prunes(open_hub: OpenHub, clock: FakeClock) -> None:
    """L8: nobody has to ask for it."""
    hub = open_hub(clock=clock, ledger_seconds=100, sweep_interval_seconds=0.02)
    hub.ledger.mark_many("s", ["a", "b"])
    assert hub._open().sweeper.is_running
    clock.advance(100)

    # It tells when it is done: after others can see it.
    wait_until(lambda: "ledger_pruned" in hub.telemetry.counters(), "the sweeper has pruned")
    assert hub.ledger.stats() == []


def test_the_size_is_in_health_and_metrics(memory: penstock.Hub) -> None:
    """L6: by scope."""
    memory.ledger.mark_many("one", ["a", "b"])
    memory.ledger.mark_processed("two", "a")
    with memory.ledger.claim("two", "b"):
        metrics = memory.health().metrics

    assert (metrics.ledger_entries, metrics.ledger_in_progress) == (3, 1)
    assert metrics.ledger_scopes == {"one": 2, "two": 1}


def test_claims_of_a_backup_are_nobodys(open_hub: OpenHub, tmp_path: Path) -> None:
    """L8: whoever held one when the backup was made goes on, and is refused."""
    hub, copy = open_hub(), tmp_path / "copy.db"
    hub.ledger.mark_processed("s", "marked")
    with pytest.raises(LeaseLost), hub.ledger.claim("s", "k", lease_seconds=600) as claim:  # noqa: PT012
        hub.backup(copy)
        hub.restore(copy)
        found = hub.ledger.get("s", "k")
        assert found is not None
        assert (found.state, found.is_held) == (EntryState.IN_PROGRESS, False)
        assert claim.result is None
    assert hub.ledger.is_processed("s", "marked")
    with hub.ledger.claim("s", "k") as taken:
        assert taken.attempt == 2
    assert hub.ledger.count() == 2
