"""The schema, in numbered steps up and down, each in its own transaction.

A step says from which schema version on a program can still use the file (`readable_from`), so
that during a rolling upgrade the release before can go on.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import apsw
import msgspec

from penstock.clock import Micros
from penstock.errors import InvalidInput, SchemaTooNew, SchemaTooOld
from penstock.stores.sqlite.connection import (
    fetch_value,
    translated,
)

_FILE = re.compile(r"^(\d{4})_(\w+)\.(up|down)\.sql$")
_READABLE_FROM = re.compile(r"^-- readable from (\d+)$", re.MULTILINE)


class Migration(msgspec.Struct, frozen=True):
    version: int
    name: str
    up: str
    down: str

    @property
    def readable_from(self) -> int:
        """Programs that know this version, or a later one, can use the file after the step."""
        found = _READABLE_FROM.search(self.up)
        return int(found.group(1)) if found else self.version


def migrations() -> list[Migration]:
    texts: dict[tuple[int, str], dict[str, str]] = {}
    for entry in resources.files(__package__).joinpath("migrations").iterdir():
        match = _FILE.match(entry.name)
        if match:
            step = texts.setdefault((int(match[1]), match[2]), {})
            step[match[3]] = entry.read_text(encoding="utf-8")
    return [
        Migration(version, name, step["up"], step["down"])
        for (version, name), step in sorted(texts.items())
    ]


def current_version(connection: apsw.Connection) -> int:
    if not _has_schema_table(connection):
        return 0
    return int(fetch_value(connection, "SELECT coalesce(max(version), 0) FROM penstock_schema"))


def history(connection: apsw.Connection) -> list[tuple[int, str, Micros]]:
    if not _has_schema_table(connection):
        return []
    return list(
        connection.execute("SELECT version, name, applied_at FROM penstock_schema ORDER BY version")
    )


def prepare(connection: apsw.Connection, path: Path, *, auto: bool, now: Micros) -> None:
    """Bring a file that is opened to a version this program can use, or refuse it."""
    with translated(path):
        version = current_version(connection)
        known = migrations()[-1].version
        if version > known:
            needed = int(fetch_value(connection, "SELECT max(readable_from) FROM penstock_schema"))
            if needed > known:
                raise SchemaTooNew(
                    f"{path} has schema version {version}; this penstock knows {known}."
                )
        elif version < known:
            if version and not auto:
                raise SchemaTooOld(f"{path} has schema version {version}, not {known}.")
            upgrade(connection, path, to=known, now=now)


def upgrade(connection: apsw.Connection, path: Path, *, to: int | None, now: Micros) -> list[str]:
    """Apply what is missing up to a version (default: all). Returns the names applied."""
    applied = []
    steps = migrations()
    target = steps[-1].version if to is None else to
    if target > steps[-1].version or target < 0:
        raise InvalidInput(f"There is no schema version {target}; the last is {steps[-1].version}.")
    for step in steps:
        if step.version > target:
            break
        with translated(path), _Exclusive(connection):
            # Another process may have made the step while this one waited for the lock.
            if current_version(connection) >= step.version:
                continue
            connection.execute(
                """CREATE TABLE IF NOT EXISTS penstock_schema (
                       version INTEGER PRIMARY KEY, name TEXT NOT NULL,
                       readable_from INTEGER NOT NULL, applied_at INTEGER NOT NULL)"""
            )
            connection.execute(step.up)
            connection.execute(
                "INSERT INTO penstock_schema VALUES (?, ?, ?, ?)",
                (step.version, step.name, step.readable_from, now),
            )
        applied.append(step.name)
    return applied


def downgrade(connection: apsw.Connection, path: Path, *, to: int) -> list[str]:
    """Undo steps above a version; their tables and what is in them go. Returns the names."""
    undone = []
    steps = migrations()
    if to < 0 or to > steps[-1].version:
        raise InvalidInput(f"There is no schema version {to}; the last is {steps[-1].version}.")
    for step in reversed(steps):
        if step.version <= to:
            break
        with translated(path), _Exclusive(connection):
            if current_version(connection) < step.version:
                continue
            connection.execute(step.down)
            connection.execute("DELETE FROM penstock_schema WHERE version = ?", (step.version,))
            if step.version == 1:
                connection.execute("DROP TABLE penstock_schema")
        undone.append(step.name)
    return undone


def _has_schema_table(connection: apsw.Connection) -> bool:
    found = fetch_value(connection, "SELECT 1 FROM sqlite_master WHERE name = 'penstock_schema'")
    return found is not None


class _Exclusive:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
