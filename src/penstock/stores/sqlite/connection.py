"""Connections to one SQLite file: opened the same way, watched, and never mixed with strangers.

Driver errors are translated here (`translate`) and nowhere else.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from penstock.errors import (
    NotADatabase,
    OutcomeUnknown,
    PenstockError,
    StatementFailed,
    StatementRefused,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreReplaced,
    StoreUnavailable,
    TransactionTimeout,
    UnsafeSQLite,
)
from penstock.stores.sqlite.forks import add_holder, gate, is_tainted
from penstock.stores.sqlite.guard import guard

logger = logging.getLogger("penstock")

# Before this, two connections that write and checkpoint at the same instant can corrupt a WAL.
SQLITE_VERSION_MIN = (3, 51, 3)
READERS_MAX = 4
CACHE_KIB = 1024
WRITER_CACHE_KIB = 1536
MAKING_BUSY_MS = 20

# A VFS by name, for fault injection in tests.
_vfs: str | None = None


class Database:
    """One SQLite file: how to connect to it, and whether it is still the same file."""

    def __init__(self, path: Path, *, synchronous: str, lock_timeout_seconds: float) -> None:
        self.path = path
        self._name = str(path)
        self.synchronous = synchronous
        self.lock_timeout_seconds = lock_timeout_seconds
        self._identity: tuple[int, int] | None = None
        self.generation = 0
        """Rises when another file was found under the path: connections to the old one are void."""

    def create(self) -> bool:
        """Open or make the file; set what must be set before the first table. True if new."""
        check_sqlite_version()
        if is_tainted():
            raise StoreUnavailable(
                "This process was forked inside a transaction of its parent.",
                hint="Fork outside of 'with hub.transaction()', or start a new process.",
            )
        folder = self.path.parent
        if not folder.is_dir():
            raise StoreUnavailable(
                f"The folder {folder} does not exist.", hint=f"Create it: mkdir -p {folder}"
            )
        if self.path.is_dir():
            raise NotADatabase(f"{self.path} is a folder.")
        is_new = not self.path.exists() or self.path.stat().st_size == 0
        if not is_new and not os.access(self.path, os.W_OK):
            raise StoreReadOnly(f"{self.path} is not writable.")
        if not os.access(folder, os.W_OK):
            raise StoreReadOnly(f"The folder {folder} is not writable.")
        guard.add(self.path)
        try:
            with gate:
                self._make()
            if is_new:
                sync_folder(folder)
        except BaseException:
            guard.remove(self.path)
            raise
        self._identity = self._look()
        return is_new

    def attach(self) -> None:
        """Open a file that is there. Never makes one: whoever only reads has nothing to put in."""
        if not self.path.is_dir() and (not self.path.exists() or not self.path.stat().st_size):
            raise StoreUnavailable(
                f"There is no database at {self.path}.",
                hint="Check the URL; the first hub that uses it makes the file.",
            )
        self.create()

    def _make(self) -> None:
        """Whoever reads that the file has no write-ahead log, and is overtaken by another that
        gives it one, waits in vain for the other to go: so it waits little, and looks again."""
        ends_at = time.monotonic() + self.lock_timeout_seconds
        with translated(self.path):
            while True:
                try:
                    self._try_to_make()
                    return
                except apsw.BusyError:
                    if time.monotonic() >= ends_at:
                        raise

    def _try_to_make(self) -> None:
        connection = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            connection.set_busy_timeout(MAKING_BUSY_MS)
            # Asked of SQLite, not of the file's size: one that was cut short while it was made
            # is empty only after its journal has been rolled back.
            if not fetch_value(connection, "PRAGMA page_count"):
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            mode = connection.execute("PRAGMA journal_mode = WAL").get
            if mode != "wal":
                raise StoreUnavailable(
                    f"{self.path} cannot use a write-ahead log ({mode}).",
                    hint="Use a local disk; network file systems cannot share it safely.",
                )
        finally:
            connection.close()

    def connect(self, *, cache_kib: int = CACHE_KIB, read_only: bool = False) -> apsw.Connection:
        """A connection to the file as it was opened first; never makes a new file."""
        self.check_present()
        # Readers, too, need write access: they take part in the -shm file.
        connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
        with translated(self.path):
            connection.execute(f"PRAGMA cache_size = -{cache_kib}")
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            if read_only:
                connection.execute("PRAGMA query_only = 1")
        return connection

    def check_present(self) -> None:
        """Raises `StoreReplaced` unless the path still leads to the file that was opened.

        Without it, a deleted file would go on accepting messages that nobody will ever see. If
        another file has come in its place, that one is used from the next call on.
        """
        found = self._look()
        if found == self._identity:
            return
        if found is not None:
            self._identity = found
            self.generation += 1
        raise StoreReplaced(f"{self.path} was moved, deleted or replaced.")

    def forget(self) -> None:
        guard.remove(self.path)

    def _look(self) -> tuple[int, int] | None:
        # stat only: opening and closing the file by hand would drop SQLite's locks on it.
        try:
            status = os.stat(self._name)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _connect(self, flags: int) -> apsw.Connection:
        with translated(self.path):
            connection = apsw.Connection(str(self.path), flags=flags, vfs=_vfs)
            connection.set_busy_timeout(round(self.lock_timeout_seconds * 1000))
        return connection


class ReaderPool:
    """A few reading connections, lent for one short read each."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._idle: list[apsw.Connection] = []
        self._generation = database.generation
        self._lock = threading.Lock()
        # Locks, and not a semaphore, which a thread that is struck may leave locked for all.
        self._seats = [threading.Lock() for _ in range(READERS_MAX)]
        self._turns = itertools.count()
        self._closed = False
        self._next: apsw.Connection | None = None
        self._next_generation = 0
        add_holder(self)

    @contextmanager
    def read(self) -> Iterator[apsw.Connection]:
        """A connection inside a read transaction: all statements see one state of the file."""
        with self._seat(), gate:
            generation, connection = self._take()
            healthy = False
            try:
                with translated(self._database.path):
                    connection.execute("BEGIN")
                    try:
                        yield connection
                    finally:
                        if connection.in_transaction:
                            connection.execute("ROLLBACK")
                healthy = True
            except PenstockError as error:
                # Of the caller's making, inside the block, the connection itself being well?
                healthy = not isinstance(error, StoreError)
                raise
            finally:
                self._give_back(connection, generation if healthy else None)

    def fetch(self, sql: str, parameters: Any = ()) -> list[Any]:
        """The rows of one statement, which is a view of its own: the short way for the tail."""
        with self._seat(), gate:
            generation, connection = self._take()
            try:
                rows = connection.execute(sql, parameters).fetchall()
            except apsw.Error as error:
                self._give_back(connection, None)
                raise translate(error, self._database.path) from error
            self._give_back(connection, generation)
            return rows

    def fetch_next(self, sql: str, parameters: Any) -> list[Any]:
        """As `fetch`, on a connection kept for the one caller that cannot wait: the tail.

        Whether the file is still there is not asked: nothing new is found in one that was
        replaced, and the caller then asks on the long way.
        """
        with gate:
            if self._next is None or self._next_generation != self._database.generation:
                self._drop_next()
                self._next_generation = self._database.generation
                self._next = self._database.connect(read_only=True)
            try:
                return self._next.execute(sql, parameters).fetchall()
            except apsw.Error as error:
                self._drop_next()
                raise translate(error, self._database.path) from error

    def close(self) -> None:
        with self._lock:
            self._closed = True
        with gate:
            self._drop_idle()
            self._drop_next()

    def disconnect(self) -> None:
        """Before a fork."""
        with self._lock:
            idle, self._idle = self._idle, []
        if self._next is not None:
            idle.append(self._next)
            self._next = None
        for connection in idle:
            close_as_it_is(connection)

    def _seat(self) -> threading.Lock:
        """One that is free, if there is one. Else they are waited for in turn."""
        for seat in self._seats:
            if not seat.locked():
                return seat
        return self._seats[next(self._turns) % READERS_MAX]

    def _take(self) -> tuple[int, apsw.Connection]:
        self._database.check_present()
        generation = self._database.generation
        if generation != self._generation:
            self._drop_idle()
            self._generation = generation
        with self._lock:
            if self._idle:
                return generation, self._idle.pop()
        return generation, self._database.connect(read_only=True)

    def _give_back(self, connection: apsw.Connection, generation: int | None) -> None:
        with self._lock:
            if generation == self._database.generation and not self._closed:
                self._idle.append(connection)
                return
        close_connection(connection)

    def _drop_next(self) -> None:
        connection, self._next = self._next, None
        if connection is not None:
            connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            close_connection(connection)


