"""The source and the sink in Spark itself: one session for all of it (S1, S2, S9)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import penstock
from penstock.spark import advance_group, session
from penstock.spark.entities import ENTITIES
from penstock.spark.offsets import Offset
from tests.factories import file_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Read = Callable[..., "DataFrame"]


@pytest.fixture
def read(spark: SparkSession, hub: penstock.Hub) -> Read:
    def read(schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("penstock").option("url", hub.url).options(**options)
        return (reader if schema is None else reader.schema(schema)).load()

    return read


@pytest.fixture
def follow(spark: SparkSession, hub: penstock.Hub) -> Read:
    def follow(schema: str | None = None, **options: Any) -> DataFrame:
        options = {"startingOffsets": "earliest", **options}
        reader = spark.readStream.format("penstock").option("url", hub.url).options(**options)
        return (reader if schema is None else reader.schema(schema)).load()

    return follow


def to_topic(
    hub: penstock.Hub, rows: DataFrame, checkpoint: Path, **options: Any
) -> StreamingQuery:
    query = (
        rows.writeStream.format("penstock")
        .option("url", hub.url)
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def payloads(hub: penstock.Hub, topic: str) -> list[Any]:
    return [m.payload for m in hub.topics.read(topic, limit=100_000)]


# Batches


def test_a_payload_is_parsed_as_anywhere_in_spark(hub: penstock.Hub, read: Read) -> None:
    hub.topics.publish_many("orders", [{"id": n, "total": n * 1.5} for n in range(100)])
    hub.topics.publish("orders", {"id": 100, "total": 1.0}, format="msgpack")
    hub.topics.publish("other", b"\xff")

    parsed = F.from_json(F.col("value").cast("string"), "id LONG, total DOUBLE")
    frame = read(subscribe="orders", valueFormat="json").select(parsed.alias("o")).select("o.*")

    [row] = frame.agg(F.count("*").alias("n"), F.sum("id").alias("ids")).collect()
    assert (row.n, row.ids) == (101, sum(range(101)))


def test_several_partitions_give_every_row_once(hub: penstock.Hub, read: Read) -> None:
    hub.topics.publish_many("a", range(30_000))

    frame = read("offset LONG", minPartitions=5)

    assert frame.rdd.getNumPartitions() == 5
    [row] = frame.agg(F.count("*").alias("n"), F.countDistinct("offset").alias("d")).collect()
    assert (row.n, row.d) == (30_000, 30_000)


def test_every_entity_is_a_frame(hub: penstock.Hub, read: Read) -> None:
    hub.topics.publish("a", 1, headers={"h": "v"})
    hub.jobs.enqueue("q", "t", {"n": 1})
    hub.ledger.mark_processed("s", "k")
    hub.mailboxes.open("ann").put({"n": 1})

    counts = {entity: len(read(entity=entity).collect()) for entity in ENTITIES}
    assert counts == {
        "messages": 1,
        "job_events": 1,
        "ledger_events": 1,
        "jobs": 1,
        "dead_letters": 0,
        "topics": 1,
        "mailboxes": 1,
    }
    [row] = read(includeHeaders="true").collect()
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("h", b"v")]


def test_an_empty_database_is_an_empty_frame(hub: penstock.Hub, read: Read) -> None:
    hub.topics.position()

    assert read().collect() == []


def test_times_are_instants(hub: penstock.Hub, read: Read) -> None:
    receipt = hub.topics.publish("a", 1)

    [row] = read().select(F.unix_micros("timestamp").alias("at")).collect()

    assert row["at"] == receipt.created_at


def test_filters_are_handed_down_when_asked(hub: penstock.Hub, read: Read) -> None:
    for number in range(20):
        hub.topics.publish("ab"[number % 2], number, key=str(number % 5))
    middle = datetime.fromtimestamp(hub.topics.read("*")[9].created_at / 1e6, UTC)

    frame = read(pushdown="true").where("topic = 'b' AND offset > 4 AND key IN ('1', '3')")
    times = read(pushdown="true").where(F.col("timestamp") <= F.lit(middle))

    assert sorted(row["offset"] for row in frame.collect()) == [12, 14]
    assert [row["offset"] for row in times.collect()] == list(range(1, 11))
    assert " = b" not in plan_of(frame), "Spark filters what was filtered already"
    assert " = b" in plan_of(read().where("topic = 'b'"))


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a", "maxOffsets": "1"}, "There is no option 'maxoffsets' here"),
        ({"startingOffsets": "first"}, "startingOffsets is not 'first'"),
        ({"entity": "mail"}, "entity is not 'mail'"),
    ],
)
def test_wrong_options_are_told_when_the_frame_is_made(
    hub: penstock.Hub, read: Read, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        read(**options)


def test_a_missing_database_is_told(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.read.format("penstock").option("url", file_url(tmp_path / "typo.db")).load()
    with pytest.raises(PySparkException, match="There is no database at"):
        frame.collect()


def test_a_batch_is_written_and_read_back(
    spark: SparkSession, hub: penstock.Hub, read: Read
) -> None:
    frame = spark.range(2500).select(
        F.to_json(F.struct("id")).alias("value"),
        F.concat(F.lit("k"), F.col("id") % 3).alias("key"),
        F.create_map(F.lit("h"), F.col("id").cast("string")).alias("headers"),
    )
    writer = frame.write.format("penstock").mode("append").option("url", hub.url)
    for _ in range(2):
        writer.option("topic", "t").option("txnAppId", "load").option("txnVersion", 1).save()

    messages = hub.topics.read("t", limit=10_000)
    assert sorted(message.payload["id"] for message in messages) == list(range(2500))
    assert {(m.key, m.headers["h"]) for m in messages} == {
        (f"k{n % 3}", str(n)) for n in range(2500)
    }
    assert read(subscribe="t").count() == 2500


def test_jobs_are_enqueued_from_a_frame(spark: SparkSession, hub: penstock.Hub) -> None:
    frame = spark.range(50).selectExpr(
        "to_json(named_struct('n', id)) AS payload",
        "CAST(id % 3 AS INT) AS priority",
        "'q' || (id % 2) AS queue",
    )
    options = {"url": hub.url, "entity": "jobs", "type": "work"}
    frame.write.format("penstock").mode("append").options(**options).save()

    assert {stats.queue: stats.pending for stats in hub.jobs.stats()} == {"q0": 25, "q1": 25}


def test_a_row_that_cannot_be_written_fails_the_write(
    spark: SparkSession, hub: penstock.Hub, path: Path
) -> None:
    frame = spark.createDataFrame([("1",), (None,)], "value STRING").coalesce(1)
    writer = frame.write.format("penstock").mode("append").option("url", hub.url)

    with pytest.raises(PySparkException, match="Row 2 of its partition, column value: It is NULL"):
        writer.option("topic", "t").save()
    with pytest.raises(PySparkException, match="never overwritten"):
        frame.write.format("penstock").mode("overwrite").options(url=hub.url, topic="t").save()
    assert payloads(hub, "t") == []


def test_a_task_that_is_tried_again_writes_once(spark: SparkSession, hub: penstock.Hub) -> None:
    """The session allows a second attempt at each task."""

    def fails_once(number: int) -> str:
        context = TaskContext.get()
        if number == 70 and context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt")
        return str(number)

    number = F.udf(fails_once, "string", useArrow=False)("id")
    frame = spark.range(0, 100, 1, 2).select(number.alias("value"))
    frame.write.format("penstock").mode("append").options(
        url=hub.url, topic="t", maxInlineBytes=0
    ).save()

    assert sorted(payloads(hub, "t")) == list(range(100))


# Streams


def test_a_topic_goes_through_spark_into_another_exactly_once(
    hub: penstock.Hub, follow: Read, tmp_path: Path
) -> None:
    def run() -> StreamingQuery:
        doubled = follow(subscribe="in", maxOffsetsPerTrigger=40).select(
            (F.col("value").cast("string").cast("long") * 2).cast("string").alias("value")
        )
        return to_topic(hub, doubled, tmp_path / "checkpoint", topic="out")

    hub.topics.publish_many("in", range(100))
    first = run()
    sizes = [progress["numInputRows"] for progress in first.recentProgress]
    assert [size for size in sizes if size] == [40, 40, 20]
    again = run()
    assert [progress["numInputRows"] for progress in again.recentProgress if progress] in ([], [0])
    hub.topics.publish_many("in", range(100, 130))
    run()

    assert sorted(payloads(hub, "out")) == [2 * n for n in range(130)]


def test_a_batch_that_was_written_but_not_noted_is_not_written_again(
    hub: penstock.Hub, follow: Read, tmp_path: Path
) -> None:
    """As if Spark had died between the sink's commit and its own."""
    hub.topics.publish_many("in", range(100))
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        rows = follow(subscribe="in", maxOffsetsPerTrigger=60)
        to_topic(hub, rows.select("value"), checkpoint, topic="out", valueFormat="json")

    run()
    commits = sorted(checkpoint.glob("commits/[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run()

    assert sorted(payloads(hub, "out")) == list(range(100))


def test_a_deleted_checkpoint_under_a_kept_name_is_refused(
    hub: penstock.Hub, follow: Read, tmp_path: Path
) -> None:
    hub.topics.publish_many("in", range(10))

    def run(checkpoint: str) -> None:
        rows = follow(subscribe="in").select(F.col("value").cast("string"))
        to_topic(hub, rows, tmp_path / checkpoint, topic="out", txnAppId="mine")

    run("first")
    with pytest.raises(StreamingQueryException, match="'mine' belongs to another query"):
        run("second")
    assert payloads(hub, "out") == list(range(10))


def test_each_batch_of_a_function_is_written_once(
    hub: penstock.Hub, follow: Read, tmp_path: Path
) -> None:
    hub.topics.publish_many("in", range(10))
    seen: list[int] = []

    def write(frame: DataFrame, number: int) -> None:
        seen.append(number)
        rows = frame.select(F.col("value").cast("string").alias("payload"))
        for _ in range(2):
            rows.write.format("penstock").mode("append").options(
                url=hub.url, queue="q", type="t", txnAppId="each", txnVersion=number
            ).save()

    query = (
        follow(subscribe="in", maxOffsetsPerTrigger=4)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert seen == [0, 1, 2]
    assert [stats.pending for stats in hub.jobs.stats()] == [10]


def test_a_group_follows_the_stream_and_the_runner_brings_it_to_the_end(
    hub: penstock.Hub, follow: Read, tmp_path: Path
) -> None:
    hub.topics.publish_many("in", range(10))
    rows = follow(subscribe="in", group="lake", maxOffsetsPerTrigger=4)
    query = to_topic(hub, rows.select("value"), tmp_path / "c", topic="out", valueFormat="json")

    assert hub.consumers.get("lake", "in").position.offset == 8
    progress = query.lastProgress
    assert progress is not None
    source = progress["sources"][0]
    end = Offset.parse(json.loads(source["endOffset"]))
    assert end.id == 10
    assert json.loads(source["latestOffset"])["id"] >= 10
    advance_group(hub.url, "lake", ("in",), end)
    assert hub.consumers.lag("lake", "in").messages == 0


def test_lost_messages_end_the_stream_with_an_error_that_says_so(
    hub: penstock.Hub, follow: Read, tmp_path: Path
) -> None:
    hub.topics.publish_many("in", range(10))

    def run(**options: Any) -> None:
        rows = follow(subscribe="in", **options).select(F.col("value").cast("string"))
        to_topic(hub, rows, tmp_path / "checkpoint", topic="out")

    run()
    receipts = hub.topics.publish_many("in", range(10, 20))
    hub.topics.trim("in", through=receipts[4].position)

    with pytest.raises(StreamingQueryException, match=r"messages of 'in' above .* were removed"):
        run()
    run(failOnDataLoss="false")
    assert payloads(hub, "out") == [*range(10), *range(15, 20)]


def test_a_stream_that_runs_on_picks_up_what_comes(
    spark: SparkSession, hub: penstock.Hub, follow: Read, tmp_path: Path
) -> None:
    hub.topics.position()
    query = (
        follow("offset LONG, topic STRING", subscribePattern="live-*")
        .writeStream.format("memory")
        .queryName("live")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        for topic in ("live-1", "other", "live-2"):
            hub.topics.publish(topic, 1)
            query.processAllAvailable()
        assert [row.topic for row in spark.table("live").collect()] == ["live-1", "live-2"]
    finally:
        query.stop()


def test_events_are_aggregated_as_a_stream(
    spark: SparkSession, hub: penstock.Hub, follow: Read, tmp_path: Path
) -> None:
    for number in range(6):
        hub.jobs.enqueue("q", "even" if number % 2 == 0 else "odd", number)
    query = (
        follow(entity="job_events")
        .groupBy("type", "kind")
        .count()
        .writeStream.format("memory")
        .queryName("events")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    rows = {(row["type"], row["kind"]): row["count"] for row in spark.table("events").collect()}
    assert rows == {("even", "enqueued"): 3, ("odd", "enqueued"): 3}


# The session


def test_the_session_is_the_process_s_one(spark: SparkSession) -> None:
    assert session() is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.getConf().get("spark.ui.enabled") == "false"
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"


def test_settings_of_a_running_session_are_changed_where_they_can_be(spark: SparkSession) -> None:
    session(conf={"spark.sql.ansi.doubleQuotedIdentifiers": "false"})
    with pytest.raises(AnalysisException, match=r"spark\.driver\.memory"):
        session(conf={"spark.driver.memory": "1g"})
