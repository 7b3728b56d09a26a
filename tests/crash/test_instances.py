"""Several servers on one file behind a load balancer, killed under load (T17, D3, D6, D8, T9).

Whatever is killed when: every acknowledged message reaches every client exactly once, in order.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.crash import checker
from tests.crash.clients import LOST, Client, Publisher, Subscriber, check, matching
from tests.crash.proxies import balanced
from tests.factories import hub_on
from tests.servers import Server

pytestmark = pytest.mark.crash

RUN_SECONDS = 8.0
SOAK_SECONDS = 20 * 60.0
CLIENTS = 50
TOPICS = ["load.a", "load.b", "other.c"]
PATTERNS = ["load.a", "load.b", "load.*", "*", "other.?"]
END_SECONDS = 180.0

Serve = Callable[..., Server]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


@pytest.fixture
def serve(path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda **environment: stack.enter_context(Server(path, **environment))


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Tasks that fail the test if they fail, and end with it."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield tasks
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def whole_log(path: Path) -> list[penstock.Message]:
    """What users published, from a process that had no part in it."""
    with hub_on(path) as hub:
        checker.check_file(hub)
        return hub.topics.read("*", limit=10_000_000)


async def finish(
    path: Path, publishers: list[Publisher], subscribers: list[Subscriber], sending: list[Any]
) -> list[penstock.Message]:
    """Publishers end, subscribers get the rest, and everything is checked."""
    for publisher in publishers:
        publisher.is_stopping = True
    async with asyncio.timeout(END_SECONDS):
        await asyncio.gather(*sending)
        log = await asyncio.to_thread(whole_log, path)
        for subscriber in subscribers:
            await subscriber.reach(matching(log, subscriber.topic)[-1])
    check(log, publishers, subscribers)
    return log


def crowd(ports: list[int], count: int = CLIENTS) -> list[Subscriber]:
    return [
        Subscriber(ports, PATTERNS[n % len(PATTERNS)], ("json", "msgpack")[n % 2], seed=n)
        for n in range(count)
    ]


class Chaos:
    """One server, which never lives long: mostly killed, now and then stopped."""

    def __init__(self, server: Server, seed: int) -> None:
        self.kills = 0
        self.is_stopping = False
        self._server = server
        self._chance = random.Random(seed)

    async def run(self) -> None:
        while not self.is_stopping:
            await asyncio.sleep(self._chance.uniform(0.1, 1.2))
            if self.kills % 3 == 2:
                assert await asyncio.to_thread(self._server.stop) == 0
            else:
                await asyncio.to_thread(self._server.kill)
            self.kills += 1
            # Now and then all are gone for a moment, and everybody has to wait.
            await asyncio.sleep(self._chance.uniform(0.0, 0.5))
            await asyncio.to_thread(self._server.start)


async def kill_servers_under_load(
    path: Path, servers: list[Server], port: int, seconds: float
) -> None:
    subscribers = crowd([port])
    publishers = [
        Publisher([port], f"p{n}", TOPICS, ("json", "msgpack")[n % 2], seed=n) for n in range(4)
    ]
    chaos = [Chaos(server, seed=n) for n, server in enumerate(servers)]
    async with (
        running(*(one.run() for one in subscribers)) as receiving,
        running(*(one.run() for one in publishers)) as sending,
        running(*(one.run() for one in chaos)) as ending,
    ):
        ends_at = asyncio.get_running_loop().time() + seconds
        async with asyncio.timeout(seconds + END_SECONDS):
            # A slow machine takes longer for as much.
            while asyncio.get_running_loop().time() < ends_at or not (
                sum(one.kills for one in chaos) > seconds / 2
                and sum(len(one.acked) for one in publishers) > 20 * seconds
            ):
                await asyncio.sleep(0.05)
                done = [task for task in receiving + sending + ending if task.done()]
                assert not done, "somebody gave up"
        for one in chaos:
            one.is_stopping = True
        await asyncio.gather(*ending)
        log = await finish(path, publishers, subscribers, sending)
    kills = sum(one.kills for one in chaos)
    assert sum(one.connects for one in subscribers) > CLIENTS + kills
    print(
        f"{kills} ends of servers, {len(log)} messages, "
        f"{sum(one.connects for one in subscribers)} connections of {CLIENTS} clients, "
        f"{sum(one.repeated for one in publishers)} publishes answered as duplicates, "
        f"closes {sum((one.closes for one in subscribers), start=type(subscribers[0].closes)())}"
    )


async def test_servers_killed_under_load_lose_nothing(
    path: Path, serve: Serve, tmp_path: Path
) -> None:
    """T17, D3, D6: three servers behind a proxy, fifty clients, kill -9 and SIGTERM at random."""
    servers = [serve() for _ in range(3)]
    with balanced(tmp_path, [server.port for server in servers]) as port:
        await kill_servers_under_load(path, servers, port, RUN_SECONDS)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS * 2)
async def test_servers_killed_for_many_minutes_lose_nothing(
    path: Path, serve: Serve, tmp_path: Path
) -> None:
    servers = [serve() for _ in range(3)]
    with balanced(tmp_path, [server.port for server in servers]) as port:
        await kill_servers_under_load(path, servers, port, SOAK_SECONDS)


async def test_what_is_published_on_one_is_received_on_the_others(path: Path, serve: Serve) -> None:
    """T17, D3: in one order, whichever instance published it."""
    one, two, three = serve(), serve(), serve()
    publishers = [Publisher([server.port], f"p{n}", TOPICS) for n, server in enumerate((one, two))]
    subscribers = crowd([two.port], 10) + crowd([three.port], 10)
    async with (
        running(*(one.run() for one in subscribers)),
        running(*(one.run(0) for one in publishers)) as sending,
    ):
        await asyncio.gather(*(one.reach(300) for one in subscribers))
        await finish(path, publishers, subscribers, sending)
    assert all(one.connects == 1 for one in subscribers)


async def test_a_crash_leaves_the_sockets_of_the_others_untouched(path: Path, serve: Serve) -> None:
    """D8: whoever is on another instance notices nothing."""
    doomed, safe = serve(), serve()
    on_safe = crowd([safe.port], 10)
    # Those of the dead one find the other by themselves.
    on_doomed = crowd([doomed.port], 10)
    publishers = [Publisher([safe.port], "p", TOPICS)]
    async with (
        running(*(one.run() for one in on_safe + on_doomed)),
        running(*(one.run() for one in publishers)) as sending,
    ):
        await asyncio.gather(*(one.reach(60) for one in on_safe + on_doomed))
        for one in on_doomed:
            one.ports = [safe.port]
        await asyncio.to_thread(doomed.kill)
        last = publishers[0].acked[-1]
        await asyncio.gather(*(one.reach(last + 60) for one in on_safe + on_doomed))
        await finish(path, publishers, on_safe + on_doomed, sending)
    assert all(one.connects == 1 and not one.closes for one in on_safe)
    assert all(one.connects == 2 for one in on_doomed)
    assert publishers[0].connects == 1


async def test_stopping_sends_clients_elsewhere_and_they_miss_nothing(
    path: Path, serve: Serve
) -> None:
    """D8: close code 3001, exit code 0, although one client never reads and never goes."""
    settings = {"PENSTOCK_DRAIN_SECONDS": "5"}
    leaving, staying = serve(**settings), serve(**settings)
    subscribers = crowd([leaving.port], 20)
    publishers = [Publisher([staying.port], "p", TOPICS)]
    async with (
        running(*(one.run() for one in subscribers)),
        running(*(one.run() for one in publishers)) as sending,
    ):
        await asyncio.gather(*(one.reach(60) for one in subscribers))
        reader, writer = await asyncio.open_connection("127.0.0.1", leaving.port)
        writer.write(
            b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert b"101" in await reader.readline()
        for one in subscribers:
            one.ports = [staying.port]
        assert await asyncio.to_thread(leaving.stop) == 0
        last = publishers[0].acked[-1]
        await asyncio.gather(*(one.reach(last + 60) for one in subscribers))
        await finish(path, publishers, subscribers, sending)
        writer.transport.abort()
    assert all(one.closes == {3001: 1} for one in subscribers), [one.closes for one in subscribers]


async def test_stopping_sends_what_waits_for_its_batch(path: Path, serve: Serve) -> None:
    """D8: a message that waits for others is sent before the connection is closed."""
    server = serve(PENSTOCK_BATCH_MS="60000", PENSTOCK_BATCH_MAX="1000")
    subscriber = Subscriber([server.port], "load.a")
    with hub_on(path) as hub:
        async with running(subscriber.run()):
            await subscriber.subscribed.wait()
            first = await asyncio.to_thread(hub.topics.publish, "load.a", 1)
            await subscriber.reach(first.id)
            waiting = await asyncio.to_thread(hub.topics.publish_many, "load.a", [2, 3])
            # The server has read them when it has sent what came after them, elsewhere.
            other = Subscriber([server.port], "load.b")
            async with running(other.run()):
                await other.subscribed.wait()
                after = await asyncio.to_thread(hub.topics.publish, "load.b", 4)
                await other.reach(after.id)
            assert subscriber.received == [first.id]
            assert await asyncio.to_thread(server.stop) == 0
            await subscriber.reach(waiting[-1].id)
            assert subscriber.received == [first.id, *(one.id for one in waiting)]


async def test_publishes_under_way_are_answered_before_the_server_stops(
    path: Path, serve: Serve
) -> None:
    """D8: stopping leaves nobody in doubt about what it has accepted."""
    server = serve()
    client = Client([server.port])
    connection = await client.open()
    with hub_on(path) as hub:
        has_begun, may_end = threading.Event(), threading.Event()
        holding = asyncio.create_task(asyncio.to_thread(hold_writes, hub, has_begun, may_end))
        assert await asyncio.to_thread(has_begun.wait, 60)
        for n in range(50):
            await client.say(connection, op="publish", topic="load.a", payload=["x", n])
        await client.say(connection, op="ping")
        assert "ok" in await client.hear(connection)  # So the server has read them all.
        server.signal(signal.SIGTERM)
        await refuses_connections(server.port)
        may_end.set()
        await holding
    acked = 0
    try:
        while True:
            acked += "ok" in await client.hear(connection)
    except LOST as error:
        client.lost(error)
    assert await asyncio.to_thread(server.wait) == 0
    assert client.closes == {3001: 1}
    assert len(whole_log(path)) == acked == 50


def hold_writes(hub: penstock.Hub, has_begun: threading.Event, may_end: threading.Event) -> None:
    """Nobody else writes meanwhile."""
    with hub.transaction(limit_seconds=30) as tx:
        tx.execute("CREATE TABLE held (x)")
        has_begun.set()
        may_end.wait(60)


async def refuses_connections(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return
            writer.close()
            await asyncio.sleep(0.01)


class Watcher(Client):
    """Knows who is present, from the list and the events."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__([port])
        self.topic = topic
        self.present: set[str] = set()
        self.joined: list[str] = []
        self.left: list[str] = []
        self.changed = asyncio.Event()

    async def run(self) -> None:
        connection = await self.open()
        await self.say(connection, op="subscribe", topic=self.topic, presence=True)
        try:
            while True:
                found = json.loads(await connection.recv())
                if found.get("push") == "presence":
                    self._take(found)
        finally:
            await connection.close()

    def _take(self, push: dict[str, Any]) -> None:
        if push.get("members") is not None:
            self.present = {member["client"] for member in push["members"]}
        self.joined += [member["client"] for member in push.get("joined", [])]
        self.left += push.get("left", [])
        self.present |= {member["client"] for member in push.get("joined", [])}
        self.present -= set(push.get("left", []))
        self.changed.set()

    async def sees(self, *names: str) -> None:
        async with asyncio.timeout(60):
            while self.present != set(names):
                self.changed.clear()
                await self.changed.wait()


