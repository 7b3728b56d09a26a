"""The ledger through a remote hub: the local hub's words, and the same answers (L2-L5, L9)."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock.client import RemoteHub, ledger_claims
from penstock.entry import EntryKind, EntryState
from penstock.errors import (
    AlreadyProcessed,
    Disconnected,
    Forbidden,
    InProgress,
    InvalidInput,
    LeaseLost,
    LedgerConflict,
    WorkFailed,
)
from penstock.server import tokens_file
from penstock.server.tokens_file import Key, TokensFile, hash_key, new_key
from tests.factories import hub_on
from tests.serving import HttpServer
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("remote") / "hub.db") as server:
        yield server


@pytest.fixture
def local(server: HttpServer) -> Iterator[penstock.Hub]:
    with hub_on(server.log.parent / "hub.db") as hub:
        yield hub


@pytest.fixture
def hub(server: HttpServer) -> Iterator[RemoteHub]:
    with penstock.client.connect(server.url) as hub:
        yield hub


class Sum(msgspec.Struct):
    total: int


# Marks


def test_marks_are_shared_with_those_at_the_file(hub: RemoteHub, local: penstock.Hub) -> None:
    """L2"""
    assert hub.ledger.mark_processed("marks", "a", ttl=60)
    assert not local.ledger.mark_processed("marks", "a")
    assert hub.ledger.mark_many("marks", ["a", "b", "..", "a/b"]) == [False, True, True, True]
    assert hub.ledger.is_processed("marks", "..")
    assert not hub.ledger.is_processed("marks", "c")
    assert hub.ledger.get("marks", "a") == local.ledger.get("marks", "a")
    assert hub.ledger.get("marks", "c") is None
    assert (hub.ledger.count("marks"), hub.ledger.count("nothing")) == (4, 0)
    assert hub.ledger.count() == local.ledger.count()
    assert hub.ledger.stats() == local.ledger.stats()
    assert hub.ledger.list("marks", limit=3) == local.ledger.list("marks", limit=3)
    hub.ledger.mark_processed("marks", "p", payload=b"\0")
    with pytest.raises(LedgerConflict):
        hub.ledger.mark_processed("marks", "p", payload={"other": 1})
    with pytest.raises(LedgerConflict):
        local.ledger.mark_processed("marks", "p", payload={"other": 1})


def test_many_keys_go_in_groups_and_come_in_pages(hub: RemoteHub, local: penstock.Hub) -> None:
    keys = [f"{n:05}" for n in range(1_700)]
    assert all(hub.ledger.mark_many("many", keys))
    assert [entry.key for entry in hub.ledger.list("many", limit=5_000)] == keys
    assert hub.ledger.list("many", after="01698") == local.ledger.list("many", after="01698")
    assert hub.ledger.events(limit=10**6) == local.ledger.events(limit=10**6)
    assert hub.ledger.forget("many", *keys[:1_200]) == 1_200
    assert hub.ledger.count("many") == 500


def test_what_is_kept_and_what_is_pruned(hub: RemoteHub, local: penstock.Hub) -> None:
    """L8"""
    hub.ledger.configure("kept", keep_seconds=math.inf)
    hub.ledger.mark_processed("kept", "ever")
    entry = local.ledger.get("kept", "ever")
    assert entry is not None
    assert entry.expires_at is None
    found = [one.keep_seconds for one in hub.ledger.stats() if one.scope == "kept"]
    assert found == [math.inf]
    hub.ledger.configure("kept", keep_seconds=None)
    hub.ledger.mark_many("kept", [str(n) for n in range(20)], ttl=0.001)
    wait_until(lambda: len(hub.ledger.list("kept")) == 1)
    seen: list[int] = []
    assert hub.ledger.prune(seen.append, limit=5) == 5
    assert hub.ledger.prune(seen.append) >= 15
    assert hub.ledger.prune() == 0
    assert seen[0] == 5


def test_what_makes_no_sense_is_refused_here(hub: RemoteHub) -> None:
    for call in (
        lambda: hub.ledger.mark_processed("s", ""),
        lambda: hub.ledger.mark_processed("s", "k", ttl=-1),
        lambda: hub.ledger.mark_processed("", "k"),
        lambda: hub.ledger.claim("s", "k", lease_seconds=0),
        lambda: hub.ledger.claim("s", "k", timeout=1),
        lambda: hub.ledger.list("s", limit=0),
        lambda: hub.ledger.prune(limit=0),
        lambda: hub.ledger.configure("s", keep_seconds=0),
    ):
        with pytest.raises(InvalidInput):
            call()


# Claims


def test_a_claim_is_completed_with_its_result(hub: RemoteHub, local: penstock.Hub) -> None:
    """L3"""
    with hub.ledger.claim("work", "k", payload={"id": 1}) as claim:
        assert (claim.scope, claim.key, claim.attempt, claim.is_done) == ("work", "k", 1, False)
        assert claim.token > 0
        claim.check()
        with pytest.raises(InProgress), local.ledger.claim("work", "k"):
            pytest.fail("it is claimed")
        with pytest.raises(InProgress), hub.ledger.claim("work", "k"):
            pytest.fail("it is claimed")
        claim.result = {"sum": 7}
    with local.ledger.claim("work", "k", on_done="result") as done:
        assert (done.is_done, done.result) == (True, {"sum": 7})
    with hub.ledger.claim("work", "k", on_done="result") as done:
        assert (done.is_done, done.result) == (True, {"sum": 7})
    with pytest.raises(AlreadyProcessed), hub.ledger.claim("work", "k"):
        pytest.fail("it is done")
    with pytest.raises(LedgerConflict), hub.ledger.claim("work", "k", payload={"id": 2}):
        pytest.fail("it means something else")


@pytest.mark.parametrize("result", [None, b"\x00\xff", "ü", [1, {"a": 2.5}]])
def test_a_result_is_the_same_from_both_sides(
    hub: RemoteHub, local: penstock.Hub, result: object
) -> None:
    with hub.ledger.claim("results", repr(result), result_ttl=100) as claim:
        claim.result = result
    entry = local.ledger.get("results", repr(result))
    assert entry == hub.ledger.get("results", repr(result))
    assert entry is not None
    assert entry.result == result


def test_a_failure_releases_or_is_the_answer(hub: RemoteHub, local: penstock.Hub) -> None:
    with pytest.raises(ValueError, match="no"), hub.ledger.claim("work", "fails"):
        raise ValueError("no")
    assert local.ledger.get("work", "fails") is None
    with (
        pytest.raises(ValueError, match="no"),
        hub.ledger.claim("work", "fails", on_failure="keep"),
    ):
        raise ValueError("no")
    for one in (hub, local):
        with pytest.raises(WorkFailed), one.ledger.claim("work", "fails", on_done="result"):
            pytest.fail("it failed for good")


def test_it_can_be_ended_in_the_block(hub: RemoteHub, local: penstock.Hub) -> None:
    with hub.ledger.claim("work", "early") as claim:
        claim.complete()
        assert local.ledger.is_processed("work", "early")
        with pytest.raises(LeaseLost):
            claim.complete()
    with hub.ledger.claim("work", "given up") as claim:
        claim.release()
        claim.release()
    assert hub.ledger.get("work", "given up") is None


def test_whoever_waits_gets_the_result(hub: RemoteHub, local: penstock.Hub) -> None:
    waiting, got = threading.Event(), []

    def wait() -> None:
        waiting.set()
        with hub.ledger.claim("work", "slow", on_busy="wait", on_done="result") as claim:
            got.append(claim.result)

    with local.ledger.claim("work", "slow") as claim:
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert waiting.wait(30)
        with (
            pytest.raises(InProgress),
            hub.ledger.claim("work", "slow", on_busy="wait", timeout=0.05),
        ):
            pytest.fail("it is claimed")
        claim.result = 7
    waiter.join(60)
    assert got == [7]


def test_a_claim_is_renewed_while_its_work_runs(hub: RemoteHub, local: penstock.Hub) -> None:
    """By a thread of the client: the work blocks its own."""

    def lease() -> int:
        with local.connection() as connection:
            ((until,),) = connection.execute(
                "SELECT lease_until FROM penstock_ledger WHERE key = 'long'"
            )
        return int(until)

    with hub.ledger.claim("work", "long", lease_seconds=3):
        for _ in range(2):
            before = lease()
            wait_until(lambda before=before: lease() > before)  # type: ignore[misc]
    assert local.ledger.is_processed("work", "long")


def test_one_that_lost_its_claim_is_told(hub: RemoteHub, local: penstock.Hub) -> None:
    """L3: by whoever took it back by hand."""
    claim = hub.ledger.claim("work", "taken", lease_seconds=0.2)
    claim.__enter__()
    local.ledger.forget("work", "taken")
    wait_until(lambda: claim.is_lost)
    with pytest.raises(LeaseLost):
        claim.check()
    with pytest.raises(LeaseLost):
        claim.__exit__(None, None, None)
    assert local.ledger.get("work", "taken") is None


async def test_the_same_on_an_event_loop(server: HttpServer, local: penstock.Hub) -> None:
    with penstock.client.connect(server.url) as hub:
        ledger = hub.aio.ledger
        assert await ledger.mark_processed("loop", "a")
        assert await ledger.is_processed("loop", "a")
        async with ledger.claim("loop", "b") as claim:
            claim.result = 7
            with pytest.raises(InProgress):
                async with ledger.claim("loop", "b"):
                    pytest.fail("it is claimed")
        assert local.ledger.is_processed("loop", "b")
        entry = await ledger.get("loop", "b")
        assert entry is not None
        assert (entry.state, entry.result) == (EntryState.COMPLETED, 7)
        assert await ledger.count("loop") == 2
        assert await ledger.forget("loop", "a", "b") == 2
        await hub.aio.close()


async def test_a_cancelled_claim_is_given_back(server: HttpServer, local: penstock.Hub) -> None:
    """One that was cancelled while it was asked for: it is made all the same."""

    def given_back() -> int:
        events = [event for event in local.ledger.events(limit=10**6) if event.key == "cancelled"]
        return sum(event.kind == EntryKind.RELEASED for event in events)

    with penstock.client.connect(server.url) as hub:
        for number in range(3):

            async def work() -> None:
                async with hub.aio.ledger.claim("loop", "cancelled"):
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while given_back() == number:  # noqa: ASYNC110 - the server makes it true
                await asyncio.sleep(0.005)
            await asyncio.gather(*ledger_claims._releasing)
        await hub.aio.close()


# The decorator


def test_a_function_runs_once_per_key(hub: RemoteHub, local: penstock.Hub) -> None:
    runs: list[str] = []

    def add(event: str) -> Sum:
        runs.append(event)
        return Sum(len(event))

    there = hub.ledger.idempotent("once", key=lambda event: event)(add)
    here = local.ledger.idempotent("once", key=lambda event: event)(add)
    assert [there("abc"), here("abc"), there("abc"), here("de"), there("de")] == [
        *(Sum(3), Sum(3), Sum(3), Sum(2), Sum(2)),
    ]
    assert runs == ["abc", "de"]


async def test_a_coroutine_function_runs_once_per_key(server: HttpServer) -> None:
    runs: list[str] = []
    with penstock.client.connect(server.url) as hub:

        @hub.ledger.idempotent("once-aio", key=lambda event: event)
        async def add(event: str) -> int:
            runs.append(event)
            return len(event)

        assert [await add("abc"), await add("abc")] == [3, 3]
        await hub.aio.close()
    assert runs == ["abc"]


def test_without_the_server_consumers_go_on_and_enter_it_later(tmp_path: Path) -> None:
    """L4: processed rather than missed, each key once here, and in the ledger afterwards."""
    runs: list[str] = []
    with HttpServer(tmp_path / "hub.db") as server:
        address = server.url
        hub = penstock.client.connect(address, client_timeout_seconds=0.5)
        work = hub.ledger.idempotent("s", key=lambda event: event)(runs.append)
        strict = hub.ledger.idempotent("s", key=lambda event: event, on_error="raise")(runs.append)
        work("before")
    with hub:
        work("away")
        work("away")
        with pytest.raises(Disconnected):
            strict("strict")
        assert runs == ["before", "away"]
        with hub_on(tmp_path / "hub.db") as local:
            assert not local.ledger.is_processed("s", "away")
        port = int(address.rsplit(":", 1)[1])
        with HttpServer(tmp_path / "hub.db", bind_port=port), hub_on(tmp_path / "hub.db") as local:
            work("after")
            assert local.ledger.is_processed("s", "after")
            assert local.ledger.is_processed("s", "away")
            work("away")
    assert runs == ["before", "away", "after"]


def test_moving_over_is_watched_from_afar(hub: RemoteHub) -> None:
    """L9"""

    class Old:
        def __init__(self) -> None:
            self.known = {("s", "a")}

        def is_processed(self, scope: str, key: str) -> bool:
            return (scope, key) in self.known

        def mark_processed(self, scope: str, key: str) -> bool:
            is_new = (scope, key) not in self.known
            self.known.add((scope, key))
            return is_new

    shadow = hub.ledger.shadow(Old())
    assert not shadow.mark_processed("s", "a")
    assert shadow.mark_processed("s", "b")
    report = shadow.report()
    assert (report.asked, report.agreed, report.differed) == (2, 1, 1)


def test_a_token_without_the_right_is_told_so(tmp_path: Path) -> None:
    token = new_key()
    keys = {"one": Key(sha256=hash_key(token).hex(), ledger=("mine",))}
    tokens_file.write(tmp_path / "tokens.toml", TokensFile(keys))
    with (
        HttpServer(tmp_path / "hub.db", tokens_file=str(tmp_path / "tokens.toml")) as server,
        penstock.client.connect(server.url, token=token) as hub,
    ):
        assert hub.ledger.mark_processed("mine", "k")
        assert hub.ledger.count() == 1
        for call in (
            lambda: hub.ledger.mark_processed("theirs", "k"),
            lambda: hub.ledger.is_processed("theirs", "k"),
            lambda: hub.ledger.claim("theirs", "k").__enter__(),
            lambda: hub.ledger.forget("mine", "k"),
            lambda: hub.ledger.prune(),
        ):
            with pytest.raises(Forbidden):
                call()
        # A right that is missing is not a ledger that is away.
        work = hub.ledger.idempotent("theirs", key=lambda event: event)(lambda event: event)
        with pytest.raises(Forbidden):
            work("k")
