"""The database locked, moved away, full or restored under live sockets (D8, D6).

Sockets stay open, health tells, and once the database is back messages go on without a gap.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

import penstock
from tests.crash.clients import Client, Publisher, Subscriber, check, matching
from tests.factories import hub_on
from tests.serving import HttpServer
from tests.sockets import eventually
from tests.waiting import SOON

TOPICS = ["load.a", "load.b"]
PATTERNS = ["load.a", "load.b", "load.*", "*"]
UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
def server(path: Path) -> Iterator[HttpServer]:
    with HttpServer(path, lock_timeout_seconds=0.5, stats_seconds=0) as started:
        yield started


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Traffic:
    """Publishers and subscribers that go on through whatever happens to the database."""

    def __init__(self, server: HttpServer, path: Path) -> None:
        ports = [server.port]
        self.server = server
        self.path = path
        self.publishers = [Publisher(ports, f"p{n}", TOPICS) for n in range(2)]
        for publisher in self.publishers:
            publisher.is_patient = True
        self.subscribers = [
            Subscriber(ports, pattern, format)
            for pattern in PATTERNS
            for format in ("json", "msgpack")
        ]

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """At the end everything acknowledged was received, on the connections of the beginning."""
        async with (
            running(*(one.run() for one in self.subscribers)),
            running(*(one.run() for one in self.publishers)) as sending,
        ):
            await self.goes_on()
            yield
            await self.goes_on()
            for publisher in self.publishers:
                publisher.is_stopping = True
            async with asyncio.timeout(SOON):
                await asyncio.gather(*sending)
                log = await asyncio.to_thread(self._log)
                for one in self.subscribers:
                    await one.reach(matching(log, one.topic)[-1])
        check(log, self.publishers, self.subscribers)
        for client in [*self.publishers, *self.subscribers]:
            assert client.connects == 1
            assert not client.closes
        assert "Traceback" not in self.server.log.read_text()

    async def goes_on(self) -> None:
        """Until everybody has received something published from now on."""
        async with asyncio.timeout(SOON):
            wanted = {one: len(one.acked) + 4 for one in self.publishers}
            await eventually(lambda: all(len(one.acked) >= wanted[one] for one in wanted))
            last = max(one.acked[-1] for one in self.publishers)
            await asyncio.gather(*(one.reach(last - 3) for one in self.subscribers))

    async def fails(self, *codes: str) -> None:
        """Until publishers were told."""
        await eventually(
            lambda: all(any(one.errors[code] for code in codes) for one in self.publishers)
        )

    def _log(self) -> list[penstock.Message]:
        with hub_on(self.path) as hub:
            return hub.topics.read("*", limit=1_000_000)


async def health(server: HttpServer, status: int) -> None:
    """Until it says so."""
    async with asyncio.timeout(SOON), httpx.AsyncClient(timeout=SOON) as http:
        while True:
            if (await http.get(f"{server.url}/health")).status_code == status:
                return
            await asyncio.sleep(0.05)


def bring_back(away: Path, path: Path) -> None:
    assert not path.exists(), "a second database was made in the place of the first"
    away.rename(path)


async def subscribes(client: Client, connection: Any, topic: str) -> None:
    """Until it may."""
    async with asyncio.timeout(SOON):
        while True:
            reply = await client.ask(connection, op="subscribe", topic=topic, last=5)
            if "ok" in reply:
                return
            await asyncio.sleep(0.05)


async def test_a_database_that_is_locked_for_a_while(server: HttpServer, path: Path) -> None:
    """Longer than lock_timeout_seconds: publishers are told to try again, and lose nothing."""
    traffic = Traffic(server, path)
    async with traffic.flowing():
        connection = apsw.Connection(str(path))
        connection.set_busy_timeout(20_000)
        connection.execute("BEGIN IMMEDIATE")
        try:
            await traffic.fails("store_busy")
        finally:
            connection.execute("ROLLBACK")
            connection.close()
    await health(server, 200)


async def test_a_database_that_is_moved_away_and_back(server: HttpServer, path: Path) -> None:
    traffic = Traffic(server, path)
    async with traffic.flowing():
        away = path.with_name("away.db")
        os.rename(path, away)
        try:
            await traffic.fails("store_replaced", "store_unavailable")
            await health(server, 503)
            # Somebody who comes just now keeps the socket and can ask again.
            client = Client([server.port])
            connection = await client.open()
            assert "error" in await client.ask(connection, op="subscribe", topic="new", last=5)
        finally:
            bring_back(away, path)
        await health(server, 200)
        await subscribes(client, connection, "new")
        await connection.close()


async def test_a_disk_that_is_full_for_a_while(server: HttpServer, path: Path) -> None:
    """Nothing that was acknowledged is lost, and what was refused is not there by half."""
    traffic = Traffic(server, path)
    async with traffic.flowing():
        size = os.stat(f"{path}-wal").st_size
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, UNLIMITED))
        try:
            await traffic.fails("store_full", "store_error", "outcome_unknown", "store_unavailable")
        finally:
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
    await health(server, 200)
    with hub_on(path) as hub, hub.connection() as connection:
        assert connection.execute("PRAGMA integrity_check") == [("ok",)]


async def test_a_restore_ends_subscriptions_and_a_new_one_is_told_the_gap(
    server: HttpServer, path: Path, tmp_path: Path
) -> None:
    """D6: the log is another one; nobody is served it under the old one's positions."""
    with hub_on(path) as hub:
        hub.topics.publish("news", "kept")
        hub.backup(tmp_path / "backup.db")
        old = hub.topics.publish("news", "lost")
        client = Client([server.port])
        connection = await client.open()
        reply = await client.ask(connection, op="subscribe", topic="news", start="earliest")
        assert "ok" in reply
        heard: list[Any] = []
        while len(heard) < 2:
            push = await client.hear(connection)
            heard += [entry["payload"] for entry in push["messages"]]
        assert heard == ["kept", "lost"]
        await asyncio.to_thread(hub.restore, tmp_path / "backup.db")
        push = await client.hear(connection)
        assert push["push"] == "unsubscribed"
        assert push["error"]["code"] == "epoch_changed"
        reply = await client.ask(connection, op="subscribe", topic="news", after=str(old.position))
        assert reply["ok"]["recovered"] is False
        assert reply["ok"]["gap"]["reason"] == "epoch_changed"
        new = await asyncio.to_thread(hub.topics.publish, "news", "new")
        push = await client.hear(connection)
        assert [entry["payload"] for entry in push["messages"]] == ["new"]
        assert push["messages"][0]["id"] == new.id
        await connection.close()
    assert "Traceback" not in server.log.read_text()


async def test_presence_survives_a_database_that_was_away(server: HttpServer, path: Path) -> None:
    """T9: who joined or watched meanwhile is entered and told afterwards."""
    watcher, member = Client([server.port]), Client([server.port], name="ann")
    watching, joining = await watcher.open(), await member.open()
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(20_000)
    connection.execute("BEGIN IMMEDIATE")
    try:
        reply = await member.ask(joining, op="subscribe", topic="room", join={})
        assert "ok" in reply, reply
        await watcher.say(watching, op="subscribe", topic="room", presence=True)
        assert "ok" in await watcher.hear(watching)
    finally:
        connection.execute("ROLLBACK")
        connection.close()
    seen: set[str] = set()
    while "ann" not in seen:
        push = await watcher.hear(watching)
        seen |= {one["client"] for one in [*(push.get("members") or ()), *push.get("joined", ())]}
    await joining.close()
    await watching.close()
    assert "Traceback" not in server.log.read_text()