async def enter(port: int, name: str) -> tuple[Client, Any]:
    """A client that is present on the room."""
    client = Client([port], name=name)
    connection = await client.open()
    reply = await client.ask(connection, op="subscribe", topic="room", join={"name": name})
    assert "ok" in reply, reply
    return client, connection


async def members(port: int) -> set[str]:
    client = Client([port])
    connection = await client.open()
    reply = await client.ask(connection, op="presence", topic="room")
    await connection.close()
    return {member["client"] for member in reply["ok"]["members"]}


async def test_presence_is_right_after_an_instance_was_killed(serve: Serve) -> None:
    """T9: gone from the list at once, told once, and only those who were on it."""
    doomed, safe, third = serve(), serve(), serve()
    watchers = [Watcher(safe.port, "room"), Watcher(third.port, "room")]
    async with running(*(one.run() for one in watchers)):
        entered = [await enter(doomed.port, name) for name in ("ann", "bob")]
        entered.append(await enter(safe.port, "cid"))
        for watcher in watchers:
            await watcher.sees("ann", "bob", "cid")
        await asyncio.to_thread(doomed.kill)
        assert await members(safe.port) == {"cid"}
        assert await members(third.port) == {"cid"}
        for watcher in watchers:
            await watcher.sees("cid")
        # One comes back elsewhere, under its old name.
        entered.append(await enter(third.port, "ann"))
        for watcher in watchers:
            await watcher.sees("ann", "cid")
            assert sorted(watcher.left) == ["ann", "bob"]
        assert await members(safe.port) == {"ann", "cid"}
        for _, connection in entered:
            await connection.close()
        for watcher in watchers:
            await watcher.sees()
            assert sorted(watcher.left) == ["ann", "ann", "bob", "cid"]


