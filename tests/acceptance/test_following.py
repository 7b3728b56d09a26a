"""`penstock follow`: live, from a place in the log, and as a named consumer (T3, T5)."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import penstock
from tests.acceptance.terminal import COMMAND, Terminal
from tests.waiting import wait_until


def test_a_message_published_in_one_process_appears_in_another(
    terminal: Terminal, listening: Callable[[int], None]
) -> None:
    follower = terminal.start("follow", "orders")
    listening(1)

    terminal.done("publish", "orders", '{"id":1}', "--type", "created", "--key", "k")

    line = follower.line()
    assert line.endswith('orders  created  [k]  {"id":1}')


def test_json_lines_say_all_about_a_message(terminal: Terminal, hub: penstock.Hub) -> None:
    hub.topics.publish("orders", {"id": 1}, type="created", key="k", headers={"a": "b"})
    [message] = hub.topics.read("orders")

    result = terminal.done("follow", "orders", "--last", 1, "--count", 1, "--json")

    assert result.json == {
        "id": 1,
        "topic": "orders",
        "type": "created",
        "key": "k",
        "headers": {"a": "b"},
        "payload": {"id": 1},
        "time": message.time.isoformat(),
        "position": str(message.position),
        "format": "json",
    }


def test_bytes_are_base64_in_json_lines(terminal: Terminal, hub: penstock.Hub) -> None:
    hub.topics.publish("orders", b"\x00\xff")

    line = terminal.done("follow", "orders", "--last", 1, "--count", 1, "--json").json

    assert (line["payload"], line["format"]) == ("AP8=", "bytes")


def test_payloads_json_has_no_words_for_do_not_end_a_follower(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    hub.topics.publish("orders", {(1, 2): "tuple as key"}, format="msgpack")
    hub.topics.publish("orders", 2)

    result = terminal.done("follow", "orders", "--last", 2, "--count", 2, "--json")
    plain = terminal.done("follow", "orders", "--last", 2, "--count", 2)

    assert '"format":"undecodable"' in result.lines[0]
    assert '"payload":2' in result.lines[1]
    assert "cannot be decoded" in plain.lines[0]


def test_control_characters_do_not_reach_the_terminal(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    hub.topics.publish("orders", "\x1b[31m\x9b31m", key="\x1b]0;title\x07")

    result = terminal.done("follow", "orders", "--last", 1, "--count", 1)

    assert not any(c < " " or "\x7f" <= c <= "\x9f" for c in result.out.rstrip("\n"))


def test_lines_are_coloured_on_a_terminal(terminal: Terminal, hub: penstock.Hub) -> None:
    hub.topics.publish("orders", {"id": 1})
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [*COMMAND, "follow", "orders", "--last", "1", "--count", "1"],
            stdout=theirs,
            env={**terminal.environment, "TERM": "xterm-256color"},
            timeout=100,
            check=True,
        )
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)

    assert "\x1b[" in shown
    assert "orders" in shown


def test_a_glob_follows_every_topic_it_stands_for(terminal: Terminal, hub: penstock.Hub) -> None:
    for topic in ("canvas-a", "orders", "canvas-b"):
        hub.topics.publish(topic, topic)

    result = terminal.done("follow", "canvas-*", "--last", 5, "--count", 2, "--json")

    assert [line.split('"payload":"')[1].split('"')[0] for line in result.lines] == [
        "canvas-a",
        "canvas-b",
    ]


def test_follow_after_a_position_begins_with_the_next_message(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    receipts = hub.topics.publish_many("orders", [1, 2, 3])

    result = terminal.done(
        "follow", "orders", "--after", receipts[0].position, "--count", 2, "--json"
    )

    assert '"payload":2' in result.lines[0]
    assert '"payload":3' in result.lines[1]


def test_follow_since_a_duration_ago_or_a_time(terminal: Terminal, hub: penstock.Hub) -> None:
    hub.topics.publish("orders", 1)
    before = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()

    by_duration = terminal.done("follow", "orders", "--since", "10m", "--count", 1, "--json")
    by_time = terminal.done("follow", "orders", "--since", before, "--count", 1, "--json")

    assert by_duration.json["payload"] == by_time.json["payload"] == 1


def test_follow_since_a_time_with_no_messages_waits_for_the_next(
    terminal: Terminal, hub: penstock.Hub, listening: Callable[[int], None]
) -> None:
    hub.topics.publish("other", 0)
    follower = terminal.start("follow", "orders", "--since", "0.001s", "--json")
    listening(1)

    hub.topics.publish("orders", 1)

    assert follower.message()["payload"] == 1


def test_follow_ends_when_nothing_comes_in_time(terminal: Terminal) -> None:
    assert terminal.done("follow", "orders", "--timeout", "50ms").out == ""


def test_fewer_messages_than_asked_for_are_a_failure(terminal: Terminal) -> None:
    result = terminal.run("follow", "orders", "--count", 2, "--timeout", "50ms")

    assert result.code == 1
    assert result.err.startswith("error: 0 of 2 messages came in time.\nhint: ")


def test_a_killed_consumer_goes_on_where_it_was(terminal: Terminal, hub: penstock.Hub) -> None:
    """T3: nothing is skipped, and nothing that was committed comes again."""
    arguments = ("follow", "orders", "--consumer", "indexer", "--start", "earliest", "--json")
    hub.topics.publish_many("orders", [1, 2])
    first = terminal.start(*arguments)
    assert [first.message()["payload"] for _ in range(2)] == [1, 2]
    wait_until(lambda: hub.consumers.get("indexer", "orders").position.offset == 2)

    first.kill()
    hub.topics.publish_many("orders", [3, 4])
    second = terminal.start(*arguments)

    assert [second.message()["payload"] for _ in range(2)] == [3, 4]


def test_each_message_is_committed_after_it_was_printed(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    """T3"""
    hub.topics.publish_many("orders", [1, 2, 3])

    terminal.done("follow", "orders", "--consumer", "c", "--start", "earliest", "--count", 2)

    assert hub.consumers.get("c", "orders").position.offset == 2
    assert hub.consumers.get("c", "orders").holder is None


def test_a_second_follower_of_a_name_is_refused_and_may_wait_in_line(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    """T3: one holder by lease."""
    first = terminal.start("follow", "orders", "--consumer", "c", "--json")
    wait_until(lambda: [c.holder for c in hub.consumers.list("c") if c.holder])

    refused = terminal.run("follow", "orders", "--consumer", "c")
    second = terminal.start("follow", "orders", "--consumer", "c", "--standby", "--json")
    first.kill()
    wait_until(
        lambda: str(second.pid) in (hub.consumers.get("c", "orders").holder or ""),
        "the second follower holds the consumer",
    )
    hub.topics.publish("orders", 1)

    assert refused.code == 1
    assert refused.err.startswith("error: Another follower is the consumer 'c' on 'orders'.\nhint:")
    assert second.message()["payload"] == 1


def test_trimmed_messages_end_a_consumer_unless_it_may_skip_them(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    """T7"""
    arguments = ("follow", "orders", "--consumer", "c", "--start", "earliest", "--count", 1)
    hub.topics.publish_many("orders", [1, 2, 3])
    terminal.done(*arguments)
    hub.topics.trim("orders", keep=1)

    refused = terminal.run(*arguments)
    skipped = terminal.done(*arguments, "--skip-trimmed", "--json")

    assert refused.code == 1
    assert "hint: Pass --skip-trimmed to go on with what exists" in refused.err
    assert skipped.json["payload"] == 3


def test_sigterm_ends_a_follower_cleanly(terminal: Terminal, hub: penstock.Hub) -> None:
    follower = terminal.start("follow", "orders", "--consumer", "c", "--json")
    wait_until(lambda: [c.holder for c in hub.consumers.list("c") if c.holder])
    hub.topics.publish("orders", 1)
    follower.message()

    result = follower.signal(signal.SIGTERM)

    assert (result.code, result.err) == (0, "")
    consumer = hub.consumers.get("c", "orders")
    assert (consumer.position.offset, consumer.holder) == (1, None)


def test_ctrl_c_ends_a_follower_without_a_word(
    terminal: Terminal, listening: Callable[[int], None]
) -> None:
    follower = terminal.start("follow", "orders")
    listening(1)

    result = follower.signal(signal.SIGINT)

    assert (result.code, result.out, result.err) == (130, "", "")


def test_a_closed_pipe_ends_a_follower_without_waiting_for_a_message(
    terminal: Terminal, listening: Callable[[int], None]
) -> None:
    follower = terminal.start("follow", "orders")
    listening(1)

    result = follower.close_output()

    assert (result.code, result.err) == (141, "")


def test_a_reader_that_leaves_with_the_last_message_is_no_failure(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    hub.topics.publish("orders", 1)
    follower = terminal.start("follow", "orders", "--last", 1, "--count", 1)
    follower.line()

    result = follower.close_output()

    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    "options",
    [
        ("--last", "1", "--since", "1m"),
        ("--consumer", "c", "--last", "1"),
        ("--start", "earliest"),
        ("--standby",),
        ("--after", "nonsense"),
        ("--since", "whenever"),
        ("--last", "0"),
    ],
)
def test_options_that_contradict_each_other_are_usage_errors(
    terminal: Terminal, options: tuple[str, ...]
) -> None:
    result = terminal.run("follow", "orders", *options)

    assert result.code == 2
    assert "Usage: penstock follow" in result.err
