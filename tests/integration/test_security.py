"""What strangers, tenants and web pages cannot do (threat model; fault rows 24, 25, 27)."""

from __future__ import annotations

import json
import re
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import psutil
import pytest

from penstock.server import tokens_file
from penstock.server.tokens_file import Key, TokensFile, hash_key, new_key
from tests.processes import DEADLINE_SECONDS
from tests.serving import HttpServer, bearer, guarded_server
from tests.waiting import wait_until

SHOP, SCREEN, BOSS, MONITOR = (new_key() for _ in range(4))
SECRET = secrets.token_urlsafe(48)
KEYS = {
    "shop": Key(sha256=hash_key(SHOP).hex(), publish=("orders",)),
    "screen": Key(sha256=hash_key(SCREEN).hex(), subscribe=("canvas-*",)),
    "boss": Key(sha256=hash_key(BOSS).hex(), publish=("*",), subscribe=("*",), admin=("*",)),
    "monitor": Key(sha256=hash_key(MONITOR).hex(), subscribe=("penstock.delivery",)),
}
PAGE = "https://app.example"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[HttpServer]:
    """A server with tokens of both kinds, and one page that may use it."""
    with guarded_server(folder, KEYS, SECRET, origins=[PAGE]) as server:
        done = server.http.post(
            "/v1/topics/orders/messages", json={"payload": 1}, headers=bearer(BOSS)
        )
        assert done.status_code == 201
        yield server


@pytest.fixture(scope="module")
def local(folder: Path) -> Iterator[HttpServer]:
    """A server as it is without any settings: loopback, no tokens."""
    with HttpServer(folder / "local.db") as server:
        yield server


ROUTES = [
    ("GET", "/v1/topics"),
    ("GET", "/v1/topics/orders"),
    ("PUT", "/v1/topics/orders"),
    ("DELETE", "/v1/topics/orders"),
    ("GET", "/v1/topics/orders/messages"),
    ("POST", "/v1/topics/orders/messages"),
    ("POST", "/v1/topics/orders/trim"),
    ("GET", "/v1/topics/orders/stats"),
    ("GET", "/v1/topics/orders/presence"),
    ("GET", "/v1/topics/orders/events"),
    ("GET", "/v1/consumers"),
    ("GET", "/v1/consumers/c"),
    ("DELETE", "/v1/consumers/c"),
    ("POST", "/v1/consumers/c/reset"),
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/ids"),
    ("POST", "/v1/jobs/retry"),
    ("POST", "/v1/jobs/cancel"),
    ("POST", "/v1/jobs/prune"),
    ("GET", "/v1/jobs/1"),
    ("GET", "/v1/jobs/1/outcome"),
    ("GET", "/v1/jobs/1/history"),
    ("GET", "/v1/jobs/1/explanation"),
    ("POST", "/v1/jobs/1/retry"),
    ("POST", "/v1/jobs/1/cancel"),
    ("PUT", "/v1/jobs/1/priority"),
    ("GET", "/v1/queues"),
    ("GET", "/v1/queues/q"),
    ("PUT", "/v1/queues/q"),
    ("GET", "/v1/workers"),
    ("GET", "/v1/schedules"),
    ("GET", "/v1/schedules/s"),
    ("PUT", "/v1/schedules/s"),
    ("DELETE", "/v1/schedules/s"),
    ("POST", "/v1/schedules/s/pause"),
    ("POST", "/v1/schedules/s/resume"),
    ("POST", "/v1/schedules/s/run"),
    ("GET", "/v1/ledger"),
    ("GET", "/v1/ledger/l"),
    ("PUT", "/v1/ledger/l"),
    ("GET", "/v1/ledger/l/entries"),
    ("GET", "/v1/ledger/l/entry"),
    ("DELETE", "/v1/ledger/l/entry"),
    ("POST", "/v1/ledger/l/forget"),
    ("POST", "/v1/ledger/l/marks"),
    ("POST", "/v1/ledger/l/claims"),
    ("POST", "/v1/ledger/l/claims/renew"),
    ("POST", "/v1/ledger/l/claims/complete"),
    ("POST", "/v1/ledger/l/claims/release"),
    ("POST", "/v1/ledger-prune"),
    ("GET", "/v1/ledger-events"),
    ("GET", "/v1/mailboxes"),
    ("GET", "/v1/mailboxes/m"),
    ("DELETE", "/v1/mailboxes/m"),
    ("POST", "/v1/mailboxes/m/messages"),
    ("GET", "/v1/mailboxes/m/next"),
    ("POST", "/v1/mailboxes/m/ack"),
    ("POST", "/v1/mailboxes/m/ack-and-next"),
    ("POST", "/v1/mailboxes/m/expire"),
    ("GET", "/v1/mailboxes/m/subscriptions"),
    ("DELETE", "/v1/mailboxes/m/subscriptions"),
    ("PUT", "/v1/mailboxes/m/subscriptions/orders"),
    ("DELETE", "/v1/mailboxes/m/subscriptions/orders"),
    ("GET", "/v1/mailbox-subscriptions"),
    ("GET", "/metrics"),
    ("GET", "/health"),
]
NAMES = {
    "topic": "orders",
    "consumer": "c",
    "id": "1",
    "queue": "q",
    "schedule": "s",
    "mailbox": "m",
    "scope": "l",
}
OPEN = ["/health/live", "/health/ready", "/openapi.json", "/docs", "/", "/static/penstock.js"]


