"""What can be told about the file itself."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import apsw

from penstock.errors import PenstockError
from penstock.model import Check
from penstock.stores.sqlite import migrate
from penstock.stores.sqlite.connection import (
    Database,
    ReaderPool,
    check_sqlite_version,
    fetch_value,
)

CHECKED_BYTES_MAX = 1024**3


def checks(database: Database, pool: ReaderPool, wal_bytes_max: int) -> list[Check]:
    return [
        _file(database),
        _permissions(database),
        _sqlite_version(),
        _schema(pool),
        _content(database, pool),
        _wal(database, wal_bytes_max),
    ]


def check_unopened(path: Path, error: PenstockError) -> list[Check]:
    """The same list for a file that cannot be opened: what can be seen from outside is looked at,
    the rest is critical for the reason given."""
    unknown = "not checked: the database cannot be opened"
    return [
        _outside(path, error),
        _access(path),
        _sqlite_version(),
        Check("open", "critical", error.message, error.hint),
        *(
            Check(name, "critical", unknown, error.hint)
            for name in ("schema", "content", "write-ahead log", "write", "wake", "consumers")
        ),
    ]


def _outside(path: Path, error: PenstockError) -> Check:
    # stat only, as everywhere: nobody but SQLite opens the file.
    if not path.parent.is_dir():
        return Check("file", "critical", f"the folder {path.parent} does not exist", error.hint)
    if not path.exists():
        return Check("file", "critical", f"{path} does not exist", error.hint)
    if not path.is_file():
        return Check("file", "critical", f"{path} is not a file", error.hint)
    return Check("file", "ok", f"{path}, {path.stat().st_size / 1e6:,.1f} MB")


def _access(path: Path) -> Check:
    for place in (path.parent, path):
        if place.exists() and not os.access(place, os.R_OK | os.W_OK):
            return Check(
                "permissions", "critical", f"{place} is not writable", f"chmod u+rw {place}"
            )
    if not path.exists():
        return Check("permissions", "critical", "not checked: there is no file", "")
    return Check("permissions", "ok", f"{stat.S_IMODE(path.stat().st_mode):04o}, folder writable")


def _file(database: Database) -> Check:
    try:
        database.check_present()
        status = os.stat(database.path)
    except (OSError, PenstockError) as error:
        return Check("file", "critical", str(error), "Put the file back, or restore a backup.")
    return Check("file", "ok", f"{database.path}, {status.st_size / 1e6:,.1f} MB")


def _permissions(database: Database) -> Check:
    mode = stat.S_IMODE(os.stat(database.path).st_mode)
    folder = database.path.parent
    if not os.access(folder, os.W_OK):
        return Check(
            "permissions",
            "critical",
            f"{folder} is not writable",
            f"chmod u+w {folder}: the write-ahead log stands beside the file.",
        )
    if mode & stat.S_IWOTH:
        return Check(
            "permissions",
            "warning",
            f"everybody on this machine can write the file ({mode:04o})",
            f"chmod o-w {database.path}",
        )
    return Check("permissions", "ok", f"{mode:04o}, folder writable")


def _sqlite_version() -> Check:
    try:
        check_sqlite_version()
    except PenstockError as error:
        return Check("sqlite", "critical", error.message, error.hint)
    return Check("sqlite", "ok", f"SQLite {apsw.sqlite_lib_version()}, apsw {apsw.apsw_version()}")


def _schema(pool: ReaderPool) -> Check:
    known = migrate.migrations()[-1].version
    with pool.read() as connection:
        version = migrate.current_version(connection)
    if version > known:
        return Check(
            "schema", "warning", f"version {version}, newer than {known}", "Upgrade penstock here."
        )
    return Check("schema", "ok", f"version {version}")


def _content(database: Database, pool: ReaderPool) -> Check:
    if os.stat(database.path).st_size > CHECKED_BYTES_MAX:
        return Check("content", "ok", "not checked: larger than 1 GB")
    with pool.read() as connection:
        found = fetch_value(connection, "PRAGMA quick_check(1)")
    if found != "ok":
        return Check("content", "critical", str(found), "Restore a backup with 'penstock restore'.")
    return Check("content", "ok", "quick_check found nothing wrong")


def _wal(database: Database, wal_bytes_max: int) -> Check:
    try:
        size = os.stat(f"{database.path}-wal").st_size
    except OSError:
        size = 0
    if size > 2 * wal_bytes_max:
        return Check(
            "write-ahead log",
            "warning",
            f"{size / 1e6:,.1f} MB",
            "A reader has been in one transaction for long; find and end it.",
        )
    return Check("write-ahead log", "ok", f"{size / 1e6:,.1f} MB")
