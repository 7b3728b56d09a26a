"""`job_health`: how jobs fare, per queue and type, from their history.

Attempts, how long jobs waited and ran, how often they failed and of what, and how long a timeout
should be. The history is read as a whole each time: what it says of a job can change with every
event.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812

from penstock.clock import SystemClock
from penstock.errors import InvalidInput, JobTimeout
from penstock.figures import JOB_HEALTH_TOPIC, JobHealth
from penstock.spark.publishing import Figure, publish
from penstock.spark.registry import Option, Pipeline
from penstock.spark.runner import Run
from penstock.stores import open_scanner

EVENTS = (
    "offset BIGINT, timestamp TIMESTAMP, job_id BIGINT, kind STRING, attempt INT, queue STRING, "
    "type STRING, data STRING"
)
COUNTED = (
    *("completed", "failed", "died", "rescued", "released", "snoozed", "cancelled", "expired"),
    "retried",
)
FAILURES = ("failed", "died", "rescued", "expired")
TIMEOUT = f"{JobTimeout.__module__}.{JobTimeout.__qualname__}"
CLASSES_MAX = 20
"""Failure classes that are told of a queue and type, the most frequent first."""
COMPLETIONS_MIN = 20
"""Fewer say nothing about how long a job may take."""
# So many values are kept exactly; beyond, ranks are right to a ten thousandth.
ACCURACY = 10_000

_DATA = "error STRING, message STRING, retry_at BIGINT, run_at BIGINT, waiting BOOLEAN"
_ALL_TIME_HOURS = 0.0


def job_health(events: DataFrame) -> DataFrame:
    """A row for each queue and type of rows as `EVENTS`: the columns of `JobHealth`."""
    lines = _lines(events)
    keys = ("queue", "type")
    counts = lines.groupBy(*keys).agg(
        F.count("*").alias("events"),
        F.countDistinct("job_id").alias("jobs"),
        F.countDistinct(F.when(F.col("kind") == "started", F.col("job_id"))).alias("begun"),
        F.count_if(F.col("kind") == "started").alias("attempts"),
        F.count_if((F.col("kind") == "started") & F.col("next_kind").isNull()).alias("running"),
        *(F.count_if(F.col("kind") == kind).alias(kind) for kind in COUNTED),
        F.count("wait").alias("waits"),
        *_percentiles("wait"),
        *_percentiles("run"),
        F.count_if(F.col("is_timeout")).alias("timed_out"),
        F.max(F.when(F.col("next_is_timeout"), F.col("ran"))).alias("longest_cut_off"),
        F.count_if(F.col("is_broken")).alias("broken"),
    )
    health = counts.withColumns(_rates()).withColumn("suggested_timeout_seconds", _suggestion())
    # Under other names: both sides come from the same rows, and Spark would mix them up.
    classes = failure_classes(lines).withColumnsRenamed({key: f"their_{key}" for key in keys})
    same = [F.col(key).eqNullSafe(F.col(f"their_{key}")) for key in keys]
    joined = health.join(classes, same, "left")
    extra = ("begun", "longest_cut_off", *(f"their_{key}" for key in keys))
    return joined.drop(*extra)


def failure_classes(lines: DataFrame) -> DataFrame:
    """Per queue and type, what went wrong how often: the column `failures`."""
    counts = (
        lines.where(F.col("kind").isin(*FAILURES))
        .groupBy("queue", "type", F.coalesce("d.error", F.lit("unknown")).alias("error"))
        .agg(F.count("*").alias("count"), F.max_by("d.message", "offset").alias("message"))
    )
    ranked = F.array_sort(
        F.collect_list(F.struct((-F.col("count")).alias("rank"), "error", "count", "message"))
    )
    told = F.transform(
        F.slice(ranked, 1, CLASSES_MAX), lambda c: F.struct(c["error"], c["count"], c["message"])
    )
    kind = "array<struct<error: string, count: bigint, message: string>>"
    return counts.groupBy("queue", "type").agg(told.cast(kind).alias("failures"))


def run(run: Run) -> None:
    """Report once; or now and then, whenever something has happened."""
    if run.source == "lake":
        raise InvalidInput(
            "The history of jobs is not in the lake.", hint="Leave out --from: it is in the log."
        )
    number, seen = 0, -1
    while True:
        last = _last_event(run)
        if last != seen:
            _report(run, number)
            number, seen = number + 1, last
        if run.once or run.is_backfill or run.stop.wait(run.options["every_seconds"]):
            return


def _report(run: Run, number: int) -> None:
    began, now = time.monotonic(), datetime.now(UTC)
    window: dict[str, Any] = {}
    hours = run.options["hours"]
    if run.since is None and hours > _ALL_TIME_HOURS:
        window["startingTimestamp"] = (now - timedelta(hours=hours)).isoformat()
    # What is pruned while it is read is no longer part of the history.
    events = run.read(schema=EVENTS, entity="job_events", failOnDataLoss=False, **window)
    rows = job_health(events).collect()
    run.step("read")
    figures = [_figure(row, now) for row in rows]
    publish(run.settings, JOB_HEALTH_TOPIC, figures)
    run.step("published")
    run.report(
        rows=sum(row.events for row in rows),
        batch=number,
        lag=None,
        seconds=time.monotonic() - began,
    )


def _figure(row: Row, now: datetime) -> Figure:
    values = row.asDict(recursive=True)
    values = {name: value for name, value in values.items() if value is not None}
    health = msgspec.convert({**values, "reported_at": now}, JobHealth)
    return Figure(f"{health.queue or ''}/{health.type or ''}", "job_health", health)


def _last_event(run: Run) -> int:
    scanner = open_scanner(run.settings, SystemClock())
    try:
        return scanner.end("job_events").last_id
    finally:
        scanner.close()


def _lines(events: DataFrame) -> DataFrame:
    """Events with what came before and after them in the life of their job."""
    parsed = events.where(F.col("kind") != "progress").withColumns(
        {
            "d": F.from_json("data", _DATA),
            "is_broken": F.col("data").isNotNull() & F.try_parse_json("data").isNull(),
        }
    )
    is_failure = F.col("kind").isin(*FAILURES)
    parsed = parsed.withColumn(
        "is_timeout", F.coalesce(is_failure & (F.col("d.error") == TIMEOUT), F.lit(False))
    )
    life = Window.partitionBy("job_id").orderBy("offset")
    at = F.unix_micros("timestamp")
    lines = parsed.withColumns(
        {
            "ready_at": F.lag(_ready_at(at)).over(life),
            "next_kind": F.lead("kind").over(life),
            "next_at": F.lead(at).over(life),
            "next_is_timeout": F.coalesce(F.lead("is_timeout").over(life), F.lit(False)),
        }
    )
    is_start = F.col("kind") == "started"
    ran = (F.col("next_at") - at) / 1e6
    return lines.withColumns(
        {
            "wait": F.when(
                is_start & F.col("ready_at").isNotNull(),
                F.greatest(F.lit(0.0), (at - F.col("ready_at")) / 1e6),
            ),
            "ran": F.when(is_start, ran),
            "run": F.when(is_start & (F.col("next_kind") == "completed"), ran),
        }
    )


def _ready_at(at: Column) -> Column:
    """When the job could be started after this event. NULL if that cannot be known."""
    kind = F.col("kind")
    return (
        F.when(F.col("is_broken"), None)
        .when(
            kind.isin("enqueued", "replaced") & ~F.coalesce("d.waiting", F.lit(False)),
            F.greatest(at, F.coalesce("d.run_at", at)),
        )
        .when(
            kind.isin("failed", "snoozed", "rescued"), F.greatest(at, F.coalesce("d.retry_at", at))
        )
        .when(kind.isin("retried", "released"), at)
    )


def _percentiles(name: str) -> list[Column]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return [
        *(
            F.percentile_approx(name, share, ACCURACY).alias(f"{name}_{label}_seconds")
            for label, share in shares.items()
        ),
        F.max(name).alias(f"{name}_max_seconds"),
    ]


def _rates() -> dict[str, Column]:
    def share(part: Column, whole: Column) -> Column:
        return F.when(whole > 0, part / whole)

    again = F.col("failed") + F.col("rescued")
    ended = F.col("completed") + again + F.col("died")
    dead = F.col("died") + F.col("expired")
    return {
        "attempts_per_job": share(F.col("attempts"), F.col("begun")),
        "retry_rate": share(again, ended),
        "failure_rate": share(again + F.col("died"), ended),
        "death_rate": share(dead, F.col("completed") + dead),
    }


def _suggestion() -> Column:
    """Twice as long as all but one in a hundred took; and twice as long as what was cut off ran.

    Rounded up to two digits, and not below a second.
    """
    cut_off = F.coalesce("longest_cut_off", F.lit(0.0))
    wanted = F.greatest(F.lit(1.0), 2 * F.greatest(F.col("run_p99_seconds"), cut_off))
    unit = F.pow(F.lit(10.0), F.floor(F.log10(wanted)) - 1)
    # A hair below, so that what is already round stays as it is.
    rounded = F.round(F.ceil(wanted / unit - 1e-9) * unit, 6)
    return F.when(F.col("completed") >= COMPLETIONS_MIN, rounded)


PIPELINE = Pipeline(
    name="job_health",
    summary="attempts, waiting and running times, failures and suggested timeouts of jobs",
    run=run,
    options=(
        Option(
            "hours", "how far back the history is looked at; 0: all of it", default=24.0, type=float
        ),
        Option("every_seconds", "how often it is looked at anew", default=60.0, type=float),
    ),
)