@contextmanager
def translated(path: Path | str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path) from error


def translate(error: apsw.Error, path: Path | str, *, committing: bool = False) -> PenstockError:
    """The error in penstock's words. `committing`: it was COMMIT that failed."""
    text = str(error)
    if isinstance(error, apsw.FullError):
        return StoreFull(f"The disk of {path} is full; nothing was written.")
    if isinstance(error, apsw.IOError):
        # The operating system's "no space left" reaches SQLite as a failed write or truncate.
        if committing:
            return OutcomeUnknown(f"The disk of {path} failed during the commit ({text}).")
        return StoreError(f"The disk of {path} failed ({text}).")
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return StoreBusy(f"{path} stayed locked for longer than lock_timeout_seconds.")
    if isinstance(error, apsw.NotADBError):
        return NotADatabase(f"{path} is not a SQLite database.")
    if isinstance(error, apsw.CorruptError):
        return StoreCorrupt(f"{path} is damaged ({text}).")
    if isinstance(error, apsw.ReadOnlyError):
        return StoreReadOnly(f"{path} is not writable.")
    if isinstance(error, apsw.CantOpenError):
        return StoreUnavailable(f"{path} cannot be opened ({text}).", hint="Check permissions.")
    if isinstance(error, apsw.InterruptError):
        return TransactionTimeout()
    if isinstance(error, apsw.AuthError):
        return StatementRefused()
    if isinstance(
        error,
        (
            apsw.ConstraintError,
            apsw.SQLError,
            apsw.MismatchError,
            apsw.BindingsError,
            apsw.TooBigError,
            apsw.RangeError,
            apsw.IncompleteExecutionError,
        ),
    ):
        return StatementFailed(f"The database refused the statement: {text}.")
    return StoreError(f"{path}: {type(error).__name__}: {text}.")