def test_every_route_asks_for_a_token_but_those_that_say_nothing(guarded: HttpServer) -> None:
    body = {"topic": "orders", "to": "latest"}
    for method, path in ROUTES:
        for headers in ({}, bearer("wrong"), {"authorization": "Basic eDp5"}):
            given = body if path.endswith("reset") else {"payload": 1}
            sends: dict[str, Any] = {"json": given} if method == "POST" else {}
            if path.endswith("/entry"):
                sends["params"] = {"key": "k"}
            answer = guarded.http.request(method, path, headers=headers, **sends)
            assert answer.status_code == 401, (method, path, headers)
            assert answer.headers["www-authenticate"] == "Bearer"
    for path in OPEN:
        assert guarded.http.get(path).status_code == 200, path


def test_no_route_is_missing_from_these_tests(guarded: HttpServer) -> None:
    paths = guarded.http.get("/openapi.json").json()["paths"]
    declared = {
        (method.upper(), path.format(**NAMES))
        for path, methods in paths.items()
        for method in methods
    }
    assert declared == {*ROUTES, *(("GET", path) for path in OPEN if path.startswith("/health/"))}


def test_who_may_not_see_a_topic_is_not_told_whether_it_exists(guarded: HttpServer) -> None:
    """The answers for a topic that exists and one that does not are compared, headers included."""
    said: dict[str, list[Any]] = {}
    for name in ("nowhere", "orders"):
        for method, path in ROUTES[1:10]:
            sends = {"json": {"payload": 1}} if method == "POST" else {}
            answer = guarded.http.request(
                method, path.replace("orders", name), headers=bearer(SCREEN), **sends
            )
            assert answer.status_code == 403, (method, path)
            ignored = ("date", "content-length")
            headers = {k: v for k, v in answer.headers.items() if k not in ignored}
            text = answer.text.replace(name, "NAME")
            said.setdefault(name, []).append((answer.status_code, headers, text))
    assert said["nowhere"] == said["orders"]


def test_rights_hold_for_each_verb(guarded: HttpServer) -> None:
    http, body = guarded.http, {"payload": 1}
    assert http.post("/v1/topics/orders/messages", json=body, headers=bearer(SHOP)).is_success
    for method, path in (
        ("GET", "/v1/topics/orders/messages"),
        ("DELETE", "/v1/topics/orders"),
        ("PUT", "/v1/topics/orders"),
    ):
        assert http.request(method, path, headers=bearer(SHOP)).status_code == 403
    other = http.post("/v1/topics/others/messages", json=body, headers=bearer(SHOP))
    assert other.status_code == 403
    assert http.get("/v1/topics/canvas-1/messages", headers=bearer(SCREEN)).status_code == 200
    assert http.get("/v1/topics/canvas-*/messages", headers=bearer(SCREEN)).status_code == 200


