"""What roll-ups are added up from, without Spark: exact, in any order, whatever crashes (S4)."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.copies import new_generation
from penstock.delivery.stats import Histogram
from penstock.errors import InvalidInput
from penstock.figures import ROLLUPS_TOPIC, Resolution, Rollups
from penstock.spark.pipelines.rollups import PIPELINE, Roller
from penstock.spark.rollup_folder import Covered, Manifest, RollupFolder, files_of
from penstock.spark.rollup_lake import RollupLake
from penstock.spark.rollup_parts import (
    FACTS,
    FIGURES,
    add_up,
    facts_of,
    figures_of,
    fuller,
    roll,
    to_rollups,
)
from penstock.spark.runner import Run, lake_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 31, 23, 50, tzinfo=UTC)
RESOLUTIONS: tuple[Resolution, ...] = ("minute", "hour", "day")
Fact = dict[str, Any]


def message(
    size: int = 10, topic: str = "a", minute: int = 0, producer: str | None = "p", id: int = 1
) -> Fact:
    """What Spark makes of a message."""
    bucket = 0 if size <= 1 else next(i for i in range(999) if 1.1**i >= size)
    return {
        "topic": topic,
        "start": START + timedelta(minutes=minute),
        "kind": "size",
        "bucket": bucket,
        "producer": producer,
        "count": 1,
        "messages": 1,
        "bytes": size,
        "size_min": size,
        "size_max": size,
        "last_id": id,
    }


def report(
    buckets: dict[int, int], topic: str = "a", minute: int = 0, id: int = 1, **numbers: int
) -> list[Fact]:
    """What Spark makes of a server's report."""
    start = START + timedelta(minutes=minute)
    head = {"topic": topic, "start": start, "reports": 1, "last_report_id": id, **numbers}
    rows = [
        {"topic": topic, "start": start, "kind": "latency", "bucket": bucket, "count": count}
        for bucket, count in buckets.items()
    ]
    return [head, *rows]


def table(*facts: Fact) -> pa.Table:
    rows = [{name: fact.get(name) for name in FACTS.names} for fact in facts]
    return pa.Table.from_pylist(rows, FACTS)


facts = st.lists(
    st.builds(
        message,
        size=st.integers(0, 100_000),
        topic=st.sampled_from(["a", "b/c", ""]),
        minute=st.integers(0, 3),
        producer=st.sampled_from(["p", "q", None]),
        id=st.integers(1, 99),
    ).map(lambda fact: [fact])
    | st.builds(
        report,
        buckets=st.dictionaries(st.integers(0, 200), st.integers(0, 50), max_size=4),
        topic=st.sampled_from(["a", "z*"]),
        minute=st.integers(0, 3),
        dropped=st.integers(0, 5),
    ),
    max_size=30,
).map(lambda found: [fact for group in found for fact in group])


