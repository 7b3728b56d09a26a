"""`rollups`: throughput, sizes, delivery latency and drops, per topic and minute, hour and day.

Each batch of the stream leaves a part in the lake: what it has counted, under its own number, so
that a batch that comes again replaces its part. The minutes it has touched are added up and
published. Now and then parts are compacted, and with them hours and days are made.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.clock import SystemClock
from penstock.delivery.stats import STATS_TOPIC
from penstock.errors import InvalidInput
from penstock.figures import ROLLUPS_TOPIC, Resolution
from penstock.spark import rolling
from penstock.spark.lake import read_topic
from penstock.spark.publishing import Figure, publish
from penstock.spark.registry import Option, Pipeline
from penstock.spark.rollup_folder import Covered, Manifest
from penstock.spark.rollup_lake import RollupLake
from penstock.spark.rollup_parts import add_up, to_rollups
from penstock.spark.runner import Run
from penstock.spark.sink import QUERY_ID
from penstock.stores import open_scanner

COMPACT_BATCHES = 6
LARGER: tuple[Resolution, ...] = ("hour", "day")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def run(run: Run) -> None:
    """Count what is new; or, for a piece of the past, count it again."""
    roller = Roller(run)
    if run.is_backfill:
        roller.backfill()
        return
    facts = rolling.facts_of_messages(
        run.stream(
            schema=rolling.MESSAGES,
            subscribePattern=run.options["topics"],
            includeExpired=True,
            maxOffsetsPerTrigger=run.options["max_offsets_per_trigger"],
            failOnDataLoss=run.options["fail_on_data_loss"],
            group=run.options["group"],
        )
    ).unionByName(
        rolling.facts_of_reports(
            run.stream(
                schema=rolling.REPORTS,
                subscribe=STATS_TOPIC,
                maxOffsetsPerTrigger=run.options["max_offsets_per_trigger"],
                failOnDataLoss=run.options["fail_on_data_loss"],
            )
        )
    )
    run.drive(facts.writeStream.foreachBatch(roller.batch))
    if run.once:
        roller.finish()


class Roller:
    """One run: what is done with each batch, and when it is done."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lake = RollupLake(run.lake, run.step)

    def batch(self, facts: DataFrame, number: int) -> None:
        """Count a batch of the stream."""
        query = facts.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert query is not None, "Spark tells which query a batch is of"
        base = self.begin(query)
        self.take(query, number, rolling.count(rolling.after(facts, base)).toArrow())

    def begin(self, query: str) -> Covered:
        """What a query leaves out, since others have counted it before."""
        manifest = self._lake.folder.manifest()
        if manifest.query != query:
            manifest = self._adopt(manifest, query)
        return manifest.base

    def take(self, query: str, number: int, counted: pa.Table) -> None:
        """Take what a batch has counted. Done again, it leaves everything as it is."""
        self._run.step("counted in Spark")
        facts = add_up([counted])
        if facts.num_rows == 0:
            return
        manifest = self._lake.folder.manifest()
        self._lake.folder.write_part(query, number, facts)
        self._run.step("part written")
        minutes = self._lake.minutes(manifest, facts)
        self._publish(minutes, "minute", f"rollups:{query}", number)
        self._run.step("published")
        # What is compacted is in the checkpoint: this batch is not, yet.
        if len(self._lake.folder.parts(manifest, number - 1)) >= self._run.options["compact"]:
            self._compact(manifest, number - 1)

    def finish(self) -> None:
        """After the last batch: compact all that there is."""
        self._compact(self._lake.folder.manifest(), None)

    def backfill(self) -> None:
        """Count a piece of the past again, as far as the stream has come: day by day."""
        manifest = self._compact(self._lake.folder.manifest(), None)
        if manifest.covered == Covered():
            raise InvalidInput(
                "Nothing has been rolled up yet, so there is nothing to do again.",
                hint="Run 'penstock pipeline run rollups --once' first: it begins with the oldest "
                "message there is.",
            )
        for number, (begin, end) in enumerate(self._days()):
            if self._run.is_stopping:
                return
            began = time.monotonic()
            messages, reports = self._past(begin, end)
            facts = rolling.facts_of_messages(messages).unionByName(
                rolling.facts_of_reports(reports)
            )
            counted = rolling.count(rolling.through(facts, manifest.covered)).toArrow()
            manifest = self._publish_changes(self._lake.recount(manifest, counted))
            rows = sum(pc.sum(counted[name]).as_py() or 0 for name in ("messages", "reports"))
            self._run.report(rows=rows, batch=number, lag=None, seconds=time.monotonic() - began)

    # Inside

    def _days(self) -> list[tuple[datetime, datetime]]:
        """The days to be counted again: whole minutes, so that none is counted in part."""
        since, until = self._run.since, self._run.until
        if since is None or until is None:
            messages, reports = self._past(since or EPOCH, until or EPOCH + timedelta(days=99_999))
            times = messages.select("timestamp").union(reports.select("timestamp"))
            bounds = times.agg(
                F.unix_seconds(F.min("timestamp")), F.unix_seconds(F.max("timestamp"))
            ).head()
            assert bounds is not None
            if bounds[0] is None:
                return []
            since = since or EPOCH + timedelta(seconds=bounds[0])
            until = until or EPOCH + timedelta(seconds=bounds[1] + 1)
        begin = since.replace(second=0, microsecond=0)
        last = until.replace(second=0, microsecond=0)
        end = last if last == until else last + timedelta(minutes=1)
        days = []
        while begin < end:
            midnight = begin.replace(hour=0, minute=0) + timedelta(days=1)
            days.append((begin, min(midnight, end)))
            begin = midnight
        return days

    def _past(self, since: datetime, until: datetime) -> tuple[DataFrame, DataFrame]:
        """Messages and reports of a time."""
        run, topics = self._run, str(self._run.options["topics"])
        if run.source == "lake":
            rows = read_topic(
                [*topics.split(","), STATS_TOPIC],
                url=run.url,
                spark=run.spark,
                since=since,
                until=until,
                lake=run.lake,
            )
            if "size" not in rows.columns:
                rows = rows.withColumn("size", F.length("value").cast("bigint"))
            is_report = F.col("topic") == STATS_TOPIC
            return rows.where(~is_report), rows.where(is_report)
        times = {"startingTimestamp": since.isoformat(), "endingTimestamp": until.isoformat()}
        messages = run.read(
            schema=rolling.MESSAGES, subscribePattern=topics, includeExpired=True, **times
        )
        return messages, run.read(schema=rolling.REPORTS, subscribe=STATS_TOPIC, **times)

    def _adopt(self, manifest: Manifest, query: str) -> Manifest:
        """Begin with a query that is new here: leave out what others have counted before it."""
        manifest = self._compact(manifest, None)
        scanner = open_scanner(self._run.settings, SystemClock())
        try:
            end = scanner.end("messages")
        finally:
            scanner.close()
        covered = manifest.covered
        if not _is_same_log(manifest, end.epoch, end.last_id):
            covered = Covered()
        adopted = msgspec.structs.replace(
            manifest, query=query, epoch=end.epoch, merged_through=-1, base=covered, covered=covered
        )
        self._lake.folder.save(adopted)
        self._run.step("adopted")
        return adopted

    def _compact(self, manifest: Manifest, through: int | None) -> Manifest:
        manifest = self._publish_changes(manifest)
        return self._publish_changes(self._lake.compact(manifest, through))

    def _publish_changes(self, manifest: Manifest) -> Manifest:
        """Hours and days of the last generation, if that was not done before a crash."""
        if manifest.published >= manifest.generation:
            return manifest
        for resolution in LARGER:
            rows = self._lake.changes(manifest, resolution)
            app = f"rollups:{manifest.id}:{resolution}"
            self._publish(rows, resolution, app, manifest.generation)
            self._run.step(f"{resolution}s published")
        done = msgspec.structs.replace(manifest, published=manifest.generation)
        self._lake.folder.save(done)
        return done

    def _publish(self, table: pa.Table, resolution: Resolution, app: str, version: int) -> None:
        figures = (
            Figure(f"{resolution}/{found.start.timestamp():.0f}/{found.topic}", resolution, found)
            for found in to_rollups(table, resolution)
        )
        publish(self._run.settings, ROLLUPS_TOPIC, figures, app=app, version=version)


def _is_same_log(manifest: Manifest, epoch: str, last_id: int) -> bool:
    """Whether ids mean the same messages as when they were counted.

    They do after a restore: it makes another epoch, and ids go on above those given out before.
    A database that was never restored and has another epoch is another one.
    """
    if manifest.epoch in ("", epoch):
        return True
    generation = epoch.rpartition("-")[2]
    return generation != "1" and last_id >= manifest.covered.messages


PIPELINE = Pipeline(
    name="rollups",
    summary="throughput, sizes, delivery latency and drops per topic and minute, hour and day",
    run=run,
    options=(
        Option("topics", "which topics, as globs with commas between them", default="*"),
        Option(
            "compact", "batches after which parts are compacted", default=COMPACT_BATCHES, type=int
        ),
        Option("max_offsets_per_trigger", "messages in a batch", default=100_000, type=int),
        Option(
            "fail_on_data_loss",
            "stop when messages were removed before they were counted; false: go on without them",
            default=True,
            type=bool,
        ),
        Option("group", "the name under which retention can be told to wait (hold_for)"),
    ),
)