@pytest.mark.parametrize("glob", ["*", "canvas*", "c*", "?anvas-1", "*-1", "penstock.*"])
def test_a_glob_must_be_covered_whole(guarded: HttpServer, glob: str) -> None:
    path = glob.replace("?", "%3F")
    for kind in ("messages", "events"):
        answer = guarded.http.get(f"/v1/topics/{path}/{kind}", headers=bearer(SCREEN))
        assert answer.status_code == 403


def test_everything_does_not_include_penstocks_own_topics(guarded: HttpServer) -> None:
    answer = guarded.http.get("/v1/topics/penstock.delivery/messages", headers=bearer(BOSS))
    assert answer.status_code == 403


def test_lists_have_only_what_the_token_may_see(guarded: HttpServer) -> None:
    everything = guarded.http.get("/v1/topics", headers=bearer(BOSS)).json()["topics"]
    assert "orders" in {topic["name"] for topic in everything}
    assert guarded.http.get("/v1/topics", headers=bearer(SCREEN)).json()["topics"] == []
    assert guarded.http.get("/v1/consumers", headers=bearer(SCREEN)).json()["consumers"] == []


def test_figures_are_for_those_who_may_read_the_delivery_topic(guarded: HttpServer) -> None:
    for path in ("/metrics", "/health"):
        assert guarded.http.get(path, headers=bearer(MONITOR)).status_code == 200
        assert guarded.http.get(path, headers=bearer(SCREEN)).status_code == 403


def test_signed_tokens_work_beside_keys(guarded: HttpServer) -> None:
    claims = {
        "sub": "ann",
        "aud": "penstock",
        "exp": int(time.time()) + 60,
        "penstock": {"publish": ["notes"]},
    }
    token = jwt.encode(claims, SECRET, algorithm="HS256")
    body = {"payload": 1}
    notes = guarded.http.post("/v1/topics/notes/messages", json=body, headers=bearer(token))
    assert notes.status_code == 201
    orders = guarded.http.post("/v1/topics/orders/messages", json=body, headers=bearer(token))
    assert orders.status_code == 403


def test_a_revoked_key_ends_open_streams(path: Path, tmp_path: Path) -> None:
    """Fault row 27."""
    file, key = tmp_path / "tokens.toml", new_key()
    entry = Key(sha256=hash_key(key).hex(), subscribe=("orders",))
    tokens_file.write(file, TokensFile({"screen": entry}))
    with (
        HttpServer(path, tokens_file=str(file)) as server,
        server.http.stream("GET", "/v1/topics/orders/events", headers=bearer(key)) as events,
    ):
        lines = events.iter_lines()
        assert next(lines) == "retry: 2000"
        tokens_file.write(file, TokensFile())
        rest = list(lines)
        assert "event: error" in rest
        (data,) = [line for line in rest if line.startswith("data: ")]
        assert json.loads(data[6:])["code"] == "unauthorized"
        again = server.http.get("/v1/topics/orders/messages", headers=bearer(key))
        assert again.status_code == 401


def test_tokens_are_not_logged_and_not_taken_from_urls(guarded: HttpServer) -> None:
    unused = new_key()
    for name in ("token", "access_token"):
        refused = guarded.http.get("/v1/topics", params={name: BOSS})
        assert refused.status_code == 400
        assert "URLs" in refused.json()["error"]["message"]
        assert BOSS not in refused.text
    guarded.http.get("/v1/topics", headers=bearer(unused))
    guarded.http.get("/nowhere", headers=bearer(unused))
    logged = guarded.log.read_text()
    for secret in (BOSS, SHOP, SCREEN, unused, SECRET):
        assert secret not in logged


# Web pages


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_page_elsewhere_cannot_use_a_local_server(
    local: HttpServer, method: str, origin: str
) -> None:
    """Cross-site request forgery: nothing is done, whatever the method."""
    sends = {"content": b'{"payload": 1}'} if method in ("POST", "PUT") else {}
    answer = local.http.request(
        method, "/v1/topics/forged/messages", headers={"origin": origin}, **sends
    )
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert local.http.get("/v1/topics/forged").status_code == 404


