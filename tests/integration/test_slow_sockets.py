"""Clients that read slowly, or not at all, over real sockets (D5).

`catch_up`: others get everything meanwhile, memory is bounded, and whoever reads on gets all of
it, once and in order. `disconnect` and `drop_oldest`: what is left out is told exactly.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.model import Delivery
from penstock.protocol import Close
from tests.factories import hub_on
from tests.raw_sockets import (
    CLOSE,
    DEADLINE_SECONDS,
    PING,
    PONG,
    TEXT,
    RawSocket,
    frame,
    unharmed,
)
from tests.serving import HttpServer
from tests.waiting import wait_until

BODY = "x" * 4_000
SMALL_BUFFER = 16_384
BUFFERS_BYTES = 12 * 1024 * 1024
"""More than the kernel and the server keep for one socket."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


@pytest.fixture
def hub(path: Path) -> Iterator[penstock.Hub]:
    with hub_on(path, durability="os") as made:
        yield made


@pytest.fixture
def serve(path: Path) -> Iterator[Callable[..., HttpServer]]:
    started: list[HttpServer] = []

    def start(**settings: Any) -> HttpServer:
        started.append(HttpServer(path, durability="os", stats_seconds=0, **settings))
        return started[-1]

    yield start
    for server in started:
        server.__exit__(None, None, None)


def fill(hub: penstock.Hub, topic: str, first: int = 0, size: int = BUFFERS_BYTES) -> int:
    """Publish so many bytes; the number of the next message."""
    count = size // len(BODY)
    for start in range(first, first + count, 500):
        numbers = range(start, min(start + 500, first + count))
        hub.topics.publish_many(topic, [[n, BODY] for n in numbers])
    return first + count


class Reader:
    """Reads pushes as slowly as it is told, and answers pings."""

    def __init__(self, socket: RawSocket) -> None:
        self.socket = socket
        self.numbers: list[int] = []
        self.ids: list[int] = []
        self.dropped: list[dict[str, Any]] = []
        self.places: list[int] = []
        self.closed: tuple[int, str] | None = None

    def read(self) -> None:
        """One frame."""
        opcode, payload = self.socket.receive()
        if opcode == PING:
            self.socket.send(frame(PONG, payload))
        elif opcode == CLOSE:
            self.closed = (struct.unpack("!H", payload[:2])[0], payload[2:].decode())
        elif opcode == TEXT:
            self._take(json.loads(payload))

    def read_until(self, count: int) -> None:
        while len(self.numbers) < count:
            self.read()

    def read_to_the_close(self) -> tuple[int, str]:
        while self.closed is None:
            self.read()
        return self.closed

    def _take(self, found: dict[str, Any]) -> None:
        if found.get("push") == "messages":
            for entry in found["messages"]:
                self.numbers.append(entry["payload"][0])
                self.ids.append(entry["id"])
        elif found.get("push") == "dropped":
            self.dropped.append(found)
            self.places.append(len(self.numbers))


def subscribe(server: HttpServer, topic: str, **fields: Any) -> Reader:
    socket = RawSocket(server.port, receive_buffer=SMALL_BUFFER).connected()
    reply = socket.ask("subscribe", 1, topic=topic, **fields)
    assert "ok" in reply, reply
    return Reader(socket)


def subscribers(server: HttpServer, topic: str) -> int:
    figures = server.http.get("/metrics").json()["topics"].get(topic)
    return 0 if figures is None else int(figures["subscriber_count"])


def slow_connections(server: HttpServer) -> int:
    """Sockets that wait for their client to read."""
    accept = {"Accept": "application/openmetrics-text"}
    lines = server.http.get("/metrics", headers=accept).text.splitlines()
    found = [line for line in lines if line.startswith("penstock_slow_connections")]
    return int(float(found[0].split()[-1]))


def test_one_who_never_reads_holds_up_nobody_and_is_cut_off(
    serve: Callable[..., HttpServer], hub: penstock.Hub
) -> None:
    server = serve(ping_seconds=1, pong_seconds=1)
    deaf = subscribe(server, "news")
    other = subscribe(server, "news")
    with unharmed(server, growth_mb=32):
        count = fill(hub, "news", size=3 * BUFFERS_BYTES)
        other.read_until(count)
        assert other.numbers == list(range(count))
        # The deaf one is found out by its silence; the one who answers stays.
        wait_until(lambda: _answering(other) and subscribers(server, "news") == 1, "it was cut off")
        assert deaf.socket.is_cut_off()
        assert other.closed is None
    deaf.socket.close()
    other.socket.close()


def _answering(reader: Reader) -> bool:
    """Let it answer a ping, if there is one."""
    reader.socket.socket.settimeout(0.05)
    try:
        reader.read()
    except TimeoutError:
        pass
    return True


def test_an_idle_socket_that_does_not_answer_is_closed(
    serve: Callable[..., HttpServer], hub: penstock.Hub
) -> None:
    """Half-open: the other end is gone, and nobody told us."""
    server = serve(ping_seconds=1, pong_seconds=1)
    with unharmed(server), RawSocket(server.port).connected() as gone:
        assert gone.close_code() == Close.NO_PONG


