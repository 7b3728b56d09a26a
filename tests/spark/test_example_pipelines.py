"""The notebook in examples/pipelines runs as it stands, and its own test passes (S8)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests.docs.pages import ROOT
from tests.factories import hub_on

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

EXAMPLE = ROOT / "examples" / "pipelines"


@pytest.fixture(scope="module")
def folder(java_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After the notebook was run in it."""
    folder = tmp_path_factory.mktemp("example")
    for file in EXAMPLE.glob("*.py"):
        shutil.copy(file, folder)
    # One process for both: Spark starts once. The test goes first, the notebook ends Spark.
    program = (
        "import pytest, runpy, sys; sys.path.insert(0, '')\n"
        "code = pytest.main(['-q', '-p', 'no:cacheprovider', 'test_shop.py'])\n"
        "runpy.run_path('explore.py', run_name='__main__')\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "PYSPARK_"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "printed").write_text(done.stdout)
    return folder


def test_it_says_what_it_found(folder: Path) -> None:
    printed = (folder / "printed").read_text()
    assert "3 passed" in printed
    assert "2,000 orders in the log" in printed
    assert "revenue: finished, 2,000 rows in 1 batch" in printed
    assert "revenue: finished, 0 rows" in printed


def test_the_plot_has_the_days_revenue(folder: Path) -> None:
    page = (folder / "revenue.html").read_text(encoding="utf-8")
    found = re.search(r"var spec = (\{.*?\});\n", page)
    assert found is not None
    rows = json.loads(found[1])["data"]["values"]
    with hub_on(folder / "penstock.db") as hub:
        earned = sum(m.payload["amount"] for m in read(hub, "orders"))
        answers = {m.key: m.payload for m in read(hub, "revenue")}
    assert rows == list(answers.values())
    assert sum(row["amount"] for row in rows) == pytest.approx(earned)
    assert {row["item"] for row in rows} == {"tea", "coffee", "cake"}


def read(hub: penstock.Hub, topic: str) -> list[penstock.Message]:
    return list(hub.topics.read(topic, limit=100_000))
