"""Every command explains itself, on the spot and in the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.app import build, module_for
from penstock.cli.reference import commands, reference
from tests.acceptance.terminal import Terminal

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
APP = build()
COMMANDS = dict(commands(typer.main.get_command(APP)))


@pytest.mark.parametrize("path", COMMANDS)
def test_help_is_printed_for(path: str) -> None:
    _, *arguments = path.split()

    result = CliRunner().invoke(APP, [*arguments, "--help"], prog_name="penstock")

    assert result.exit_code == 0
    assert f"Usage: {path}" in result.output
    assert "Examples" in result.output


@pytest.mark.parametrize("group", ["topics", "consumers", "migrate"])
def test_a_group_alone_lists_its_commands(terminal: Terminal, group: str) -> None:
    result = terminal.run(group)

    assert f"Usage: penstock {group}" in result.out + result.err


def test_help_has_its_commands_in_panels(terminal: Terminal) -> None:
    out = terminal.done("--help").out

    order = ["Messages", "publish", "Topics and consumers", "consumers", "Operating", "migrate"]
    places = [out.index(f" {word} ") for word in order]
    assert places == sorted(places)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_argument_and_option_has_help(command: Any) -> None:
    assert command.help
    assert command.epilog
    assert [parameter.name for parameter in command.params if not parameter.help] == []


def test_all_commands_promised_are_there() -> None:
    """T7, T11, T13"""
    groups = {
        "topics": ("list", "show", "create", "configure", "delete", "trim"),
        "consumers": ("list", "show", "seek", "delete"),
        "ledger": ("list", "show", "count", "stats", "forget", "prune"),
        "mailboxes": (
            *("list", "show", "put", "peek", "ack", "delete"),
            *("expire", "export", "import", "migrate", "verify", "repair"),
            *("subscribe", "unsubscribe", "subscriptions"),
        ),
        "migrate": ("status", "up", "down"),
        "tokens": ("create", "list", "revoke", "jwt"),
        "jobs": (
            *("list", "show", "history", "enqueue", "retry", "cancel", "dead", "stats"),
            *("explain", "pause", "resume", "limit", "prune", "watch", "workers"),
        ),
        "pipeline": ("list", "run", "status", "reset", "figures", "package"),
        "lake": ("show", "files", "verify", "compact", "clean", "release"),
        "schedules": ("list", "add", "pause", "resume", "remove", "run-now"),
    }
    single = ("publish", "follow", "serve", "work", "health", "doctor", "backup", "restore")
    in_groups = [f"{group} {verb}" for group, verbs in groups.items() for verb in verbs]
    assert set(COMMANDS) == {f"penstock {name}" for name in (*single, *in_groups)}


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("topics list", "topics"),
        ("restore copy.db", "backup"),
        ("--json --url topics jobs list", "jobs"),
        ("--url=topics jobs list", "jobs"),
        ("topcs list", None),
        ("--help", None),
        ("", None),
    ],
)
def test_a_command_is_there_without_all_the_others(line: str, module: str | None) -> None:
    assert module_for(line.split()) == module


def test_the_reference_is_what_the_commands_say() -> None:
    advice = "Run: python -m penstock.cli.reference > docs/reference/cli.md"
    assert PAGE.read_text(encoding="utf-8") == reference(), advice


def test_the_shell_completes_names_of_topics_and_consumers(terminal: Terminal) -> None:
    terminal.done("publish", "orders", "1")
    terminal.done("publish", "other", "1")
    terminal.done("follow", "orders", "--consumer", "indexer", "--timeout", "1ms")

    def complete(words: str) -> list[str]:
        return terminal.run(
            _PENSTOCK_COMPLETE="complete_bash",
            COMP_WORDS=f"penstock {words}",
            COMP_CWORD=str(len(words.split())),
        ).lines

    assert complete("publish or") == ["orders"]
    assert complete("follow o") == ["orders", "other"]
    assert complete("consumers show ind") == ["indexer"]


def test_completion_makes_no_database(terminal: Terminal) -> None:
    terminal.run(
        _PENSTOCK_COMPLETE="complete_bash", COMP_WORDS="penstock publish o", COMP_CWORD="2"
    )

    assert not terminal.file.exists()
