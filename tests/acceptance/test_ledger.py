"""`penstock ledger …` (L2, L6, L8)."""

from __future__ import annotations

import math

import pytest

import penstock
from penstock.entry import EntryState
from tests.acceptance.terminal import Terminal
from tests.factories import hub_on
from tests.servers import Server


@pytest.fixture
def filled(hub: penstock.Hub) -> penstock.Hub:
    hub.ledger.mark_many("billing", ["evt-1", "evt-2"])
    with hub.ledger.claim("billing", "evt-3") as claim:
        claim.result = {"invoice": 7}
    with pytest.raises(ValueError, match="no"), hub.ledger.claim("mail", "m", on_failure="keep"):
        raise ValueError("no such address")
    hub.ledger.configure("mail", keep_seconds=math.inf)
    return hub


def test_entries_are_listed_by_key(terminal: Terminal, filled: penstock.Hub) -> None:
    listed = terminal.done("ledger", "list", "billing")
    found = terminal.done("ledger", "list", "billing", "--after", "evt-1", "--limit", "1", "--json")

    assert [line.split()[0] for line in listed.lines[2:]] == ["evt-1", "evt-2", "evt-3"]
    assert [(entry["key"], entry["state"]) for entry in found.json] == [("evt-2", "completed")]
    assert terminal.done("ledger", "list", "none").out == "Nothing in 'none'.\n"


def test_one_entry_is_shown_with_its_result(terminal: Terminal, filled: penstock.Hub) -> None:
    shown = terminal.done("ledger", "show", "billing", "evt-3")
    found = terminal.done("ledger", "show", "billing", "evt-3", "--json").json
    failed = terminal.done("ledger", "show", "mail", "m", "--json").json

    assert '{"invoice":7}' in shown.out
    assert (found["result"], found["attempts"], found["held"]) == ({"invoice": 7}, 1, False)
    assert (failed["state"], failed["result"]["message"]) == ("failed", "no such address")
    missing = terminal.run("ledger", "show", "billing", "evt-9")
    assert (missing.code, missing.out) == (1, "")
    assert missing.err.startswith("error: The ledger has nothing about 'evt-9' in 'billing'.")


def test_one_that_somebody_is_at_shows_so(terminal: Terminal, hub: penstock.Hub) -> None:
    with hub.ledger.claim("s", "k") as claim:
        found = terminal.done("ledger", "show", "s", "k", "--json").json
        listed = terminal.done("ledger", "list", "s")
        assert (found["state"], found["held"], found["token"]) == ("in_progress", True, claim.token)
        assert "in progress" in listed.out


def test_an_abandoned_one_shows_so(terminal: Terminal) -> None:
    """Its process has ended: here, by closing its hub in the middle."""
    with hub_on(terminal.file) as gone:
        gone.ledger.claim("s", "k", lease_seconds=600).__enter__()

    assert "abandoned" in terminal.done("ledger", "list", "s").out
    with hub_on(terminal.file) as hub:
        found = hub.ledger.get("s", "k")
        assert found is not None
        assert found.state == EntryState.IN_PROGRESS


def test_counts_and_figures_by_scope(terminal: Terminal, filled: penstock.Hub) -> None:
    assert terminal.done("ledger", "count").out == "4\n"
    assert terminal.done("ledger", "count", "billing").out == "3\n"
    assert terminal.done("ledger", "count", "mail", "--json").json == {
        "scope": "mail",
        "processed": 1,
    }
    stats = terminal.done("ledger", "stats")
    found = {scope["scope"]: scope for scope in terminal.done("ledger", "stats", "--json").json}
    assert [line.split() for line in stats.lines[2:]] == [
        ["billing", "3", "0", "0", "7", "d"],
        ["mail", "0", "1", "0", "ever"],
    ]
    assert found["billing"]["completed"] == 3
    assert found["mail"]["keep_seconds"] == -1


def test_an_empty_ledger_says_so(terminal: Terminal) -> None:
    assert terminal.done("ledger", "stats").out == "The ledger is empty.\n"
    assert terminal.done("ledger", "count").out == "0\n"


def test_what_is_forgotten_can_be_processed_again(terminal: Terminal, filled: penstock.Hub) -> None:
    refused = terminal.run("ledger", "forget", "billing", "evt-1")
    assert refused.code == 1
    assert "--yes" in refused.err
    assert filled.ledger.is_processed("billing", "evt-1")

    forgotten = terminal.done("ledger", "forget", "billing", "evt-1", "evt-9", "--yes")
    assert forgotten.out == "1 entry forgotten.\n"
    assert filled.ledger.mark_processed("billing", "evt-1") is True
    again = terminal.done("ledger", "forget", "billing", "evt-1", "evt-2", "-y", "--json")
    assert again.json == {"removed": 2}


def test_what_has_expired_is_pruned(terminal: Terminal, hub: penstock.Hub) -> None:
    hub.ledger.mark_many("s", ["a", "b"], ttl=0.001)
    hub.ledger.mark_processed("s", "kept")

    assert terminal.done("ledger", "prune").out == "2 entries removed.\n"
    assert terminal.done("ledger", "prune", "--json").json == {"removed": 0}
    assert hub.ledger.count("s") == 1


def test_the_same_words_through_a_server(terminal: Terminal, filled: penstock.Hub) -> None:
    commands = (
        ("list", "billing"),
        ("show", "billing", "evt-3"),
        ("count",),
        ("count", "mail"),
        ("stats",),
    )
    local = {command: terminal.done("ledger", *command, "--json").json for command in commands}
    with Server(terminal.file) as server:
        terminal.environment["PENSTOCK_URL"] = server.url
        for command, said in local.items():
            assert terminal.done("ledger", *command, "--json").json == said, command
        assert "default" in terminal.done("ledger", "stats").out
        missing = terminal.run("ledger", "show", "billing", "evt-9")
        assert (missing.code, missing.err.splitlines()[0]) == (
            1,
            "error: The ledger has nothing about 'evt-9' in 'billing'.",
        )
        forgotten = terminal.done("ledger", "forget", "billing", "evt-1", "--yes").out
        assert forgotten == "1 entry forgotten.\n"
        assert not filled.ledger.is_processed("billing", "evt-1")
        assert terminal.done("ledger", "prune").out == "0 entries removed.\n"
