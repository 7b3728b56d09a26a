"""`penstock backup` and `penstock restore`."""

from __future__ import annotations

import threading

import pytest

import penstock
from tests.acceptance.terminal import Terminal
from tests.factories import file_url, hub_on
from tests.waiting import wait_until


def test_a_backup_under_load_is_a_whole_prefix_of_the_log(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    enough = threading.Event()
    published = 0

    def publish() -> None:
        nonlocal published
        while not enough.is_set():
            hub.topics.publish_many("orders", list(range(published, published + 100)))
            published += 100

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        wait_until(lambda: published >= 2_000, "some messages are there")
        terminal.done("backup", "copy.bak")
    finally:
        enough.set()
        publisher.join()

    other = terminal.folder / "other.db"
    terminal.done("--url", file_url(other), "restore", "copy.bak")
    with hub_on(other) as restored:
        payloads = [m.payload for m in restored.topics.read("orders", limit=published)]
    assert len(payloads) >= 2_000
    assert payloads == list(range(len(payloads)))


def test_a_backup_replaces_a_file_only_with_force(terminal: Terminal, hub: penstock.Hub) -> None:
    hub.topics.publish("orders", 1)
    target = terminal.folder / "copy.bak"
    target.write_text("precious")

    refused = terminal.run("backup", target)
    kept = target.read_text()
    made = terminal.done("backup", target, "--force", "--json").json

    assert (refused.code, kept) == (1, "precious")
    assert "hint: Pass --force to replace it." in refused.err
    assert made == {"file": str(target), "bytes": target.stat().st_size}


@pytest.mark.parametrize("arguments", [("backup", "--force"), ("restore", "--yes")])
def test_the_database_is_no_backup_of_itself(
    terminal: Terminal, hub: penstock.Hub, arguments: tuple[str, str]
) -> None:
    hub.topics.publish("orders", 1)
    command, option = arguments

    result = terminal.run(command, terminal.file, option)

    assert result.code == 1
    assert "is the database itself." in result.err
    assert [message.payload for message in hub.topics.read("orders")] == [1]


def test_restore_brings_back_what_was_there_and_refuses_old_positions(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    hub.topics.publish("orders", "in the backup")
    terminal.done("backup", "copy.bak")
    position = hub.topics.publish("orders", "after it").position

    restored = terminal.done("restore", "copy.bak", "--yes", "--json").json
    refused = terminal.run("follow", "orders", "--after", position)

    assert (restored["topics"], restored["messages"]) == (1, 1)
    assert [message.payload for message in hub.topics.read("orders")] == ["in the backup"]
    assert refused.code == 1
    assert "belongs to another generation" in refused.err


def test_a_follower_is_told_of_a_restore(terminal: Terminal, hub: penstock.Hub) -> None:
    hub.topics.publish("orders", 1)
    terminal.done("backup", "copy.bak")
    follower = terminal.start("follow", "orders", "--last", 1)
    follower.line()

    terminal.done("restore", "copy.bak", "--yes")
    ended = follower.end()

    assert ended.code == 1
    assert "hint: The database was restored or replaced" in ended.err


def test_restoring_over_a_broken_database_says_what_to_move(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    hub.topics.publish("orders", 1)
    terminal.done("backup", "copy.bak")
    broken = terminal.folder / "broken.db"
    broken.write_text("no database " * 100)

    result = terminal.run("--url", file_url(broken), "restore", "copy.bak", "--yes")

    assert result.code == 1
    assert f"move {broken} and the files beside it" in result.err


def test_restore_refuses_what_is_no_backup(terminal: Terminal, hub: penstock.Hub) -> None:
    hub.topics.publish("orders", 1)
    (terminal.folder / "poem.txt").write_text("no database " * 100)

    result = terminal.run("restore", "poem.txt", "--yes")

    assert (result.code, result.err[:6]) == (1, "error:")
    assert [message.payload for message in hub.topics.read("orders")] == [1]
