"""Presence in SQLite. Who is alive is asked of the kernel, as for leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from penstock.model import Instance, Presence
from penstock.stores import queries
from penstock.stores.sqlite.connection import ReaderPool, as_json, fetch_all, fetch_one
from penstock.stores.sqlite.leases import is_alive
from penstock.stores.sqlite.liveness import Leasing

SQL = queries.load("penstock.stores.sqlite", "presence.sql")

ALL = -1

_info = msgspec.json.Decoder(dict[str, Any])


class SqlitePresenceWriter:
    def __init__(self, connection: apsw.Connection, leasing: Leasing) -> None:
        self._connection = connection
        self._leasing = leasing

    def join(self, instance: Instance, members: Sequence[Presence]) -> list[Presence]:
        if not members:
            return []
        self._connection.execute(SQL["own"], (instance.id, self._leasing.boot_id))
        alive, _ = self._owners()
        news = []
        for member in members:
            topic, client = member.topic, member.client
            info = msgspec.json.encode(member.info) if member.info else None
            before = self._listed(topic, client, alive)
            values = (topic, client, instance.id, member.joined_at, info)
            self._connection.execute(SQL["enter"], values)
            if before is None or before[2] != info:
                news.append(msgspec.structs.replace(member, instance=instance.id))
        return news

    def leave(self, instance: Instance, members: Sequence[tuple[str, str]]) -> list[Presence]:
        removed = (
            fetch_one(self._connection, SQL["remove"], (topic, client, instance.id))
            for topic, client in members
        )
        return self._gone([row for row in removed if row is not None])

    def leave_all(self, instance: Instance) -> list[Presence]:
        rows = fetch_all(self._connection, SQL["remove_of_instance"], (instance.id, ALL))
        self._connection.execute(SQL["disown"], (instance.id,))
        return self._gone(rows)

    def forget_dead(self, *, limit: int = 1_000) -> list[Presence]:
        removed: list[Any] = []
        _, dead = self._owners()
        for number in dead:
            left = limit - len(removed)
            if left <= 0:
                break
            rows = fetch_all(self._connection, SQL["remove_of_instance"], (number, left))
            removed += rows
            if len(rows) < left:
                self._connection.execute(SQL["disown"], (number,))
        return self._gone(removed)

    # Inside

    def _owners(self) -> tuple[set[int], list[int]]:
        return _owners(fetch_all(self._connection, SQL["owners"]), self._leasing)

    def _listed(self, topic: str, client: str, alive: set[int]) -> Any:
        """The client's entry as it is listed, if it is.

        Entries of dead processes go on the way, so that nobody is told that the client has left
        who comes back, or twice that it has.
        """
        listed = None
        for row in fetch_all(self._connection, SQL["entries_of"], (topic, client)):
            if row[0] not in alive:
                self._connection.execute(SQL["remove"], (topic, client, row[0]))
            elif listed is None or row[1] > listed[1]:
                listed = row
        return listed

    def _gone(self, removed: list[Any]) -> list[Presence]:
        """Those of the removed who are not listed any more, each once."""
        if not removed:
            return []
        alive, _ = self._owners()
        entries = {(row[0], row[1]): row for row in removed}
        return [
            _presence(row)
            for (topic, client), row in entries.items()
            if self._listed(topic, client, alive) is None
        ]


class SqlitePresenceReader:
    def __init__(self, pool: ReaderPool, leasing: Leasing) -> None:
        self._pool = pool
        self._leasing = leasing

    def members(self, topic: str, limit: int) -> list[Presence]:
        with self._pool.read() as connection:
            alive = self._alive(connection)
            rows = fetch_all(connection, SQL["members"], (topic, alive, limit))
        return [_presence(row) for row in rows]

    def count(self, topic: str) -> int:
        with self._pool.read() as connection:
            alive = self._alive(connection)
            return int(fetch_one(connection, SQL["count_members"], (topic, alive))[0])

    def has_dead(self) -> bool:
        _, dead = _owners(self._pool.fetch(SQL["owners"]), self._leasing)
        return bool(dead)

    def _alive(self, connection: apsw.Connection) -> str:
        alive, _ = _owners(fetch_all(connection, SQL["owners"]), self._leasing)
        return as_json(sorted(alive))


def _owners(rows: list[Any], leasing: Leasing) -> tuple[set[int], list[int]]:
    """The processes that have entries: the live ones, and the dead."""
    alive = {number for number, boot in rows if is_alive(number, boot, leasing)}
    return alive, [number for number, _ in rows if number not in alive]


def _presence(row: Any) -> Presence:
    topic, client, info, joined_at, instance = row
    return Presence(topic, client, {} if info is None else _info.decode(info), joined_at, instance)
