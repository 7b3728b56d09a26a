"""`penstock publish`: what is printed, what is parsed, and lines from standard input (T4)."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

import penstock
from tests.acceptance.terminal import COMMAND, Terminal


def test_publish_prints_the_position_of_the_message(terminal: Terminal, hub: penstock.Hub) -> None:
    result = terminal.done("publish", "orders", '{"id": 1}')

    [message] = hub.topics.read("orders")
    assert result.out == f"{message.position}\n"


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ('{"id": 1}', {"id": 1}),
        ("[1, 2]", [1, 2]),
        ("17", 17),
        ("null", None),
        ('"quoted"', "quoted"),
        ("plain words", "plain words"),
        ("{broken", "{broken"),
        ("", ""),
        ("NaN", "NaN"),
        ("grüße ☂", "grüße ☂"),
    ],
)
def test_payload_is_json_or_else_a_string(
    terminal: Terminal, hub: penstock.Hub, text: str, payload: object
) -> None:
    terminal.done("publish", "orders", text)

    assert [message.payload for message in hub.topics.read("orders")] == [payload]


def test_publish_carries_type_key_headers_and_ttl(terminal: Terminal, hub: penstock.Hub) -> None:
    """T1"""
    options = [
        "--type",
        "created",
        "--key",
        "7",
        "--header",
        "a=1",
        "--header",
        "b=x=y",
        "--ttl",
        "1h",
    ]

    terminal.done("publish", "orders", "{}", *options, "--ttl", "1h")

    [message] = hub.topics.read("orders")
    assert (message.type, message.key) == ("created", "7")
    assert message.headers == {"a": "1", "b": "x=y"}
    assert message.expires_at == message.created_at + 3_600_000_000


def test_publish_under_one_idempotency_key_gives_the_first_receipt(terminal: Terminal) -> None:
    first = terminal.done("publish", "orders", "1", "--idempotency-key", "k", "--json").json
    second = terminal.done("publish", "orders", "1", "--idempotency-key", "k", "--json").json

    assert not first["duplicate"]
    assert second == {**first, "duplicate": True}


@pytest.mark.parametrize(("format", "payload"), [("msgpack", {"a": 1}), ("bytes", b'{"a": 1}')])
def test_publish_stores_the_format_asked_for(
    terminal: Terminal, hub: penstock.Hub, format: str, payload: object
) -> None:
    """T16"""
    terminal.done("publish", "orders", '{"a": 1}', "--format", format)

    [message] = hub.topics.read("orders")
    assert message.payload == payload


def test_publish_takes_a_file_as_bytes(terminal: Terminal, hub: penstock.Hub) -> None:
    content = bytes(range(256))
    (terminal.folder / "picture").write_bytes(content)

    terminal.done("publish", "images", "--bytes-from-file", "picture")

    assert [message.payload for message in hub.topics.read("images")] == [content]


def test_each_line_of_standard_input_is_one_message(terminal: Terminal, hub: penstock.Hub) -> None:
    given = '{"id": 1}\nplain\r\n\n[3]'

    result = terminal.done("publish", "orders", "-", "--type", "t", given=given)

    messages = hub.topics.read("orders")
    assert [message.payload for message in messages] == [{"id": 1}, "plain", "", [3]]
    assert {message.type for message in messages} == {"t"}
    assert result.out.startswith("4 messages published to orders in ")


def test_many_lines_arrive_complete_and_in_order(terminal: Terminal, hub: penstock.Hub) -> None:
    count = 30_000
    given = "".join(f"{number}\n" for number in range(count))

    summary = terminal.done("publish", "orders", "-", "--json", given=given).json

    assert summary["published"] == count
    messages = hub.topics.read("orders", limit=2 * count)
    assert [message.payload for message in messages] == list(range(count))
    assert summary["first"] == str(messages[0].position)
    assert summary["last"] == str(messages[-1].position)


def test_a_line_is_published_before_the_next_one_is_written(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    with (
        hub.topics.subscribe("log") as live,
        subprocess.Popen(
            [*COMMAND, "publish", "log", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=terminal.environment,
        ) as publisher,
    ):
        assert publisher.stdin is not None
        for line in ("first", "second"):
            publisher.stdin.write(f"{line}\n".encode())
            publisher.stdin.flush()
            message = live.get(20)
            assert message is not None
            assert message.payload == line
        publisher.stdin.close()
        assert publisher.wait(60) == 0


def test_a_line_that_cannot_be_published_is_named_and_those_before_it_stay(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    result = terminal.run("publish", "orders", "-", given=b"1\n2\n\xff\xfe\n4\n")

    assert result.code == 1
    assert "error: Line 3: The payload is neither JSON nor UTF-8 text." in result.err
    assert "hint: Publish it as it is with --format bytes." in result.err
    assert [message.payload for message in hub.topics.read("orders")] == [1, 2]


def test_a_payload_over_the_limit_is_refused_with_a_hint(terminal: Terminal) -> None:
    result = terminal.run("publish", "orders", "-", given="x" * 2_000_000)

    assert result.code == 1
    assert "error: Line 1: The payload has 2,000,002 bytes; the limit is 1,048,576." in result.err
    assert "hint: " in result.err


def test_progress_is_shown_on_a_terminal(terminal: Terminal) -> None:
    ours, theirs = pty.openpty()
    try:
        ended = subprocess.run(
            [*COMMAND, "publish", "orders", "-"],
            input=b"1\n2\n3\n",
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**terminal.environment, "TERM": "xterm"},
            timeout=100,
            check=True,
        )
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)

    assert ended.stdout.startswith(b"3 messages published")
    assert "3 messages" in shown
    assert "messages/s" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("orders",),
        ("orders", "1", "--bytes-from-file", "x"),
        ("orders", "1", "--header", "novalue"),
        ("orders", "1", "--ttl", "soon"),
        ("orders", "-", "--idempotency-key", "k"),
        ("orders", "1", "--format", "pickle"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_a_usage_error(
    terminal: Terminal, arguments: tuple[str, ...]
) -> None:
    result = terminal.run("publish", *arguments)

    assert result.code == 2
    assert "Usage: penstock publish" in result.err
