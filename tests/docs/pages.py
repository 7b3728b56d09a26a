"""What a documentation page has to run: its fenced blocks, in order, and what they should print.

A page is executed as a reader would: in an empty folder, from top to bottom.

- ```python runs in the page's one namespace; a ```text block right after it is what it prints.
- ```console runs each line that begins with `$ `; the lines below it are what it prints.
- `...` and `…` stand for any text, as in doctest.

An HTML comment on the line above a block changes that:

- `<!-- file: name.py -->` writes the block to a file instead of running it.
- `<!-- background -->` starts the console block's command and goes on once its first line of
  output is there; the rest must have been printed by the end of the page.
- `<!-- spark -->` is for `tests/spark`, where such pages are followed in one Spark session.
- `<!-- not run: reason -->` leaves the block alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*)\s*$")
_MARK = re.compile(r"^ *<!-- (?P<name>file|background|spark|not run)(?:: (?P<value>.+?))? -->\s*$")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+?)\s*$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, line of its first line, and what its mark says."""

    language: str
    text: str
    line: int
    mark: str = ""
    value: str = ""


@dataclass(frozen=True)
class Step:
    """Something to do on the way through a page."""

    kind: str
    text: str
    line: int
    expected: str | None = None
    file: str = ""


def all_pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    mark = value = ""
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            marked = _MARK.match(lines[at])
            if marked is not None:
                mark, value = marked["name"], marked["value"] or ""
            elif lines[at].strip():
                mark = value = ""
            at += 1
            continue
        start, indent = at + 1, len(fence["indent"])
        at = start
        while lines[at].strip() != "```":
            at += 1
        text = "".join(line[indent:] + "\n" for line in lines[start:at])
        found.append(Block(fence["language"], text, start + 1, mark, value))
        mark = value = ""
        at += 1
    return found


def steps(page: Path, *, spark: bool = False) -> list[Step]:
    """What is done on the way; with `spark`, also what needs it."""
    found: list[Step] = []
    sequence = blocks(page)
    for number, block in enumerate(sequence):
        following = sequence[number + 1] if number + 1 < len(sequence) else None
        if block.mark == "not run" or (block.mark == "spark" and not spark):
            continue
        if block.mark == "file":
            found.append(Step("file", block.text, block.line, file=block.value))
        elif block.language == "python":
            shows = following is not None and following.language == "text" and not following.mark
            expected = following.text if following is not None and shows else None
            found.append(Step("python", block.text, block.line, expected))
        elif block.language == "console":
            kind = "background" if block.mark == "background" else "command"
            found.extend(_commands(block, kind))
    return found


def _commands(block: Block, kind: str) -> list[Step]:
    found: list[Step] = []
    for number, line in enumerate(block.text.splitlines()):
        if line.startswith("$ "):
            found.append(Step(kind, line[2:], block.line + number, ""))
        else:
            last = found.pop()
            expected = f"{last.expected}{line}\n"
            found.append(Step(kind, last.text, last.line, expected))
    return found


def links(page: Path) -> list[str]:
    """Targets of the page's links, outside of code."""
    text = re.sub(
        r"^( *)```.*?^\1```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", text))


def anchors(page: Path) -> set[str]:
    """What a link can point to in a page, by GitHub's rules."""
    text = re.sub(
        r"^( *)```.*?^\1```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    titles = [match[1] for match in map(_HEADING.match, text.splitlines()) if match]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
