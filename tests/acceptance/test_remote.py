"""The command line against a server: the same commands, with its URL (D6, D7)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.server.tokens_file import hash_key, new_key
from tests.acceptance.terminal import Terminal
from tests.factories import payloads
from tests.servers import Server


@pytest.fixture
def server(terminal: Terminal) -> Iterator[Server]:
    """On the terminal's file; the terminal knows only its URL."""
    with Server(terminal.file) as server:
        terminal.environment["PENSTOCK_URL"] = server.url
        yield server


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_publish_and_follow_by_url(
    terminal: Terminal, server: Server, hub: penstock.Hub, scheme: str
) -> None:
    url = server.url.replace("http", scheme, 1)
    sent = terminal.done(
        *("publish", "orders", '{"id":1}', "--type", "created", "--key", "k"),
        *("--header", "a=b", "--url", url, "--json"),
    ).json
    [message] = hub.topics.read("orders")
    assert sent["position"] == str(message.position)

    here = terminal.done("follow", "orders", "--last", 1, "--count", 1, "--json", "--url", url)
    there = terminal.done(
        *("follow", "orders", "--last", 1, "--count", 1, "--json"),
        *("--url", f"sqlite:///{terminal.file}"),
    )
    assert here.json == there.json


def test_a_message_appears_in_a_follower_on_the_other_side(
    terminal: Terminal, server: Server
) -> None:
    terminal.done("publish", "orders", "0")
    follower = terminal.start("follow", "orders", "--last", 1, "--json")
    assert follower.message()["payload"] == 0
    terminal.done("publish", "orders", '"hello"')

    assert follower.message()["payload"] == "hello"
    assert follower.signal(signal.SIGINT).code == 130


def test_lines_of_input_are_published_through_a_server(
    terminal: Terminal, server: Server, hub: penstock.Hub
) -> None:
    lines = "".join(f"{n}\n" for n in range(2_500))
    told = terminal.done("publish", "log", "-", "--json", given=lines).json

    assert told["published"] == 2_500
    assert payloads(hub.topics.read("log", limit=10_000)) == [*range(2_500)]


def test_a_follower_rides_over_a_killed_server(terminal: Terminal, server: Server) -> None:
    """D6: it says so, and goes on where it was."""
    terminal.done("publish", "orders", "0")
    follower = terminal.start("follow", "orders", "--consumer", "c", "--start", "earliest")
    assert follower.line().endswith("0")
    server.restart()
    terminal.done("publish", "orders", "1")

    assert follower.line().endswith("1")
    ended = follower.signal(signal.SIGTERM)
    assert ended.code == 0
    assert "disconnected" in ended.err
    assert terminal.done("consumers", "list", "--json").json[0]["lag_messages"] == 0


def test_topics_consumers_and_health_by_url(terminal: Terminal, server: Server) -> None:
    terminal.done("topics", "create", "orders", "--max-messages", 10)
    assert "orders" in terminal.done("topics", "list").out
    terminal.done("topics", "configure", "orders", "--keep-for", "1h")
    terminal.done("publish", "orders", "1")
    terminal.done("publish", "orders", "2")
    terminal.done("follow", "orders", "--consumer", "c", "--start", "earliest", "--count", 1)
    shown = terminal.done("topics", "show", "orders", "--json").json
    assert (shown["messages"], shown["retention"]["age_seconds"]) == (2, 3600)
    assert terminal.done("consumers", "show", "c", "--json").json[0]["lag_messages"] == 1
    terminal.done("consumers", "seek", "c", "orders", "--to", "latest")
    assert terminal.done("health", "--json").json["metrics"]["queue_size"] == 2
    assert terminal.done("topics", "trim", "orders", "--keep", 1, "--json").json["removed"] == 1
    terminal.done("consumers", "delete", "c", "--yes")
    assert terminal.done("topics", "delete", "orders", "--yes", "--json").json["removed"] == 1
    assert terminal.run("topics", "show", "orders").err.startswith("error: There is no topic")


def test_follow_since_a_time_by_url(terminal: Terminal, server: Server) -> None:
    terminal.done("publish", "orders", "1")
    found = terminal.done("follow", "orders", "--since", "1h", "--count", 1, "--json")
    assert found.json["payload"] == 1


@pytest.mark.parametrize("command", [("backup", "x.bak"), ("doctor",), ("migrate", "status")])
def test_what_needs_the_file_says_so(
    terminal: Terminal, server: Server, command: tuple[str, ...]
) -> None:
    result = terminal.run(*command)
    assert result.code != 0
    assert "is a server, and this needs the" in result.out + result.err
    assert "Traceback" not in result.err


def test_no_server_is_one_line_and_a_hint(terminal: Terminal) -> None:
    result = terminal.run(
        *("publish", "orders", "1", "--url", "http://127.0.0.1:1"),
        PENSTOCK_CLIENT_TIMEOUT_SECONDS="0.5",
    )
    assert result.code == 1
    first, *rest = result.err.splitlines()
    assert first.startswith("error: No server at http://127.0.0.1:1")
    assert "refused" in first
    assert all(line.startswith("hint: ") for line in rest)


# Tokens


@pytest.fixture
def key(terminal: Terminal) -> str:
    return new_key()


@pytest.fixture
def guarded(terminal: Terminal, key: str) -> Iterator[Callable[..., Server]]:
    tokens = terminal.folder / "tokens.toml"
    tokens.write_text(
        f"[keys.ann]\nsha256 = '{hash_key(key).hex()}'\n"
        "publish = ['orders']\nsubscribe = ['orders']\n"
    )
    tokens.chmod(0o600)
    with Server(Path(terminal.file), "--tokens-file", str(tokens)) as server:
        terminal.environment["PENSTOCK_URL"] = server.url
        yield server


def test_a_token_is_an_option_or_in_the_environment(
    terminal: Terminal, guarded: Server, key: str
) -> None:
    terminal.done("publish", "orders", "1", "--token", key)
    assert terminal.run("publish", "orders", "2", PENSTOCK_TOKEN=key).code == 0
    terminal.done("--token", key, "topics", "show", "orders")
    refused = terminal.run("publish", "orders", "3")
    assert refused.code == 1
    assert refused.err.startswith("error: A valid token is needed.")
    other = terminal.run("publish", "secrets", "1", "--token", key)
    assert other.err.startswith("error: This token does not allow to publish to 'secrets'.")


def test_a_token_is_never_shown(terminal: Terminal, guarded: Server, key: str) -> None:
    for arguments in (
        ("publish", "--help"),
        ("publish", "secrets", "1"),
        ("publish", "orders", "1"),
        ("topics", "list"),
        ("doctor", "--settings"),
    ):
        result = terminal.run(*arguments, PENSTOCK_TOKEN=key)
        assert key not in result.out + result.err
        assert key[3:12] not in result.out + result.err
