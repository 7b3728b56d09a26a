"""Server-sent events against a real server: live, resumed, gaps, slow clients (D5, D6)."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import penstock
from penstock.model import Position
from tests.factories import hub_on
from tests.processes import DEADLINE_SECONDS
from tests.serving import HttpServer
from tests.waiting import wait_until


class Event:
    def __init__(self, name: str, id: str, data: str) -> None:
        self.name = name
        self.id = id
        self.data = data

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class Events:
    """A stream, parsed as the standard says a browser does."""

    def __init__(self, http: httpx.Client, topic: str, last_id: str = "", **params: Any) -> None:
        headers = {"last-event-id": last_id} if last_id else {}
        self._context = http.stream(
            "GET", f"/v1/topics/{topic}/events", params=params, headers=headers
        )
        self.response = self._context.__enter__()
        self._lines = _lines(self.response) if self.response.is_success else iter(())
        self.last_id = last_id
        if self.response.is_success:
            assert next(self._lines) == "retry: 2000"

    def started(self) -> Events:
        """Once the first comment is there, what is published from now on will come."""
        for line in self._lines:
            if line.startswith("id:"):
                self.last_id = line.removeprefix("id: ")
                return self
        raise AssertionError("the stream ended")

    def __iter__(self) -> Iterator[Event]:
        name, data = "", []
        for line in self._lines:
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("id: "):
                self.last_id = line[4:]
            elif line.startswith("data: "):
                data.append(line[6:])
            elif not line:
                if data:
                    yield Event(name, self.last_id, "\n".join(data))
                name, data = "", []
            else:
                assert line.startswith(":"), line

    def take(self, count: int) -> list[Event]:
        events = iter(self)
        return [next(events) for _ in range(count)]

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.__exit__(None, None, None)


def _lines(response: httpx.Response) -> Iterator[str]:
    """At line feeds only, as the standard has it; httpx' own also splits at U+2028."""
    rest = b""
    for piece in response.iter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode()


@pytest.fixture
def server(path: Path) -> Iterator[HttpServer]:
    with HttpServer(path) as server:
        yield server


@pytest.fixture
def http(server: HttpServer) -> httpx.Client:
    return server.http


@pytest.fixture
def here(server: HttpServer, path: Path) -> Iterator[penstock.Hub]:
    with hub_on(path) as hub:
        yield hub


def values(events: list[Event]) -> list[Any]:
    return [event.json["payload"] for event in events]


def test_messages_come_live_with_their_positions(http: httpx.Client, here: penstock.Hub) -> None:
    """D3: published by another process, in the order of the log."""
    with Events(http, "orders") as events:
        assert events.response.headers["content-type"] == "text/event-stream; charset=utf-8"
        events.started()
        receipts = here.topics.publish_many("orders", [{"id": n} for n in range(20)])
        found = events.take(20)
    assert [event.name for event in found] == ["message"] * 20
    assert [event.id for event in found] == [str(receipt.position) for receipt in receipts]
    assert values(found) == [{"id": n} for n in range(20)]
    assert "topic" not in found[0].json


def test_a_glob_names_each_messages_topic(http: httpx.Client, here: penstock.Hub) -> None:
    with Events(http, "a*") as events:
        events.started()
        for topic in ("ab", "b", "ac"):
            here.topics.publish(topic, topic)
        found = events.take(2)
    assert [event.json["topic"] for event in found] == ["ab", "ac"]


@pytest.mark.parametrize("way", ["header", "after"])
def test_resuming_misses_and_repeats_nothing(
    http: httpx.Client, here: penstock.Hub, way: str
) -> None:
    """D6"""
    here.topics.publish_many("orders", range(300))
    with Events(http, "orders", after=str(Position(here.topics.position().epoch, 0))) as events:
        first = events.take(70)
    here.topics.publish_many("orders", range(300, 400))
    place = {"last_id": first[-1].id} if way == "header" else {"after": first[-1].id}
    with Events(http, "orders", **place) as events:
        rest = events.take(330)
    assert values(first) + values(rest) == list(range(400))


