"""Consumers that have each message once, go on when the ledger cannot be asked, and move over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import penstock
from penstock.errors import InvalidInput, PenstockError, StatementFailed
from penstock.ledger.shadow import Difference
from tests.factories import hub_on, payloads
from tests.waiting import wait_until

OpenHub = Callable[..., penstock.Hub]


class BrokenLedger:
    """Takes the ledger's table away from under the hub, and puts it back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, sql: str) -> None:
        connection = apsw.Connection(str(self._path))
        connection.set_busy_timeout(5_000)
        connection.execute(sql)
        connection.close()

    def take(self) -> None:
        self("ALTER TABLE penstock_ledger RENAME TO away")

    def put_back(self) -> None:
        self("ALTER TABLE away RENAME TO penstock_ledger")


@pytest.fixture
def broken(path: Path) -> BrokenLedger:
    return BrokenLedger(path)


# Followers


def follow(hub: penstock.Hub, **options: Any) -> Any:
    options = {"consumer": "c", "start": "earliest", "idempotent": True, **options}
    return hub.topics.follow("t", **options)


def take(hub: penstock.Hub, **options: Any) -> list[Any]:
    """What a follower gets in its life; all of it is committed."""
    with follow(hub, **options) as follower:
        got: list[Any] = []
        while batch := follower.take(timeout=0.05):
            got += payloads(batch)
        return got


def test_what_a_consumer_has_had_is_kept_back_after_a_step_back(hub: penstock.Hub) -> None:
    hub.topics.publish_many("t", [1, 2, 3])
    assert take(hub) == [1, 2, 3]
    hub.topics.publish("t", 4)
    hub.consumers.seek("c", "t", "earliest")

    assert take(hub) == [4]
    assert hub.consumers.lag("c", "t").messages == 0
    assert take(hub, consumer="another") == [1, 2, 3, 4]
    assert hub.ledger.count("c") == 4


def test_without_it_they_come_again(hub: penstock.Hub) -> None:
    """The control."""
    hub.topics.publish_many("t", [1, 2])
    assert take(hub, idempotent=False) == [1, 2]
    hub.consumers.seek("c", "t", "earliest")

    assert take(hub, idempotent=False) == [1, 2]
    assert hub.ledger.stats() == []


def test_a_message_published_twice_under_one_key_is_had_once(open_hub: OpenHub) -> None:
    """Also when the key has been forgotten by the topic, and in one batch with the first."""
    hub = open_hub(idempotency_seconds=0.001)
    for number in (1, 2, 3):
        hub.topics.publish("t", number, idempotency_key="one")
        wait_until(lambda: _forget_keys(hub), "the topic has forgotten the key")
    assert len(hub.topics.read("t")) == 3

    assert take(hub) == [1]
    hub.topics.publish("t", 4, idempotency_key="one")
    hub.topics.publish("t", 5, idempotency_key="two")
    assert take(hub) == [5]


def _forget_keys(hub: penstock.Hub) -> bool:
    runtime = hub._open()
    return bool(
        runtime.committer.run(
            lambda tx: tx.topics.forget_keys(now=runtime.clock.now(), limit=10)
        ).wait()
    )


def test_messages_can_have_keys_of_their_own(hub: penstock.Hub) -> None:
    hub.topics.publish_many("t", [{"event": "a"}, {"event": "b"}, {"event": "a"}])

    assert take(hub, idempotent=lambda m: m.payload["event"]) == [{"event": "a"}, {"event": "b"}]
    assert [entry.key for entry in hub.ledger.list("c")] == ["a", "b"]


def test_a_batch_is_marked_with_its_commit_and_not_before(hub: penstock.Hub) -> None:
    hub.topics.publish_many("t", [1, 2, 3])
    follower = follow(hub)
    assert follower.get().payload == 1
    assert hub.ledger.count("c") == 0
    follower.commit()
    assert hub.ledger.count("c") == 1
    assert follower.get().payload == 2
    follower.close()

    assert hub.ledger.count("c") == 1
    assert take(hub) == [2, 3]


def test_batches_that_are_kept_back_whole_move_the_watermark(open_hub: OpenHub) -> None:
    hub = open_hub(follow_batch_max=2)
    hub.topics.publish_many("t", list(range(7)))
    assert len(take(hub)) == 7
    hub.consumers.seek("c", "t", "earliest")
    hub.topics.publish("t", 7)

    with follow(hub) as follower:
        assert follower.get(timeout=60).payload == 7
        assert follower.get(timeout=0.05) is None
    hub.consumers.seek("c", "t", "earliest")
    with follow(hub) as follower:
        assert follower.get(timeout=0.05) is None
        follower.commit()
        assert hub.consumers.lag("c", "t").messages == 0


