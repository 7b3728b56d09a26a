"""Roll-ups: the same numbers as SQL over the log, whatever happens in between (S4)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest

import penstock
from penstock.clock import SECOND
from penstock.delivery.stats import STATS_TOPIC
from penstock.errors import InvalidInput
from penstock.figures import ROLLUPS_TOPIC
from penstock.spark import rolling
from penstock.spark.pipelines.archive import PIPELINE as ARCHIVE
from penstock.spark.pipelines.rollups import PIPELINE
from penstock.spark.rollup_folder import RollupFolder, files_of
from penstock.spark.rollup_lake import read_rollups
from penstock.spark.rollup_parts import figures_of
from penstock.spark.runner import Run, lake_of
from penstock.testing import FakeClock
from tests.spark.rollup_world import DELIVERED, NOON, World, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Go = Callable[..., Run]


@pytest.fixture
def world(open_hub: Callable[..., penstock.Hub]) -> World:
    clock = FakeClock(int(NOON.timestamp()) * SECOND)
    # What has expired is not swept away, so that SQL counts it as long as the test takes.
    return World(open_hub(clock=clock, name="publisher", sweep_interval_seconds=1e6), clock)


@pytest.fixture
def go(world: World, spark: SparkSession) -> Go:
    def go(on_step: Callable[[str], None] | None = None, **arguments: Any) -> Run:
        options = {"compact": 2, **arguments.pop("options", {})}
        if on_step is not None:
            arguments["on_step"] = on_step
        run = Run(PIPELINE, spark, world.hub.settings, options=options, **arguments)
        PIPELINE.run(run)
        return run

    return go


def test_minutes_hours_and_days_are_as_sql_counts_them_and_a_second_run_does_nothing(
    world: World, go: Go, spark: SparkSession
) -> None:
    fill(world)
    world.report(b"{broken")

    go(options={"max_offsets_per_trigger": 40})

    for resolution in ("minute", "hour", "day"):
        assert world.published(resolution) == world.truth(resolution), resolution
    messages = world.hub.topics.stats(ROLLUPS_TOPIC).messages
    go()
    assert world.hub.topics.stats(ROLLUPS_TOPIC).messages == messages

    # Late rows and those of the open minute join theirs.
    world.publish("orders", 7, 7)
    world.deliver("orders", {200: 1000}, dropped=5)
    go()

    for resolution in ("minute", "hour", "day"):
        assert world.published(resolution) == world.truth(resolution), resolution
        rows = read_rollups(spark, lake_of(world.hub.settings), resolution).collect()
        counts = {(row.topic, row.start.replace(tzinfo=UTC)): row.messages for row in rows}
        assert counts == {key: value["messages"] for key, value in world.truth(resolution).items()}
        tables = [
            pyarrow.parquet.read_table(path)
            for path in files_of(lake_of(world.hub.settings), resolution)
        ]
        assert sum(sum(t["messages"].to_pylist()) for t in tables) == sum(counts.values())


@pytest.mark.soak
def test_a_new_checkpoint_counts_nothing_again_and_the_past_can_be_counted_again(
    world: World, go: Go, spark: SparkSession
) -> None:
    """A reset or a lost checkpoint, and a piece of history that came to little the first time."""
    with pytest.raises(InvalidInput, match="Nothing has been rolled up yet"):
        go(until=NOON)
    fill(world)
    run = go()
    shutil.rmtree(run.checkpoint)
    world.publish("orders", 1)

    go()

    for resolution in ("minute", "hour", "day"):
        assert world.published(resolution) == world.truth(resolution), resolution

    # Some minutes are forgotten, as if the log had been trimmed too early; and counted again.
    folder = RollupFolder(run.lake)
    manifest = folder.manifest()
    shutil.copy(folder.root / manifest.files["minute"]["2026-01-31T12"], folder.root / "aside")
    lost = pyarrow.parquet.read_table(folder.root / "aside").slice(0, 1)
    pyarrow.parquet.write_table(lost, folder.root / manifest.files["minute"]["2026-01-31T12"])
    world.publish("orders", 99)  # Not counted yet: the stream comes to it.

    go(since=NOON, until=NOON + timedelta(minutes=59, seconds=1))
    go()

    expected = {resolution: world.truth(resolution) for resolution in ("hour", "day")}
    for resolution in ("hour", "day"):
        assert world.published(resolution) == expected[resolution], resolution

    # The same from the lake, when the log has nothing of it any more.
    ARCHIVE.run(Run(ARCHIVE, spark, world.hub.settings))
    world.hub.topics.trim("orders", through=world.hub.topics.position())
    manifest = folder.manifest()
    pyarrow.parquet.write_table(lost, folder.root / manifest.files["minute"]["2026-01-31T12"])
    go(source="lake")
    for resolution in ("hour", "day"):
        found = world.published(resolution)
        for key, counts in expected[resolution].items():
            # What had expired was not archived: of that there is nothing to count again.
            assert found[key] == counts or key[0] == "canvas-1", resolution


@pytest.mark.soak
def test_an_empty_database_has_no_rollups_and_one_message_has(
    world: World, go: Go, spark: SparkSession
) -> None:
    world.hub.topics.position()  # The first use makes the file.
    go()
    assert read_rollups(spark, lake_of(world.hub.settings)).collect() == []
    world.publish("a", 3)
    go()
    [row] = read_rollups(spark, lake_of(world.hub.settings), "day").collect()
    assert (row.topic, row.messages, row.bytes) == ("a", 1, 3)


def test_reports_that_are_none_are_kept_and_counted(spark: SparkSession) -> None:
    good = {
        "topic": "a",
        "messages": 1,
        "deliveries": 2,
        "bytes": 3,
        "batches": 4,
        "dropped": 5,
        "catch_ups": 6,
        "latency_buckets": {"7": 8},
        "latency_total_ms": 0.0015,
    }
    bodies = [
        json.dumps(good).encode(),
        json.dumps({**good, "batch_max": 9, "new": {"field": 1}}).encode(),
        *(b"", b"{", b"[1]", b"null", b"\xff\xfe", b'"text"'),
        *(json.dumps({**good, name: None}).encode() for name in good),
        *(json.dumps({**good, name: -1}).encode() for name in ("messages", "latency_total_ms")),
        json.dumps({**good, "latency_buckets": {"x": 1}}).encode(),
        json.dumps({**good, "latency_buckets": {"-1": 1}}).encode(),
        json.dumps({**good, "dropped": "many"}).encode(),
    ]
    reports = spark.createDataFrame(
        [(NOON, i, body) for i, body in enumerate(bodies)], rolling.REPORTS
    )

    figures = figures_of(rolling.count(rolling.facts_of_reports(reports)).toArrow()).to_pylist()

    rows = {row["topic"]: row for row in figures}
    assert {topic: row["reports"] for topic, row in rows.items()} == {
        "a": 2,
        STATS_TOPIC: len(bodies) - 2,
    }
    assert rows[STATS_TOPIC]["broken"] == len(bodies) - 2
    assert [rows["a"][name] for name in DELIVERED] == [2, 4, 6, 8, 10, 12]
    assert (rows["a"]["batch_max"], rows["a"]["broken"]) == (9, 0)
    assert rows["a"]["latencies"] == [{"bucket": 7, "count": 16}]
    assert rows["a"]["latency_total_us"] == 4
