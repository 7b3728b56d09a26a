"""Roll-ups, Spark's part: from messages and servers' reports to counts, in parallel.

Both become facts: flat rows with numbers that can be added up. `count` adds up the facts of a
batch; what is left is small, and goes on without Spark, in `rollup_parts`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.delivery.stats import GROWTH, STATS_TOPIC
from penstock.spark.rollup_folder import Covered
from penstock.spark.rollup_parts import GREATEST, KEYS, LEAST, NUMBERS, SUMS

MESSAGES = "topic STRING, timestamp TIMESTAMP, offset BIGINT, producer STRING, size BIGINT"
"""What is read of messages: no payloads."""
REPORTS = "timestamp TIMESTAMP, offset BIGINT, value BINARY"
"""What is read of `penstock.delivery`."""

# A report of today, and those of other releases as far as they have the same fields.
_REPORT = (
    "topic STRING, messages BIGINT, deliveries BIGINT, bytes BIGINT, batches BIGINT, "
    "dropped BIGINT, catch_ups BIGINT, latency_buckets MAP<STRING, BIGINT>, "
    "latency_total_ms DOUBLE, batch_max BIGINT"
)
_COUNTS = ("messages", "deliveries", "bytes", "batches", "dropped", "catch_ups")
_KINDS = {
    "topic": "string",
    "start": "timestamp",
    "kind": "string",
    "bucket": "int",
    "producer": "string",
    "count": "bigint",
    **dict.fromkeys(NUMBERS, "bigint"),
}


def facts_of_messages(messages: DataFrame) -> DataFrame:
    """From rows as `MESSAGES`: a fact each."""
    size = F.col("size")
    return _facts(
        messages,
        {
            "topic": F.col("topic"),
            "start": minute_of(F.col("timestamp")),
            "kind": F.lit("size"),
            "bucket": F.when(size <= 1, 0).otherwise(F.ceil(F.log(GROWTH, size))),
            "producer": F.col("producer"),
            "count": F.lit(1),
            "messages": F.lit(1),
            "bytes": size,
            "size_min": size,
            "size_max": size,
            "last_id": F.col("offset"),
        },
    )


def facts_of_reports(reports: DataFrame) -> DataFrame:
    """From rows as `REPORTS`: a fact for each, and one for each bucket of its latencies.

    What is not a report is kept and counted: as broken, under the topic it came in.
    """
    parsed = reports.select(
        minute_of(F.col("timestamp")).alias("start"),
        "offset",
        F.from_json(F.col("value").cast("string"), _REPORT).alias("r"),
    )
    exploded = parsed.select("*", _is_sound().alias("sound")).select(
        "*", F.explode(_entries()).alias("e")
    )
    is_head = F.col("e.bucket").isNull()

    def told(name: str) -> Column:
        return F.when(is_head & F.col("sound"), F.col(f"r.{name}"))

    return _facts(
        exploded,
        {
            "topic": F.when(F.col("sound"), F.col("r.topic")).otherwise(STATS_TOPIC),
            "start": F.col("start"),
            "kind": F.when(~is_head, F.lit("latency")),
            "bucket": F.col("e.bucket"),
            "count": F.col("e.count"),
            "delivered": told("messages"),
            "deliveries": told("deliveries"),
            "delivered_bytes": told("bytes"),
            "batches": told("batches"),
            "dropped": told("dropped"),
            "catch_ups": told("catch_ups"),
            "batch_max": told("batch_max"),
            "latency_total_us": F.round(told("latency_total_ms") * 1000),
            "reports": F.when(is_head, 1),
            "broken": F.when(is_head & ~F.col("sound"), 1),
            "last_report_id": F.col("offset"),
        },
    )


def count(facts: DataFrame) -> DataFrame:
    """Facts added up: one for each topic, minute, bucket and publisher."""
    return facts.groupBy(*KEYS).agg(
        *(F.sum(name).alias(name) for name in ("count", *SUMS)),
        *(F.min(name).alias(name) for name in LEAST),
        *(F.max(name).alias(name) for name in GREATEST),
    )


def after(facts: DataFrame, covered: Covered) -> DataFrame:
    """Without what has been counted."""
    return facts.where(
        (F.col("last_id").isNull() | (F.col("last_id") > covered.messages))
        & (F.col("last_report_id").isNull() | (F.col("last_report_id") > covered.reports))
    )


def through(facts: DataFrame, covered: Covered) -> DataFrame:
    """Only what has been counted."""
    return facts.where(
        (F.col("last_id").isNull() | (F.col("last_id") <= covered.messages))
        & (F.col("last_report_id").isNull() | (F.col("last_report_id") <= covered.reports))
    )


def minute_of(time: Column) -> Column:
    """When the minute of a time began, in UTC, whatever the session's zone is."""
    return F.timestamp_seconds(F.floor(F.unix_seconds(time) / 60) * 60)


def _is_sound() -> Column:
    """Whether what was parsed is a report: nothing that is needed is missing or nonsense."""
    is_sound = F.col("r.topic").isNotNull() & (F.col("r.latency_total_ms") >= 0)
    for name in _COUNTS:
        is_sound = is_sound & (F.col(f"r.{name}") >= 0)
    buckets = F.forall(
        F.map_entries("r.latency_buckets"),
        lambda entry: (entry["key"].try_cast("int") >= 0) & (entry["value"] >= 0),
    )
    return F.coalesce(is_sound & buckets, F.lit(False))


def _entries() -> Column:
    """The buckets of a report, and one before them that is none: the head."""
    kind = "array<struct<bucket: int, count: bigint>>"
    head = F.array(F.struct(F.lit(None), F.lit(None))).cast(kind)
    buckets = F.transform(
        F.map_entries("r.latency_buckets"),
        lambda entry: F.struct(entry["key"].try_cast("int"), entry["value"]),
    ).cast(kind)
    return F.when(F.col("sound"), F.concat(head, buckets)).otherwise(head)


def _facts(rows: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """With all columns of a fact: those that are not given are NULL."""
    return rows.select(
        *(columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _KINDS.items())
    )