def test_marks_are_made_in_the_transaction_that_acknowledges(hub: penstock.Hub) -> None:
    hub.topics.publish_many("t", [1, 2])
    with hub.transaction() as tx:
        tx.execute("CREATE TABLE own (x)")
    with follow(hub) as follower:
        batch = follower.take()
        with pytest.raises(ZeroDivisionError), hub.transaction() as tx:  # noqa: PT012
            tx.ack(follower)
            _ = 1 // 0
        assert hub.ledger.count("c") == 0
        with hub.transaction() as tx:
            for message in batch:
                tx.execute("INSERT INTO own VALUES (?)", (message.payload,))
            tx.ack(follower)
        assert hub.ledger.count("c") == 2
    hub.consumers.seek("c", "t", "earliest")

    assert take(hub) == []


async def test_an_event_loops_follower_keeps_back_too(hub: penstock.Hub) -> None:
    hub.topics.publish_many("t", [1, 2])
    topics = hub.aio.topics
    for expected in ([1, 2], [3]):
        async with topics.follow("t", consumer="c", start="earliest", idempotent=True) as follower:
            assert payloads(await follower.take(timeout=60)) == expected
            assert await follower.take(timeout=0.05) == []
        await hub.aio.consumers.seek("c", "t", "earliest")
        await topics.publish("t", 3)


def test_choices_that_make_no_sense_are_refused(hub: penstock.Hub) -> None:
    with pytest.raises(InvalidInput):
        follow(hub, idempotent="id")
    with pytest.raises(InvalidInput):
        follow(hub, on_error="ignore")


# When the ledger cannot be asked


def test_a_function_runs_rather_than_be_missed(hub: penstock.Hub, broken: BrokenLedger) -> None:
    """L4: processed, remembered in memory, said in health; entered when it is back."""
    calls: list[str] = []
    events: list[str] = []
    hub.telemetry.attach(lambda event, _: events.append(event))

    @hub.ledger.idempotent("s", key=str)
    def work(key: str) -> list[str]:
        calls.append(key)
        return [key]

    assert work("before") == ["before"]
    assert hub.health().status == "ok"
    broken.take()
    assert work("during") == work("during") == ["during"]
    assert calls == ["before", "during"]
    assert "ledger_unavailable" in events
    health = hub.health()
    assert health.status == "warning"
    assert "1 keys were processed without it" in next(
        check.found for check in health.checks if check.name == "ledger"
    )
    with pytest.raises(StatementFailed):
        hub.ledger.mark_processed("s", "direct")
    with pytest.raises(StatementFailed):
        hub.ledger.is_processed("s", "direct")

    broken.put_back()
    assert work("after") == ["after"]
    assert hub.health().status == "ok"
    assert {entry.key: entry.result for entry in hub.ledger.list("s")} == {
        "before": ["before"],
        "during": ["during"],
        "after": ["after"],
    }
    assert work("during") == ["during"]
    assert calls == ["before", "during", "after"]


async def test_a_coroutine_function_runs_rather_than_be_missed(
    hub: penstock.Hub, broken: BrokenLedger
) -> None:
    """L4: concurrent callers in this process still run it once."""
    calls: list[str] = []

    @hub.ledger.idempotent("s", key=str)
    async def work(key: str) -> str:
        calls.append(key)
        await asyncio.sleep(0.01)
        return key

    hub.topics.position()
    broken.take()
    assert await asyncio.gather(*(work("k") for _ in range(5))) == ["k"] * 5
    broken.put_back()
    assert await work("l") == "l"

    assert calls == ["k", "l"]
    assert await hub.aio.ledger.is_processed("s", "k")


def test_a_function_that_raises_without_the_ledger_runs_again(
    hub: penstock.Hub, broken: BrokenLedger
) -> None:
    calls: list[str] = []

    @hub.ledger.idempotent("s", key=str)
    def work(key: str) -> None:
        calls.append(key)
        if len(calls) == 1:
            raise ZeroDivisionError

    hub.topics.position()
    broken.take()
    with pytest.raises(ZeroDivisionError):
        work("k")
    work("k")
    work("k")
    assert calls == ["k", "k"]


def test_work_whose_end_could_not_be_written_is_entered_later(
    hub: penstock.Hub, broken: BrokenLedger
) -> None:
    """L4: the claim was there, the work was done, the completion failed."""
    calls: list[str] = []

    @hub.ledger.idempotent("s", key=str)
    def work(key: str) -> str:
        calls.append(key)
        if key == "k":
            broken.take()
        return key

    assert work("k") == "k"
    assert work("k") == "k"
    broken.put_back()
    found = hub.ledger.get("s", "k")
    assert found is not None
    assert not found.state.is_final
    assert found.is_held
    assert hub._open().claims.held == 1
    assert work("next") == "next"

    assert calls == ["k", "next"]
    assert hub._open().claims.held == 0
    assert hub.ledger.get("s", "k").result == "k"  # type: ignore[union-attr]


