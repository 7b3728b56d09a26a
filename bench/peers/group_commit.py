"""Group commit through bare apsw: the least that tasks which await one writing thread can cost."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Protocol

import apsw
import msgspec

import penstock
from bench.process import Link, Meter
from bench.workload import DATABASE, PAYLOAD, TYPE, url
from penstock.model import Position, Receipt
from penstock.stores.sqlite.topic_rows import SQL, log_state

CHECKPOINT_PAGES = 4000
TOPIC = "bench"


class Log(Protocol):
    def encode(self, payload: Any) -> bytes: ...
    def write(self, bodies: list[bytes]) -> list[Any]:
        """Returns when they are on disk."""


class Bare:
    """An id, a number and the bytes, which are encoded beforehand; nothing comes back."""

    def __init__(self) -> None:
        self._connection = connect()
        self._connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, topic INT, body BLOB)")
        self._last_id = 0
        self._body = msgspec.json.encode(PAYLOAD)

    def encode(self, payload: Any) -> bytes:
        return self._body

    def write(self, bodies: list[bytes]) -> list[Any]:
        rows = [(self._last_id + n, 1, body) for n, body in enumerate(bodies, 1)]
        self._last_id += len(rows)
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO log VALUES (?, ?, ?)", rows)
        self._connection.execute("COMMIT")
        return rows


class Topic:
    """What a publish cannot do without: the payload is encoded, the process waits for its turn, the
    log's end is read and moved, messages are in the index of their topic, the topic's counts are
    right, other processes are woken, each message has a receipt. No checks, options or errors."""

    def __init__(self) -> None:
        with penstock.connect(url(Path.cwd())) as hub:
            hub.topics.create(TOPIC)
        self._connection = connect()
        self.encode = msgspec.json.Encoder().encode
        self._next, self._turn, self._bell = [
            os.open(f"{DATABASE}-{name}", os.O_RDWR | os.O_CREAT)
            for name in ("next", "turn", "bell")
        ]

    def write(self, bodies: list[bytes]) -> list[Any]:
        execute = self._connection.execute
        fcntl.flock(self._next, fcntl.LOCK_EX)
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        fcntl.flock(self._next, fcntl.LOCK_UN)
        execute("BEGIN IMMEDIATE")
        log, at = log_state(self._connection), time.time_ns() // 1000
        last_id = log.last_id + len(bodies)
        array = apsw.carray(tuple(bodies), flags=apsw.SQLITE_CARRAY_BLOB)
        execute(SQL["insert_run"], (at, "bench:1", log.last_id, 1, TYPE, 1, array))
        execute(SQL["move_log"], (last_id, at))
        size = sum(map(len, bodies))
        execute(SQL["count_appended_to_one"], (at, 1, len(bodies), size, last_id))
        execute("COMMIT")
        os.pwrite(self._bell, b"\0", 0)
        fcntl.flock(self._turn, fcntl.LOCK_UN)
        new = range(log.last_id + 1, last_id + 1)
        return [Receipt(TOPIC, Position(log.epoch, number), at) for number in new]


LOGS: dict[str, type[Bare] | type[Topic]] = {"bare": Bare, "topic": Topic}


def connect() -> apsw.Connection:
    connection = apsw.Connection(DATABASE)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
    return connection


def in_flight(
    link: Link, *, log: str, tasks: int, seconds: float, warm_up_seconds: float
) -> dict[str, Any]:
    """`tasks` tasks, each awaiting what it has given to the writing thread, for some seconds."""
    writer: Log = LOGS[log]()
    queue: deque[tuple[asyncio.Future[Any], bytes]] = deque()
    arrived = threading.Event()

    def resolve(group: list[tuple[asyncio.Future[Any], bytes]], results: list[Any]) -> None:
        for (future, _), result in zip(group, results, strict=True):
            future.set_result(result)

    def write(loop: asyncio.AbstractEventLoop) -> None:
        while not loop.is_closed():
            arrived.wait()
            arrived.clear()
            while queue:
                group = [queue.popleft() for _ in range(len(queue))]
                results = writer.write([body for _, body in group])
                loop.call_soon_threadsafe(resolve, group, results)

    async def publish(loop: asyncio.AbstractEventLoop) -> None:
        future: asyncio.Future[Any] = loop.create_future()
        queue.append((future, writer.encode(PAYLOAD)))
        if not arrived.is_set():
            arrived.set()
        await future

    async def publish_for(duration: float) -> int:
        loop = asyncio.get_running_loop()
        end = time.perf_counter() + duration

        async def task() -> int:
            count = 0
            while not count or time.perf_counter() < end:
                await publish(loop)
                count += 1
            return count

        return sum(await asyncio.gather(*(task() for _ in range(tasks))))

    async def run() -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        threading.Thread(target=write, args=(loop,), daemon=True).start()
        await publish_for(warm_up_seconds)
        link.ready()
        link.wait_go()
        with Meter() as meter:
            published = await publish_for(seconds)
        return {"per_second": published / meter.seconds, "cores": meter.cores}

    return asyncio.run(run())