async def test_presence_is_right_after_an_instance_was_stopped(serve: Serve) -> None:
    """T9, D8: everybody on it has left, told once."""
    leaving, staying = serve(), serve()
    watcher = Watcher(staying.port, "room")
    async with running(watcher.run()):
        _, ann = await enter(leaving.port, "ann")
        _, cid = await enter(staying.port, "cid")
        await watcher.sees("ann", "cid")
        assert await asyncio.to_thread(leaving.stop) == 0
        assert await members(staying.port) == {"cid"}
        await watcher.sees("cid")
        assert watcher.left == ["ann"]
        await ann.close()
        await cid.close()


async def test_a_server_that_is_suspended_holds_up_no_other(path: Path, serve: Serve) -> None:
    """T17: stopped in the middle of whatever it does; it goes on where it was."""
    frozen, safe = serve(), serve()
    subscribers = crowd([frozen.port], 5) + crowd([safe.port], 5)
    publishers = [Publisher([safe.port], "p", TOPICS)]
    async with (
        running(*(one.run() for one in subscribers)),
        running(*(one.run() for one in publishers)) as sending,
    ):
        await asyncio.gather(*(one.reach(60) for one in subscribers))
        frozen.signal(signal.SIGSTOP)
        try:
            last = publishers[0].acked[-1]
            await asyncio.gather(*(one.reach(last + 100) for one in subscribers[5:]))
        finally:
            frozen.signal(signal.SIGCONT)
        await finish(path, publishers, subscribers, sending)