@pytest.mark.parametrize("path", ["/v1/topics", "/metrics", "/", "/openapi.json"])
def test_a_name_that_was_pointed_here_is_not_answered(local: HttpServer, path: str) -> None:
    """DNS rebinding."""
    answer = local.http.get(path, headers={"host": f"evil.example:{local.port}"})
    assert answer.status_code == 403


def test_the_servers_own_page_may_use_it(local: HttpServer) -> None:
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{local.port}"
        answer = local.http.get("/v1/topics", headers={"host": host, "origin": f"http://{host}"})
        assert answer.status_code == 200


def test_a_listed_page_may_use_it_and_no_other_may(guarded: HttpServer) -> None:
    """CORS"""
    asked = {"access-control-request-method": "PUT", "access-control-request-headers": "x"}
    allowed = guarded.http.options("/v1/topics/orders", headers={"origin": PAGE, **asked})
    assert allowed.status_code == 204
    assert allowed.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in allowed.headers
    answer = guarded.http.get("/v1/topics", headers={"origin": PAGE, **bearer(BOSS)})
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "Origin" in answer.headers["vary"]
    refused = guarded.http.options(
        "/v1/topics/orders", headers={"origin": "https://evil.example", **asked}
    )
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/v1/topics", "/metrics", "/nowhere", "/health/live"]
)
def test_every_answer_has_the_headers_that_restrain_browsers(local: HttpServer, path: str) -> None:
    headers = local.http.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["cache-control"] == ("no-cache" if path in ("/", "/docs") else "no-store")
    assert "server" not in headers


# Sizes and deadlines


def talk(server: HttpServer, data: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port))
    client.settimeout(DEADLINE_SECONDS)
    client.sendall(data)
    return client


