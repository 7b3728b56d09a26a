"""Tokens of the remote client: shown, refused, refreshed before they run out (D2, D6)."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

import penstock
import penstock.client
from penstock.client import RemoteHub
from penstock.errors import Forbidden, LimitReached, Unauthorized
from tests.factories import payloads
from tests.servers import Server
from tests.waiting import SOON, wait_until


class Mint:
    """Makes tokens as a login service would, and counts how often it was asked."""

    def __init__(self, folder: Path) -> None:
        self._secret = secrets.token_hex(32)
        self.file = folder / "jwt.key"
        self.file.write_text(self._secret)
        self.file.chmod(0o600)
        self.asked = 0
        self._lock = threading.Lock()

    def make(self, seconds: float = 600, subject: str = "ann", **claims: Any) -> str:
        with self._lock:
            self.asked += 1
        now = time.time()
        rights = {"publish": ["*"], "subscribe": ["*"], "admin": ["*"]}
        claims = {"sub": subject, "aud": "penstock", "iat": now, "exp": now + seconds, **claims}
        return jwt.encode({**rights, "penstock": rights, **claims}, self._secret, "HS256")


@pytest.fixture
def mint(tmp_path: Path) -> Mint:
    return Mint(tmp_path)


@pytest.fixture
def server(path: Path, mint: Mint) -> Iterator[Server]:
    with Server(path, PENSTOCK_JWT_KEY_FILE=str(mint.file)) as server:
        yield server


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., RemoteHub]]:
    hubs: list[RemoteHub] = []

    def one(**arguments: Any) -> RemoteHub:
        hubs.append(penstock.client.connect(server.url, **arguments))
        return hubs[-1]

    yield one
    for hub in hubs:
        hub.close()


def test_a_token_is_shown_on_the_socket_and_over_http(
    connect: Callable[..., RemoteHub], mint: Mint
) -> None:
    hub = connect(token=mint.make())
    hub.topics.publish("t", 1)
    assert payloads(hub.topics.read("t")) == [1]
    assert "ey" not in repr(hub)


@pytest.mark.parametrize("token", [None, "nonsense"])
def test_without_a_good_token_nothing_works_and_nothing_is_tried_again(
    connect: Callable[..., RemoteHub], token: str | None
) -> None:
    hub = connect(token=token)
    for call in (
        lambda: hub.topics.publish("t", 1),
        lambda: hub.topics.subscribe("t"),
        lambda: hub.topics.follow("t", consumer="c"),
        lambda: hub.topics.list(),
    ):
        with pytest.raises(Unauthorized):
            call()


def test_the_token_comes_from_the_environment(
    connect: Callable[..., RemoteHub], mint: Mint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN", mint.make())
    assert connect().topics.publish("t", 1).durable


def test_rights_are_those_of_the_token(connect: Callable[..., RemoteHub], mint: Mint) -> None:
    rights = {"publish": ["mine"], "subscribe": ["mine"], "admin": []}
    hub = connect(token=mint.make(**rights, penstock=rights))
    hub.topics.publish("mine", 1)
    for call in (
        lambda: hub.topics.publish("other", 1),
        lambda: hub.topics.subscribe("other"),
        lambda: hub.topics.subscribe("*"),
        lambda: hub.topics.read("other"),
        lambda: hub.topics.delete("mine"),
        lambda: hub.presence("other"),
    ):
        with pytest.raises(Forbidden):
            call()
    assert hub.topics.publish("mine", 2).durable


def test_a_function_is_asked_again_before_the_token_runs_out(
    connect: Callable[..., RemoteHub], mint: Mint
) -> None:
    """The connection and its subscriptions go on, under the next token."""
    hub = connect(token=lambda: mint.make(seconds=2))
    live = hub.topics.subscribe("t")
    wait_until(lambda: mint.asked >= 4, "four tokens", seconds=SOON)
    hub.topics.publish("t", "still here")
    assert live.get(SOON).payload == "still here"
    assert hub.telemetry.counters()["connected"] == 1


def test_a_function_that_is_a_coroutine_is_awaited(
    connect: Callable[..., RemoteHub], mint: Mint
) -> None:
    async def token() -> str:
        return mint.make()

    assert connect(token=token).topics.publish("t", 1).durable


def test_a_token_that_has_run_out_is_replaced_for_http(
    connect: Callable[..., RemoteHub], mint: Mint
) -> None:
    given = iter([mint.make(seconds=-600)])
    hub = connect(token=lambda: next(given, None) or mint.make())
    assert hub.topics.list() == []


def test_a_fixed_token_that_runs_out_ends_what_it_opened(
    connect: Callable[..., RemoteHub], mint: Mint
) -> None:
    hub = connect(token=mint.make(seconds=2))
    live = hub.topics.subscribe("t")
    with pytest.raises(Unauthorized):
        live.get(SOON)
    with pytest.raises(Unauthorized):
        hub.topics.publish("t", 1)


def test_a_function_that_fails_fails_the_call_that_needs_it(
    connect: Callable[..., RemoteHub],
) -> None:
    def broken() -> str:
        raise RuntimeError("the login service is down")

    hub = connect(token=broken, client_timeout_seconds=0.5)
    with pytest.raises(penstock.PenstockError, match="login service is down"):
        hub.topics.publish("t", 1)


def test_a_limit_of_connections_is_said(path: Path, tmp_path: Path) -> None:
    with (
        Server(tmp_path / "small.db", PENSTOCK_CONNECTIONS_PER_CLIENT_MAX="1") as small,
        penstock.client.connect(small.url) as first,
        penstock.client.connect(small.url, client_timeout_seconds=1) as second,
    ):
        first.topics.publish("t", 1)
        with pytest.raises(LimitReached):
            second.topics.publish("t", 1)
