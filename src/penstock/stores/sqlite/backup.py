"""Copies of a database in use, and the way back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from penstock.clock import Micros
from penstock.errors import BackupFailed, NotADatabase
from penstock.stores.sqlite import migrate
from penstock.stores.sqlite.connection import (
    Database,
    fetch_all,
    fetch_one,
    fetch_value,
    sync_folder,
    translate,
    translated,
)

STEP_PAGES = 2048
TOKENS_LEFT_OUT = 1_000_000
"""More than can be given out between the look at the last one and the end of a restore: a token
or a process's number that stood for something before must not come again."""

Progress = Callable[[int, int], None]


def make(database: Database, target: Path, progress: Progress | None = None) -> None:
    """Copy the database as it is at one instant; writers go on meanwhile."""
    if not target.parent.is_dir():
        raise BackupFailed(f"The folder {target.parent} does not exist.")
    partial = target.with_name(target.name + ".partial")
    _remove(partial)
    source = database.connect(read_only=True)
    try:
        with translated(database.path):
            # One read transaction over all steps: the copy never starts over, whatever is written.
            source.execute("BEGIN")
            fetch_all(source, "SELECT last_id FROM penstock_log")
            copy = apsw.Connection(str(partial))
            try:
                _copy(source, copy, progress)
                _check(copy, partial)
            finally:
                copy.close()
        _sync(partial)
        os.replace(partial, target)
        sync_folder(target.parent)
    except OSError as error:
        raise BackupFailed(f"{target} cannot be written: {error.strerror}.") from error
    finally:
        source.close()
        _remove(partial)


def restore(
    database: Database, source: Path, now: Micros, progress: Progress | None = None
) -> None:
    """Replace the content by a backup's in one transaction, which all processes see at once.

    The new generation is prepared in a copy, so that nobody ever sees the old epoch over the
    restored log.
    """
    if not source.is_file():
        raise BackupFailed(f"There is no backup at {source}.")
    staging = database.path.with_name(database.path.name + ".restoring")
    _remove(staging)
    try:
        _stage(source, staging, database, now)
        with translated(database.path):
            staged = apsw.Connection(str(staging), flags=apsw.SQLITE_OPEN_READONLY)
            live = database.connect()
            try:
                _copy(staged, live, progress)
            finally:
                live.close()
                staged.close()
    except OSError as error:
        raise BackupFailed(f"{source} cannot be restored: {error.strerror}.") from error
    finally:
        _remove(staging)


def _stage(source: Path, staging: Path, database: Database, now: Micros) -> None:
    try:
        backup = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
        copy = apsw.Connection(str(staging))
    except apsw.Error as error:
        raise translate(error, source) from error
    try:
        with translated(source):
            _copy(backup, copy, None)
            if migrate.current_version(copy) < 1:
                raise NotADatabase(f"{source} is not a penstock backup.")
            _check(copy, source)
            migrate.prepare(copy, source, auto=True, now=now)
        live = database.connect(read_only=True)
        try:
            generation, token, last_id = fetch_one(
                live, "SELECT generation, last_token, last_id FROM penstock_log"
            )
            sequences = fetch_all(live, "SELECT name, seq FROM sqlite_sequence")
        finally:
            live.close()
        with translated(source):
            # Nobody who held a lease or was present then is so now; numbers of live processes
            # stay taken. Ids go on above both, leaving one out: a reader that comes to the gap
            # looks at the epoch.
            copy.execute(
                """UPDATE penstock_log SET epoch = lower(hex(randomblob(6))),
                                           generation = max(generation, ?) + 1,
                                           last_token = max(last_token, ?) + ?,
                                           last_id = max(last_id, ?) + 1""",
                (generation, token, TOKENS_LEFT_OUT, last_id),
            )
            for name, last in sequences:
                _raise_sequence(copy, name, last)
            copy.execute(
                """DELETE FROM penstock_leases; DELETE FROM penstock_instances;
                   DELETE FROM penstock_presence; DELETE FROM penstock_presence_owners"""
            )
            # Claims on jobs are in nobody's hands: whoever has one still is refused, and the jobs
            # are rescued. Workers that go on enter again.
            copy.execute(
                """DELETE FROM penstock_workers;
                   UPDATE penstock_job_claims SET token = 0, instance = 0"""
            )
            # Claims stay in the ledger as those of somebody who is gone, and whose answer, should
            # it still come, is refused.
            copy.execute("UPDATE penstock_ledger SET token = 0, lease_until = 0 WHERE state = 1")
    finally:
        copy.close()
        backup.close()


def _raise_sequence(copy: apsw.Connection, table: str, last: int) -> None:
    """Ids of this table go on above those given out before the restore."""
    own = fetch_value(copy, "SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)) or 0
    copy.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
    copy.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, max(own, last)))


def _copy(source: apsw.Connection, target: apsw.Connection, progress: Progress | None) -> None:
    try:
        with target.backup("main", source, "main") as running:
            while not running.done:
                running.step(STEP_PAGES)
                if progress is not None:
                    progress(running.page_count - running.remaining, running.page_count)
    except apsw.ReadOnlyError as error:
        raise BackupFailed(
            "The page sizes of the backup and the database differ.",
            hint="Restore into a new file and move it into place while nothing runs.",
        ) from error


def _check(connection: apsw.Connection, path: Path) -> None:
    found = fetch_value(connection, "PRAGMA quick_check(1)")
    if found != "ok":
        raise BackupFailed(f"{path} is damaged: {found}.")


def _sync(path: Path) -> None:
    # Not the live database: nobody has this file open through SQLite.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    for name in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))):
        name.unlink(missing_ok=True)
