"""Pages about Spark do what they say, and without an environment that is activated (S1, S2, S9)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.entities import ENTITIES
from penstock.spark.options import SINK, SOURCE
from penstock.spark.rows import JOB_KINDS, MESSAGE_KINDS
from tests.docs.pages import DOCS, ROOT, all_pages, blocks, name_of, steps

pytestmark = pytest.mark.timeout(900)

WALKER = Path(__file__).with_name("walker.py")
PAGES = [page for page in all_pages() if any(block.mark == "spark" for block in blocks(page))]
REFERENCE = (DOCS / "reference" / "spark.md").read_text(encoding="utf-8")


def plan(page: Path) -> dict[str, Any]:
    found = steps(page, spark=True)
    if page.name == "README.md":
        # The rest of it is followed elsewhere.
        last = max(block.line for block in blocks(page) if block.mark == "spark")
        found = [step for step in found if step.kind == "python" and step.line <= last]
    return {"page": name_of(page), "steps": [vars(step) for step in found]}


@pytest.fixture(scope="module")
def followed(
    java_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """All of them, in one process: what was found out about each."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "PYSPARK_"))}
    done = subprocess.run(
        [sys.executable, str(WALKER)],
        input=json.dumps([plan(page) for page in PAGES]),
        text=True,
        capture_output=True,
        cwd=tmp_path_factory.mktemp("pages"),
        # As in a shell in which no environment is activated.
        env={**environ, "PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(PAGES), done.stderr
    return {answer["page"]: answer for answer in answers}


@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_about_spark_can_be_followed(
    followed: dict[str, dict[str, Any]], page: Path
) -> None:
    answer = followed[name_of(page)]
    assert answer["code"] == 0, answer["complaint"]


def test_the_readme_reads_in_five_lines() -> None:
    [block] = [
        b for b in blocks(ROOT / "README.md") if b.mark == "spark" and b.language == "python"
    ]
    lines = [line for line in block.text.splitlines() if line.strip()]
    assert len(lines) <= 5


def rows(heading: str) -> list[str]:
    """The names in the first column of the table below a heading."""
    part = REFERENCE.split(f"\n## {heading}\n")[1].split("\n#")[0]
    return re.findall(r"^\| `(\w+)`", part, re.MULTILINE)


def test_every_option_is_on_the_page_and_no_other() -> None:
    assert rows("Options of the source") == list(SOURCE)
    assert rows("Options of the sink") == list(SINK)


@pytest.mark.parametrize("entity", ENTITIES)
def test_every_column_is_on_the_page_with_its_type_and_no_other(entity: str) -> None:
    part = REFERENCE.split("\n## Rows\n")[1].split("\n## ")[0]
    [line] = [text for text in part.splitlines() if text.startswith(f"- **`{entity}`**")]
    found = re.findall(r"`(\w+)` ([a-z]+(?:<[^`]+>)?)", line.split(". ")[0])
    assert found == [(field.name, field.type.simpleString()) for field in ENTITIES[entity].fields]


@pytest.mark.parametrize(("name", "kinds"), [("topic", MESSAGE_KINDS), ("queue", JOB_KINDS)])
def test_every_column_that_a_sink_takes_is_on_the_page(name: str, kinds: dict[str, object]) -> None:
    part = REFERENCE.split(f"\n### Into a {name}\n")[1].split("\n#")[0]
    assert re.findall(r"^\| `(\w+)`", part, re.MULTILINE) == list(kinds)