def test_resuming_works_across_a_restart_of_the_server(path: Path) -> None:
    """D6: the place is in the file, not in the process."""
    with HttpServer(path) as first, Events(first.http, "orders") as events:
        events.started()
        for n in range(3):
            first.http.post("/v1/topics/orders/messages", json={"payload": n})
        place = events.take(2)[-1].id
        first.kill()
    with HttpServer(path) as second, Events(second.http, "orders", place) as events:
        second.http.post("/v1/topics/orders/messages", json={"payload": 3})
        assert values(events.take(2)) == [2, 3]


def test_a_client_that_saw_nothing_yet_resumes_too(http: httpx.Client, here: penstock.Hub) -> None:
    with Events(http, "orders") as events:
        place = events.started().last_id
    here.topics.publish("orders", 1)
    with Events(http, "orders", place) as events:
        assert values(events.take(1)) == [1]


def test_the_last_messages_come_first(http: httpx.Client, here: penstock.Hub) -> None:
    here.topics.publish_many("orders", range(10))
    with Events(http, "orders", last=3) as events:
        found = events.take(3)
        here.topics.publish("orders", 10)
        found += events.take(1)
    assert values(found) == [7, 8, 9, 10]


def test_coming_back_outweighs_what_the_url_says(http: httpx.Client, here: penstock.Hub) -> None:
    """A browser that reconnects asks for the same URL again."""
    receipts = here.topics.publish_many("orders", range(10))
    with Events(http, "orders", str(receipts[4].position), last=2) as events:
        assert values(events.take(5)) == [5, 6, 7, 8, 9]


def test_a_trimmed_gap_is_told(http: httpx.Client, here: penstock.Hub) -> None:
    """D6: never hidden."""
    receipts = here.topics.publish_many("orders", range(10))
    here.topics.trim("orders", through=receipts[5].position)
    with Events(http, "orders", str(receipts[1].position)) as events:
        gap, *rest = events.take(5)
    assert gap.name == "gap"
    assert gap.json["reason"] == "trimmed"
    assert gap.json["after"] == str(receipts[1].position)
    assert gap.json["resumes"] == gap.id
    assert values(rest) == [6, 7, 8, 9]


def test_a_gap_of_one_topic_of_a_glob_is_told_once(http: httpx.Client, here: penstock.Hub) -> None:
    """D6: what is left of the others comes, from before the end of that gap, too."""
    first = here.topics.publish("orders", 0)
    here.topics.publish("other", 1)
    here.topics.publish_many("orders", range(2, 5))
    here.topics.trim("orders", keep=1)
    with Events(http, "o*", str(first.position)) as events:
        gap, *rest = events.take(3)
        here.topics.publish("orders", 5)
        rest += events.take(1)
    assert gap.name == "gap"
    assert values(rest) == [1, 4, 5]


def test_a_place_in_another_generation_is_a_gap(http: httpx.Client, here: penstock.Hub) -> None:
    here.topics.publish("orders", 1)
    with Events(http, "orders", "another:1") as events:
        (gap,) = events.take(1)
        here.topics.publish("orders", 2)
        assert values(events.take(1)) == [2]
    assert gap.json["reason"] == "epoch_changed"
    assert gap.json["resumes"] == gap.id == str(Position(here.topics.position().epoch, 1))


def test_line_breaks_in_a_payload_do_not_break_the_stream(
    http: httpx.Client, here: penstock.Hub
) -> None:
    texts = ["a\nb", "data: x\n\nevent: gap\n", "\r\n", "\u2028"]
    with Events(http, "orders") as events:
        events.started()
        here.topics.publish_many("orders", texts)
        assert values(events.take(4)) == texts


def test_a_heartbeat_comes_when_nothing_else_does(path: Path) -> None:
    with (
        HttpServer(path, ping_seconds=0.2, pong_seconds=0.2) as server,
        Events(server.http, "orders") as events,
    ):
        events.started()
        comments = [line for _, line in zip(range(6), events._lines, strict=False)]
        assert ": here" in comments


@pytest.mark.parametrize(
    ("topic", "last_id", "status"), [("a%00", "", 400), ("orders", "nonsense", 400)]
)
def test_a_bad_start_is_refused_with_a_status(
    http: httpx.Client, topic: str, last_id: str, status: int
) -> None:
    with Events(http, topic, last_id) as events:
        assert events.response.status_code == status


