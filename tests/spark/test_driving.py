"""How far a stream is, from what Spark tells of its batches (S10). No JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.spark.driving import Backlog, Driver, _is_batch, _ranges
from penstock.spark.entities import ENTITIES
from penstock.spark.offsets import Offset
from penstock.spark.options import parse_source
from penstock.spark.registry import Pipeline
from penstock.spark.runner import Report, Run, Stop
from tests.factories import file_url, hub_on, settings_for


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[penstock.Hub]:
    with hub_on(tmp_path / "hub.db") as hub:
        yield hub


@pytest.fixture
def backlog(hub: penstock.Hub, tmp_path: Path) -> Iterator[Backlog]:
    options = {"url": file_url(tmp_path / "hub.db"), "subscribe": "orders"}
    backlog = Backlog(parse_source(options, ENTITIES))
    yield backlog
    backlog.close()


def at(hub: penstock.Hub, id: int) -> Offset:
    return Offset(hub._open().store.log().epoch, id)


def end_of(hub: penstock.Hub) -> Offset:
    return at(hub, hub._open().store.log().last_id)


def publish(hub: penstock.Hub, topic: str, count: int) -> None:
    hub.topics.publish_many(topic, [0] * count)


def test_only_rows_of_the_subscription_are_behind(hub: penstock.Hub, backlog: Backlog) -> None:
    publish(hub, "orders", 10)
    publish(hub, "other", 1_000)
    publish(hub, "orders", 5)

    assert backlog.rows(at(hub, 0), end_of(hub)) == 15
    assert backlog.rows(at(hub, 4), end_of(hub)) == 11
    publish(hub, "orders", 3)
    assert backlog.rows(at(hub, 1_012), end_of(hub)) == 6
    publish(hub, "other", 3)
    assert backlog.rows(end_of(hub), end_of(hub)) == 0


def test_it_is_right_again_after_rows_were_removed(hub: penstock.Hub, backlog: Backlog) -> None:
    publish(hub, "orders", 10)
    assert backlog.rows(at(hub, 0), end_of(hub)) == 10
    hub.topics.trim("orders", keep=2)

    assert backlog.rows(at(hub, 9), end_of(hub)) >= 0
    assert backlog.rows(end_of(hub), end_of(hub)) == 0
    publish(hub, "orders", 1)
    assert backlog.rows(at(hub, 10), end_of(hub)) == 1


def progress(hub: penstock.Hub, batch: int, start: int, end: int, **more: Any) -> dict[str, Any]:
    def text(id: int) -> str:
        return json.dumps(at(hub, id).as_json())

    values = {
        "batchId": batch,
        "numInputRows": end - start,
        "batchDuration": 500,
        "durationMs": {"addBatch": 400},
        "sources": [
            {"startOffset": text(start), "endOffset": text(end), "latestOffset": text(20)},
            {"startOffset": None, "endOffset": None, "latestOffset": None},
        ],
    }
    return values | more


def test_places_are_read_from_what_spark_tells(hub: penstock.Hub) -> None:
    told = progress(hub, 3, 5, 9)
    assert [(a.id, b.id, c.id) for a, b, c in _ranges(told["sources"])] == [(5, 9, 20)]
    first = {"startOffset": None, "endOffset": json.dumps(at(hub, 4).as_json())}
    assert [(a.id, b.id, c.id) for a, b, c in _ranges([{**first, "latestOffset": None}])] == [
        (0, 4, 4)
    ]
    assert _ranges([{"startOffset": 1, "endOffset": 5, "latestOffset": 7}]) == []
    assert _is_batch(told)
    assert not _is_batch({"durationMs": {"triggerExecution": 1}})


class Query:
    """A stream's query as far as it is asked: what it tells, and whether it is active."""

    def __init__(self, told: list[dict[str, Any]]) -> None:
        self.recentProgress = told
        self.isActive = True
        self.stops = 0

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": True}

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802
        return False

    def stop(self) -> None:
        self.stops += 1
        self.isActive = False


def driver(
    tmp_path: Path, reports: list[Report], stop: Stop | None = None, beats: Any = None
) -> Driver:
    nothing: Any = None
    run = Run(
        Pipeline("p", "", lambda run: None),
        nothing,
        settings_for(file_url(tmp_path / "hub.db")),
        on_report=reports.append,
        on_beat=(beats if beats is not None else []).append,
        stop=stop,
    )
    return Driver(run, nothing, "checkpoint")


def test_each_batch_is_reported_once_also_when_several_ended_between_two_looks(
    hub: penstock.Hub, tmp_path: Path
) -> None:
    reports: list[Report] = []
    beats: list[int | None] = []
    watching = driver(tmp_path, reports, beats=beats)
    query: Any = Query([])
    watching._look(query)
    idle = progress(hub, 2, 9, 9, durationMs={}, numInputRows=0)
    query.recentProgress += [progress(hub, 0, 0, 4), progress(hub, 1, 4, 9), idle]
    watching._look(query)
    watching._look(query)
    # Spark gives the number of a batch that it had nothing for to the next one.
    query.recentProgress.append(progress(hub, 2, 9, 20))
    watching._look(query)

    assert [(r.batch, r.rows, r.lag, r.seconds) for r in reports] == [
        (0, 4, 16, 0.5),
        (1, 5, 11, 0.5),
        (2, 11, 0, 0.5),
    ]
    assert beats == [11]


def test_it_stops_after_the_batch_that_is_under_way(hub: penstock.Hub, tmp_path: Path) -> None:
    reports: list[Report] = []
    watching = driver(tmp_path, reports, Stop())
    query: Any = Query([progress(hub, 0, 0, 4)])
    watching._look(query)
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 3:
            query.recentProgress.append(progress(hub, 1, 4, 9))
        return False

    query.awaitTermination = wait
    watching._end(query)
    assert (len(waits), query.stops, [r.batch for r in reports]) == (3, 1, [0, 1])


def test_it_stops_at_once_when_it_is_urgent(hub: penstock.Hub, tmp_path: Path) -> None:
    stop = Stop()
    watching = driver(tmp_path, [], stop)
    stop.ask()
    stop.ask()
    query: Any = Query([])
    watching._end(query)
    assert query.stops == 1
