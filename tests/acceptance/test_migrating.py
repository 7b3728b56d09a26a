"""`penstock migrate …` (T13)."""

from __future__ import annotations

import apsw

from tests.acceptance.terminal import Terminal, make_too_new
from tests.factories import hub_on


def test_migrate_status_makes_no_database(terminal: Terminal) -> None:
    """T13"""
    status = terminal.done("migrate", "status", "--json").json

    assert (status["exists"], status["version"]) == (False, 0)
    assert not terminal.file.exists()


def test_migrate_goes_up_and_down_step_by_step(terminal: Terminal) -> None:
    """T13"""

    def version() -> int:
        return int(terminal.done("migrate", "status", "--json").json["version"])

    terminal.done("migrate", "up", "--to", 1)
    after_one = version()
    terminal.done("migrate", "up")
    after_all = version()
    terminal.done("migrate", "down", "--yes")
    after_down = version()
    gone = terminal.done("migrate", "down", "--to", 0, "--yes", "--json").json

    assert (after_one, after_down) == (1, after_all - 1)
    assert gone["version"] == version() == 0


def test_migrating_down_leaves_the_users_own_tables(terminal: Terminal) -> None:
    """T13"""
    with hub_on(terminal.file) as hub, hub.transaction() as tx:
        tx.execute("CREATE TABLE mine (id INTEGER)")
        tx.execute("INSERT INTO mine VALUES (7)")

    terminal.done("migrate", "down", "--to", 0, "--yes")

    connection = apsw.Connection(str(terminal.file))
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    rows = connection.execute("SELECT id FROM mine").fetchall()
    connection.close()
    assert ([name for (name,) in tables if name.startswith("penstock")], rows) == ([], [(7,)])


def test_an_old_schema_is_opened_after_migrate_up_when_opening_may_not(terminal: Terminal) -> None:
    """T13"""
    terminal.done("migrate", "up", "--to", 1)

    refused = terminal.run("publish", "orders", "1", PENSTOCK_MIGRATE="off")
    terminal.done("migrate", "up")
    published = terminal.run("publish", "orders", "1", PENSTOCK_MIGRATE="off")

    assert (refused.code, published.code) == (1, 0)
    assert "hint: Run 'penstock migrate up'." in refused.err


def test_a_schema_from_the_future_is_shown_and_left_alone(terminal: Terminal) -> None:
    """T13"""
    make_too_new(terminal)

    status = terminal.done("migrate", "status", "--json").json
    attempts = [
        terminal.run("publish", "orders", "1"),
        terminal.run("migrate", "up"),
        terminal.run("migrate", "down", "--to", "0", "--yes"),
    ]

    assert (status["version"], status["is_usable"]) == (99, False)
    assert [step["name"] for step in status["steps"]][-1] == "future"
    for attempt in attempts:
        assert attempt.code == 1
        assert "has schema version 99; this penstock knows" in attempt.err
    assert terminal.done("migrate", "status", "--json").json == status
