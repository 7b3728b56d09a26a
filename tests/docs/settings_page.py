"""Writes docs/reference/settings.md from settings.py: `python -m tests.docs.settings_page`."""

from __future__ import annotations

import ast
import inspect
import itertools
import typing

import msgspec

from penstock import settings
from penstock.settings import ENVIRONMENT_PREFIX, PROFILES, Settings
from tests.docs.pages import DOCS

PAGE = DOCS / "reference" / "settings.md"

HEAD = """\
# Settings

Every limit of the program is a setting, with its unit in its name. Sources, later ones win: a
profile, a TOML file, the environment, arguments of `penstock.connect()`.
[How to use them](../howto/settings.md).

Each setting `name` is `name = …` in `penstock.toml`, `PENSTOCK_NAME` in the environment and
`connect(name=…)` in Python. A name that does not exist is refused with `InvalidSettings`, which
proposes the nearest one.

This page is generated from `settings.py`; a test holds it equal.
"""


def render() -> str:
    docs = _docstrings()
    parts = [HEAD]
    for title, names in _groups().items():
        parts.append(f"\n## {title}\n\n| setting | default | meaning |\n|---|---|---|\n")
        parts += [f"| `{name}` | {_default(name)} | {docs.get(name, '')} |\n" for name in names]
    parts.append("\n## Profiles\n\n| setting | " + " | ".join(PROFILES) + " |\n")
    parts.append("|---|" + "---|" * len(PROFILES) + "\n")
    changed = dict.fromkeys(name for values in PROFILES.values() for name in values)
    for name in changed:
        cells = [_show(name, values.get(name, _defaults()[name])) for values in PROFILES.values()]
        parts.append(f"| `{name}` | " + " | ".join(cells) + " |\n")
    parts.append(
        f"\n## Read elsewhere\n\n`{ENVIRONMENT_PREFIX}CONFIG` names the settings file; without it"
        " `penstock.toml` in the current folder is used, if it is there.\n"
    )
    return "".join(parts)


def _groups() -> dict[str, list[str]]:
    """The fields under the comments that stand between them."""
    source = inspect.getsource(Settings).splitlines()
    groups: dict[str, list[str]] = {"The hub": []}
    title = "The hub"
    for line in source:
        text = line.strip()
        if text.startswith("# "):
            title = text[2:]
            groups[title] = []
        elif text.split(":")[0] in _defaults() and line.startswith("    ") and ": " in text:
            groups[title].append(text.split(":")[0])
    assert sum(map(len, groups.values())) == len(_defaults())
    return groups


def _docstrings() -> dict[str, str]:
    """The string under each field."""
    body = ast.parse(inspect.getsource(settings)).body
    fields = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == "Settings").body
    found = {}
    for field, following in itertools.pairwise(fields):
        if isinstance(field, ast.AnnAssign) and isinstance(following, ast.Expr):
            name = typing.cast(ast.Name, field.target).id
            found[name] = typing.cast(str, ast.literal_eval(following.value))
    return found


def _defaults() -> dict[str, object]:
    return {field.name: field.default for field in msgspec.structs.fields(Settings)}


def _default(name: str) -> str:
    return _show(name, _defaults()[name])


def _show(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        unit = " bytes" if "bytes" in name else ""
        return f"{value:,g}{unit}" if isinstance(value, float) else f"{value:,}{unit}"
    return f"`{value}`" if value else "–"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
