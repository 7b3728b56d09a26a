"""Bare SQLite through apsw: what penstock's own cost is measured against."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apsw
import msgspec

import penstock
from bench.process import Link, Meter
from bench.workload import DATABASE, PAYLOAD, TYPE, url

# `document`: the table of the message queue penstock descends from, with all of its indexes.
# `bare`: what a log needs at the least.
TABLES = {
    "document": """
        CREATE TABLE message_queue (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            canvas_id TEXT NOT NULL,
            message_type TEXT NOT NULL,
            payload TEXT NOT NULL,
            created_at TEXT DEFAULT (datetime('now')),
            expires_at TEXT NOT NULL
        );
        CREATE INDEX idx_message_queue_canvas_id_id ON message_queue (canvas_id, id);
        CREATE INDEX idx_message_queue_expires_at ON message_queue (expires_at);
        CREATE INDEX idx_message_queue_priority ON message_queue (canvas_id, id)
        WHERE message_type IN ('cursor', 'presence', 'user-connected', 'user-disconnected');
    """,
    "bare": """
        CREATE TABLE message_queue (
            id INTEGER PRIMARY KEY,
            canvas_id INTEGER NOT NULL,
            message_type TEXT NOT NULL,
            payload TEXT NOT NULL,
            expires_at INTEGER NOT NULL
        );
        CREATE INDEX idx_message_queue_canvas_id_id ON message_queue (canvas_id);
    """,
}
INSERT = (
    "INSERT INTO message_queue (canvas_id, message_type, payload, expires_at) VALUES (?, ?, ?, ?)"
)
ROW = ("canvas-abc", TYPE, msgspec.json.encode(PAYLOAD).decode(), "2026-01-01 00:01:00")
BARE_ROW = (1, TYPE)
BARE_REST = (1_767_225_660_000_000,)

# `ours`: penstock's own table, with its columns and its index, and the values it would write.
INSERT_OURS = """
    INSERT INTO penstock_messages (topic_id, created_at, type, encoding, producer, body)
    VALUES (?, ?, ?, ?, ?, ?)
"""
OUR_ROW = (1, 1_767_225_660_000_000, TYPE, 1, "bench-host:12345")

BUSY_MS = 60_000
SATURATED_BATCH = 100


def connect(table: str) -> apsw.Connection:
    connection = apsw.Connection(DATABASE)
    connection.set_busy_timeout(BUSY_MS)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    if table in TABLES and not connection.table_exists(None, "message_queue"):
        connection.execute(TABLES[table])
    return connection


def insert(
    connection: apsw.Connection, rows: Iterable[tuple[Any, ...]], statement: str = INSERT
) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(statement, rows)
    connection.execute("COMMIT")


def in_bulk(link: Link, *, rows: int, batch: int, table: str) -> dict[str, Any]:
    """Dicts, encoded and inserted into `ours` or `bare`, one transaction per batch."""
    if table == "ours":
        with penstock.connect(url(Path.cwd())) as hub:
            hub.topics.create("bench")
    connection = connect(table)
    payloads = [PAYLOAD] * batch
    encode = msgspec.json.Encoder().encode

    def insert_batch() -> None:
        if table == "ours":
            insert(connection, [(*OUR_ROW, encode(p)) for p in payloads], INSERT_OURS)
        else:
            insert(connection, [(*BARE_ROW, encode(p).decode(), *BARE_REST) for p in payloads])

    insert_batch()
    link.ready()
    link.wait_go()
    with Meter() as meter:
        for _ in range(rows // batch):
            insert_batch()
    connection.close()
    return {"per_second": rows / meter.seconds, "cores": meter.cores}


def saturated(link: Link) -> dict[str, Any]:
    """One batch after the other, until told to stop."""
    connection = connect("document")
    group = [ROW] * SATURATED_BATCH
    insert(connection, group)
    link.ready()
    link.wait_go()
    link.watch()
    inserted = 0
    with Meter() as meter:
        while not link.stopping.is_set():
            insert(connection, group)
            inserted += len(group)
    return {"per_second": inserted / meter.seconds, "cores": meter.cores}


def light(link: Link, *, samples: int, every_ms: float, seconds_max: float) -> dict[str, Any]:
    """One row now and then, and how long each took."""
    connection = connect("document")
    link.ready()
    link.wait_go()
    taken_ms: list[float] = []
    deadline = time.monotonic() + seconds_max
    while len(taken_ms) < samples and (not taken_ms or time.monotonic() < deadline):
        time.sleep(every_ms / 1000)
        started = time.monotonic_ns()
        insert(connection, [ROW])
        taken_ms.append((time.monotonic_ns() - started) / 1e6)
    return {"taken_ms": taken_ms}


def poller(link: Link, *, messages: int, every_ms: float) -> dict[str, Any]:
    """Looks into penstock's log every so often, and notes when it saw each new message."""
    connection = apsw.Connection(str(Path.cwd() / DATABASE), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(BUSY_MS)
    seen: list[tuple[int, int]] = []
    last = connection.execute("SELECT max(id) FROM penstock_messages").get or 0
    link.ready()
    link.wait_go()
    while len(seen) < messages:
        time.sleep(every_ms / 1000)
        query = "SELECT id, body FROM penstock_messages WHERE id > ? ORDER BY id LIMIT 100"
        found = [row[0] for row in connection.execute(query, (last,))]
        now = time.monotonic_ns()
        seen.extend((number, now) for number in found)
        last = found[-1] if found else last
    return {"seen": seen}
