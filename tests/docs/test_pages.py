"""The README and the documentation do what they say: every example is run, every link leads on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, all_pages, anchors, blocks, links, name_of, steps

WALKER = Path(__file__).with_name("walker.py")
PAGES = all_pages()
LANGUAGES = {"python", "console", "text", "toml", "sql", "mermaid", "json", "sh", "js", "html"}
LANGUAGES |= {"nginx", ""}


@pytest.mark.parametrize("page", [p for p in PAGES if steps(p)], ids=name_of)
def test_a_page_can_be_followed_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    plan = {"page": name_of(page), "steps": [vars(step) for step in steps(page)]}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(WALKER)],
        input=json.dumps(plan),
        text=True,
        capture_output=True,
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{link} leads nowhere"
        assert ROOT in (found, *found.parents), f"{link} leads out of the project"
        if anchor:
            assert anchor in anchors(found), f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_names_a_language_that_is_known(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"line {block.line}: {block.language}"


def test_a_page_that_lies_is_found_out(tmp_path: Path) -> None:
    """The control: a wrong output, and an example that raises, fail the walk."""
    for number, text in enumerate(("print(1 + 1)\n", "raise ValueError\n")):
        step = {"kind": "python", "text": text, "line": 1, "expected": "3\n", "file": ""}
        done = subprocess.run(
            [sys.executable, str(WALKER)],
            input=json.dumps({"page": f"lie{number}.md", "steps": [step]}),
            text=True,
            capture_output=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 1
        assert f"lie{number}.md:1" in done.stderr
