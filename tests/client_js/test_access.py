"""penstock.js and tokens: refused for good, refreshed in time, told by code (D2, D6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import jwt
import pytest

from tests.client_js.node import Node
from tests.client_js.servers import Server

SECRET = "s" * 32


@pytest.fixture
def guarded(start_server: Callable[..., Server], tmp_path: Path) -> Server:
    """A server that wants signed tokens."""
    key = tmp_path / "key"
    key.write_text(SECRET)
    key.chmod(0o600)
    return start_server(jwt_key_file=str(key))


def token(seconds: float = 3600, *, topics: tuple[str, ...] = ("orders*",)) -> str:
    rights = {"publish": list(topics), "subscribe": list(topics)}
    claims = {"sub": "ann", "aud": "penstock", "exp": time.time() + seconds, "penstock": rights}
    return jwt.encode(claims, SECRET, algorithm="HS256")


@pytest.mark.parametrize("given", ["", "nonsense", token(-60)], ids=["none", "wrong", "expired"])
def test_a_bad_token_closes_the_hub_for_good(guarded: Server, given: str) -> None:
    code = """
        const hub = connect(url, { token: rest[0] || null });
        hub.on("disconnected", () => say("reconnects"));
        const subscription = hub.subscribe("orders");
        const refused = codeOf(subscription.ready);
        const publish = codeOf(hub.publish("orders", 1));
        const { error } = await event(hub, "closed");
        say([error instanceof penstock.Unauthorized, error.retryable, error.hint.length > 9]);
        say([await refused, await publish, await codeOf(hub.ready())]);
        """
    with Node(code, guarded.url, given) as node:
        assert node.told() == [True, False, True]
        assert node.told() == ["unauthorized"] * 3
        assert node.wait() == 0


def test_a_refused_topic_ends_its_subscription_only(guarded: Server) -> None:
    code = """
        const hub = connect(url, { token: rest[0] });
        const secret = hub.subscribe("secrets");
        const orders = hub.subscribe("orders", ({ payload }) => say(payload));
        say(await codeOf(async () => { for await (const message of secret); }));
        say([secret.isClosed, secret.error instanceof penstock.Forbidden]);
        say(await codeOf(hub.publish("secrets", 1)));
        await orders.ready;
        await hub.publish("orders", "fine");
        """
    with Node(code, guarded.url, token()) as node:
        assert node.told() == "forbidden"
        assert node.told() == [True, True]
        assert node.told() == "forbidden"
        assert node.told() == "fine"


def test_a_token_function_is_asked_for_a_fresh_one_before_it_expires(guarded: Server) -> None:
    """Three tokens that last a moment each, on one connection."""
    code = """
        const tokens = [...rest];
        const hub = connect(url, { token: async () => tokens.shift() });
        hub.on("disconnected", ({ code }) => say(["disconnected", code]));
        const sent = [];
        hub.on("error", (error) => say(["error", error.code]));
        await hub.ready();
        const timer = setInterval(async () => {
            if (tokens.length > 0) return;
            clearInterval(timer);
            say([(await hub.publish("orders", 1)).durable, hub.state]);
        }, 20);
        """
    with Node(code, guarded.url, token(2), token(4), token(3600)) as node:
        assert node.told() == [True, "connected"]


def test_a_token_that_expires_and_cannot_be_refreshed_closes_the_hub(guarded: Server) -> None:
    code = """
        const hub = connect(url, { token: rest[0], reconnectMaxMs: 50 });
        hub.on("disconnected", ({ code }) => say(code));
        await hub.ready();
        const { error } = await event(hub, "closed");
        say(error.code);
        """
    with Node(code, guarded.url, token(2)) as node:
        assert node.told() == 3005
        assert node.told() == "unauthorized"
        assert node.wait() == 0


def test_a_token_function_that_fails_is_asked_again(guarded: Server) -> None:
    code = """
        let asked = 0;
        const token = async () => {
            if (++asked < 3) throw new Error("the login service is away");
            return rest[0];
        };
        const hub = connect(url, { token, reconnectMaxMs: 50 });
        await hub.ready();
        say(asked);
        """
    with Node(code, guarded.url, token()) as node:
        assert node.told() == 3
