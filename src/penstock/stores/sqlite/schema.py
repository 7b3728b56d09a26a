"""The schema of a file as an operator sees it: what it has, what is known, up and down.

Works on files that a hub would refuse to open because they are too old or too new.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

from penstock.clock import Clock, Micros
from penstock.errors import SchemaTooNew, StoreUnavailable
from penstock.settings import Settings
from penstock.stores.sqlite import migrate
from penstock.stores.sqlite.connection import Database, fetch_value, translated
from penstock.stores.sqlite.forks import gate


class SchemaStep(msgspec.Struct, frozen=True):
    """One step; `applied_at` is None if the file does not have it."""

    version: int
    name: str
    applied_at: Micros | None


class SchemaStatus(msgspec.Struct, frozen=True):
    """Version 0 is a file without penstock's tables, or no file at all."""

    location: str
    exists: bool
    version: int
    known: int
    is_usable: bool
    """Whether this program can open the file, migrating it if it is allowed to."""
    advice: str
    steps: list[SchemaStep]


class Schema:
    """Opens the file for each call, and never makes one unless it is told to go up."""

    def __init__(self, path: Path, settings: Settings, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._database = Database(
            path, synchronous="FULL", lock_timeout_seconds=settings.lock_timeout_seconds
        )

    def status(self) -> SchemaStatus:
        steps = migrate.migrations()
        known = steps[-1].version
        if not self._path.exists():
            return self._status([], known, known, exists=False)
        with self._open() as connection, translated(self._path):
            applied = migrate.history(connection)
            needed = known
            if applied:
                needed = fetch_value(connection, "SELECT max(readable_from) FROM penstock_schema")
        return self._status(applied, known, needed, exists=True)

    def up(self, to: int | None = None) -> list[str]:
        """Apply what is missing up to a version (default: all). Returns the names applied."""
        with self._open() as connection:
            self._refuse_newer(connection)
            return migrate.upgrade(connection, self._path, to=to, now=self._clock.now())

    def down(self, to: int) -> list[str]:
        """Undo steps above a version; what they hold is lost. Returns the names undone."""
        if not self._path.exists():
            raise StoreUnavailable(f"There is no database at {self._path}.", hint="Check --url.")
        with self._open() as connection:
            self._refuse_newer(connection)
            return migrate.downgrade(connection, self._path, to=to)

    def _status(
        self, applied: list[tuple[int, str, Micros]], known: int, needed: int, *, exists: bool
    ) -> SchemaStatus:
        version = applied[-1][0] if applied else 0
        times = {number: (name, at) for number, name, at in applied}
        names = {step.version: step.name for step in migrate.migrations()}
        advice = ""
        if needed > known:
            advice = "Upgrade penstock here, or run 'penstock migrate down' with the newer version."
        elif version > known:
            advice = "Made by a newer penstock, and usable by this one."
        elif version < known:
            advice = "Run 'penstock migrate up', or let the first use do it."
        return SchemaStatus(
            str(self._path),
            exists,
            version,
            known,
            needed <= known,
            advice,
            [
                SchemaStep(number, names.get(number, ""), None)
                if number not in times
                else SchemaStep(number, *times[number])
                for number in sorted({*names, *times})
            ],
        )

    @contextmanager
    def _open(self) -> Iterator[apsw.Connection]:
        self._database.create()
        try:
            with gate:
                connection = self._database.connect()
                try:
                    yield connection
                finally:
                    connection.close()
        finally:
            self._database.forget()

    def _refuse_newer(self, connection: apsw.Connection) -> None:
        with translated(self._path):
            version = migrate.current_version(connection)
        known = migrate.migrations()[-1].version
        if version > known:
            # Undoing a step below an unknown one would leave a schema that nobody ever had.
            raise SchemaTooNew(
                f"{self._path} has schema version {version}; this penstock knows {known} "
                "and cannot change it."
            )
