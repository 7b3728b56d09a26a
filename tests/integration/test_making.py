"""Several processes make one file at the same moment (T5)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw

from penstock.stores.sqlite.connection import Database
from penstock.stores.sqlite.guard import guard
from tests.waiting import SOON

A_WHILE_SECONDS = 0.1


def test_whoever_is_overtaken_while_it_makes_the_file_uses_what_is_there(tmp_path: Path) -> None:
    """It has read that there is no write-ahead log, and need not write one: others have."""
    path = tmp_path / "hub.db"
    database = Database(path, synchronous="FULL", lock_timeout_seconds=2)
    guard.add(path)  # It is ours, though opened by hand.
    other = apsw.Connection(str(path))
    other.set_busy_timeout(1000)
    other.execute("CREATE TABLE theirs (id)")
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as threads:
        making = threads.submit(database.create)
        time.sleep(A_WHILE_SECONDS)
        other.execute("COMMIT; PRAGMA journal_mode = WAL; BEGIN IMMEDIATE")
        making.result(SOON)
    other.close()
    database.forget()
    guard.remove(path)
