"""`dedup`: messages that came or were processed more than once, found or left out.

Without `--to` it is an audit: a topic on its own, or against a scope of the ledger, which tells
what was processed twice, never, or without a message. With `--to` it is a stream: what comes
again within a time is left out, the rest goes on to another topic, in order and exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from penstock.clock import SystemClock, as_datetime
from penstock.errors import InvalidOption
from penstock.figures import DEDUP_TOPIC, Audit
from penstock.model import check_topic
from penstock.ports.scan import Log, Query, Scanner
from penstock.spark.lake import read_topic
from penstock.spark.publishing import Figure, publish
from penstock.spark.registry import Option, Pipeline
from penstock.spark.runner import Run, check_trigger
from penstock.spark.sink import QUERY_ID
from penstock.stores import open_scanner
from penstock.topics.publishing import check_publishable

FOLDER = "_dedup"
FINE = "once"
STATUSES = ("once", "twice", "never", "open", "failed", "unmatched", "unknown")
WITHIN = "1 hour"
ID_HEADER = "message_id"
FOREVER = datetime(9999, 1, 1, tzinfo=UTC)

MARKS = "offset BIGINT, timestamp TIMESTAMP, scope STRING, key STRING, kind STRING"
"""What is read of the ledger's history."""


def as_marked(topic: Column, message_id: Column, offset: Column) -> Column:
    """As `follow(…, idempotent=True)` calls a message in the ledger."""
    name = F.concat(F.lit("key="), message_id)
    return F.concat(topic, F.lit("?"), F.coalesce(name, F.concat(F.lit("id="), offset)))


IDENTITIES: dict[str, Callable[[], Column]] = {
    "message_id": lambda: F.col("message_id"),
    "key": lambda: F.col("key"),
    "value": lambda: F.sha2("value", 256),
    "offset": lambda: F.col("offset").cast("string"),
    "follower": lambda: as_marked(F.col("topic"), F.col("message_id"), F.col("offset")),
}
"""What can say that two messages are the same, or which key of the ledger is a message's."""


