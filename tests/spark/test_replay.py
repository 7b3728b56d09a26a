"""replay in Spark: from the log or the lake into a topic or a queue, once (S6)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import InvalidInput, InvalidOption
from penstock.model import Retention
from penstock.spark import run
from tests.spark.lakes import store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def read(hub: penstock.Hub, topic: str) -> list[Any]:
    return [message.payload for message in hub.topics.read(topic, limit=10_000)]


def test_a_replay_from_the_lake_is_done_once(
    spark: SparkSession, hub: penstock.Hub, path: Path
) -> None:
    hub.topics.publish_many("orders", [{"id": number} for number in range(300)], type="made")
    hub.topics.publish("orders", {"id": 300}, type="paid", key="k", headers={"a": "b"})
    run("archive", hub.url, spark=spark)
    with store_of(path) as store:  # What is in the lake is gone from the log.
        writer = store.open_writer()
        with writer.transaction() as transaction:
            few = Retention(messages_max=1)
            assert transaction.topics.sweep("orders", few, now=2**50, limit=999).removed == 300
        writer.close()
    hub.topics.publish("orders", {"id": 301})

    def replay(**options: Any) -> int:
        return run("replay", hub.url, spark=spark, **options).rows

    again = {"topics": "orders", "to": "topic:copy", "source": "lake"}
    assert replay(**again) == 302
    hub.topics.publish("orders", {"id": 302})
    assert replay(**again) == 0
    assert read(hub, "copy") == [{"id": number} for number in range(302)]
    last = hub.topics.read("copy", limit=1000)[300]
    assert (last.type, last.key, last.headers) == ("paid", "k", {"a": "b"})

    assert replay(topics="orders", to="topic:rest") == 3, "the log alone"
    assert read(hub, "rest") == [{"id": 300}, {"id": 301}, {"id": 302}]

    where = {"where": "payload.id % 100 = 7 AND type = 'made'", "schema": "id BIGINT"}
    assert replay(**again | {"to": "queue:work", **where}) == 3
    [stats] = hub.jobs.stats()
    assert (stats.queue, stats.pending) == ("work", 3)
    assert replay(**again | {"to": "topic:none", "where": "false"}) == 0


def test_what_replay_cannot_do_is_refused_and_changes_nothing(
    spark: SparkSession, hub: penstock.Hub, path: Path
) -> None:
    hub.topics.publish_many("orders", range(3))
    good: dict[str, Any] = {"topics": "orders", "to": "topic:copy", "id": "one"}
    for wrong in (
        {"to": None},
        {"to": "copy"},
        {"topics": ()},
        {"where": "no_such_column = 1"},
        {"where": "SELECT"},
        {"rate": -1},
        {"schema": "id NOSUCHTYPE"},
        {"to": "queue:q", "keep_ids": True},
        {"id": "a\nb"},
    ):
        with pytest.raises(InvalidInput):
            run("replay", hub.url, spark=spark, **good | wrong)
    assert [topic.name for topic in hub.topics.list()] == ["orders"]

    assert run("replay", hub.url, spark=spark, **good).rows == 3
    with pytest.raises(InvalidOption, match="another id"):
        run("replay", hub.url, spark=spark, **good | {"where": "offset = 1"})
    assert read(hub, "copy") == [0, 1, 2]


def test_a_replay_of_a_time_keeps_ids_if_asked(
    spark: SparkSession, hub: penstock.Hub, path: Path
) -> None:
    for number in range(3):
        hub.topics.publish("orders", number, idempotency_key=f"m{number}")
    now = datetime.now(UTC)
    options: dict[str, Any] = {"topics": "orders", "to": "topic:copy", "keep_ids": True}

    assert run("replay", hub.url, spark=spark, until=now - timedelta(days=1), **options).rows == 0
    first = run("replay", hub.url, spark=spark, since=now - timedelta(days=1), **options)
    assert first.rows == 3
    # Another replay of the same messages: their ids are known in the topic.
    run("replay", hub.url, spark=spark, id="second", **options)

    assert read(hub, "copy") == [0, 1, 2]
