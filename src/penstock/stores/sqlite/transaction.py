"""A writer's connection and its transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from penstock.clock import Micros
from penstock.errors import OutcomeUnknown, StatementRefused, StoreReplaced
from penstock.stores.sqlite.connection import (
    WRITER_CACHE_KIB,
    Database,
    close_as_it_is,
    close_connection,
    translate,
)
from penstock.stores.sqlite.consumers import SqliteConsumerWriter
from penstock.stores.sqlite.feeds import SqliteFeedWriter
from penstock.stores.sqlite.forks import add_holder, gate
from penstock.stores.sqlite.job_writer import SqliteJobWriter
from penstock.stores.sqlite.lake import SqliteLakeWriter
from penstock.stores.sqlite.leases import SqliteInstanceWriter, SqliteLeaseWriter
from penstock.stores.sqlite.ledger import SqliteLedgerWriter
from penstock.stores.sqlite.liveness import Leasing
from penstock.stores.sqlite.pipelines import SqlitePipelineWriter
from penstock.stores.sqlite.presence import SqlitePresenceWriter
from penstock.stores.sqlite.schedules import SqliteScheduleWriter
from penstock.stores.sqlite.sinks import SqliteSinkWriter
from penstock.stores.sqlite.topic_rows import NameBook
from penstock.stores.sqlite.topic_writer import SqliteTopicWriter, check_open
from penstock.stores.sqlite.turnstile import Turnstile
from penstock.stores.sqlite.wal_space import WalSpace

# The comments keep these apart from a user's COMMIT in the statement cache, which is not
# authorised a second time.
BEGIN = "BEGIN IMMEDIATE -- penstock"
COMMIT = "COMMIT -- penstock"
ROLLBACK = "ROLLBACK -- penstock"
SAVEPOINT = "SAVEPOINT penstock -- penstock"
RELEASE = "RELEASE penstock -- penstock"
ROLLBACK_TO = "ROLLBACK TO penstock -- penstock"

OWN_TABLES = "penstock_"

_REFUSED = frozenset(
    {
        apsw.SQLITE_TRANSACTION,
        apsw.SQLITE_SAVEPOINT,
        apsw.SQLITE_ATTACH,
        apsw.SQLITE_DETACH,
        apsw.SQLITE_PRAGMA,
    }
)
_READS = frozenset(
    {apsw.SQLITE_READ, apsw.SQLITE_SELECT, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE}
)


class SqliteTransaction:
    def __init__(
        self,
        connection: apsw.Connection,
        names: NameBook,
        leasing: Leasing,
        idempotency_seconds: float,
        ledger_keep: Micros,
    ) -> None:
        self._connection = connection
        self._is_user = False
        self._refused = ""
        self.topics = SqliteTopicWriter(connection, names, idempotency_seconds)
        self.leases = SqliteLeaseWriter(connection, leasing)
        self.consumers = SqliteConsumerWriter(connection, self.leases, leasing)
        self.instances = SqliteInstanceWriter(connection, leasing)
        self.presence = SqlitePresenceWriter(connection, leasing)
        self.jobs = SqliteJobWriter(connection, leasing)
        self.schedules = SqliteScheduleWriter(connection)
        self.ledger = SqliteLedgerWriter(connection, leasing, ledger_keep)
        self.sinks = SqliteSinkWriter(connection)
        self.feeds = SqliteFeedWriter(connection, self.leases)
        self.pipelines = SqlitePipelineWriter(connection)
        self.lake = SqliteLakeWriter(connection)
        connection.authorizer = self._authorize

    def begin(self) -> None:
        self.topics.begin()
        self.jobs.begin()
        self.ledger.begin()

    def flush(self) -> None:
        """Write what was collected. Before COMMIT."""
        self.topics.flush()
        self.jobs.flush()
        self.ledger.flush()

    @property
    def has_news(self) -> bool:
        """Whether other processes wait for what it has written."""
        return bool(self.topics.appended_count) or self.jobs.made_ready

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        check_open(self._connection)
        self._is_user = True
        self._refused = ""
        try:
            # A statement from the cache is not authorised again: penstock's own must not be found.
            return self._connection.execute(sql, parameters, can_cache=False).fetchall()
        except apsw.AuthError as error:
            raise StatementRefused(f"{self._refused} is not allowed in a transaction.") from error
        except apsw.Error as error:
            raise translate(error, "the database") from error
        finally:
            self._is_user = False

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        check_open(self._connection)
        marks = self.topics.mark(), self.jobs.mark(), self.ledger.mark_place()
        self._connection.execute(SAVEPOINT)
        try:
            yield
        except BaseException:
            # Some errors have rolled the whole transaction back already; the owner finds out.
            if self._connection.in_transaction:
                self._connection.execute(ROLLBACK_TO)
                self._connection.execute(RELEASE)
            for part, mark in zip((self.topics, self.jobs, self.ledger), marks, strict=True):
                part.return_to(mark)  # type: ignore[attr-defined]
            raise
        self._connection.execute(RELEASE)

    def _authorize(
        self, action: int, first: str | None, second: str | None, _: str | None, __: str | None
    ) -> int:
        if not self._is_user or action in _READS:
            return apsw.SQLITE_OK
        if action in _REFUSED:
            self._refused = f"{first or 'this statement'}"
            return apsw.SQLITE_DENY
        if any(name and name.lower().startswith(OWN_TABLES) for name in (first, second)):
            self._refused = f"changing {first}"
            return apsw.SQLITE_DENY
        return apsw.SQLITE_OK


class SqliteWriter:
    def __init__(
        self,
        database: Database,
        names: NameBook,
        leasing: Leasing,
        space: WalSpace,
        *,
        idempotency_seconds: float,
        ledger_keep: Micros,
        on_commit: Callable[[int], None],
        ring: Callable[[], None],
    ) -> None:
        self._database = database
        self._names = names
        self._leasing = leasing
        self._space = space
        self._idempotency_seconds = idempotency_seconds
        self._ledger_keep = ledger_keep
        self._on_commit = on_commit
        self._ring = ring
        self._turnstile = Turnstile(database.path)
        self._connection: apsw.Connection | None = None
        self._transaction: SqliteTransaction | None = None
        self._generation = database.generation
        self._is_open = False
        self._busy_ms = 0
        self._is_synced = True
        self._seat = 0
        self._closing = threading.Lock()
        add_holder(self)

    def begin(
        self, *, timeout_seconds: float | None = None, is_synced: bool = True
    ) -> SqliteTransaction:
        assert not self._is_open, "one transaction at a time"
        timeout = (
            self._database.lock_timeout_seconds if timeout_seconds is None else timeout_seconds
        )
        self._seat = gate.enter()
        self._is_open = True
        try:
            transaction = self._ready()
            self._turnstile.enter(timeout)
            assert self._connection is not None
            busy_ms = max(1, round(timeout * 1000))
            try:
                if busy_ms != self._busy_ms:
                    self._connection.set_busy_timeout(busy_ms)
                    self._busy_ms = busy_ms
                if is_synced != self._is_synced:
                    level = self._database.synchronous
                    if not is_synced and level == "FULL":
                        level = "NORMAL"
                    self._connection.execute(f"PRAGMA synchronous = {level}")
                    self._is_synced = is_synced
                self._connection.execute(BEGIN)
                if self._space.is_low and is_synced:
                    self._space.reserve()
            except apsw.Error as error:
                raise translate(error, self._database.path) from error
            transaction.begin()
        except BaseException:
            # Also what a signal, or the end of a job's time, raises right after BEGIN: a
            # transaction that nobody knows of would keep everybody from writing.
            self._end(roll_back=True)
            raise
        return transaction

    def commit(self) -> None:
        assert self._transaction is not None
        assert self._connection is not None
        try:
            check_open(self._connection)
            try:
                self._transaction.flush()
            except apsw.Error as error:
                raise translate(error, self._database.path) from error
            try:
                self._connection.execute(COMMIT)
            except apsw.Error as error:
                raise translate(error, self._database.path, committing=True) from error
        except BaseException as error:
            self._end(roll_back=True, reconnect=isinstance(error, OutcomeUnknown))
            raise
        try:
            self._transaction.topics.committed()
        finally:
            self._end(roll_back=False)
        # Only now is it certain that others will find it under this path.
        self._database.check_present()

    def rollback(self) -> None:
        if self._is_open:
            self._end(roll_back=True)

    def interrupt(self) -> None:
        with self._closing:
            if self._connection is not None:
                self._connection.interrupt()

    @contextmanager
    def transaction(
        self, *, timeout_seconds: float | None = None, is_synced: bool = True
    ) -> Iterator[SqliteTransaction]:
        transaction = self.begin(timeout_seconds=timeout_seconds, is_synced=is_synced)
        try:
            yield transaction
        except apsw.Error as error:
            self.rollback()
            raise translate(error, self._database.path) from error
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def close(self) -> None:
        self.rollback()
        with gate:
            self._disconnect()
        self._turnstile.close()

    def _ready(self) -> SqliteTransaction:
        try:
            self._database.check_present()
        except StoreReplaced:
            self._disconnect()
            raise
        if self._generation != self._database.generation:
            self._disconnect()
        if self._transaction is None:
            self._generation = self._database.generation
            self._connection = self._database.connect(cache_kib=WRITER_CACHE_KIB)
            self._busy_ms = 0
            self._is_synced = True
            self._connection.set_wal_hook(self._written)
            self._transaction = SqliteTransaction(
                self._connection,
                self._names,
                self._leasing,
                self._idempotency_seconds,
                self._ledger_keep,
            )
        return self._transaction

    def _written(self, connection: apsw.Connection, schema: str, pages: int) -> int:
        """Called by SQLite as soon as a commit is on disk and others can read it."""
        if self._transaction is not None and self._transaction.has_news:
            # First of all: others are waiting for it.
            self._ring()
        self._on_commit(pages)
        return apsw.SQLITE_OK

    def _end(self, *, roll_back: bool, reconnect: bool = False) -> None:
        connection = self._connection
        try:
            if roll_back and connection is not None and connection.in_transaction:
                connection.execute(ROLLBACK)
        except apsw.Error:
            # A connection that cannot even roll back is of no use; closing it rolls back.
            reconnect = True
        finally:
            self._turnstile.leave()
            if reconnect:
                self._disconnect()
            # Last: whoever was struck before it comes here again when he closes.
            self._is_open = False
            gate.leave(self._seat)

    def disconnect(self) -> None:
        """Before a fork."""
        self._disconnect(close_as_it_is)

    def _disconnect(self, close: Callable[[apsw.Connection], None] = close_connection) -> None:
        with self._closing:
            connection, self._connection, self._transaction = self._connection, None, None
        if connection is not None:
            close(connection)
