"""`penstock mailboxes …` (M10, M13, M14)."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from tests.acceptance.terminal import Terminal
from tests.factories import hub_on


@pytest.fixture
def filled(hub: penstock.Hub) -> penstock.Hub:
    """Two mailboxes, one of them with something acknowledged."""
    box = hub.mailboxes.open("ann")
    for number in range(3):
        box.put({"n": number}, id=f"m-{number}", type="note")
    box.ack("m-0")
    hub.mailboxes.open("bob").put(b"\x00\xff", id="raw")
    return hub


def test_mailboxes_are_listed_and_shown(terminal: Terminal, filled: penstock.Hub) -> None:
    listed = terminal.done("mailboxes", "list")
    found = terminal.done("mailboxes", "list", "--after", "ann", "--json").json
    shown = terminal.done("mailboxes", "show", "ann", "--json").json

    assert [line.split()[:2] for line in listed.lines[2:]] == [["ann", "2"], ["bob", "1"]]
    assert [stats["id"] for stats in found] == ["bob"]
    assert (shown["messages"], shown["can_write"], shown["next_seq"]) == (2, True, 4)


def test_peeking_changes_nothing_and_acknowledging_does(
    terminal: Terminal, filled: penstock.Hub
) -> None:
    """M6, M7"""
    for _ in range(2):
        found = terminal.done("mailboxes", "peek", "ann", "--json").json
        assert [(mail["id"], mail["payload"]) for mail in found] == [
            ("m-1", {"n": 1}),
            ("m-2", {"n": 2}),
        ]
    wrong = terminal.run("mailboxes", "ack", "ann", "m-2")
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err.startswith("error: 'm-2' is not the first message of the mailbox 'ann'.")
    assert terminal.done("mailboxes", "ack", "ann", "m-1").out == "1 message left in ann.\n"
    assert terminal.done("mailboxes", "peek", "nobody").out == "Nothing waits in 'nobody'.\n"


def test_a_message_is_put_once(terminal: Terminal) -> None:
    first = terminal.done("mailboxes", "put", "ann", '"hi"', "--id", "one")
    again = terminal.done("mailboxes", "put", "ann", '"hi"', "--id", "one")
    refused = terminal.run("mailboxes", "put", "ann", "hi")

    assert (first.out, again.out) == ("one is in ann.\n", "one is in ann already.\n")
    assert refused.code == 1
    assert "Put strings in quotes, or pass --text." in refused.err
    assert len(terminal.done("mailboxes", "peek", "ann", "--json").json) == 1


def test_an_export_comes_back_byte_for_byte(
    terminal: Terminal, filled: penstock.Hub, tmp_path: Path
) -> None:
    """M14"""
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    terminal.done("mailboxes", "export", str(first))
    other = f"sqlite:///{tmp_path}/other.db"
    put_in = terminal.done("mailboxes", "import", str(first), "--url", other)
    terminal.done("mailboxes", "export", str(second), "--url", other)

    assert put_in.out == "3 messages put into 2 mailboxes; 0 were there already.\n"
    assert first.read_bytes() == second.read_bytes()
    again = terminal.done("mailboxes", "import", str(first), "--url", other, "--json").json
    assert again == {"mailboxes": 2, "messages": 0, "known": 3}
    assert terminal.run("mailboxes", "export", str(first)).code == 1, "it is not replaced unasked"


def test_a_line_that_is_no_message_is_refused_or_left_out(
    terminal: Terminal, filled: penstock.Hub, tmp_path: Path
) -> None:
    file = tmp_path / "boxes.jsonl"
    terminal.done("mailboxes", "export", str(file))
    file.write_bytes(file.read_bytes()[:-20])
    other = f"sqlite:///{tmp_path}/other.db"
    refused = terminal.run("mailboxes", "import", str(file), "--url", other)
    taken = terminal.done("mailboxes", "import", str(file), "--skip-bad", "--url", other)

    assert refused.code == 1
    assert refused.err.startswith("error: Line 4 is no message")
    assert taken.out.endswith("1 lines left out.\n")
    assert "line 4" in taken.err
    nothing = terminal.run("mailboxes", "import", str(terminal.file), "--url", other)
    assert nothing.err.startswith("error: This is no export of mailboxes.")


def test_old_messages_expire(terminal: Terminal, filled: penstock.Hub) -> None:
    """M13"""
    assert terminal.done("mailboxes", "expire", "--older-than", "1h").out == "0 messages removed.\n"
    gone = terminal.done("mailboxes", "expire", "--older-than", "0s", "--mailbox", "ann")
    assert gone.out == "2 messages removed.\n"
    assert [stats["messages"] for stats in terminal.done("mailboxes", "list", "--json").json] == [
        0,
        1,
    ]


def test_another_depth_needs_all_others_to_be_away(terminal: Terminal, hub: penstock.Hub) -> None:
    """M10"""
    hub.mailboxes.open("ann").put(1, id="one")
    before = terminal.done("mailboxes", "export", "-").out
    busy = terminal.run("mailboxes", "migrate", "--depth", "3")
    assert busy.err.startswith("error: Other processes have the mailboxes open.")
    hub.close()
    moved = terminal.done("mailboxes", "migrate", "--depth", "3", "--json").json
    assert (moved["depth"], moved["mailboxes"]) == (3, 1)
    assert terminal.done("mailboxes", "export", "-").out == before
    with (
        hub_on(terminal.file, mailbox_depth=1) as other,
        pytest.raises(penstock.PenstockError, match="have the depth 3, not 1"),
    ):
        other.mailboxes.open("ann").peek()


def test_a_mailbox_is_removed_when_that_is_meant(terminal: Terminal, filled: penstock.Hub) -> None:
    asked = terminal.run("mailboxes", "delete", "bob")
    assert (asked.code, asked.out) == (1, "")
    assert terminal.done("mailboxes", "delete", "bob", "--yes").out == "bob is removed.\n"
    assert [stats["id"] for stats in terminal.done("mailboxes", "list", "--json").json] == ["ann"]
    assert terminal.run("mailboxes", "delete", "bob", "--yes").code == 1


def test_a_backup_has_the_mailboxes_and_brings_them_back(
    terminal: Terminal, filled: penstock.Hub, tmp_path: Path
) -> None:
    before = terminal.done("mailboxes", "export", "-").out
    copy = tmp_path / "copy.db"
    terminal.done("backup", str(copy))
    filled.mailboxes.open("ann").ack("m-1")
    filled.mailboxes.open("carl").put("later")
    terminal.done("restore", str(copy), "--yes")

    assert terminal.done("mailboxes", "export", "-").out == before
    assert [mail.id for mail in filled.mailboxes.open("ann").peek_many(5)] == ["m-1", "m-2"]
    assert filled.mailboxes.open("carl").peek() is None
    assert filled.mailboxes.open("ann").put("on").seq == 4


def test_damage_is_found_and_repaired(terminal: Terminal, hub: penstock.Hub) -> None:
    """M14: what is whole is kept, and what is gone is told."""
    hub.mailboxes.open("ann").put_many(["one", "two", "three"])
    hub.close()
    clean = terminal.done("mailboxes", "verify")
    assert clean.out == "1 mailbox with 3 messages: all is well.\n"
    (file,) = Path(f"{terminal.file}.mailboxes").glob("boxes/*/*/messages.*.log")
    content = bytearray(file.read_bytes())
    content[content.index(b'"two"') + 1] ^= 1
    file.write_bytes(content)

    found = terminal.run("mailboxes", "verify")
    assert found.code == 1
    assert "ann" in found.out
    assert "error: Some mailboxes are damaged." in found.err
    assert terminal.run("mailboxes", "peek", "ann").code == 1
    repaired = terminal.done("mailboxes", "repair", "ann", "--yes", "--json").json
    assert (repaired["kept"], repaired["lost"]) == (2, 1)
    mails = terminal.done("mailboxes", "peek", "ann", "--json").json
    assert [(mail["kind"], mail["payload"]) for mail in mails] == [
        ("message", "one"),
        ("gap", None),
        ("message", "three"),
    ]
    assert terminal.done("mailboxes", "verify").out.endswith("all is well.\n")
    again = terminal.done("mailboxes", "repair", "ann")
    assert again.out == "ann is not damaged; nothing was done.\n"


def test_a_mailbox_subscribes_to_a_topic(terminal: Terminal) -> None:
    """D12"""
    made = terminal.done("mailboxes", "subscribe", "ann", "orders-*", "--json").json
    listed = terminal.done("mailboxes", "subscriptions", "--json").json

    assert listed == [made]
    assert (made["mailbox"], made["topic"]) == ("ann", "orders-*")
    wrong = terminal.run("mailboxes", "subscribe", "ann", "orders", "--start", "middle")
    assert wrong.err.startswith("error: start is 'latest' or 'earliest', not 'middle'.")
    ended = terminal.done("mailboxes", "unsubscribe", "ann")
    assert ended.out == "1 subscription of ann ended.\n"
    assert terminal.run("mailboxes", "unsubscribe", "ann").code == 1
    nothing = terminal.done("mailboxes", "subscriptions")
    assert nothing.out == "No mailbox subscribes to a topic.\n"