def test_who_would_rather_miss_it_says_so(hub: penstock.Hub, broken: BrokenLedger) -> None:
    hub.topics.publish("t", 1)
    calls: list[str] = []
    work = hub.ledger.idempotent("s", key=str, on_error="raise")(calls.append)
    broken.take()

    with pytest.raises(StatementFailed):
        work("k")
    assert calls == []
    with follow(hub, on_error="raise") as follower, pytest.raises(StatementFailed):
        follower.take(timeout=1)
    broken.put_back()
    assert take(hub, on_error="raise") == [1]


def test_a_hub_that_cannot_open_tracks_in_memory(tmp_path: Path) -> None:
    """L4: the tracker cannot even start."""
    hub = hub_on(tmp_path / "nowhere" / "hub.db")
    calls: list[str] = []
    work = hub.ledger.idempotent("s", key=str)(calls.append)
    work("k")
    work("k")

    assert calls == ["k"]
    assert hub.telemetry.counters()["ledger_unavailable"] == 1
    with pytest.raises(PenstockError):
        hub.ledger.mark_processed("s", "k")
    hub.close()


def test_memory_is_bounded(tmp_path: Path) -> None:
    hub = hub_on(tmp_path / "nowhere" / "hub.db", ledger_memory_max=3)
    calls: list[str] = []
    work = hub.ledger.idempotent("s", key=str)(calls.append)
    for key in "abcda":
        work(key)

    assert calls == list("abcda")
    assert hub._fallback.size == 3
    hub.close()


def test_a_follower_goes_on_and_does_not_repeat(hub: penstock.Hub, broken: BrokenLedger) -> None:
    """L4: the watermark is committed though the marks cannot be; memory keeps back meanwhile."""
    hub.topics.publish_many("t", [1, 2])
    hub.topics.follow("t", consumer="c", start="earliest").close()
    broken.take()

    assert take(hub) == [1, 2]
    assert hub.consumers.lag("c", "t").messages == 0
    assert hub.health().status == "warning"
    hub.consumers.seek("c", "t", "earliest")
    assert take(hub) == []
    broken.put_back()
    hub.consumers.seek("c", "t", "earliest")
    hub.topics.publish("t", 3)
    assert take(hub) == [3]
    assert hub.health().status == "ok"
    wait_until(lambda: hub.ledger.count("c") == 3, "what was in memory is entered")


# Moving over


class OldTracker:
    """What somebody had before: a set in memory, lost at each restart."""

    def __init__(self) -> None:
        self.marked: set[tuple[str, str]] = set()

    def is_processed(self, scope: str, key: str) -> bool:
        return (scope, key) in self.marked

    def mark_processed(self, scope: str, key: str) -> bool:
        is_new = (scope, key) not in self.marked
        self.marked.add((scope, key))
        return is_new


@pytest.fixture
def old() -> OldTracker:
    return OldTracker()


def test_a_shadow_answers_as_the_old_tracker_and_tells_where_they_differ(
    hub: penstock.Hub, old: OldTracker, caplog: pytest.LogCaptureFixture
) -> None:
    """L9."""
    shadow = hub.ledger.shadow(old)
    assert not shadow.report().is_clean
    assert shadow.is_processed("s", "a") is False
    assert shadow.mark_processed("s", "a") is True
    assert shadow.mark_processed("s", "a") is False
    assert shadow.report().is_clean

    old.marked.clear()  # A restart.
    assert shadow.is_processed("s", "a") is False
    assert shadow.mark_processed("s", "a") is True
    report = shadow.report()

    assert (report.asked, report.agreed, report.differed, report.failed) == (5, 3, 2, 0)
    assert report.examples == [
        Difference("is_processed", "s", "a", existing=False, ledger=True),
        Difference("mark_processed", "s", "a", existing=True, ledger=False),
    ]
    assert "ledger_differs" in caplog.text


def test_a_shadow_does_not_suffer_from_the_ledger(
    hub: penstock.Hub, old: OldTracker, broken: BrokenLedger
) -> None:
    """L9: the new one is on trial."""
    shadow = hub.ledger.shadow(old)
    broken.take()

    assert shadow.mark_processed("s", "a") is True
    assert (shadow.report().failed, shadow.report().is_clean) == (1, False)


async def test_a_shadow_on_an_event_loop_takes_coroutines_and_plain_functions(
    memory: penstock.Hub, old: OldTracker
) -> None:
    class Coroutines:
        async def is_processed(self, scope: str, key: str) -> bool:
            return old.is_processed(scope, key)

        async def mark_processed(self, scope: str, key: str) -> bool:
            return old.mark_processed(scope, key)

    for existing in (old, Coroutines()):
        shadow = memory.aio.ledger.shadow(existing)
        await shadow.mark_processed("s", "a")
        assert await shadow.is_processed("s", "a") is True
        assert shadow.report().is_clean
