"""Keeps the write-ahead log and the file small, off the path of publishers.

A passive checkpoint copies what it can beside running writers. Each makes them wait for the disk,
and a large one for long, so there are four until the log is full. Under a steady load it never
catches up, so a full log is finished in one short turn at the turnstile, after which writing
starts at its beginning again.
"""

from __future__ import annotations

import os
import threading

import apsw

from penstock.stores.sqlite.connection import (
    Database,
    close_as_it_is,
    close_connection,
    fetch_all,
    fetch_value,
    translated,
)
from penstock.stores.sqlite.forks import add_holder, gate
from penstock.stores.sqlite.turnstile import Turnstile

PAGE_BYTES = 4096
STEPS = 4
CATCH_UP_TRIES = 8
RESTART_WAIT_MS = 250
TURN_SECONDS = 0.25

# Free pages are reused; the file is only shrunk when there are many of them.
FREE_PAGES_MIN = 4096
FREE_SHARE_MIN = 0.25
VACUUM_PAGES = 512


class Checkpointer:
    def __init__(self, database: Database, *, wal_bytes_max: int) -> None:
        self._database = database
        self.restart_pages = wal_bytes_max // PAGE_BYTES // 2
        """With so many in it, the log is begun anew."""
        self._step_pages = max(1, self.restart_pages // STEPS)
        self._wal_bytes_max = wal_bytes_max
        self._connection: apsw.Connection | None = None
        self._generation = 0
        self._turnstile = Turnstile(database.path)
        self._lock = threading.Lock()
        add_holder(self)
        self.pages = 0
        """In the write-ahead log after this process's last commit."""
        self._pages_then = 0
        """In it when this process last copied what could be copied."""

    def committed(self, pages: int) -> None:
        """This process has committed, and there are so many pages in the log."""
        self.pages = pages
        if pages < self._pages_then:
            self._pages_then = 0  # It was begun anew.

    @property
    def is_due(self) -> bool:
        return self.pages - self._pages_then >= self._step_pages

    def run(self, *, force: bool = False) -> None:
        with self._lock, gate, translated(self._database.path):
            connection = self._ready()
            # A file that a slow reader made large stays large until somebody cuts it.
            is_large = self._wal_bytes() > self._wal_bytes_max
            if force or is_large or self.is_due:
                pages = self._copy(connection)
                if force or is_large or pages >= self.restart_pages:
                    self._catch_up(connection)
                    self._restart(connection)
            self._vacuum(connection)

    def close(self) -> None:
        with self._lock, gate:
            if self._connection is not None:
                close_connection(self._connection)
                self._connection = None
            self._turnstile.close()

    def disconnect(self) -> None:
        """Before a fork."""
        connection, self._connection = self._connection, None
        if connection is not None:
            close_as_it_is(connection)

    def _ready(self) -> apsw.Connection:
        self._database.check_present()
        if self._connection is not None and self._generation != self._database.generation:
            close_connection(self._connection)
            self._connection = None
        if self._connection is None:
            self._connection = self._database.connect()
            self._generation = self._database.generation
            self._connection.set_busy_timeout(RESTART_WAIT_MS)
        return self._connection

    def _copy(self, connection: apsw.Connection) -> int:
        """What can be copied beside running writers. How many pages the log has."""
        try:
            pages, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            pages = self.pages  # Another process is at it.
        self._pages_then = pages
        return pages

    def _catch_up(self, connection: apsw.Connection) -> None:
        """Only a copy that nobody has written behind is synced. What is not synced here, writers
        wait for while the log is begun anew."""
        for _ in range(CATCH_UP_TRIES):
            if self._copy(connection) >= self.pages:
                return

    def _restart(self, connection: apsw.Connection) -> None:
        is_large = self._wal_bytes() > self._wal_bytes_max
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if is_large else apsw.SQLITE_CHECKPOINT_RESTART
        self._turnstile.enter(TURN_SECONDS)
        try:
            connection.wal_checkpoint(mode=mode)
            self.pages = self._pages_then = 0
        except apsw.BusyError:
            return  # A reader is still on it; the next round tries again.
        finally:
            self._turnstile.leave()

    def _vacuum(self, connection: apsw.Connection) -> None:
        free = fetch_value(connection, "PRAGMA freelist_count")
        if free < FREE_PAGES_MIN:
            return
        if free < FREE_SHARE_MIN * fetch_value(connection, "PRAGMA page_count"):
            return
        self._turnstile.enter(TURN_SECONDS)
        try:
            fetch_all(connection, f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
        except apsw.BusyError:
            return
        finally:
            self._turnstile.leave()

    def _wal_bytes(self) -> int:
        try:
            return os.stat(f"{self._database.path}-wal").st_size
        except OSError:
            return 0
