"""The Grafana boards ask only for figures that the server exports, by labels they have (J10)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.docs.pages import DOCS
from tests.factories import hub_on
from tests.serving import HttpServer

BOARDS = sorted((DOCS / "grafana").glob("*.json"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Each metric with its labels, of a server on a hub where something has happened."""
    file = tmp_path_factory.mktemp("grafana") / "hub.db"
    with HttpServer(file) as server, hub_on(file) as hub:

        @hub.job(queue="q", name="t")
        def t(payload: int) -> None: ...

        with hub.start_workers({"q": 1}):
            hub.jobs.wait_all(t.enqueue_many([1, 2]), timeout=60)
        text = server.http.get("/metrics", headers={"accept": "application/openmetrics-text"}).text
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def expressions(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]


def asked_for(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Metrics and the labels that select from them."""
    for name, selector in re.findall(r"\b([a-z]\w+)\b(?:\{([^}]*)\})?", expression):
        if name.startswith("penstock_"):
            yield name, set(re.findall(r"(\w+)\s*=", selector))


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.name)
def test_a_board_asks_for_what_is_there(path: Path, exported: dict[str, set[str]]) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    seen: set[str] = set()
    for expression in expressions(board):
        wanted = list(asked_for(expression))
        assert wanted, expression
        for name, labels in wanted:
            assert name in exported, f"{name} is not exported"
            assert labels <= exported[name], expression
            seen.add(name)
        grouped = re.findall(r"by \(([^)]*)\)", expression)
        labels = {label.strip() for group in grouped for label in group.split(",")}
        assert labels <= set.union(*(exported[name] for name, _ in wanted)), expression
    jobs = {name for name in exported if name.startswith("penstock_job")}
    assert seen == jobs, "a figure of jobs is on no panel"


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.name)
def test_a_board_can_be_imported_anywhere(path: Path) -> None:
    """No source of ours is named, ids are unique, and nothing overlaps."""
    board = json.loads(path.read_text(encoding="utf-8"))
    assert board["title"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${source}"
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_there_is_a_board_for_jobs() -> None:
    assert [path.name for path in BOARDS] == ["jobs.json"]