def check_sqlite_version() -> None:
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < SQLITE_VERSION_MIN:
        raise UnsafeSQLite(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt a database that processes share."
        )


def close_connection(connection: apsw.Connection) -> None:
    """The last one writes the log back into the file; if it cannot, the next to open does."""
    try:
        connection.close()
    except apsw.Error as error:
        logger.warning("the write-ahead log was not written back at closing: %s", error)


def close_as_it_is(connection: apsw.Connection) -> None:
    """Without the checkpoint that the last one to close otherwise makes: it is about to reopen."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()


def fetch_all(connection: apsw.Connection, sql: str, parameters: Any = ()) -> list[Any]:
    return connection.execute(sql, parameters).fetchall()


def fetch_one(connection: apsw.Connection, sql: str, parameters: Any = ()) -> Any:
    """The first row, or None."""
    return connection.execute(sql, parameters).fetchone()


def fetch_value(connection: apsw.Connection, sql: str, parameters: Any = ()) -> Any:
    """The first column of the first row, or None."""
    return connection.execute(sql, parameters).get


def as_json(values: Iterable[Any]) -> str:
    """A list for `json_each`, which takes bytes for something else."""
    return msgspec.json.encode(list(values)).decode()


def sync_folder(folder: Path) -> None:
    """The new file's name must survive a power loss, too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
