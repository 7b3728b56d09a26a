"""A reading connection of its own for a caller that cannot wait for one of the pool.

A look into the file after each commit takes microseconds; to borrow a connection for it would
take several times as long.
"""

from __future__ import annotations

import threading
from typing import Any

import apsw

from penstock.stores.sqlite.connection import (
    Database,
    close_as_it_is,
    close_connection,
    translate,
)
from penstock.stores.sqlite.forks import add_holder, gate


class Lane:
    """For one thread at a time; a second one waits.

    Whether the file is still there is not asked: nothing new is found in one that was replaced,
    and whoever acts on what was found asks on the long way.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._connection: apsw.Connection | None = None
        self._generation = 0
        self._is_closed = False
        add_holder(self)

    def fetch(self, sql: str, parameters: Any = ()) -> list[Any]:
        """The rows of one statement, which is a view of its own."""
        with gate, self._lock:
            connection = self._connection
            if connection is None or self._generation != self._database.generation:
                connection = self._reconnect()
            try:
                rows = connection.execute(sql, parameters).fetchall()
            except apsw.Error as error:
                self._drop()
                raise translate(error, self._database.path) from error
            if self._is_closed:
                self._drop()
            return rows

    def close(self) -> None:
        with gate, self._lock:
            self._is_closed = True
            self._drop()

    def disconnect(self) -> None:
        """Before a fork."""
        connection, self._connection = self._connection, None
        if connection is not None:
            close_as_it_is(connection)

    def _reconnect(self) -> apsw.Connection:
        self._drop()
        self._generation = self._database.generation
        self._connection = self._database.connect(read_only=True)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            close_connection(connection)