def audit(
    messages: DataFrame,
    marks: DataFrame | None = None,
    *,
    marks_from: datetime | None = None,
    messages_from: datetime | None = None,
) -> DataFrame:
    """A row for each id: how often it was published and processed, and its `status`, if there are
    marks to tell.

    `messages` has `id`, `offset` and `timestamp`; those without an id are one row, with a NULL.
    `marks` is as `MARKS`, of one scope. What is older than these times may have been forgotten.
    """
    published = messages.groupBy("id").agg(
        F.count("*").alias("messages"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.min("timestamp").alias("first_at"),
        F.max("timestamp").alias("last_at"),
    )
    if marks is None:
        return published.withColumns({"taken_over": F.lit(0), "status": F.lit(None).cast("string")})
    kind = F.col("kind")
    processed = marks.groupBy(F.col("key").alias("their_id")).agg(
        F.count_if(kind.isin("marked", "completed")).alias("processed"),
        F.count_if(kind == "failed").alias("failures"),
        F.count_if(kind == "taken_over").alias("taken_over"),
        F.count_if(kind == "forgotten").alias("forgotten"),
        F.max_by(kind, "offset").alias("last_kind"),
        F.min("timestamp").alias("first_marked_at"),
        F.max("timestamp").alias("last_marked_at"),
    )
    both = published.join(processed, F.col("id") == F.col("their_id"), "full")
    counts = ("messages", "processed", "failures", "taken_over", "forgotten")
    filled = both.withColumns(
        {
            "id": F.coalesce("id", "their_id"),
            "is_unidentified": F.col("id").isNull() & F.col("their_id").isNull(),
            **{name: F.coalesce(name, F.lit(0)) for name in counts},
        }
    )
    status = _status(_before("last_at", marks_from), _before("first_marked_at", messages_from))
    return filled.withColumn("status", status).drop("their_id", "is_unidentified")


def deduplicated(messages: DataFrame, by: str, within: str) -> DataFrame:
    """A stream without what comes again within a time. What has no id is never a repetition."""
    unique = F.concat(F.lit("?"), F.col("offset"))
    identified = messages.withColumn("dedup_id", F.coalesce(IDENTITIES[by](), unique))
    return identified.withWatermark("timestamp", within).dropDuplicatesWithinWatermark(["dedup_id"])


def run(run: Run) -> None:
    """Audit a topic, or pass it on without repetitions."""
    topic, by = check_topic(_needed(run, "topic")), run.options["by"]
    if by is not None and by not in IDENTITIES:
        raise InvalidOption(f"--by is not {by!r}.", hint=f"It is one of {', '.join(IDENTITIES)}.")
    to, scope = run.options["to"], run.options["scope"]
    if to is None:
        default = "message_id" if scope is None else "follower"
        Auditor(run, topic, scope, by or default).run()
        return
    if scope is not None:
        raise InvalidOption(
            "--scope is for an audit, and --to for a stream.", hint="Run them one after the other."
        )
    if check_publishable(to) == topic:
        raise InvalidOption("--to is the topic itself.", hint="It would read what it writes.")
    _pass_on(run, topic, to, by or "message_id")


class Auditor:
    """One audit of a run."""

    def __init__(self, run: Run, topic: str, scope: str | None, by: str) -> None:
        self._run = run
        self._topic = topic
        self._scope = scope
        self._by = by

    def run(self) -> None:
        run, began, now = self._run, time.monotonic(), datetime.now(UTC)
        folder = f"{run.lake}/{FOLDER}/{quote(self._topic, safe='')}/{now:%Y%m%dT%H%M%S.%fZ}"
        found = Observation("dedup")
        rows = self._audit().observe(found, *_summary())
        is_finding = F.coalesce(F.col("status") != FINE, F.lit(False)) | (F.col("messages") > 1)
        is_finding = F.col("id").isNotNull() & (is_finding | (F.col("taken_over") > 0))
        rows.where(is_finding).write.parquet(folder)
        run.step("findings written")
        counts = {name: value or 0 for name, value in found.get.items()}
        summary = Audit(now, self._topic, self._scope, self._by, **counts, findings=folder)
        key = f"{self._topic}/{self._scope or ''}"
        publish(run.settings, DEDUP_TOPIC, [Figure(key, "audit", summary)])
        run.step("published")
        seconds = time.monotonic() - began
        run.report(rows=summary.messages, batch=0, lag=None, seconds=seconds)

    def _audit(self) -> DataFrame:
        columns = "topic STRING, offset BIGINT, timestamp TIMESTAMP, message_id STRING"
        columns += {"key": ", key STRING", "value": ", value BINARY"}.get(self._by, "")
        messages = self._messages(columns).withColumn("id", IDENTITIES[self._by]())
        if self._scope is None:
            return audit(messages)
        run = self._run
        ledger = run.spark.read.format("penstock").schema(MARKS).option("url", run.url)
        ledger = ledger.options(entity="ledger_events", failOnDataLoss="false")
        marks = ledger.load().where(F.col("scope") == self._scope)
        if self._by == "follower":
            # A follower of several topics has one scope for all of them.
            marks = marks.where(F.startswith("key", F.lit(f"{self._topic}?")))
        marks_from, messages_from = self._memory()
        return audit(messages, marks, marks_from=marks_from, messages_from=messages_from)

    def _messages(self, columns: str) -> DataFrame:
        run = self._run
        if run.source == "lake":
            return read_topic(
                self._topic,
                url=run.url,
                spark=run.spark,
                since=run.since,
                until=run.until,
                lake=run.lake,
            )
        return run.read(
            schema=columns, subscribe=self._topic, includeExpired=True, failOnDataLoss=False
        )

    def _memory(self) -> tuple[datetime | None, datetime | None]:
        """From when on all marks, and all messages, are there. None: from the beginning."""
        scanner = open_scanner(self._run.settings, SystemClock())
        try:
            marks = None
            if scanner.trims("ledger_events", None, after=0):
                marks = _first_time(scanner, "ledger_events", None)
            if self._run.since is not None or self._run.until is not None:
                # Of other times nothing was read: that a message is missing cannot be said.
                return marks, FOREVER
            messages = None
            if self._run.source == "log" and scanner.trims("messages", (self._topic,), after=0):
                messages = _first_time(scanner, "messages", (self._topic,))
            return marks, messages
        finally:
            scanner.close()


def _first_time(scanner: Scanner, source: Log, topics: tuple[str, ...] | None) -> datetime:
    column = "created_at" if source == "messages" else "at"
    after, end = 0, scanner.end(source).last_id
    while after < end:
        found = scanner.read(Query(source, (column,), topics), after=after, through=end, limit=1)
        if found.count:
            return as_datetime(found.columns[0][0])
        after = found.through
    return FOREVER


def _status(is_old_message: Column, is_old_mark: Column) -> Column:
    return (
        F.when(F.col("is_unidentified"), "unknown")
        .when((F.col("messages") == 0) & is_old_mark, "unknown")
        .when(F.col("messages") == 0, "unmatched")
        .when(F.col("processed") > 1, "twice")
        .when(F.col("processed") == 1, FINE)
        .when(F.col("failures") > 0, "failed")
        .when(F.col("last_kind").isin("claimed", "taken_over"), "open")
        .when(F.col("last_kind").isNull() & is_old_message, "unknown")
        .otherwise("never")
    )


def _before(column: str, time: datetime | None) -> Column:
    return F.lit(False) if time is None else F.col(column) < F.lit(time)


def _summary() -> list[Column]:
    has_id = F.col("id").isNotNull()
    return [
        F.sum("messages").alias("messages"),
        F.sum(F.when(~has_id, F.col("messages"))).alias("without_key"),
        F.count("id").alias("keys"),
        F.count_if(has_id & (F.col("messages") > 1)).alias("repeated"),
        *(F.count_if(has_id & (F.col("status") == status)).alias(status) for status in STATUSES),
        F.count_if(F.col("taken_over") > 0).alias("taken_over"),
    ]


def _pass_on(run: Run, topic: str, to: str, by: str) -> None:
    """The stream. Read by one task and written in order, so that the first of several stays."""
    messages = run.stream(
        subscribe=topic,
        includeHeaders=True,
        minPartitions=1,
        maxOffsetsPerTrigger=run.options["max_offsets_per_trigger"],
        failOnDataLoss=run.options["fail_on_data_loss"],
    )
    columns = ("value", "key", "type", "headers", "content_type", "ttl_seconds")
    lives = F.unix_micros("expires_at") - F.unix_micros("timestamp")

    def write(batch: DataFrame, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert query is not None, "Spark tells which query a batch is of"
        (
            # By a shuffle: sorting over all partitions would first look at the rows once more.
            batch.repartition(1)
            .sortWithinPartitions("offset")
            .withColumns({"ttl_seconds": lives / 1e6, "headers": _headers()})
            .select(*columns)
            .write.format("penstock")
            .mode("append")
            .options(url=run.url, topic=to, txnAppId=f"dedup:{query}", txnVersion=number)
            .save()
        )
        run.step("written")

    rows = deduplicated(messages, by, check_trigger(run.options["within"]))
    name = f"{quote(topic, safe='')}+{quote(to, safe='')}"
    run.drive(rows.writeStream.foreachBatch(write), name=name)


def _headers() -> Column:
    """With the id as one of them. As an idempotency key the topic would refuse it when it comes
    again with another payload, which is allowed after the time in which repetitions are left out.
    """
    kind = "array<struct<key: string, value: binary>>"
    name = F.struct(F.lit(ID_HEADER), F.encode("message_id", "UTF-8"))
    added = F.when(F.col("message_id").isNotNull(), F.array(name))
    nothing = F.array().cast(kind)
    return F.concat(F.coalesce("headers", nothing), F.coalesce(added.cast(kind), nothing))


def _needed(run: Run, name: str) -> str:
    value = run.options[name]
    if value is None:
        raise InvalidOption(f"--{name} is missing.", hint=_HELP[name])
    return str(value)


OPTIONS = (
    Option("topic", "the topic that is looked at"),
    Option("scope", "the scope of the ledger in which its messages were marked"),
    Option("to", "pass it on to this topic without repetitions, instead of an audit"),
    Option("by", f"what says that two messages are the same: {', '.join(IDENTITIES)}"),
    Option("within", "how far apart repetitions can be", default=WITHIN),
    Option("max_offsets_per_trigger", "messages in a batch", default=100_000, type=int),
    Option(
        "fail_on_data_loss",
        "stop when messages were removed before they were read; false: go on without them",
        default=True,
        type=bool,
    ),
)
_HELP = {option.name: option.help for option in OPTIONS}

PIPELINE = Pipeline(
    name="dedup",
    summary="find what came or was processed more than once; or pass a topic on without it",
    run=run,
    options=OPTIONS,
    is_for_all=False,
)
