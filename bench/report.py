"""Figures for people, for programs, and for the record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.figures import Figure, Key, show

INTRODUCTION = (
    "Measured on {:%Y-%m-%d} with `python -m bench`, or section by section with the commands below "
    "and put together by `python -m bench --from`. Every measurement ran in fresh processes on a "
    "fresh database, with shipped settings, after a warm-up; a figure is the median of its runs, "
    "and what is compared ran in turns."
)
# In a narrower terminal the notes follow the table.
WIDE = 150
MARKS = {True: "✔", False: "✘", None: ""}


def missed(keys: Iterable[Key], figures: Mapping[str, Figure]) -> list[str]:
    """The names of those whose budget is not met."""
    return [k.name for k in keys if k.name in figures and figures[k.name].meets(k.budget) is False]


def print_table(console: Console, keys: Iterable[Key], figures: Mapping[str, Figure]) -> None:
    shown = [(key, figures[key.name]) for key in keys if key.name in figures]
    is_wide = console.width >= WIDE
    table = Table("key", "figure", "min – max", "budget", "", show_lines=is_wide)
    for column in table.columns:
        column.no_wrap = True
    if is_wide:
        table.add_column("note")
    for key, figure in shown:
        is_met = figure.meets(key.budget)
        cells = [
            key.name,
            Text(show(figure.value), style="bold"),
            _spread(figure),
            "" if key.budget is None else str(key.budget),
            Text(MARKS[is_met], style="green" if is_met else "red"),
        ]
        table.add_row(*cells, *([figure.note] if is_wide else []))
    console.print(table)
    if not is_wide:
        for key, figure in shown:
            if figure.note:
                console.print(Text.assemble((key.name, "bold"), f": {figure.note}."))


def as_json(keys: Iterable[Key], figures: Mapping[str, Figure], context: Mapping[str, Any]) -> str:
    """One object: each key with its figure, the context, and all details under `details`."""
    found: dict[str, Any] = {}
    details: dict[str, Any] = {}
    for key in keys:
        figure = figures.get(key.name)
        if figure is None:
            continue
        found[key.name] = _rounded(figure.value)
        details[key.name] = {
            "min": _rounded(figure.low),
            "max": _rounded(figure.high),
            "budget": None if key.budget is None else str(key.budget),
            "met": figure.meets(key.budget),
            "note": figure.note,
        }
    return json.dumps({**found, **context, "details": details}, ensure_ascii=False, indent=2)


def read(objects: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Figure], dict[str, Any]]:
    """The figures of such objects, and what was said of the machine; the last one counts."""
    figures: dict[str, Figure] = {}
    machine: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    for found in objects:
        for name, about in found["details"].items():
            figures[name] = Figure(name, found[name], about["min"], about["max"], about["note"])
        machine = found["machine"]
        versions |= found["versions"]
    return figures, {"machine": machine, "versions": versions}


def as_markdown(
    sections: Sequence[tuple[str, str, Sequence[Key]]],
    figures: Mapping[str, Figure],
    context: Mapping[str, Any],
    when: datetime,
) -> str:
    """The content of RESULTS.md. `sections`: a heading, the command that measures it, its keys."""
    machine, versions = context["machine"], context["versions"]
    lines = [
        "# Results",
        "",
        INTRODUCTION.format(when.astimezone(UTC)),
        "",
        "| | |",
        "|---|---|",
        f"| processor | {machine['cpu']}, {machine['cores']} cores |",
        f"| memory | {machine['memory_gb']} GB |",
        f"| file system | {machine['filesystem']} |",
        f"| kernel | {machine['kernel']} |",
        f"| load before | {machine['load_before']} |",
        *(f"| {name.replace('_', ' ')} | {version} |" for name, version in versions.items()),
    ]
    for heading, command, keys in sections:
        lines += [
            "",
            f"## {heading}",
            "",
            f"`{command}`",
            "",
            "| key | figure | min – max | budget | | in this run |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_markdown_row(key, figures[key.name]) for key in keys if key.name in figures]
        lines += ["", "How each is measured:", ""]
        lines += [f"- `{key.name}`: {key.how}" for key in keys if key.name in figures]
    return "\n".join(lines) + "\n"


def _markdown_row(key: Key, figure: Figure) -> str:
    cells = (
        f"`{key.name}`",
        f"**{show(figure.value)}**",
        _spread(figure),
        "" if key.budget is None else str(key.budget),
        MARKS[figure.meets(key.budget)],
        figure.note,
    )
    return "| " + " | ".join(cells) + " |"


def _spread(figure: Figure) -> str:
    if figure.low == figure.high:
        return ""
    return f"{show(figure.low)} – {show(figure.high)}"


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
