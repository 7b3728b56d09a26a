"""What commands print: tables for people, JSON for programs, errors in one line with a hint."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.errors import PenstockError

PIPE_WIDTH = 1_000
"""Wide enough that a table in a pipe is never wrapped or cut."""

MARKS = {
    "ok": ("✔", "green"),
    "warning": ("!", "yellow"),
    "critical": ("✘", "red"),
}

# What could move the cursor or change colours when it is printed: all controls but the newline.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with control characters spelled out: messages must not command a terminal."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise

    file = sys.stderr if stderr else sys.stdout
    width = None if file.isatty() else PIPE_WIDTH
    return Output(stderr=stderr, highlight=False, width=width)


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Collection[str] = (),
    empty: str = "",
    title: str = "",
) -> None:
    """A table; `right` names the columns of numbers, `empty` is said if there are no rows.

    A column that has nothing to say is left out.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found = list(rows)
    if not found:
        if empty:
            say(empty)
        return
    table = Table(
        box=box.SIMPLE_HEAD,
        header_style="bold",
        title=title or None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    shown = [n for n in range(len(headers)) if any(row[n] != "" for row in found)]
    for header in (headers[n] for n in shown):
        is_number = header in right
        table.add_column(
            header,
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
        )
    for row in found:
        cells = (row[n] for n in shown)
        table.add_row(*(c if isinstance(c, Text) else Text(visible(str(c))) for c in cells))
    console().print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """One thing and what there is to say about it."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(name, value if isinstance(value, Text) else Text(visible(str(value))))
    console().print(table)


def print_json(value: Any) -> None:
    """One document: indented for a reader, compact for a program."""
    body = msgspec.json.encode(value)
    if sys.stdout.isatty():
        body = msgspec.json.format(body, indent=2)
    write_line(body)


def write_line(line: bytes) -> None:
    """One line, at once: a reader behind a pipe waits for it."""
    sys.stdout.flush()
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def say(text: str) -> None:
    """A result that is one sentence, or a blank line."""
    sys.stdout.write(visible(text) + "\n")
    sys.stdout.flush()


def plural(count: int, noun: str) -> str:
    """1 message, 2 messages, 2 mailboxes."""
    if count == 1:
        return f"{count:,} {noun}"
    return f"{count:,} {noun}es" if noun.endswith("x") else f"{count:,} {noun}s"


def note(text: str) -> None:
    """For the person watching; not part of the output."""
    sys.stderr.write(visible(text) + "\n")
    sys.stderr.flush()


def print_error(error: PenstockError) -> None:
    sys.stdout.flush()
    console(stderr=True).print(_labelled("error", error.message, "bold red"), soft_wrap=True)
    if error.hint:
        console(stderr=True).print(_labelled("hint", error.hint, "cyan"), soft_wrap=True)


def mark(status: str) -> Any:
    """✔, ! or ✘ in its colour."""
    from rich.text import Text

    sign, colour = MARKS[status]
    return Text(sign, style=colour)


def coloured(text: str, status: str) -> Any:
    from rich.text import Text

    return Text(visible(text), style=MARKS[status][1])


def emphasised(text: str, is_emphasised: bool) -> Any:
    from rich.text import Text

    return Text(visible(text), style="bold" if is_emphasised else "")


def _labelled(label: str, text: str, style: str) -> Any:
    from rich.text import Text

    return Text.assemble((f"{label}:", style), " ", visible(text).replace("\n", " "))
