"""The SQLite store: wires its parts, keeps the file in shape."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from penstock.clock import Clock
from penstock.entry import keep_for
from penstock.errors import StatementFailed
from penstock.model import Check, Instance, LogState
from penstock.ports import Capabilities
from penstock.settings import Settings
from penstock.stores.sqlite import backup, doctor, migrate
from penstock.stores.sqlite.checkpoint import Checkpointer
from penstock.stores.sqlite.connection import (
    Database,
    ReaderPool,
    fetch_all,
    fetch_value,
    translated,
)
from penstock.stores.sqlite.consumers import SqliteConsumerReader
from penstock.stores.sqlite.feeds import SqliteFeedReader
from penstock.stores.sqlite.forks import gate
from penstock.stores.sqlite.guard import guard
from penstock.stores.sqlite.job_reader import SqliteJobReader
from penstock.stores.sqlite.lake import SqliteLakeReader
from penstock.stores.sqlite.lane import Lane
from penstock.stores.sqlite.leases import SqliteInstanceReader, SqliteLeaseReader
from penstock.stores.sqlite.ledger import SqliteLedgerReader
from penstock.stores.sqlite.liveness import Leasing, Liveness
from penstock.stores.sqlite.pipelines import SqlitePipelineReader
from penstock.stores.sqlite.presence import SqlitePresenceReader
from penstock.stores.sqlite.scan import SqliteScanner
from penstock.stores.sqlite.schedules import SqliteScheduleReader
from penstock.stores.sqlite.sinks import SqliteSinkReader
from penstock.stores.sqlite.topic_reader import SqliteTopicReader
from penstock.stores.sqlite.topic_rows import SQL, NameBook, log_state
from penstock.stores.sqlite.transaction import SqliteWriter
from penstock.stores.sqlite.turnstile import close_inherited
from penstock.stores.sqlite.wake import Bell, SqliteWake
from penstock.stores.sqlite.wal_space import WalSpace

SHARED_MEMORY = Path("/dev/shm")


class SqliteStore:
    def __init__(
        self, path: Path, settings: Settings, clock: Clock, *, is_private: bool = False
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._is_private = is_private
        synchronous = {"full": "FULL", "os": "NORMAL"}[settings.durability]
        self._database = Database(
            path,
            synchronous="OFF" if is_private else synchronous,
            lock_timeout_seconds=settings.lock_timeout_seconds,
        )
        self.capabilities = Capabilities(
            durable=not is_private and settings.durability == "full",
            shared=not is_private,
            sql=True,
            backup=True,
        )
        self.location = "memory" if is_private else str(path)
        self._database.create()
        try:
            self._prepare()
        except BaseException:
            self._database.forget()
            raise
        self._names = NameBook()
        self._pool = ReaderPool(self._database)
        self._lane = Lane(self._database)
        self._leasing = Leasing(Liveness(path), clock.monotonic)
        self._checkpointer = Checkpointer(self._database, wal_bytes_max=settings.wal_bytes_max)
        self._space = WalSpace(self._database, self._checkpointer)
        self._bell = Bell(path)
        self._registering = threading.Lock()
        self._instance: Instance | None = None
        self.on_growth: Callable[[], None] | None = None
        self.topics = SqliteTopicReader(self._pool, self._names)
        self.consumers = SqliteConsumerReader(self._pool, self._leasing)
        self.leases = SqliteLeaseReader(self._pool, self._leasing)
        self.instances = SqliteInstanceReader(self._pool, self._leasing)
        self.presence = SqlitePresenceReader(self._pool, self._leasing)
        self.jobs = SqliteJobReader(self._pool, self._lane, self._leasing, clock.now)
        self.schedules = SqliteScheduleReader(self._pool)
        self.ledger = SqliteLedgerReader(self._pool, self._leasing)
        self.sinks = SqliteSinkReader(self._pool)
        self.feeds = SqliteFeedReader(self._pool)
        self.pipelines = SqlitePipelineReader(self._pool, self._leasing)
        self.lake = SqliteLakeReader(self._pool)

    def beside(self, suffix: str) -> Path:
        path = self._database.path
        return path.with_name(path.name + suffix)

    @classmethod
    def in_memory(cls, settings: Settings, clock: Clock) -> SqliteStore:
        """A private store in shared memory: the same code, gone when it is closed."""
        root = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        _remove_leftovers(root)
        folder = Path(tempfile.mkdtemp(prefix=f"penstock-{os.getpid()}-", dir=root))
        return cls(folder / "memory.db", settings, clock, is_private=True)

    def open_writer(self) -> SqliteWriter:
        return SqliteWriter(
            self._database,
            self._names,
            self._leasing,
            self._space,
            idempotency_seconds=self._settings.idempotency_seconds,
            ledger_keep=keep_for(self._settings.ledger_seconds),
            on_commit=self._committed,
            ring=self.ring,
        )

    def open_wake(self) -> SqliteWake:
        return SqliteWake(self._database)

    def scan(self) -> SqliteScanner:
        return SqliteScanner(self._pool, self._clock)

    def ring(self) -> None:
        self._bell.ring()

    def log(self) -> LogState:
        with self._pool.read() as connection:
            return log_state(connection)

    def query(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        with self._pool.read() as connection:
            try:
                return fetch_all(connection, sql, parameters)
            except apsw.ReadOnlyError as error:
                raise StatementFailed(
                    "This connection only reads.", hint="Write with hub.transaction()."
                ) from error

    def register(self, name: str) -> Instance:
        with self._registering:
            if self._instance is None:
                writer = self.open_writer()
                try:
                    with writer.transaction() as transaction:
                        number = transaction.instances.number()
                        while not self._leasing.liveness.declare(number):
                            number = transaction.instances.number()
                finally:
                    writer.close()
                self._leasing.instance = number
                self._instance = Instance(number, name, self._clock.now())
            return self._instance

    def maintain(self, *, force: bool = False) -> None:
        self._checkpointer.run(force=force)

    def backup(self, target: Path, progress: Callable[[int, int], None] | None = None) -> None:
        with gate:
            backup.make(self._database, target, progress)

    def restore(self, source: Path, progress: Callable[[int, int], None] | None = None) -> None:
        with gate:
            backup.restore(self._database, source, self._clock.now(), progress)
        self.ring()

    def new_generation(self) -> str:
        with gate:
            connection = self._database.connect()
            try:
                with translated(self._database.path):
                    epoch = str(fetch_value(connection, SQL["new_generation"]))
            finally:
                connection.close()
        self.ring()
        return epoch

    def checks(self) -> list[Check]:
        return doctor.checks(self._database, self._pool, self._settings.wal_bytes_max)

    def abandon(self) -> None:
        # Connections were closed before the fork. Locks that belong to an open file would outlive
        # the parent if they stayed open here.
        close_inherited()
        self._leasing.liveness.close()
        guard.renew()

    def close(self) -> None:
        self._pool.close()
        self._lane.close()
        self._checkpointer.close()
        self._bell.close()
        self._leasing.liveness.close()
        self._database.forget()
        if self._is_private:
            shutil.rmtree(self._database.path.parent, ignore_errors=True)

    def _committed(self, pages: int) -> None:
        self._checkpointer.committed(pages)
        if self.on_growth is not None and self._checkpointer.is_due:
            self.on_growth()

    def _prepare(self) -> None:
        with gate:
            connection = self._database.connect()
            try:
                migrate.prepare(
                    connection,
                    self._database.path,
                    auto=self._settings.migrate == "auto",
                    now=self._clock.now(),
                )
            finally:
                connection.close()


def _remove_leftovers(root: Path) -> None:
    """Private stores of processes that were killed still take up memory."""
    for folder in root.glob("penstock-*-*"):
        number = folder.name.split("-")[1]
        if (
            number.isdigit()
            and not Path(f"/proc/{number}").exists()
            and Path("/proc/self").exists()
        ):
            shutil.rmtree(folder, ignore_errors=True)
