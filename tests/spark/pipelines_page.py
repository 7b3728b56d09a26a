"""The part of docs/reference/pipelines.md that says what built-in pipelines take.

`python -m tests.spark.pipelines_page` writes it; a test fails when the page is behind.
"""

from __future__ import annotations

from typing import Any

from penstock.spark import registry
from penstock.spark.registry import Option
from tests.docs.pages import DOCS

PAGE = DOCS / "reference" / "pipelines.md"
BEGIN = "<!-- built in: written by tests/spark/pipelines_page.py -->\n"
END = "<!-- end of built in -->\n"


def built_in() -> str:
    parts = []
    for one in registry.built_in():
        summary = one.summary[0].upper() + one.summary[1:].rstrip(".")
        rows = "\n".join(_row(option) for option in one.options)
        parts.append(
            f"### `{one.name}`\n\n{summary}.\n\n| option | default | |\n|---|---|---|\n{rows}\n"
        )
    return "\n".join(parts)


def expected() -> str:
    """The page as it should be."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{built_in()}\n{END}{after}"


def _row(option: Option) -> str:
    text = option.help.rstrip(".").replace("|", "\\|")
    name = option.name.replace("_", "-")
    return f"| `--{name}` | {_default(option.default)} | {text[0].lower()}{text[1:]} |"


def _default(value: Any) -> str:
    if value is None or value in ((), []):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    PAGE.write_text(expected(), encoding="utf-8")