def test_a_slow_but_steady_reader_is_not_cut_off_and_gets_everything(
    serve: Callable[..., HttpServer], hub: penstock.Hub
) -> None:
    """Its pongs come late, behind megabytes of messages; that it reads is sign enough of life."""
    server = serve(ping_seconds=1, pong_seconds=1)
    slow = subscribe(server, "news")
    with unharmed(server, growth_mb=32):
        count = fill(hub, "news", size=2 * BUFFERS_BYTES)
        # A frame of many messages, and then a rest: for many times ping_seconds and pong_seconds.
        ends_at = time.monotonic() + 6
        while time.monotonic() < ends_at:
            slow.read()
            time.sleep(0.1)
        assert len(slow.numbers) < count
        more = fill(hub, "news", first=count, size=BUFFERS_BYTES // 4)
        slow.read_until(more)
    assert slow.numbers == list(range(more))
    assert slow.closed is None
    slow.socket.close()


def test_a_busy_topic_does_not_keep_a_quiet_one_from_a_slow_reader(
    serve: Callable[..., HttpServer], hub: penstock.Hub
) -> None:
    """Both are sent in turn, although the busy one always has more."""
    server = serve()
    slow = subscribe(server, "busy")
    assert "ok" in slow.socket.ask("subscribe", 2, topic="quiet")
    count = fill(hub, "busy", size=2 * BUFFERS_BYTES)
    hub.topics.publish("quiet", [-1, ""])
    while -1 not in slow.numbers:
        slow.read()
        time.sleep(0.001)
    assert len(slow.numbers) < count
    slow.read_until(count + 1)
    assert [n for n in slow.numbers if n >= 0] == list(range(count))
    slow.socket.close()


def test_disconnect_says_where_to_resume_and_nothing_is_missing(
    serve: Callable[..., HttpServer], hub: penstock.Hub
) -> None:
    hub.topics.create("strict", delivery=Delivery(slow_policy="disconnect"))
    server = serve()
    slow = subscribe(server, "strict")
    count = 0
    with unharmed(server, growth_mb=32):
        while subscribers(server, "strict"):
            count = fill(hub, "strict", first=count, size=BUFFERS_BYTES // 8)
        code, reason = slow.read_to_the_close()
        assert code == Close.SLOW
        assert reason == f"{hub.topics.position().epoch}:{slow.ids[-1]}"
        assert slow.numbers == list(range(len(slow.numbers)))
        again = Reader(RawSocket(server.port).connected())
        reply = again.socket.ask("subscribe", 1, topic="strict", after=reason)
        assert reply["ok"]["recovered"] is True
        again.read_until(count - len(slow.numbers))
    assert slow.numbers + again.numbers == list(range(count))
    slow.socket.close()
    again.socket.close()


def test_drop_oldest_tells_how_many_and_up_to_where(
    serve: Callable[..., HttpServer], hub: penstock.Hub
) -> None:
    hub.topics.create("cursors", delivery=Delivery(slow_policy="drop_oldest"))
    server = serve()
    slow = subscribe(server, "cursors")
    with unharmed(server, growth_mb=32):
        count = 0
        while not slow.dropped:
            # More than may be on its way, and more again once the socket is known to be full.
            while not slow_connections(server):
                count = fill(hub, "cursors", first=count)
            count = fill(hub, "cursors", first=count, size=BUFFERS_BYTES // 8)
            # Once it reads on, it is told; what is published then comes through.
            _read_through(slow, hub, count)
            count += 1
    published = [m.payload[0] for m in hub.topics.read("cursors", limit=100_000)]
    while sum(push["messages"] for push in slow.dropped) + len(slow.numbers) < len(published):
        slow.read()
    _check_drops(slow, hub)
    assert sum(push["messages"] for push in slow.dropped) + len(slow.numbers) == len(published)
    assert slow.numbers == sorted(slow.numbers)
    assert hub.topics.position().epoch in slow.dropped[0]["through"]
    slow.socket.close()


def _read_through(reader: Reader, hub: penstock.Hub, number: int) -> None:
    """Until this message has come, which may itself be left out and is then published again."""
    while not reader.numbers or reader.numbers[-1] != number:
        reader.socket.socket.settimeout(0.5)
        try:
            reader.read()
        except TimeoutError:
            hub.topics.publish("cursors", [number, ""])
    reader.socket.socket.settimeout(DEADLINE_SECONDS)


def _check_drops(reader: Reader, hub: penstock.Hub) -> None:
    """Between the message before a push and the one after it, exactly its count is missing."""
    log = [message.id for message in hub.topics.read("cursors", limit=100_000)]
    for push, place in zip(reader.dropped, reader.places, strict=True):
        through = int(push["through"].rpartition(":")[2])
        before = reader.ids[place - 1] if place else 0
        missing = [id for id in log if before < id <= through]
        assert len(missing) == push["messages"]
        if place < len(reader.ids):
            assert log.index(reader.ids[place]) == log.index(through) + 1


def test_messages_that_are_trimmed_before_a_slow_reader_came_to_them_are_a_gap(
    serve: Callable[..., HttpServer], hub: penstock.Hub
) -> None:
    """D6: told with its position, never hidden; what is left comes in order."""
    server = serve()
    slow = subscribe(server, "news")
    count = fill(hub, "news", size=2 * BUFFERS_BYTES)
    log = [message.id for message in hub.topics.read("news", limit=100_000)]
    epoch = hub.topics.position().epoch
    wait_until(lambda: server.http.get("/metrics").status_code == 200)
    hub.topics.trim("news", through=penstock.Position(epoch, log[-100]))
    frames: list[dict[str, Any]] = []
    while not slow.numbers or slow.numbers[-1] != count - 1:
        opcode, payload = slow.socket.receive()
        if opcode == TEXT:
            frames.append(json.loads(payload))
            slow._take(frames[-1])
    gaps = [found["gap"] for found in frames if found.get("push") == "gap"]
    assert len(gaps) == 1
    before = int(gaps[0]["after"].rpartition(":")[2])
    after = int(gaps[0]["resumes"].rpartition(":")[2])
    assert after == log[-100]
    expected = [id for id in log if id <= before or id > after]
    assert slow.ids == expected
    slow.socket.close()