def test_streams_count_as_connections(path: Path) -> None:
    with HttpServer(path, connections_per_client_max=1) as server:
        with Events(server.http, "orders") as first:
            first.started()
            with Events(server.http, "orders") as second:
                assert second.response.status_code == 429
                assert json.loads(second.response.read())["error"]["code"] == "limit_reached"

        # The place is free again once the server has noticed that the first is gone.
        def try_again() -> bool:
            with Events(server.http, "orders") as third:
                return third.response.status_code == 200

        assert wait_until(try_again, "the first stream's place is free")


def test_a_client_that_never_reads_is_cut_and_others_do_not_wait(
    path: Path, open_hub: Callable[..., penstock.Hub]
) -> None:
    """Fault row 25; D5: the others get everything meanwhile."""
    hub = open_hub()
    with (
        HttpServer(path, request_seconds=0.5) as server,
        socket.create_connection(("127.0.0.1", server.port)) as deaf,
    ):
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = f"GET /v1/topics/big/events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
        deaf.sendall(request.encode())
        deaf.settimeout(DEADLINE_SECONDS)
        assert deaf.recv(15).startswith(b"HTTP/1.1 200")
        with Events(server.http, "big") as events:
            events.started()
            payload = "x" * 100_000
            hub.topics.publish_many("big", [payload] * 300)
            assert values(events.take(300)) == [payload] * 300

        def connections() -> float:
            text = server.http.get("/metrics", headers={"accept": "text/plain"}).text
            (line,) = [x for x in text.splitlines() if x.startswith("penstock_connections ")]
            return float(line.split()[1])

        wait_until(lambda: connections() == 0, "the deaf client is cut")
        with pytest.raises(ConnectionResetError):
            _drain(deaf)


def test_what_waits_for_a_client_that_never_reads_is_bounded_in_bytes(
    path: Path, open_hub: Callable[..., penstock.Hub]
) -> None:
    """D5: it would be served from the log. The server is not told to cut it meanwhile."""
    hub = open_hub(compress_above_bytes=10**9)
    with HttpServer(path) as server:
        process = psutil.Process(server.pid)
        hub.topics.publish("big", 0)
        with ExitStack() as stack:
            for _ in range(3):
                deaf = stack.enter_context(_deaf(server, "big"))
                assert deaf.recv(15).startswith(b"HTTP/1.1 200")
            before = process.memory_info().rss
            with Events(server.http, "big") as events:
                events.started()
                taken = iter(events)
                for n in range(96):
                    hub.topics.publish("big", f"{n:04}" + "x" * 1_000_000)
                    assert next(taken).json["payload"].startswith(f"{n:04}")
            assert process.memory_info().rss - before < 40 * 1024 * 1024


def test_a_slow_client_gets_everything_at_its_own_pace(
    path: Path, open_hub: Callable[..., penstock.Hub]
) -> None:
    """D5: nothing is lost, repeated or out of order, and it is not cut while it reads at all."""
    hub = open_hub()
    with HttpServer(path, request_seconds=2) as server, _deaf(server, "big") as slow:
        heard = bytearray()
        with Events(server.http, "big") as others:
            others.started()
            for start in range(0, 200, 10):
                numbers = range(start, start + 10)
                hub.topics.publish_many("big", [f"{n:04}" + "x" * 100_000 for n in numbers])
                assert len(others.take(10)) == 10
                heard += slow.recv(1_000)
        for _ in range(2):
            heard += slow.recv(20_000)
            _wait_for_deadline(server)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        while b'"payload":"0199' not in heard[-200_000:]:
            piece = slow.recv(1 << 20)
            assert piece, "it was cut"
            heard += piece
    found = re.findall(rb'"payload":"(\d{4})x', bytes(heard))
    assert found == [b"%04d" % n for n in range(200)]


def _wait_for_deadline(server: HttpServer) -> None:
    """Until another client, which sends nothing, has run into the server's deadline."""
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        silent.settimeout(DEADLINE_SECONDS)
        assert silent.recv(100).startswith(b"HTTP/1.1 408")


def _deaf(server: HttpServer, topic: str) -> socket.socket:
    """A client that has asked for a stream and does not read it by itself."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(DEADLINE_SECONDS)
    client.connect(("127.0.0.1", server.port))
    request = f"GET /v1/topics/{topic}/events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
    client.sendall(request.encode())
    return client


def _drain(client: socket.socket) -> None:
    while client.recv(65_536):
        pass
