"""The remote client over lost connections: every message exactly once, in order (D6, D8, T17)."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.client
from penstock.client import RemoteHub
from penstock.errors import Disconnected, EpochChanged, LogTrimmed, OutcomeUnknown
from tests.factories import hub_on, payloads
from tests.servers import Server
from tests.waiting import SOON, wait_until

KILLS = 4


@pytest.fixture
def server(path: Path) -> Iterator[Server]:
    with Server(path) as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Callable[..., RemoteHub]]:
    hubs: list[RemoteHub] = []

    def one(url: Any, **arguments: Any) -> RemoteHub:
        given = {"client_timeout_seconds": SOON, "reconnect_seconds_max": 0.2, **arguments}
        hubs.append(penstock.client.connect(url, **given))
        return hubs[-1]

    yield one
    for hub in hubs:
        hub.close()


class Publisher(threading.Thread):
    """Publishes numbers, one after the other, until it is told to end."""

    def __init__(self, hub: RemoteHub, topic: str) -> None:
        super().__init__()
        self._hub = hub
        self._topic = topic
        self._ending = threading.Event()
        self.acknowledged: list[int] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            for n in count():
                if self._ending.is_set():
                    return
                self._hub.topics.publish(self._topic, n)
                self.acknowledged.append(n)
        except penstock.PenstockError as error:
            self.error = error

    def wait_for(self, more: int) -> None:
        aim = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= aim or self.error, seconds=SOON)

    def end(self) -> list[int]:
        self._ending.set()
        self.join(SOON)
        assert not self.is_alive()
        assert self.error is None
        return self.acknowledged


class Collector(threading.Thread):
    """Takes what a reader gives, until it is closed."""

    def __init__(self, reader: Any) -> None:
        super().__init__()
        self._reader = reader
        self.seen: list[Any] = []
        self.start()

    def run(self) -> None:
        for message in self._reader:
            self.seen.append(message.payload)

    def wait_for(self, expected: list[Any]) -> None:
        wait_until(lambda: len(self.seen) >= len(expected), seconds=SOON)
        self._reader.close()
        self.join(SOON)
        assert self.seen == expected


def test_kills_amid_publishing_and_following_lose_and_repeat_nothing(
    path: Path, server: Server, connect: Callable[..., RemoteHub]
) -> None:
    """Each publish is stored once though its answer may be lost; each reader sees all, once."""
    publisher = Publisher(connect(server.url), "t")
    readers = connect(server.url)
    collectors = [
        Collector(readers.topics.subscribe("t")),
        Collector(readers.topics.subscribe("*")),
        Collector(readers.topics.follow("t", consumer="c", start="earliest")),
    ]
    publisher.start()
    for _ in range(KILLS):
        publisher.wait_for(50)
        server.restart()
    publisher.wait_for(50)
    published = publisher.end()

    with hub_on(path) as hub:
        assert payloads(hub.topics.read("t", limit=100_000)) == published
    for collector in collectors:
        collector.wait_for(published)
    assert readers.telemetry.counters()["disconnected"] >= KILLS


async def test_publishes_in_flight_at_a_kill_are_stored_once(
    path: Path, server: Server, connect: Callable[..., RemoteHub]
) -> None:
    hub = connect(server.url)
    tasks: list[asyncio.Task[penstock.Receipt]] = []
    for n in range(3_000):
        tasks.append(asyncio.ensure_future(hub.aio.topics.publish("t", n)))
        if n % 50 == 0:
            await asyncio.sleep(0)
        if n in (1_000, 2_000):
            # Some are answered, some on their way, some not sent yet.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            server.kill()
            await asyncio.to_thread(server.start)
    receipts = await asyncio.gather(*tasks)

    with hub_on(path) as local:
        stored = {m.id: m.payload for m in local.topics.read("t", limit=10_000)}
    assert stored == {receipt.id: n for n, receipt in enumerate(receipts)}
    assert not any(receipt.duplicate for receipt in receipts)
    await hub.aio.close()


def test_publish_many_over_a_kill_is_whole_and_in_order(
    path: Path, server: Server, connect: Callable[..., RemoteHub]
) -> None:
    hub = connect(server.url)
    begun = threading.Event()

    def numbers() -> Iterator[int]:
        for n in range(20_000):
            if n == 4_000:
                begun.set()
            yield n

    killer = threading.Thread(target=lambda: begun.wait(SOON) and server.restart())
    killer.start()
    receipts = hub.topics.publish_many("t", numbers())
    killer.join(SOON)

    assert len(receipts) == 20_000
    with hub_on(path) as local:
        assert payloads(local.topics.read("t", limit=100_000)) == [*range(20_000)]


def test_a_client_moves_to_the_other_instance_and_back(
    path: Path, server: Server, connect: Callable[..., RemoteHub]
) -> None:
    """T17, D8: SIGTERM tells clients to go elsewhere; kill -9 does not tell anything."""
    with Server(path) as other:
        urls = [server.url, other.url]
        publisher = Publisher(connect(urls), "t")
        readers = connect(urls)
        collectors = [
            Collector(readers.topics.subscribe("t")),
            Collector(readers.topics.follow("t", consumer="c", start="earliest")),
        ]
        publisher.start()
        publisher.wait_for(30)
        assert server.stop() == 0
        publisher.wait_for(30)
        server.start()
        other.kill()
        publisher.wait_for(30)
        published = publisher.end()
        for collector in collectors:
            collector.wait_for(published)


def test_a_server_that_hangs_is_left(
    path: Path, server: Server, connect: Callable[..., RemoteHub]
) -> None:
    """A stopped process keeps its sockets open and says nothing."""
    with Server(path, PENSTOCK_PING_SECONDS="1", PENSTOCK_PONG_SECONDS="1") as hanging:
        hub = connect([hanging.url, server.url])
        live = hub.topics.subscribe("t")
        hub.topics.publish("t", 1)
        hanging.signal(signal.SIGSTOP)
        try:
            assert hub.topics.publish("t", 2).durable
            assert [live.get(SOON).payload for _ in range(2)] == [1, 2]
        finally:
            hanging.signal(signal.SIGCONT)


def test_a_follower_killed_with_its_server_goes_on_where_it_was(
    server: Server, connect: Callable[..., RemoteHub]
) -> None:
    """T5: what was committed is not delivered again, what was not is."""
    hub = connect(server.url)
    hub.topics.publish_many("t", range(10))
    follower = hub.topics.follow("t", consumer="c", start="earliest")
    assert [follower.get(SOON).payload for _ in range(4)] == [0, 1, 2, 3]
    follower.commit()
    assert follower.get(SOON).payload == 4
    server.restart()
    follower.commit()
    assert hub.consumers.lag("c", "t").messages == 5
    assert [follower.get(SOON).payload for _ in range(5)] == [5, 6, 7, 8, 9]
    # The server sent again what was not committed; it was here already, and comes once.
    hub.topics.publish("t", "next")
    assert follower.get(SOON).payload == "next"
    follower.close()
    hub.close()
    with connect(server.url).topics.follow("t", consumer="c") as again:
        assert again.get(SOON).payload == "next"


def test_a_follower_waits_for_its_server_as_long_as_it_takes(
    path: Path, server: Server, connect: Callable[..., RemoteHub]
) -> None:
    """D6: also with a message to commit. Whoever sets a limit is told when it is over."""
    limit = 4.0
    hub = connect(server.url, client_timeout_seconds=limit)
    hub.topics.publish("t", 0)
    follower = hub.topics.follow("t", consumer="c", start="earliest")
    heard = [next(follower).payload]
    server.kill()
    waiting = threading.Thread(target=lambda: heard.append(next(follower).payload))
    waiting.start()
    waiting.join(1.5 * limit)
    assert waiting.is_alive(), "it gave up without a server"
    with hub_on(path) as local:
        with local.topics.follow("t", consumer="c", standby=True) as another:
            assert another.get(SOON).payload == 0
            server.start()
            waiting.join(1.5 * limit)
            assert waiting.is_alive(), "it gave up when the server could not have its consumer"
        local.topics.publish("t", 1)
    waiting.join(SOON)
    assert heard == [0, 1]
    server.kill()
    with pytest.raises(Disconnected):
        follower.get(timeout=0.1)


def test_a_gap_made_while_away_is_told(
    path: Path, server: Server, connect: Callable[..., RemoteHub]
) -> None:
    """D6"""
    hub = connect(server.url)
    told = hub.topics.subscribe("t")
    skipping = hub.topics.subscribe("t", on_trimmed="skip")
    hub.topics.publish("t", 0)
    assert told.get(SOON).payload == skipping.get(SOON).payload == 0
    server.kill()
    with hub_on(path) as local:
        local.topics.publish_many("t", [1, 2, 3])
        local.topics.trim("t", keep=1)
    server.start()

    assert skipping.get(SOON).payload == 3
    with pytest.raises(LogTrimmed) as trimmed:
        told.get(SOON)
    assert payloads(hub.topics.read("t", after=trimmed.value.resume)) == [3]


def test_a_restored_database_is_noticed(
    path: Path, server: Server, connect: Callable[..., RemoteHub], tmp_path: Path
) -> None:
    hub = connect(server.url)
    live = hub.topics.subscribe("t")
    hub.topics.publish("t", 0)
    assert live.get(SOON).payload == 0
    server.kill()
    with hub_on(path) as local:
        local.new_generation()
    server.start()

    with pytest.raises(EpochChanged):
        live.get(SOON)


def test_a_publish_without_a_server_waits_for_it_or_gives_up(
    path: Path, server: Server, connect: Callable[..., RemoteHub]
) -> None:
    hub = connect(server.url)
    hub.topics.publish("t", 0)
    server.kill()
    with pytest.raises(Disconnected):
        hub.topics.publish("t", "given up", timeout=0.3)
    late: list[penstock.Receipt] = []
    waiting = threading.Thread(target=lambda: late.append(hub.topics.publish("t", "waited")))
    waiting.start()
    server.start()
    waiting.join(SOON)

    assert late
    assert payloads(hub.topics.read("t")) == [0, "waited"]


def test_a_publish_is_not_sent_again_when_its_key_may_be_forgotten(
    path: Path, connect: Callable[..., RemoteHub]
) -> None:
    """Rather an unknown outcome than two messages. How long that is, the server says."""
    server = Server(path, PENSTOCK_IDEMPOTENCY_SECONDS="0.001")
    hub = connect(server.url)
    hub.topics.publish("t", 0)
    server.signal(signal.SIGSTOP)  # It gets the command, and does not answer.
    failed: list[Exception] = []

    def publish() -> None:
        try:
            hub.topics.publish("t", 1)
        except penstock.PenstockError as error:
            failed.append(error)

    publishing = threading.Thread(target=publish)
    publishing.start()
    wait_until(lambda: hub._exchange and hub._exchange._links[0]._calls)
    server.kill()
    server.start()
    publishing.join(SOON)
    server.stop()

    assert [type(error) for error in failed] == [OutcomeUnknown]


def test_a_follower_that_takes_its_time_is_not_taken_for_dead(
    path: Path, connect: Callable[..., RemoteHub]
) -> None:
    """It does not read the socket while its buffer is full, and shows that it lives."""
    with Server(path, PENSTOCK_PING_SECONDS="1", PENSTOCK_PONG_SECONDS="1") as impatient:
        hub = connect(impatient.url, subscriber_buffer_max=10, follow_batch_max=10)
        hub.topics.publish_many("t", ["x" * 10_000] * 2_000)
        with hub.topics.follow("t", consumer="c", start="earliest") as follower:
            seen = len(follower.take(timeout=SOON))
            # Twice for each time that the server asks.
            wait_until(lambda: hub.telemetry.counters().get("kept_alive", 0) >= 8, seconds=SOON)
            while seen < 2_000:
                seen += len(follower.take(timeout=SOON))
        assert hub.telemetry.counters().get("disconnected", 0) == 0
        assert seen == 2_000