def answer_of(client: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    found = b""
    try:
        while piece := client.recv(65_536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def head(server: HttpServer, *lines: str, method: str = "POST") -> bytes:
    path = "/v1/topics/x/messages"
    return "\r\n".join(
        [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", *lines, "", ""]
    ).encode()


@pytest.mark.parametrize("length", [str(2**31), str(2**63), "9" * 4000])
def test_a_huge_declared_length_is_refused_before_anything_is_read(
    local: HttpServer, length: str
) -> None:
    """Fault row 24."""
    with talk(local, head(local, f"Content-Length: {length}")) as client:
        assert re.match(rb"HTTP/1.1 4(13|00) ", answer_of(client))


def test_a_body_that_does_not_end_is_cut_at_the_limit(local: HttpServer) -> None:
    """Fault row 24: chunked, so that nothing is declared; memory does not follow it."""
    process = psutil.Process(local.pid)
    before = process.memory_info().rss
    begin = head(local, "Transfer-Encoding: chunked", "Content-Type: application/json")
    with talk(local, begin) as client:
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        try:
            for _ in range(1024):
                client.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            pytest.fail("64 MiB were accepted")
    assert process.memory_info().rss - before < 10 * 1024 * 1024
    assert local.http.get("/health/live").status_code == 200


@pytest.mark.parametrize("kind", ["one", "many", "line"])
def test_a_head_above_the_limit_is_refused(local: HttpServer, kind: str) -> None:
    big = {
        "one": head(local, "X-Big: " + "x" * 40_000),
        "many": head(local, *(f"X-{n}: {'x' * 100}" for n in range(400))),
        "line": b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n",
    }[kind]
    with talk(local, big) as client:
        assert answer_of(client).startswith(b"HTTP/1.1 431 ")


def test_a_head_that_never_ends_is_refused(local: HttpServer) -> None:
    with talk(local, b"GET / HTTP/1.1\r\nX-Big: " + b"x" * 100_000) as client:
        assert answer_of(client).startswith(b"HTTP/1.1 431 ")


@pytest.fixture(scope="module")
def hasty(folder: Path) -> Iterator[HttpServer]:
    """A server that waits for requests only shortly."""
    with HttpServer(folder / "hasty.db", request_seconds=0.5) as server:
        yield server


@pytest.mark.parametrize("kind", ["nothing", "half a line", "half a head", "half a body", "blank"])
def test_a_request_that_does_not_come_is_not_waited_for(hasty: HttpServer, kind: str) -> None:
    """Fault row 25: slowloris in all its forms; the server hangs up by its deadline."""
    sent = {
        "nothing": b"",
        "half a line": b"GET /v1/top",
        "half a head": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        "half a body": head(hasty, "Content-Length: 100", "Content-Type: application/json") + b"{",
        "blank": b"\r\n\r\n",
    }[kind]
    with talk(hasty, sent) as client:
        assert answer_of(client).startswith(b"HTTP/1.1 408 ")
    assert hasty.http.get("/health/live").status_code == 200


def test_the_second_request_of_a_connection_has_a_deadline_too(hasty: HttpServer) -> None:
    whole = f"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1:{hasty.port}\r\n\r\n".encode()
    with talk(hasty, whole + b"GET /v1") as client:
        found = answer_of(client)
    assert found.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in found


def test_a_stream_outlives_the_deadline_of_requests(hasty: HttpServer) -> None:
    with hasty.http.stream("GET", "/v1/topics/x/events") as events:
        lines = events.iter_lines()
        assert next(lines) == "retry: 2000"
        # Two other clients run into the deadline meanwhile, one after the other.
        for _ in range(2):
            with talk(hasty, b"GET") as client:
                answer_of(client)
        assert hasty.http.post("/v1/topics/x/messages", json={"payload": 1}).status_code == 201
        assert any(line == "event: message" for line in lines)


def test_a_client_that_does_not_take_its_answers_is_cut(hasty: HttpServer) -> None:
    """Fault row 25: it asks for much, many times, and reads nothing."""
    body = {"payload": secrets.token_hex(400_000)}
    for _ in range(3):
        assert hasty.http.post("/v1/topics/x/messages", json=body).status_code == 201
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(DEADLINE_SECONDS)
        client.connect(("127.0.0.1", hasty.port))
        client.sendall(head(hasty, method="GET") * 20)
        connection = wait_until(lambda: _sockets(hasty, client), "the server has the connection")
        wait_until(lambda: not _sockets(hasty, client), f"the server has cut {connection}")
    assert hasty.http.get("/health/live").status_code == 200


def _sockets(server: HttpServer, client: socket.socket) -> list[Any]:
    """The server's side of a client's connection, while it has one open."""
    here = client.getsockname()
    return [c for c in psutil.Process(server.pid).net_connections("tcp") if c.raddr == here]


def test_beyond_the_publish_rate_a_client_is_told_to_wait(path: Path) -> None:
    with HttpServer(path, publish_rate_max=10) as server:
        messages = {"messages": [{"payload": n} for n in range(30)]}
        assert server.http.post("/v1/topics/a/messages", json=messages).status_code == 201
        refused = server.http.post("/v1/topics/a/messages", json=messages)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["retryable"]
        assert server.http.get("/v1/topics/a").json()["messages"] == 30


def test_forwarded_addresses_are_believed_only_where_told(path: Path) -> None:
    """A client cannot escape its limit by claiming to be others."""
    with HttpServer(path, publish_rate_max=1) as server:
        codes = {
            server.http.post(
                "/v1/topics/a/messages",
                json={"payload": 1},
                headers={"x-forwarded-for": f"10.0.0.{n}"},
            ).status_code
            for n in range(20)
        }
        assert 429 in codes


def test_idle_connections_beyond_the_limit_are_turned_away(path: Path) -> None:
    with HttpServer(path, connections_max=5) as server:
        held = [talk(server, b"") for _ in range(5)]
        try:

            def is_full() -> bool:
                with talk(server, b"") as client:
                    client.settimeout(1.0)
                    try:
                        return client.recv(100).startswith(b"HTTP/1.1 503 ")
                    except TimeoutError:
                        return False

            wait_until(is_full, "the sixth connection is refused")
        finally:
            for client in held:
                client.close()
        wait_until(lambda: _answers(server), "there is room again")


def _answers(server: HttpServer) -> bool:
    try:
        return server.http.get("/health/live").status_code == 200
    except httpx.TransportError:
        return False
