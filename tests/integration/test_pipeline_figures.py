"""Pipelines in `/metrics`, over the network and on the command line, without Spark (S10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import penstock
from penstock import client
from penstock.ports.pipelines import PipelineRun, pipeline_lease
from tests.acceptance.terminal import Terminal
from tests.factories import hub_on
from tests.serving import HttpServer


def begin(hub: penstock.Hub, name: str) -> Any:
    """As a runner does."""
    runtime = hub._open()
    runtime.store.register(runtime.name)
    run = PipelineRun(
        *(name, "shop:totals", "there:1"), True, "10 seconds", "/secret/place", '{"key":"secret"}'
    )

    def work(tx: Any) -> Any:
        lease = tx.leases.acquire(pipeline_lease(name), owner="there:1", seconds=300)
        tx.pipelines.begin(run, token=lease.token, now=runtime.clock.now())
        tx.pipelines.report(
            *(name,),
            token=lease.token,
            rows=40,
            batch=3,
            lag=7,
            seconds=0.5,
            now=runtime.clock.now(),
        )
        return lease

    return runtime.committer.run(work).wait()


@pytest.fixture
def hub(path: Path) -> Iterator[penstock.Hub]:
    with hub_on(path) as hub:
        lease = begin(hub, "totals")
        begin(hub, "other")
        runtime = hub._open()
        runtime.committer.run(
            lambda tx: tx.pipelines.end(
                "totals",
                token=lease.token,
                state="failed",
                error="DataLost: gone",
                now=runtime.clock.now(),
            )
        ).wait()
        yield hub


def test_json_has_how_far_each_is_and_not_where_it_lies(hub: penstock.Hub, path: Path) -> None:
    with HttpServer(path) as server:
        text = server.http.get("/metrics").text
        other, totals = server.http.get("/metrics").json()["queue"]["pipelines"]

    assert (other["name"], other["state"], other["lag"]) == ("other", "running", 7)
    assert (totals["state"], totals["error"], totals["rows_total"]) == (
        *("failed", "DataLost: gone", 40),
    )
    assert "secret" not in text


def test_openmetrics_has_the_figures_by_pipeline(hub: penstock.Hub, path: Path) -> None:
    with HttpServer(path) as server:
        accept = {"accept": "application/openmetrics-text"}
        text = server.http.get("/metrics", headers=accept).text
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("penstock_pipeline")
    }

    assert found["penstock_pipeline_rows_total", "totals"] == 40
    assert found["penstock_pipeline_lag_rows", "other"] == 7
    assert found["penstock_pipeline_batch_seconds", "other"] == 0.5
    assert found["penstock_pipeline_state", "failed", "totals"] == 1
    assert found["penstock_pipeline_state", "running", "totals"] == 0
    assert found["penstock_pipeline_state", "other", "running"] == 1
    assert found["penstock_pipeline_seen_timestamp_seconds", "other"] > 1_700_000_000


def test_a_remote_hub_and_the_command_line_see_it_through_a_server(
    hub: penstock.Hub, path: Path, tmp_path: Path
) -> None:
    with HttpServer(path) as server:
        with client.connect(server.url) as remote:
            found = {one.name: one.state for one in remote.metrics().pipelines}
            checks = {check.name: check.status for check in remote.health().checks}
        shown = Terminal(tmp_path).done("pipeline", "status", "--url", server.url)

    assert found == {"other": "running", "totals": "failed"}
    assert (checks["pipeline totals"], checks["pipeline other"]) == ("warning", "ok")
    assert any(line.startswith("totals") and "failed" in line for line in shown.lines)
    assert "totals failed at" in shown.out
    assert "DataLost: gone" in shown.out
