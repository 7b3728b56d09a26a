"""How the command line fails: one line, a hint, an exit code, never a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock
from tests.acceptance.terminal import COMMAND, Result, Terminal


def assert_one_error(result: Result, message: str) -> None:
    assert result.code == 1, result
    lines = result.err.splitlines()
    assert lines[0].startswith(f"error: {message}")
    assert [line for line in lines[1:] if not line.startswith("hint: ")] == []
    assert result.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("publish", "", "1"), "The topic name is empty."),
        (("publish", "x" * 256, "1"), "The topic name has 256 bytes; the limit is 255."),
        (("publish", "a\nb", "1"), "The topic name 'a\\nb' has control characters."),
        (("publish", "a*", "1"), "The topic name 'a*' has '*' or '?'"),
        (("publish", "penstock.x", "1"), "The topic 'penstock.x' is reserved."),
        (("publish", "t", "--bytes-from-file", "none"), "none cannot be read: No such file"),
        (("topics", "show", "none"), "There is no topic 'none'."),
        (("topics", "trim", "none", "--keep", "1"), "There is no topic 'none'."),
        (("topics", "delete", "none", "--yes"), "There is no topic 'none'."),
        (("topics", "configure", "none", "--keep-for", "1d"), "There is no topic"),
        (("consumers", "show", "none"), "There is no consumer 'none'."),
        (("consumers", "seek", "none", "t", "--to", "latest"), "There is no consumer 'none'"),
        (("consumers", "delete", "none", "--yes"), "There is no consumer 'none'."),
        (("follow", "t", "--after", "other-1:5"), "The position other-1:5 belongs to another"),
        (("--url", "kafka://x", "topics", "list"), "The store URL 'kafka://x' has no scheme"),
        (("--url", "sqlite:////no/such/x.db", "topics", "list"), "The folder /no/such does not"),
        (("--config", "none.toml", "topics", "list"), "The settings file none.toml cannot be read"),
        (("restore", "none.bak", "--yes"), "There is no backup at none.bak."),
        (("backup", "x.bak"), "There is no database at "),
    ],
)
def test_an_error_is_one_line_and_a_hint(
    terminal: Terminal, arguments: tuple[str, ...], message: str
) -> None:
    assert_one_error(terminal.run(*arguments), message)


def test_a_setting_misspelt_in_the_environment_is_named(terminal: Terminal) -> None:
    """T10"""
    result = terminal.run("topics", "list", PENSTOCK_DURABILTY="os")

    assert_one_error(result, "There is no setting PENSTOCK_DURABILTY (environment).")
    assert "hint: Did you mean durability?" in result.err


@pytest.mark.parametrize("typo", [("pblish",), ("topics", "lst"), ("consumers", "seke")])
def test_a_misspelt_command_is_answered_with_the_nearest(
    terminal: Terminal, typo: tuple[str, ...]
) -> None:
    result = terminal.run(*typo)

    assert result.code == 2
    assert "Did you mean" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "delete", "orders"),
        ("consumers", "delete", "c"),
        ("migrate", "down"),
        ("doctor", "--new-generation"),
    ],
)
def test_what_cannot_be_undone_is_refused_where_nobody_can_be_asked(
    terminal: Terminal, hub: penstock.Hub, arguments: tuple[str, ...]
) -> None:
    hub.topics.publish("orders", 1)
    hub.topics.follow("orders", consumer="c").close()
    epoch = hub.topics.position().epoch

    result = terminal.run(*arguments)

    assert_one_error(result, "This needs a confirmation")
    assert "hint: Pass --yes if you mean it." in result.err
    assert hub.topics.get("orders").messages == 1
    assert len(hub.consumers.list()) == 1
    assert hub.topics.position().epoch == epoch


def test_a_closed_pipe_ends_a_listing_without_a_word(terminal: Terminal, hub: penstock.Hub) -> None:
    for number in range(3_000):
        hub.topics.publish(f"topic-{number:05}-{'x' * 60}", 1)

    with subprocess.Popen(
        [*COMMAND, "topics", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=terminal.environment,
    ) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.readline()
        listing.stdout.close()
        err = listing.stderr.read()

    assert (listing.returncode, err) == (141, b"")


def test_options_for_every_command_may_stand_before_or_behind_it(terminal: Terminal) -> None:
    url = f"sqlite:///{terminal.folder}/other.db"
    terminal.done("publish", "--url", url, "orders", "1")

    before = terminal.done("--url", url, "--json", "topics", "list")
    behind = terminal.done("topics", "list", "--url", url, "--json")

    assert before.out == behind.out
    assert [topic["name"] for topic in before.json] == ["orders"]


def test_settings_come_from_the_file_named(terminal: Terminal) -> None:
    """T10"""
    (terminal.folder / "my.toml").write_text("payload_bytes_max = 5")

    result = terminal.run("publish", "orders", "123456", "--config", "my.toml")

    assert_one_error(result, "The payload has 6 bytes; the limit is 5.")


def test_the_version_is_printed(terminal: Terminal) -> None:
    assert terminal.done("--version").out == f"penstock {penstock.__version__}\n"


def test_commands_load_without_what_only_output_needs() -> None:
    """Help and completion are quick because of it."""
    code = "import sys, penstock.cli.app; sys.exit(any(m.startswith('rich') for m in sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
