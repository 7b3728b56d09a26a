"""Too much of everything: commands, frames, connections, subscriptions, headers (D2, D4, D5).

Real servers, with shortened limits. The offender gets errors, a status or a close code, or is
simply not read any further; others are served meanwhile and memory stays bounded.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.protocol import Close
from tests.raw_sockets import (
    DEADLINE_SECONDS,
    PING,
    PONG,
    TEXT,
    RawSocket,
    command,
    frame,
    unharmed,
)
from tests.serving import HttpServer
from tests.waiting import wait_until

CONNECTIONS_PER_CLIENT = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    path: Path = tmp_path_factory.mktemp("floods") / "hub.db"
    with HttpServer(
        path,
        durability="os",
        stats_seconds=0,
        connect_seconds=1,
        request_seconds=1,
        request_head_bytes_max=8192,
        connections_per_client_max=CONNECTIONS_PER_CLIENT,
        publish_rate_max=300,
    ) as started:
        yield started


def connections(server: HttpServer) -> int:
    """As the server counts its sockets."""
    accept = {"Accept": "application/openmetrics-text"}
    text = httpx.get(f"{server.url}/metrics", headers=accept).text
    line = next(line for line in text.splitlines() if line.startswith("penstock_connections "))
    return round(float(line.split()[1]))


def test_ten_thousand_subscribes_and_unsubscribes_are_slowed_down(server: HttpServer) -> None:
    """D2: and what is granted is undone without a trace: each answered, in order, once."""
    with unharmed(server, growth_mb=48), RawSocket(server.port).connected() as offender:
        pairs = 10_000
        data = b"".join(
            command("subscribe", 2 * n + 1, topic=f"flood-{n % 500}")
            + command("unsubscribe", 2 * n + 2, topic=f"flood-{n % 500}")
            for n in range(pairs)
        )
        sender = threading.Thread(target=offender.send, args=(data,))
        sender.start()
        answered: dict[int, str] = {}
        while len(answered) < 2 * pairs:
            reply = json.loads(offender.receive()[1])
            assert reply["id"] not in answered
            answered[reply["id"]] = reply["error"]["code"] if "error" in reply else "ok"
        sender.join(DEADLINE_SECONDS)
        assert "rate_limited" in answered.values()
        assert "ok" in answered.values()
        # It was left with nothing, and may begin again once it has calmed down.
        wait_until(lambda: "ok" in offender.ask("subscribe", 90_001, topic="flood-0"), "room again")
        assert "ok" in offender.ask("unsubscribe", 90_002, topic="flood-0")


def test_one_topic_subscribed_and_unsubscribed_at_once_ends_with_one_subscription(
    server: HttpServer,
) -> None:
    """D6: the same topic, while the first answer is still under way: no message comes twice."""
    with unharmed(server), RawSocket(server.port).connected() as client:
        data = b""
        for n in range(50):
            data += command("subscribe", 2 * n + 1, topic="again")
            data += command("unsubscribe", 2 * n + 2, topic="again")
        client.send(data + command("subscribe", 999, topic="again"))
        assert "ok" in client.reply(999)
        for n in range(20):
            client.send(command("publish", 1000 + n, topic="again", payload=n))
        heard: list[int] = []
        acked = 0
        while len(heard) < 20 or acked < 20:
            found = json.loads(client.receive()[1])
            heard += [entry["payload"] for entry in found.get("messages", ())]
            acked += found.get("id", 0) >= 1000
        assert client.ask("ping", 5000) == {"id": 5000, "ok": {}}
        assert heard == list(range(20))


def test_a_flood_of_messages_is_refused_beyond_the_rate(server: HttpServer) -> None:
    """D4: `rate_limited`, and what was acknowledged is there."""
    with unharmed(server), RawSocket(server.port).connected() as offender:
        count = 5_000
        data = b"".join(command("publish", n, topic="flood", payload=n) for n in range(count))
        sender = threading.Thread(target=offender.send, args=(data,))
        sender.start()
        codes = [json.loads(offender.receive()[1]) for _ in range(count)]
        sender.join(DEADLINE_SECONDS)
        acked = sum("ok" in reply for reply in codes)
        refused = [reply["error"] for reply in codes if "error" in reply]
        assert {error["code"] for error in refused} == {"rate_limited"}
        assert all(error["retryable"] for error in refused)
        assert acked
        assert refused
        answer = httpx.get(f"{server.url}/v1/topics/flood").json()
        assert answer["published"] == acked


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(frame(PING, b"x" * 125), id="pings"),
        pytest.param(frame(PONG, b"x" * 125), id="pongs"),
        pytest.param(command("ping", 1), id="commands"),
        pytest.param(command("presence", 1, topic="t"), id="questions"),
        pytest.param(command("publish", 1, topic="t", payload=1), id="messages"),
        pytest.param(command("unsubscribe", 1, topic="x" * 250), id="mistakes"),
    ],
)
def test_one_who_asks_and_does_not_read_fills_no_memory(server: HttpServer, data: bytes) -> None:
    """D5: it is read no further than its answers fit, whatever it sends."""
    size = 48 * 1024 * 1024
    with (
        unharmed(server, growth_mb=8),
        RawSocket(server.port, receive_buffer=4096).connected() as offender,
    ):
        offender.send_while_it_listens(data * (size // len(data)), seconds=0.5)


def test_connections_beyond_the_limit_are_refused_until_others_end(server: HttpServer) -> None:
    with unharmed(server):
        opened: list[RawSocket] = []
        refused = 0
        for _ in range(CONNECTIONS_PER_CLIENT + 20):
            made = RawSocket(server.port)
            if made.status == 101:
                opened.append(made)
            else:
                assert made.status == 503
                refused += 1
                made.close()
        assert refused >= 20
        for made in opened:
            made.close()
        wait_until(lambda: connections(server) <= 2, "the others have gone")
        with RawSocket(server.port).connected() as again:
            assert again.ask("ping", 1) == {"id": 1, "ok": {}}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-WebSocket-Key": "short"}, 400),
        ({"Sec-WebSocket-Version": "99"}, 400),
        ({"Sec-WebSocket-Protocol": "mqtt"}, 400),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Authorization": "Basic eDp5"}, None),
    ],
)
def test_failed_handshakes_take_no_place(
    server: HttpServer, headers: dict[str, str], status: int | None
) -> None:
    """More of them than there are places, and there is still one."""
    with unharmed(server):
        for _ in range(2 * CONNECTIONS_PER_CLIENT):
            with RawSocket(server.port, headers=headers) as offender:
                assert status is None or offender.status == status
        with RawSocket(server.port).connected() as client:
            assert client.ask("ping", 1) == {"id": 1, "ok": {}}


def test_handshakes_that_are_left_at_once_take_no_place(server: HttpServer) -> None:
    with unharmed(server):
        for _ in range(2 * CONNECTIONS_PER_CLIENT):
            with socket.create_connection(("127.0.0.1", server.port)) as offender:
                offender.sendall(
                    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
                    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
                )
        wait_until(lambda: connections(server) <= 2, "all have gone")
        with RawSocket(server.port).connected() as client:
            assert client.ask("ping", 1) == {"id": 1, "ok": {}}


def test_a_socket_that_never_connects_is_closed(server: HttpServer) -> None:
    with unharmed(server), RawSocket(server.port) as offender:
        assert offender.close_code() == Close.BAD_TOKEN


def test_pings_do_not_stand_for_connecting(server: HttpServer) -> None:
    with unharmed(server), RawSocket(server.port) as offender:
        offender.send(frame(PING, b"1"))
        assert offender.receive() == (PONG, b"1")
        assert offender.close_code() == Close.BAD_TOKEN


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET / HT",
        b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n",
        b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
    ],
)
def test_a_request_that_never_ends_is_hung_up_on(server: HttpServer, start: bytes) -> None:
    """Slowloris: a byte now and then does not extend the deadline."""
    with (
        unharmed(server),
        socket.create_connection(("127.0.0.1", server.port), DEADLINE_SECONDS) as offender,
    ):
        offender.sendall(start)
        offender.settimeout(0.2)
        answer = b""
        for _ in range(100):
            try:
                piece = offender.recv(4096)
            except TimeoutError:
                if start:
                    offender.send(b"x" if b"POST" in start else b"X")
                continue
            except ConnectionError:
                break
            if not piece:
                break
            answer += piece
        else:
            pytest.fail("the server listened for ever")
        assert not answer or b" 408 " in answer or b" 400 " in answer


def test_a_huge_head_is_refused(server: HttpServer) -> None:
    with (
        unharmed(server),
        socket.create_connection(("127.0.0.1", server.port), DEADLINE_SECONDS) as offender,
    ):
        offender.sendall(b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        try:
            for n in range(50_000):
                offender.sendall(b"X-%d: %s\r\n" % (n, b"y" * 200))
            pytest.fail("the server took ten megabytes of headers")
        except ConnectionError:
            pass


def test_one_large_header_is_refused(server: HttpServer) -> None:
    headers = {"X-Large": "y" * 16_000}
    with unharmed(server), RawSocket(server.port, headers=headers) as offender:
        assert offender.status == 431


def test_an_upgrade_and_frames_in_one_packet(server: HttpServer) -> None:
    """Nobody may send frames before the answer; whoever does is refused or served, not mixed up."""
    with (
        unharmed(server),
        socket.create_connection(("127.0.0.1", server.port), DEADLINE_SECONDS) as offender,
    ):
        offender.sendall(
            b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            + command("connect", 1)
            + frame(TEXT, b"nonsense")
        )
        answer = b""
        while piece := offender.recv(65536):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 ")
