"""The lake's books: whole batches, coverage that never skips, retention that waits (S3)."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import EpochChanged, LakeConflict
from penstock.model import Retention
from penstock.ports import Store
from penstock.ports.lake import LakeBatch, LakeFile, Replay
from tests.conformance.places import Scribe
from tests.factories import new_message


def lake_file(path: str = "a", **fields: Any) -> LakeFile:
    values: dict[str, Any] = {"folder": "orders", "date": "2026-01-31", "rows": 3, "bytes": 10}
    values |= {"first_id": 1, "last_id": 3, "first_at": 100, "last_at": 200, "digest": "d"}
    values |= {"formats": {"application/json": 3}} | fields
    return LakeFile(path, **values)


def batch(
    after: int = 0, through: int = 3, *files: LakeFile, number: int = 0, query: str = "q"
) -> LakeBatch:
    return LakeBatch(query, number, after, through, files, "d")


def archive(scribe: Scribe, added: LakeBatch, **expected: int) -> None:
    """As the pipeline does it, in one transaction."""
    epoch, now = scribe.store.log().epoch, scribe.clock.now()

    def write(tx: Any) -> None:
        tx.lake.add(added, epoch=epoch, now=now)
        tx.lake.advance(expected, added, now=now)

    scribe.write(write)


def hold(scribe: Scribe, *subscriptions: str) -> dict[str, int]:
    held = scribe.write(lambda tx: tx.lake.hold(subscriptions, now=scribe.clock.now()))
    return {found.subscription: found.through for found in held}


def coverage(store: Store) -> dict[str, tuple[int, bool]]:
    return {found.subscription: (found.through, found.is_held) for found in store.lake.coverage()}


def sweep(scribe: Scribe, topic: str, retention: Retention) -> tuple[int, int]:
    swept = scribe.write(
        lambda tx: tx.topics.sweep(topic, retention, now=scribe.clock.now(), limit=100)
    )
    return swept.removed, swept.broken


def test_the_first_lake_is_the_databases(scribe: Scribe) -> None:
    now = scribe.clock.now()
    assert scribe.store.lake.id() is None
    assert scribe.write(lambda tx: tx.lake.adopt("one", now=now)) == "one"
    assert scribe.write(lambda tx: tx.lake.adopt("two", now=now)) == "one"
    assert scribe.store.lake.id() == "one"


def test_a_batch_joins_with_its_coverage_or_not_at_all(scribe: Scribe) -> None:
    hold(scribe, "*")
    archive(scribe, batch(0, 3, lake_file("a"), lake_file("b", folder="users")), **{"*": 0})

    with pytest.raises(LakeConflict, match="is now at"):
        archive(scribe, batch(0, 3, lake_file("c"), number=1), **{"*": 0})

    assert [file.path for file in scribe.store.lake.view().files] == ["a", "b"]
    assert coverage(scribe.store) == {"*": (3, True)}
    [addition] = scribe.store.lake.additions(limit=10)
    assert (addition.number, addition.rows, addition.files) == (0, 6, 2)


def test_a_batch_that_would_leave_a_gap_is_refused(scribe: Scribe) -> None:
    hold(scribe, "*")
    archive(scribe, batch(0, 3, lake_file("a")), **{"*": 0})

    with pytest.raises(LakeConflict, match="would be missing"):
        archive(scribe, batch(4, 9, lake_file("b"), number=1), **{"*": 3})

    archive(scribe, batch(2, 9, lake_file("b"), number=1), **{"*": 3})
    assert coverage(scribe.store) == {"*": (9, True)}


def test_a_batch_without_files_moves_the_coverage_alone(scribe: Scribe) -> None:
    hold(scribe, "orders")
    archive(scribe, batch(0, 50), orders=0)

    assert coverage(scribe.store) == {"orders": (50, True)}
    assert scribe.store.lake.view().files == []


def test_a_batch_of_another_epoch_is_refused(scribe: Scribe) -> None:
    hold(scribe, "*")
    added, now = batch(0, 3, lake_file()), scribe.clock.now()

    with pytest.raises(EpochChanged):
        scribe.write(lambda tx: tx.lake.add(added, epoch="other", now=now))

    assert scribe.store.lake.view().files == []


def test_subscriptions_that_are_no_longer_held_keep_their_place(scribe: Scribe) -> None:
    assert hold(scribe, "orders") == {"orders": 0}
    archive(scribe, batch(0, 3, lake_file()), orders=0)
    assert hold(scribe, "orders", "users") == {"orders": 3, "users": 0}
    assert hold(scribe, "users") == {"users": 0}

    assert coverage(scribe.store) == {"orders": (3, False), "users": (0, True)}
    assert scribe.write(lambda tx: tx.lake.release(now=1)) == 1
    assert scribe.write(lambda tx: tx.lake.release(now=1)) == 0


def test_a_subscription_begins_with_what_is_in_the_log(scribe: Scribe) -> None:
    scribe.append(*[new_message("orders") for _ in range(5)])
    assert sweep(scribe, "orders", Retention(messages_max=2)) == (3, 0)

    assert hold(scribe, "*") == {"*": 3}
    [found] = scribe.store.lake.coverage()
    assert found.floor == 5
    assert sweep(scribe, "orders", Retention(messages_max=1)) == (0, 0)


def test_nothing_is_archived_that_is_not_held(scribe: Scribe) -> None:
    hold(scribe, "*")
    scribe.write(lambda tx: tx.lake.release(now=1))

    with pytest.raises(LakeConflict):
        archive(scribe, batch(0, 3, lake_file()))

    assert scribe.store.lake.view().files == []


def test_a_view_is_of_the_folders_and_times_that_are_asked_for(scribe: Scribe) -> None:
    hold(scribe, "*")
    files = (
        lake_file("late", first_id=7, first_at=300, last_at=400),
        lake_file("early"),
        lake_file("other", folder="users", first_id=5),
    )
    archive(scribe, batch(0, 9, *files), **{"*": 0})

    def paths(**asked: Any) -> list[str]:
        return [file.path for file in scribe.store.lake.view(**asked).files]

    assert paths() == ["early", "other", "late"]
    assert paths(folders=["orders"]) == ["early", "late"]
    assert paths(folders=[]) == []
    assert paths(since=201) == ["late"]
    assert paths(since=200, until=300) == ["early", "other"]
    view = scribe.store.lake.view(folders=["users"])
    assert view.files == [files[2]]
    log = scribe.store.log()
    assert (view.epoch, view.last_id) == (log.epoch, log.last_id)


def test_files_are_replaced_by_others_in_one_step(scribe: Scribe) -> None:
    hold(scribe, "*")
    files = [lake_file("a"), lake_file("b", first_id=4, last_id=6, unparsable=1)]
    archive(scribe, batch(0, 6, *files), **{"*": 0})
    assert scribe.store.lake.small_files(bytes_max=11) == files
    assert scribe.store.lake.small_files(bytes_max=10) == []
    merged, now = lake_file("ab", last_id=6, rows=6, unparsable=1), scribe.clock.now()

    scribe.write(lambda tx: tx.lake.replace(["a", "b"], [merged], now=now))
    with pytest.raises(LakeConflict):
        scribe.write(lambda tx: tx.lake.replace(["a"], [lake_file("x")], now=now))

    assert scribe.store.lake.view().files == [merged]
    assert scribe.store.lake.small_files(bytes_max=11) == []
    assert scribe.store.lake.newest_date() == "2026-01-31"
    totals = scribe.store.lake.totals()
    assert (totals.files, totals.rows, totals.unparsable, totals.replaced_files) == (1, 6, 1, 2)
    assert totals.formats == {"application/json": 3}
    assert scribe.store.lake.replaced(before=now, limit=9) == []
    assert scribe.store.lake.replaced(before=now + 1, limit=9) == ["a", "b"]
    assert scribe.store.lake.is_known(["a", "ab", "x"]) == {"a", "ab"}


def test_only_files_that_were_replaced_are_forgotten(scribe: Scribe) -> None:
    hold(scribe, "*")
    archive(scribe, batch(0, 6, lake_file("a"), lake_file("b")), **{"*": 0})
    scribe.write(lambda tx: tx.lake.replace(["a"], [lake_file("c")], now=1))

    scribe.write(lambda tx: tx.lake.forget(["a", "b"]))

    assert scribe.store.lake.is_known(["a", "b", "c"]) == {"b", "c"}


def test_retention_waits_for_the_lake(scribe: Scribe) -> None:
    scribe.append(*[new_message("orders") for _ in range(4)], new_message("users"))
    hold(scribe, "ord*")
    few = Retention(messages_max=1)

    assert sweep(scribe, "orders", few) == (0, 0)
    archive(scribe, batch(0, 2, lake_file()), **{"ord*": 0})
    assert sweep(scribe, "orders", few) == (2, 0)
    assert sweep(scribe, "orders", few) == (0, 0)
    scribe.write(lambda tx: tx.lake.release(now=1))
    assert sweep(scribe, "orders", few) == (1, 0)


def test_retention_does_not_wait_where_nothing_is_archived(scribe: Scribe) -> None:
    scribe.append(*[new_message("users") for _ in range(4)])
    hold(scribe, "orders")

    assert sweep(scribe, "users", Retention(messages_max=1)) == (3, 0)


def test_retention_waits_for_consumers_and_for_the_lake(scribe: Scribe) -> None:
    scribe.append(*[new_message("orders") for _ in range(5)])
    hold(scribe, "*")
    archive(scribe, batch(0, 3, lake_file()), **{"*": 0})
    few = Retention(messages_max=1, hold_for=("billing",))

    assert sweep(scribe, "orders", few) == (0, 0)
    scribe.write(lambda tx: tx.consumers.note("billing", "orders", position=2, now=1))
    assert sweep(scribe, "orders", few) == (2, 0)
    scribe.write(lambda tx: tx.consumers.note("billing", "orders", position=5, now=1))
    assert sweep(scribe, "orders", few) == (1, 0)


def test_a_hold_of_the_lake_has_the_limits_of_every_hold(scribe: Scribe) -> None:
    scribe.append(*[new_message("orders", b"0123456789") for _ in range(4)])
    hold(scribe, "*")

    assert sweep(scribe, "orders", Retention(messages_max=1, hold_bytes_max=20)) == (2, 2)


def test_what_two_subscriptions_cover_is_in_the_lake_once_one_has_it(scribe: Scribe) -> None:
    scribe.append(*[new_message("orders") for _ in range(4)])
    hold(scribe, "orders")
    archive(scribe, batch(0, 3, lake_file()), orders=0)
    hold(scribe, "orders", "*")

    assert sweep(scribe, "orders", Retention(messages_max=1)) == (3, 0)


def test_a_replay_stays_as_it_was_planned_first(scribe: Scribe) -> None:
    first = scribe.write(lambda tx: tx.lake.plan_replay(Replay("r", "{}", 5, "[]"), now=7))
    again = scribe.write(lambda tx: tx.lake.plan_replay(Replay("r", "x", 9, "[1]"), now=8))

    assert first == again == scribe.store.lake.replay("r") == Replay("r", "{}", 5, "[]", 7)
    scribe.write(lambda tx: tx.lake.finish_replay("r", now=9))
    scribe.write(lambda tx: tx.lake.finish_replay("r", now=10))
    finished = scribe.store.lake.replay("r")
    assert finished is not None
    assert finished.finished_at == 9
    assert scribe.store.lake.replay("none") is None
