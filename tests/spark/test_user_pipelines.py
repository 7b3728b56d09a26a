"""Pipelines of one's own, from the declaration to what they have written (S8, S10)."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

import penstock
from penstock.errors import InvalidInput, PipelineFailed, SinkReused
from penstock.spark import pipeline, run
from penstock.spark.options import settings_of
from penstock.spark.reset import reset
from penstock.spark.runner import Report, Stop
from penstock.testing import message, run_pipeline
from tests.factories import file_url, hub_on
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ORDER = "customer STRING, amount DOUBLE"


@pipeline("totals", source="orders", sink="topic:totals", mode="update")
def totals(messages: DataFrame, *, currency: str = "EUR") -> DataFrame:
    """What each customer has ordered."""
    order = F.from_json(F.col("value").cast("string"), ORDER)
    return (
        messages.select(order.alias("order"))
        .groupBy("order.customer")
        .agg(F.count("*").alias("orders"), F.sum("order.amount").alias("sum"))
        .select(
            F.col("customer").alias("key"),
            F.to_json(F.struct("orders", "sum", F.lit(currency).alias("currency"))).alias("value"),
        )
    )


@pipeline(
    "large", source=["orders", "refunds-*"], sink="queue:reviews", sink_options={"type": "review"}
)
def large(messages: DataFrame, *, above: float = 100.0) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), ORDER)
    return messages.where(order["amount"] > above).select(
        F.col("value").cast("string").alias("payload")
    )


@pipeline("flat", source="orders", sink="lake:orders")
def flat(messages: DataFrame) -> DataFrame:
    return messages.select(
        "offset", F.from_json(F.col("value").cast("string"), ORDER).alias("o")
    ).select("offset", "o.*")


@pipeline("ranked", source="orders", sink="topic:ranked", mode="batch")
def ranked(messages: DataFrame, batch_id: int) -> DataFrame:
    """A sort is for plain DataFrames, not for streams."""
    return messages.orderBy(F.col("offset").desc()).select(
        F.to_json(F.struct("offset", F.lit(batch_id).alias("batch"))).alias("value")
    )


seen: list[tuple[int, int]] = []


@pipeline("own", source="orders", sink=None)
def own(messages: DataFrame, batch_id: int) -> None:
    seen.append((batch_id, messages.count()))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[penstock.Hub]:
    with hub_on(tmp_path / "hub.db") as hub:
        publish(hub, ("ann", 5.0), ("bob", 200.0), ("ann", 150.0))
        yield hub


@pytest.fixture
def url(tmp_path: Path, hub: penstock.Hub) -> str:
    return file_url(tmp_path / "hub.db")


def publish(hub: penstock.Hub, *orders: tuple[str, float]) -> None:
    hub.topics.publish_many("orders", [{"customer": c, "amount": a} for c, a in orders])


def written(hub: penstock.Hub, topic: str) -> list[Any]:
    return [message.payload for message in hub.topics.read(topic)]


# Tried on a few rows


def test_a_function_is_tested_without_a_store(spark: SparkSession) -> None:
    """S8: `penstock.testing.run_pipeline`."""
    rows = [{"customer": "ann", "amount": 5}, {"customer": "ann", "amount": 2}]
    assert run_pipeline(totals, rows, spark=spark, currency="USD") == [
        {"key": "ann", "value": {"orders": 2, "sum": 7.0, "currency": "USD"}}
    ]


def test_rows_can_say_more_than_their_payload(spark: SparkSession) -> None:
    found = run_pipeline(
        flat,
        [message({"customer": "ann"}, offset=7, key="k"), message(value=b"{broken"), b"[]"],
        spark=spark,
    )
    assert [(row["offset"], row["customer"]) for row in found] == [
        (7, "ann"),
        (2, None),
        (3, None),
    ]


@pytest.mark.parametrize(
    ("options", "rows", "text"),
    [({"curency": "x"}, [], "no option --curency"), ({}, [{"no": "event"}], "no column 'no'")],
)
def test_a_wrong_try_is_refused(
    spark: SparkSession, options: dict[str, Any], rows: list[Any], text: str
) -> None:
    @pipeline("events", source="job_events", sink="topic:x")
    def events(rows: DataFrame) -> DataFrame:
        return rows

    with pytest.raises(InvalidInput, match=text):
        run_pipeline(events if rows else totals, rows, spark=spark, **options)


def test_a_payload_that_the_sink_would_refuse_fails_the_test(spark: SparkSession) -> None:
    @pipeline("plain", source="orders", sink="topic:plain")
    def plain(messages: DataFrame) -> DataFrame:
        return messages.select(F.lit("not JSON").alias("value"))

    with pytest.raises(InvalidInput, match="is not JSON"):
        run_pipeline(plain, [1], spark=spark)


# Run


def test_it_goes_on_where_it_was_and_writes_exactly_once(
    spark: SparkSession, hub: penstock.Hub, url: str
) -> None:
    """S8, S10: aggregates over all batches, in update mode, into a topic."""
    reports: list[Report] = []
    first = run(totals, url, spark=spark, on_report=reports.append)
    again = run(totals, url, spark=spark)
    publish(hub, ("ann", 1.0))
    third = run(totals, url, spark=spark)

    assert (first.state, first.rows, first.lag) == ("finished", 3, 0)
    assert (again.state, again.rows) == ("finished", 0)
    assert (third.rows, third.rows_total, third.runs) == (1, 4, 3)
    assert [(report.batch, report.rows, report.lag) for report in reports] == [(0, 3, 0)]
    found = [(m.key, m.payload["orders"], m.payload["sum"]) for m in hub.topics.read("totals")]
    assert sorted(found[:2]) == [("ann", 2, 155.0), ("bob", 1, 200.0)]
    assert found[2:] == [("ann", 3, 156.0)]


@pytest.mark.soak
def test_a_deleted_checkpoint_is_noticed_and_a_reset_begins_anew(
    spark: SparkSession, hub: penstock.Hub, url: str
) -> None:
    """S2: silently skipping, or silently writing a second time, would both be wrong."""
    first = run(totals, url, spark=spark)
    publish(hub, ("cid", 1.0))
    shutil.rmtree(first.checkpoint)
    with pytest.raises(SinkReused) as raised:
        run(totals, url, spark=spark)
    assert "penstock pipeline reset totals" in raised.value.hint
    [failed] = [one for one in hub.metrics().pipelines if one.name == "totals"]
    assert failed.state == "failed"
    assert failed.error.startswith("SinkReused: ")

    done = reset(settings_of(url), totals.pipeline)
    assert any("written under pipeline:totals" in sentence for sentence in done)
    assert run(totals, url, spark=spark).rows == 4
    assert len(written(hub, "totals")) == 2 + 3


def test_into_a_queue_from_several_topics(spark: SparkSession, hub: penstock.Hub, url: str) -> None:
    hub.topics.publish("refunds-eu", {"customer": "eve", "amount": 1000.0})
    hub.topics.publish("other", {"customer": "zoe", "amount": 1000.0})
    status = run(large, url, spark=spark, above=180)

    assert status.rows == 4
    jobs = hub.jobs.list("reviews")
    assert sorted(job.payload["customer"] for job in jobs) == ["bob", "eve"]
    assert {job.type for job in jobs} == {"review"}
    assert json.loads(status.options) == {"above": 180.0}


@pytest.mark.soak
def test_into_a_table_of_the_lake(spark: SparkSession, hub: penstock.Hub, url: str) -> None:
    first = run(flat, url, spark=spark)
    run(flat, url, spark=spark)
    publish(hub, ("cid", 1.0))
    run(flat, url, spark=spark)
    table = f"{settings_of(url).url.removeprefix('sqlite:///')}.lake/_tables/orders"

    rows = spark.read.parquet(table).select("offset", "customer").collect()
    assert sorted(tuple(row) for row in rows) == [(1, "ann"), (2, "bob"), (3, "ann"), (4, "cid")]
    shutil.rmtree(first.checkpoint)
    with pytest.raises(SinkReused, match="another run of flat"):
        run(flat, url, spark=spark)
    assert any("The table orders is now" in line for line in reset(settings_of(url), flat.pipeline))
    run(flat, url, spark=spark)
    assert spark.read.parquet(table).count() == 4


@pytest.mark.soak
def test_a_batch_at_a_time_and_with_an_own_writer(
    spark: SparkSession, hub: penstock.Hub, url: str
) -> None:
    seen.clear()
    run(ranked, url, spark=spark)
    run(own, url, spark=spark)

    assert written(hub, "ranked") == [{"offset": o, "batch": 0} for o in (3, 2, 1)]
    assert seen == [(0, 3)]


def test_a_piece_of_the_past_is_done_once_and_apart(
    spark: SparkSession, hub: penstock.Hub, url: str
) -> None:
    """S6: since and until read a batch; what follows the log is not moved by it."""
    until = datetime(2100, 1, 1, tzinfo=UTC)
    since = datetime(2000, 1, 1, tzinfo=UTC)
    for _ in range(2):
        status = run(totals, url, spark=spark, since=since, until=until)
        assert (status.state, status.rows) == ("finished", 3)
        assert len(written(hub, "totals")) == 2
    assert run(totals, url, spark=spark).rows == 3
    with pytest.raises(InvalidInput, match="goes on from its checkpoint") as raised:
        run(totals, url, spark=spark, since=since)
    assert "penstock pipeline reset totals" in raised.value.hint


@pytest.mark.soak
def test_a_piece_of_the_past_can_come_from_the_lake(
    spark: SparkSession, hub: penstock.Hub, url: str
) -> None:
    """S6: what is archived, and what is not yet, each once."""
    run("archive", url, spark=spark)
    publish(hub, ("ann", 1.0))
    hub.topics.trim("orders", keep=2)
    status = run(totals, url, spark=spark, source="lake")

    assert (status.state, status.rows) == ("finished", 4)
    found = {m.key: m.payload["orders"] for m in hub.topics.read("totals")}
    assert found == {"ann": 3, "bob": 1}


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (F.col, "UNRESOLVED_COLUMN"),
        (F.udf(lambda value: 1 / 0, StringType()), "ZeroDivisionError: division by zero"),
    ],
)
def test_a_failure_is_told_in_one_line(
    spark: SparkSession, hub: penstock.Hub, url: str, column: Any, text: str
) -> None:
    @pipeline("broken", source="orders", sink="topic:broken")
    def broken(messages: DataFrame) -> DataFrame:
        return messages.select(column("nope" if column is F.col else "key").alias("value"))

    with pytest.raises(PipelineFailed, match=text) as raised:
        run(broken, url, spark=spark)
    assert "\n" not in raised.value.message
    [found] = hub.metrics().pipelines
    assert (found.state, text in found.error) == ("failed", True)
    assert hub.topics.list("broken") == []


def test_it_returns_a_dataframe_or_is_refused(
    spark: SparkSession, hub: penstock.Hub, url: str
) -> None:
    @pipeline("nothing", source="orders", sink="topic:nothing")
    def nothing(messages: DataFrame) -> None: ...

    with pytest.raises(InvalidInput, match="returned NoneType, not a DataFrame"):
        run(nothing, url, spark=spark)


@pytest.mark.soak
def test_one_that_goes_on_sees_what_comes_and_stops_after_a_batch(
    spark: SparkSession, hub: penstock.Hub, url: str
) -> None:
    """S10: until it is told to stop; then it is done with what it has begun."""
    stop, reports, ended = Stop(), list[Report](), []

    def go_on() -> None:
        ended.append(
            run(
                *(totals, url),
                spark=spark,
                once=False,
                trigger="100ms",
                stop=stop,
                on_report=reports.append,
            )
        )

    running = threading.Thread(target=go_on)
    running.start()
    try:
        wait_until(lambda: sum(report.rows for report in reports) == 3, "the first batch")
        publish(hub, ("dee", 4.0))
        wait_until(lambda: sum(report.rows for report in reports) == 4, "the second one")
        [status] = hub.metrics().pipelines
        assert (status.state, status.is_continuous, status.rows) == ("running", True, 4)
    finally:
        stop.ask()
        running.join(60)
    assert [(one.state, one.rows) for one in ended] == [("stopped", 4)]
    assert sorted(m["orders"] for m in written(hub, "totals")) == [1, 1, 2]
    assert run(totals, url, spark=spark).rows == 0