@given(facts, st.randoms(use_true_random=False), st.sampled_from(RESOLUTIONS))
def test_the_order_and_the_steps_of_adding_up_do_not_matter(
    found: list[Fact], dice: random.Random, resolution: Resolution
) -> None:
    """Hours made of minutes are those made of messages."""
    whole = figures_of(roll(add_up([table(*found)]), resolution))
    shuffled = dice.sample(found, len(found))
    cut = dice.randint(0, len(found))
    parts = [figures_of(add_up([table(*part)])) for part in (shuffled[:cut], shuffled[cut:])]
    again = figures_of(roll(add_up(map(facts_of, parts)), resolution))

    assert again.equals(whole)


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=60))
def test_sizes_are_as_the_values_say(sizes: list[int]) -> None:
    [row] = figures_of(add_up([table(*map(message, sizes))])).to_pylist()

    assert (row["messages"], row["bytes"]) == (len(sizes), sum(sizes))
    assert row["size_avg"] == pytest.approx(sum(sizes) / len(sizes))
    assert (row["size_min"], row["size_max"]) == (min(sizes), max(sizes))
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        exact = sorted(sizes)[max(0, -int(-share * len(sizes) // 1) - 1)]
        # To within five per cent, and the rounding to whole bytes.
        assert row[f"size_{name}"] == pytest.approx(exact, rel=0.05, abs=1)


@given(st.dictionaries(st.integers(0, 250), st.integers(1, 10**9), min_size=1, max_size=20))
def test_latencies_are_as_the_servers_histogram_says(buckets: dict[int, int]) -> None:
    histogram = Histogram()
    histogram.merge(buckets, 0.0)
    rows = report(buckets, latency_total_us=5_000 * histogram.count)

    [row] = figures_of(add_up([table(*rows)])).to_pylist()

    assert row["latency_avg_ms"] == pytest.approx(5.0)
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert row[f"latency_{name}_ms"] == pytest.approx(histogram.percentile(share))


def test_nothing_one_message_and_one_without_a_publisher() -> None:
    assert figures_of(add_up([])).num_rows == 0
    assert facts_of(FIGURES.empty_table()).num_rows == 0
    [row] = figures_of(table(message(0, producer=None))).to_pylist()
    assert (row["messages"], row["publishers"], row["size_p99"]) == (1, 0, 0)
    assert row["latency_p50_ms"] is None


def test_publishers_are_counted_once_however_long_the_time() -> None:
    rows = [message(minute=minute, producer=f"p{minute % 3}") for minute in range(9)]
    minutes = figures_of(table(*rows))
    assert minutes["publishers"].to_pylist() == [1] * 9
    hour = figures_of(roll(add_up([facts_of(minutes)]), "hour"))
    assert hour["publishers"].to_pylist() == [3]


def test_the_fuller_count_is_taken_for_messages_and_reports_on_their_own() -> None:
    mine = table(
        *[message(10, "a"), message(10, "a"), message(10, "b"), message(7, "c")],
        *report({5: 1}, "a", dropped=1),
    )
    theirs = table(
        *[message(99, "a"), message(20, "b"), message(20, "b"), message(9, "c"), message(1, "d")],
        *report({6: 1}, "a", dropped=2),
        *report({6: 1}, "a", dropped=2),
    )

    rows = {row["topic"]: row for row in figures_of(fuller(mine, theirs)).to_pylist()}

    bytes_of = {topic: row["bytes"] for topic, row in rows.items()}
    assert bytes_of == {"a": 20, "b": 40, "c": 7, "d": 1}
    assert (rows["a"]["dropped"], rows["a"]["latencies"]) == (4, [{"bucket": 6, "count": 2}])


def test_figures_are_published_as_they_are_read() -> None:
    [found] = to_rollups(figures_of(table(message(100), *report({3: 2}))), "minute")
    assert found.topic == "a"
    assert found.start == START
    assert (found.messages, found.size_p50, found.latency_buckets) == (1, 100, {3: 2})
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


# Files


class Crash(Exception):
    """In the place of a process that is killed."""


class Batches:
    """What the pipeline does with the batches of a query, without the query."""

    def __init__(self, lake: Path, on_step: Callable[[str], None] = lambda name: None) -> None:
        self.lake = RollupLake(str(lake), on_step)
        self._on_step = on_step

    def do(self, number: int, facts: pa.Table, *, compact: bool = False) -> None:
        folder = self.lake.folder
        manifest = folder.manifest()
        if not manifest.query:
            manifest = msgspec.structs.replace(manifest, query="q")
            folder.save(manifest)
        folder.write_part("q", number, facts)
        self._on_step("part written")
        if compact:
            self.lake.compact(manifest, number - 1)

    def figures(self, resolution: Resolution) -> pa.Table:
        """What counts now."""
        folder = self.lake.folder
        manifest = folder.manifest()
        paths = folder.figures(manifest, resolution).values()
        tables = [facts_of(pa.parquet.read_table(path)) for path in paths]
        parts = folder.parts(manifest).values()
        tables += [roll(pa.parquet.read_table(path), resolution) for path in parts]
        return figures_of(add_up(tables))


def batches() -> list[pa.Table]:
    """Around an hour's, a day's and a month's end."""
    return [
        table(
            *(message(size, "a", minute=number * 4 + size, id=number + 1) for size in range(6)),
            *report({number: 3}, minute=number * 4, id=number + 1, dropped=1),
        )
        for number in range(6)
    ]


def expected(count: int, resolution: Resolution) -> pa.Table:
    return figures_of(roll(add_up(batches()[:count]), resolution))


@pytest.mark.parametrize("crash_at", ["part written", "compacted", "counted"])
def test_a_crash_at_any_step_changes_nothing_that_counts(tmp_path: Path, crash_at: str) -> None:
    """Each batch is done again after it has crashed."""
    crashes = 0

    def step(name: str) -> None:
        nonlocal crashes
        if name == crash_at and not is_again:
            crashes += 1
            raise Crash

    world = Batches(tmp_path, step)
    for number, facts in enumerate(batches()):
        is_again = False
        try:
            world.do(number, facts, compact=number % 2 == 1)
        except Crash:
            for resolution in RESOLUTIONS:
                assert world.figures(resolution).equals(expected(number + 1, resolution))
            is_again = True
            world.do(number, facts, compact=number % 2 == 1)
        for resolution in RESOLUTIONS:
            assert world.figures(resolution).equals(expected(number + 1, resolution))
    assert crashes >= 3
    world.lake.compact(world.lake.folder.manifest())
    for resolution in RESOLUTIONS:
        found = [pa.parquet.read_table(path) for path in files_of(str(tmp_path), resolution)]
        rows = pa.concat_tables(found).sort_by([("start", "ascending"), ("topic", "ascending")])
        assert rows.equals(expected(6, resolution))


def test_what_does_not_count_is_removed_and_what_was_just_named_is_left(tmp_path: Path) -> None:
    world = Batches(tmp_path)
    names: list[set[Path]] = []
    for number, facts in enumerate(batches()):
        world.do(number, facts, compact=True)
        names.append(set(world.lake.folder.root.rglob("*.parquet")))
    folder, manifest = world.lake.folder, world.lake.folder.manifest()

    counted = {path for r in RESOLUTIONS for path in folder.figures(manifest, r).values()}
    assert counted | set(folder.parts(manifest).values()) <= names[-1]
    world.lake.folder.clean(manifest)
    assert set(folder.root.rglob("*.parquet")) == counted | set(folder.parts(manifest).values())
    assert not [path for path in folder.root.rglob(".*") if path.is_file()]


def test_the_manifest_knows_what_was_counted_and_what_changed(tmp_path: Path) -> None:
    world = Batches(tmp_path)
    for number, facts in enumerate(batches()[:3]):
        world.do(number, facts)

    manifest = world.lake.compact(world.lake.folder.manifest(), 1)

    assert (manifest.merged_through, manifest.covered) == (1, Covered(2, 2))
    hour = int(START.timestamp()) // 3600 * 3600
    assert manifest.changed == {"hour": [hour], "day": [hour // 86_400 * 86_400]}
    assert manifest.files.keys() == set(RESOLUTIONS)
    assert list(manifest.files["hour"]) == ["2026-01-31"]
    assert world.lake.changes(manifest, "hour")["messages"].to_pylist() == [12]
    assert world.lake.compact(manifest, 1) == manifest, "nothing is left to do"


def test_a_recount_replaces_only_what_it_has_seen_more_of(tmp_path: Path) -> None:
    world = Batches(tmp_path)
    world.do(0, table(message(10, minute=0), message(10, minute=1), message(10, minute=1)))
    manifest = world.lake.compact(world.lake.folder.manifest())

    recounted = table(message(30, minute=0), message(30, minute=0), message(30, minute=1))
    world.lake.recount(manifest, recounted)

    assert world.figures("minute")["bytes"].to_pylist() == [60, 20]
    for resolution in ("hour", "day"):
        assert world.figures(resolution)["bytes"].to_pylist() == [80]


@pytest.mark.parametrize("content", [b"{", b'{"version": 9}', b"[]"])
def test_a_manifest_that_cannot_be_read_stops_everything(tmp_path: Path, content: bytes) -> None:
    folder = RollupFolder(str(tmp_path))
    folder.save(Manifest(id="x"))
    (folder.root / "manifest.json").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"manifest\.json"):
        folder.manifest()


def test_a_lake_that_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be kept"):
        RollupFolder("s3a://bucket/lake")
    assert RollupFolder(f"file://{tmp_path}").root == tmp_path / "_rollups"


# The pipeline, from what Spark has counted on


class Pipeline:
    """Batches of queries on a database, as Spark would bring them: each until it is done."""

    def __init__(self, hub: penstock.Hub) -> None:
        hub.topics.position()  # The first use makes the file.
        self.hub = hub
        self.crash_at = ""
        self.steps: set[str] = set()
        self._run = Run(
            PIPELINE,
            cast("SparkSession", None),  # What has been counted needs no Spark any more.
            hub.settings,
            options={"compact": 2},
            on_step=self._step,
        )

    def _step(self, name: str) -> None:
        self.steps.add(name)
        if name == self.crash_at:
            self.crash_at = ""
            raise Crash

    def batch(self, number: int, facts: pa.Table, query: str = "query-1") -> None:
        while True:
            roller = Roller(self._run)  # Each attempt is another process.
            try:
                base = roller.begin(query)
                ids = pa.compute.greater(facts["last_id"], base.messages)
                reports = pa.compute.greater(facts["last_report_id"], base.reports)
                is_new = pa.compute.coalesce(ids, reports, pa.scalar(True))
                roller.take(query, number, facts.filter(is_new))
                return
            except Crash:
                continue

    def finish(self) -> None:
        while True:
            try:
                Roller(self._run).finish()
                return
            except Crash:
                continue

    def published(self, resolution: Resolution) -> list[tuple[str, datetime, int, int]]:
        rollups = Rollups(self.hub.topics)
        rollups.refresh()
        found = rollups.find(resolution=resolution)
        return [(one.topic, one.start, one.messages, one.dropped) for one in found]


def counts(tables: list[pa.Table], resolution: Resolution) -> list[tuple[Any, ...]]:
    rows = figures_of(roll(add_up(tables), resolution)).to_pylist()
    return [tuple(row[name] for name in ("topic", "start", "messages", "dropped")) for row in rows]


STEPS = (
    *("adopted", "counted in Spark", "part written", "published", "compacted", "counted"),
    *("hours published", "days published"),
)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("batch", [0, 3])
def test_the_pipeline_neither_loses_nor_doubles_what_a_crash_parts(
    hub: penstock.Hub, step: str, batch: int
) -> None:
    """At each step, in the first batch that comes to it and in a later one."""
    pipeline = Pipeline(hub)
    for number, facts in enumerate(batches()):
        if number == batch:
            pipeline.crash_at = step
        pipeline.batch(number, facts)
        minutes = [(topic, start) for topic, start, _, _ in pipeline.published("minute")]
        assert minutes == [row[:2] for row in counts(batches()[: number + 1], "minute")]
    pipeline.finish()

    assert not pipeline.crash_at or (step, batch) == ("adopted", 3), "it came to the step"
    for resolution in RESOLUTIONS:
        assert pipeline.published(resolution) == counts(batches(), resolution)
    assert set(STEPS) <= pipeline.steps
    messages = hub.topics.stats(ROLLUPS_TOPIC).messages
    pipeline.finish()
    assert hub.topics.stats(ROLLUPS_TOPIC).messages == messages


def test_another_query_goes_on_where_the_last_one_was(hub: penstock.Hub) -> None:
    """A reset, or a checkpoint that was lost: the new query begins with the oldest message."""
    pipeline = Pipeline(hub)
    for number, facts in enumerate(batches()[:4]):
        pipeline.batch(number, facts)
    pipeline.crash_at = "adopted"

    pipeline.batch(0, add_up(batches()[:3]), query="query-2")
    pipeline.batch(1, add_up(batches()[3:]), query="query-2")
    pipeline.finish()

    for resolution in RESOLUTIONS:
        assert pipeline.published(resolution) == counts(batches(), resolution)


def test_ids_of_another_database_are_not_those_that_were_counted(hub: penstock.Hub) -> None:
    """After a restore they are: ids go on above those given out before."""
    pipeline = Pipeline(hub)
    for number, facts in enumerate(batches()):
        pipeline.batch(number, facts)
    pipeline.finish()
    folder = RollupFolder(lake_of(hub.settings))
    assert folder.manifest().covered == Covered(6, 6)
    folder.save(msgspec.structs.replace(folder.manifest(), epoch="another-1"))

    assert Roller(pipeline._run).begin("query-2") == Covered()

    folder.save(msgspec.structs.replace(folder.manifest(), epoch="x-1", covered=Covered(6, 6)))
    new_generation(hub._open())
    assert hub.topics.position().offset >= 6
    assert Roller(pipeline._run).begin("query-3") == Covered(6, 6)
