"""`penstock doctor`: green on a new file, and full of advice on a broken one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import penstock
from tests.acceptance.terminal import Terminal, make_too_new
from tests.factories import file_url


def test_doctor_is_all_green_on_a_new_file(terminal: Terminal) -> None:
    result = terminal.done("doctor")

    marks = [line[0] for line in result.lines[2:]]
    assert marks == ["✔"] * len(marks)
    names = {"file", "permissions", "sqlite", "schema", "write-ahead", "write", "wake", "consumers"}
    assert names <= {line.split()[1] for line in result.lines[2:]}


def test_doctor_prints_json(terminal: Terminal) -> None:
    found = terminal.done("doctor", "--json").json

    assert found["status"] == "ok"
    assert {check["status"] for check in found["checks"]} == {"ok"}


def broken_not_a_database(terminal: Terminal) -> None:
    terminal.file.write_text("no database " * 100)


def broken_a_folder(terminal: Terminal) -> None:
    terminal.file.mkdir()


def broken_missing_folder(terminal: Terminal) -> None:
    terminal.environment["PENSTOCK_URL"] = file_url(terminal.folder / "missing" / "hub.db")


@pytest.mark.parametrize(
    ("break_it", "found", "advice"),
    [
        (broken_not_a_database, "is not a SQLite database.", "Check the path"),
        (broken_a_folder, "is a folder.", "Check the path"),
        (broken_missing_folder, "does not exist.", "Create it: mkdir -p "),
        (make_too_new, "has schema version 99", "Upgrade penstock here"),
    ],
    ids=["not a database", "a folder", "missing folder", "too new"],
)
def test_doctor_explains_a_database_that_cannot_be_opened(
    terminal: Terminal, break_it: Callable[[Terminal], None], found: str, advice: str
) -> None:
    break_it(terminal)

    result = terminal.run("doctor", "--json")
    shown = terminal.run("doctor")

    assert (result.code, shown.code) == (1, 1)
    checks = {check["name"]: check for check in result.json["checks"]}
    assert found in checks["open"]["found"]
    assert checks["open"]["advice"].startswith(advice)
    assert checks["sqlite"]["status"] == "ok"
    assert {checks[name]["status"] for name in ("schema", "write", "wake")} == {"critical"}
    assert "✘" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize("url", ["kafka://x", "sqlite:relative.db", "nonsense"])
def test_doctor_explains_a_url_it_does_not_understand(terminal: Terminal, url: str) -> None:
    result = terminal.run("doctor", "--json", "--url", url)

    assert result.code == 1
    assert result.json["checks"][-1]["name"] == "url"
    assert result.json["checks"][-1]["advice"]


def test_doctor_explains_a_read_only_database(terminal: Terminal, is_root: bool) -> None:
    if is_root:
        pytest.skip("permission bits do not apply to root")
    terminal.done("publish", "orders", "1")
    terminal.file.chmod(0o444)

    result = terminal.run("doctor", "--json")

    checks = {check["name"]: check for check in result.json["checks"]}
    assert result.code == 1
    assert checks["permissions"]["status"] == "critical"
    assert "not writable" in checks["open"]["found"]


def test_doctor_warns_of_a_file_that_everybody_can_write(terminal: Terminal) -> None:
    terminal.done("publish", "orders", "1")
    terminal.file.chmod(0o666)

    result = terminal.done("doctor", "--json")

    [check] = [check for check in result.json["checks"] if check["name"] == "permissions"]
    assert (check["status"], check["advice"]) == ("warning", f"chmod o-w {terminal.file}")


def test_a_new_generation_refuses_positions_of_the_old(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    position = hub.topics.publish("orders", 1).position

    epoch = terminal.done("doctor", "--new-generation", "--yes", "--json").json["epoch"]

    assert hub.topics.position().epoch == epoch
    with pytest.raises(penstock.EpochChanged):
        hub.topics.read("orders", after=position)


def test_doctor_shows_where_each_setting_comes_from(terminal: Terminal) -> None:
    """T10: file < environment < arguments, and a profile below them."""
    (terminal.folder / "my.toml").write_text('profile = "low-latency"\nname = "file"\n')

    result = terminal.run(
        "doctor", "--settings", "--json", "--config", "my.toml", PENSTOCK_DURABILITY="os"
    )

    settings = {line["name"]: (line["value"], line["source"]) for line in result.json}
    assert settings["name"] == ("file", "file")
    assert settings["durability"] == ("os", "environment")
    assert settings["url"] == (file_url(terminal.file), "environment")
    assert settings["poll_idle_ms"] == (50.0, "profile low-latency")
    assert settings["wal_bytes_max"][1] == "default"


def test_an_argument_is_the_last_word_on_a_setting(terminal: Terminal) -> None:
    """T10"""
    lines = terminal.done("doctor", "--settings", "--json", "--url", "memory:").json

    assert lines[0] == {"name": "url", "value": "memory:", "source": "arguments"}
