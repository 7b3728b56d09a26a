"""The write-ahead log is copied into the database seldom, and begun anew when it is full (T7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.stores.sqlite.checkpoint import PAGE_BYTES, STEPS, Checkpointer
from penstock.stores.sqlite.store import SqliteStore
from tests.factories import hub_on

FULL_PAGES = 128
STEP_PAGES = FULL_PAGES // STEPS
BODY = b"x" * 3000


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[penstock.Hub]:
    with hub_on(tmp_path / "hub.db") as hub:
        yield hub


@pytest.fixture
def checkpointer(hub: penstock.Hub) -> Iterator[Checkpointer]:
    """One that finds the log full after 128 pages."""
    store = hub._open().store
    assert isinstance(store, SqliteStore)
    made = Checkpointer(store._database, wal_bytes_max=2 * FULL_PAGES * PAGE_BYTES)
    yield made
    made.close()


def fill(hub: penstock.Hub, checkpointer: Checkpointer, pages: int) -> None:
    """Publish until the log has so many pages, and tell the checkpointer of each commit."""
    store = hub._open().store
    assert isinstance(store, SqliteStore)
    while True:
        hub.topics.publish("orders", BODY)
        checkpointer.committed(store._checkpointer.pages)
        if checkpointer.pages >= pages:
            return


def test_it_is_due_when_a_part_of_the_log_is_full(
    hub: penstock.Hub, checkpointer: Checkpointer
) -> None:
    fill(hub, checkpointer, STEP_PAGES - 8)
    assert not checkpointer.is_due
    fill(hub, checkpointer, STEP_PAGES)
    assert checkpointer.is_due


def test_what_was_copied_is_not_copied_with_each_commit_again(
    hub: penstock.Hub, checkpointer: Checkpointer
) -> None:
    fill(hub, checkpointer, STEP_PAGES)
    copied = checkpointer.pages
    checkpointer.run()
    checkpointer.committed(copied + 4)
    assert not checkpointer.is_due
    checkpointer.committed(copied + STEP_PAGES)
    assert checkpointer.is_due


def test_a_reader_that_holds_the_log_is_not_asked_with_each_commit(
    hub: penstock.Hub, checkpointer: Checkpointer
) -> None:
    fill(hub, checkpointer, STEP_PAGES // 2)
    store = hub._open().store
    assert isinstance(store, SqliteStore)
    reader = store._database.connect(read_only=True)
    try:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM penstock_messages").fetchall()
        fill(hub, checkpointer, FULL_PAGES)
        checkpointer.run()
        assert checkpointer.pages >= FULL_PAGES, "the reader needs it"
        fill(hub, checkpointer, 1)
        assert not checkpointer.is_due
        fill(hub, checkpointer, checkpointer.pages + STEP_PAGES)
        assert checkpointer.is_due
    finally:
        reader.close()
    checkpointer.run()
    assert checkpointer.pages == 0


def test_a_full_log_is_begun_anew(hub: penstock.Hub, checkpointer: Checkpointer) -> None:
    fill(hub, checkpointer, FULL_PAGES)
    checkpointer.run()
    assert (checkpointer.pages, checkpointer.is_due) == (0, False)
    fill(hub, checkpointer, 1)
    assert checkpointer.pages < STEP_PAGES


def test_one_that_another_process_has_begun_anew_counts_from_there(
    hub: penstock.Hub, checkpointer: Checkpointer
) -> None:
    fill(hub, checkpointer, STEP_PAGES)
    checkpointer.run()
    checkpointer.committed(4)
    assert not checkpointer.is_due
    checkpointer.committed(STEP_PAGES)
    assert checkpointer.is_due
