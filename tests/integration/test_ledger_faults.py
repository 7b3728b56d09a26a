"""The ledger on a disk that fails, and beside one who locks it: nothing lost, nothing stuck."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.errors import InProgress, OutcomeUnknown, StoreBusy, StoreFull
from penstock.testing import FakeClock
from tests.factories import hub_on
from tests.faults import FaultyDisk, faulty_disk


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyDisk]:
    with faulty_disk(monkeypatch) as disk:
        yield disk


@pytest.fixture
def faulty(path: Path, disk: FaultyDisk) -> Iterator[penstock.Hub]:
    with hub_on(path) as hub:
        hub.topics.position()
        yield hub
        disk.is_full = disk.fails_syncs = False


def test_a_full_disk_marks_nothing_and_goes_on_when_there_is_space(
    faulty: penstock.Hub, disk: FaultyDisk
) -> None:
    faulty.ledger.mark_processed("s", "before")
    disk.is_full = True
    for _ in range(2):
        with pytest.raises(StoreFull):
            faulty.ledger.mark_processed("s", "k")
    assert faulty.ledger.is_processed("s", "before")
    disk.is_full = False

    assert faulty.ledger.mark_processed("s", "k") is True
    assert faulty.ledger.count("s") == 2


def test_a_function_runs_though_the_disk_is_full(faulty: penstock.Hub, disk: FaultyDisk) -> None:
    """L4: once, and it is entered when there is space."""
    calls: list[str] = []
    work = faulty.ledger.idempotent("s", key=str)(calls.append)
    disk.is_full = True
    work("k")
    work("k")
    disk.is_full = False
    work("l")

    assert calls == ["k", "l"]
    assert [entry.key for entry in faulty.ledger.list("s")] == ["k", "l"]


def test_a_completion_that_finds_the_disk_full_can_be_made_again(
    faulty: penstock.Hub, disk: FaultyDisk
) -> None:
    """In the block; the claim is kept, and not given away, meanwhile."""
    with faulty.ledger.claim("s", "k", lease_seconds=600) as claim:
        disk.is_full = True
        with pytest.raises(StoreFull):
            claim.complete()
        disk.is_full = False
        assert faulty._open().claims.held == 1
        with pytest.raises(InProgress), faulty.ledger.claim("s", "k"):
            pass
    assert faulty.ledger.is_processed("s", "k")
    assert faulty._open().claims.held == 0


@pytest.mark.parametrize("error", [None, ValueError("boom")])
def test_a_block_left_with_a_full_disk_lets_its_claim_run_out(
    path: Path, disk: FaultyDisk, clock: FakeClock, error: Exception | None
) -> None:
    """The caller is told, the claim is renewed no longer, and somebody else takes over."""
    with hub_on(path, clock=clock) as hub:
        claim = hub.ledger.claim("s", "k", lease_seconds=600)
        claim.__enter__()
        disk.is_full = True
        if error is None:
            with pytest.raises(StoreFull):
                claim.__exit__(None, None, None)
        else:
            claim.__exit__(type(error), error, None)
            assert "was not given back" in error.__notes__[0]
        disk.is_full = False
        assert hub._open().claims.held == 0
        clock.advance(600)
        with hub.ledger.claim("s", "k") as taken:
            assert taken.attempt == 2


def test_a_mark_whose_outcome_is_unknown_is_settled_by_asking(
    faulty: penstock.Hub, disk: FaultyDisk
) -> None:
    disk.fails_syncs = True
    with pytest.raises(OutcomeUnknown):
        faulty.ledger.mark_processed("s", "k")
    disk.fails_syncs = False

    was_written = faulty.ledger.is_processed("s", "k")
    assert faulty.ledger.mark_processed("s", "k") is not was_written
    assert faulty.ledger.count("s") == 1


def test_a_locked_database_refuses_and_nothing_is_stuck(path: Path) -> None:
    with hub_on(path, lock_timeout_seconds=0.05) as hub:
        hub.topics.position()
        calls: list[str] = []
        work = hub.ledger.idempotent("s", key=str)(calls.append)
        stranger = apsw.Connection(str(path))
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            hub.ledger.mark_processed("s", "k")
        with pytest.raises(StoreBusy), hub.ledger.claim("s", "k"):
            pass
        work("during")
        stranger.execute("ROLLBACK")
        stranger.close()

        assert hub.ledger.mark_processed("s", "k") is True
        work("during")
        work("after")
        assert calls == ["during", "after"]
        assert hub.ledger.count("s") == 3
