"""The reference of the command line, written from the commands themselves.

`python -m penstock.cli.reference > docs/reference/cli.md`; a test fails when the file is behind.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import typer

from penstock.cli.app import build
from penstock.cli.session import OPTIONS_PANEL

INTRODUCTION = """\
# The command line

`penstock COMMAND --help` says the same. `python -m penstock` is the same program.

Results go to standard output: a table or a sentence for people, JSON with `--json`. An error is
one line on standard error, `error: …`, and mostly a second, `hint: …`, which says what to do.
Notes and progress bars are on standard error, too, and only on a terminal.

| exit code | meaning |
|---|---|
| 0 | done; for `follow`, also after SIGTERM |
| 1 | an error, or what the command says about itself |
| 2 | the command line is not understood; for `health`, critical |
| 130 | ended by Ctrl-C |
| 141 | nobody read the output any more, as with `\\| head` |

`penstock --install-completion` sets up completion in your shell, also of topic and consumer names.
"""


def reference() -> str:
    """The whole page."""
    main = typer.main.get_command(build())
    parts = [INTRODUCTION, "## Options for every command\n", _shared(main)]
    for path, command in commands(main):
        parts.append(_section(path, command))
    return "\n".join(parts)


def commands(group: Any, path: tuple[str, ...] = ("penstock",)) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its full name, in the order of the help."""
    for name in group.list_commands(None):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def _shared(main: Any) -> str:
    own = [p for p in main.params if getattr(p, "rich_help_panel", None) == OPTIONS_PANEL]
    return "They can stand before the command, or behind it.\n\n" + _options(own)


def _section(path: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [
        p
        for p in command.params
        if p.param_type_name == "option" and p.rich_help_panel != OPTIONS_PANEL and not p.hidden
    ]
    usage = " ".join((path, *(_argument(argument) for argument in arguments)))
    lines = [f"## {path}\n", f"```\n{usage}{' [OPTIONS]' if options else ''}\n```\n"]
    lines.append(inspect.cleandoc(command.help or "") + "\n")
    if arguments:
        rows = [f"| `{_name(argument)}` | {argument.help} |" for argument in arguments]
        lines.append("\n".join(("| argument | |", "|---|---|", *rows)) + "\n")
    if options:
        lines.append(_options(options))
    if command.epilog:
        lines.append("```sh\n" + "\n".join(_examples(command.epilog)) + "\n```\n")
    return "\n".join(lines)


def _options(options: list[Any]) -> str:
    rows = [
        f"| `{', '.join(sorted(option.opts, key=len, reverse=True))}{_value(option)}` "
        f"| {option.help} |"
        for option in options
    ]
    return "\n".join(("| option | |", "|---|---|", *rows)) + "\n"


def _value(option: Any) -> str:
    if option.is_flag:
        return ""
    if option.metavar:
        return f" {option.metavar}"
    choices = option.type_descriptor.choices
    # In a table, a bare bar would end the cell.
    return " " + ("\\|".join(choices) if choices else "VALUE")


def _argument(argument: Any) -> str:
    name = _name(argument)
    return name if argument.required else f"[{name}]"


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _examples(epilog: str) -> list[str]:
    """Without the markup that colours them in a terminal."""
    _, *lines = epilog.split("\n")
    return [re.sub(r"(?<!\\)\[/?\w+\]", "", line).replace(r"\[", "[").strip() for line in lines]


if __name__ == "__main__":
    sys.stdout.write(reference())
