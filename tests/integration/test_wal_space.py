"""The write-ahead log is longer than what is in it, and nothing else changes (ADR 18)."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

import penstock
from penstock.errors import StoreReplaced
from penstock.stores.sqlite.checkpoint import Checkpointer
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.sqlite.wal_space import HEADER_BYTES, STEP_BYTES_MIN, WalSpace
from tests.factories import hub_on


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


def log_of(file: Path) -> Path:
    return file.with_name(file.name + "-wal")


def space_of(hub: penstock.Hub, *, pages: int = 0) -> WalSpace:
    """As a writer has it that has found so many pages in the log."""
    store = hub._open().store
    assert isinstance(store, SqliteStore)
    checkpointer = Checkpointer(store._database, wal_bytes_max=64 * 1024 * 1024)
    checkpointer.pages = pages
    return WalSpace(store._database, checkpointer)


def test_behind_what_is_written_are_zeros(file: Path) -> None:
    with hub_on(file) as hub:
        hub.topics.publish("orders", 1)
        log = log_of(file).read_bytes()
        assert log[-STEP_BYTES_MIN // 2 :] == bytes(STEP_BYTES_MIN // 2)
        assert log[:HEADER_BYTES] != bytes(HEADER_BYTES)


def test_without_a_sync_nothing_is_written_ahead(file: Path) -> None:
    with hub_on(file, durability="os") as hub:
        hub.topics.publish("orders", 1)
        assert log_of(file).stat().st_size < STEP_BYTES_MIN


def test_it_ends_where_the_log_is_begun_anew(file: Path) -> None:
    with hub_on(file, wal_bytes_max=1024 * 1024) as hub:
        for number in range(20):
            hub.topics.publish("orders", number)
        assert STEP_BYTES_MIN <= log_of(file).stat().st_size < 600 * 1024


def test_what_a_crash_leaves_is_whole(file: Path, tmp_path: Path) -> None:
    """Two writers beside each other, and the files as they are before anybody has closed them."""
    with hub_on(file) as one, hub_on(file) as two:

        def publish(hub: penstock.Hub) -> None:
            for number in range(200):
                hub.topics.publish("orders", {"number": number, "text": "x" * 500})

        threads = [threading.Thread(target=publish, args=(hub,)) for hub in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert log_of(file).stat().st_size > STEP_BYTES_MIN
        left = tmp_path / "left"
        left.mkdir()
        for path in (file, log_of(file)):
            shutil.copy(path, left)
    # By a program that knows nothing of this.
    connection = sqlite3.connect(left / file.name)
    assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
    assert connection.execute("SELECT count(*) FROM penstock_messages").fetchone() == (400,)
    connection.close()
    with hub_on(left / file.name) as hub:
        assert len(hub.topics.read("orders", limit=1000)) == 400


def test_a_full_disk_is_left_to_messages(file: Path) -> None:
    with hub_on(file) as hub:
        hub.topics.publish("orders", 1)
        before = log_of(file).read_bytes()
        space = space_of(hub, pages=10_000)
        assert space.is_low
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), limits[1]))
        try:
            space.reserve()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert log_of(file).read_bytes() == before
        assert not space.is_low, "it would try again at each transaction"


def test_another_database_in_its_place_is_not_touched(file: Path) -> None:
    with hub_on(file) as hub:
        hub.topics.publish("orders", 1)
        other = file.with_name("other.db")
        with hub_on(other) as stranger:
            stranger.topics.publish("orders", 2)
            log_of(other).rename(log_of(file))
            other.rename(file)
            size = log_of(file).stat().st_size
            with pytest.raises(StoreReplaced):
                space_of(hub).reserve()
            assert log_of(file).stat().st_size == size
