"""Options: what is unknown, wrong or at odds is refused with a hint (S1, S2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidOption
from penstock.spark.entities import ENTITIES
from penstock.spark.options import (
    SinkOptions,
    SourceOptions,
    Start,
    check_batch,
    check_stream,
    parse_sink,
    parse_source,
)

URL = "sqlite:////somewhere/hub.db"


def parse(**options: Any) -> SourceOptions:
    return parse_source({"url": URL, **{k: str(v) for k, v in options.items()}}, ENTITIES)


def sink(**options: Any) -> SinkOptions:
    return parse_sink({"url": URL, **{k: str(v) for k, v in options.items()}})


def test_nothing_said_means_all_messages_as_kafka_reads_them() -> None:
    options = parse()

    assert (options.entity, options.topics, options.starting, options.ending) == (
        *("messages", None, None, None),
    )
    assert (options.rows_max, options.fail_on_loss, options.as_json) == (100_000, True, False)
    assert options.settings.url == URL


def test_spelling_is_free_in_case_alone() -> None:
    assert parse(MAXOFFSETSPERTRIGGER=7, FailOnDataLoss="FALSE", valueformat="JSON") == parse(
        maxOffsetsPerTrigger=7, failOnDataLoss="false", valueFormat="json"
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("maxOffsetPerTrigger", "Did you mean maxOffsetsPerTrigger?"),
        ("startingOffset", "Did you mean startingOffsets?"),
        ("topics", "There are url, entity, subscribe"),
        ("path", "Name the store with .option('url'"),
        ("kafka.bootstrap.servers", "There are url"),
    ],
)
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(name: str, hint: str) -> None:
    with pytest.raises(InvalidOption, match="There is no option") as caught:
        parse(**{name: "1"})

    assert hint in caught.value.hint


def test_what_spark_adds_itself_is_let_through() -> None:
    assert parse(checkpointLocation="/x").given == {"url"}
    assert sink(topic="a", checkpointLocation="/x", queryName="q").topic == "a"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a", "subscribePattern": "b*"}, "Both subscribe and subscribePattern"),
        ({"startingOffsets": "1", "startingTimestamp": "1"}, "Both startingOffsets and starting"),
        ({"endingOffsets": "1", "endingTimestamp": "1"}, "Both endingOffsets and ending"),
        ({"endingOffsets": "earliest"}, "cannot be 'earliest'"),
        ({"minOffsetsPerTrigger": 10, "maxOffsetsPerTrigger": 9}, "is above max"),
        ({"maxTriggerDelay": "5m"}, "needs minOffsetsPerTrigger"),
        ({"entity": "jobs", "startingOffsets": "latest"}, "has offsets; jobs has none"),
        ({"entity": "topics", "valueFormat": "json"}, "topics has none"),
        ({"entity": "job_events", "subscribe": "a"}, "is for messages, not for job_events"),
        ({"entity": "ledger_events", "group": "g"}, "is for messages"),
    ],
)
def test_options_at_odds_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        parse(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entity": "message"}, "entity is not 'message'"),
        ({"maxOffsetsPerTrigger": "many"}, "whole number from 0 up, not 'many'"),
        ({"maxOffsetsPerTrigger": 0}, "a number from 1"),
        ({"minPartitions": -1}, "whole number"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss is not 'yes'"),
        ({"valueFormat": "text"}, "valueFormat is not 'text'"),
        ({"startingOffsets": "first"}, "startingOffsets is not 'first'"),
        ({"startingOffsets": "-1"}, "startingOffsets is not '-1'"),
        ({"startingOffsets": "9" * 30}, "startingOffsets is not"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is not 'yesterday'"),
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "startingTimestamp is not"),
        ({"maxTriggerDelay": "soon", "minOffsetsPerTrigger": 1}, "a time such as 30s"),
        ({"subscribe": "a*"}, "subscribe: The topic name 'a\\*' has"),
        ({"subscribe": ","}, "list of topics is empty"),
        ({"subscribe": "[1]"}, "not a JSON list"),
        ({"subscribePattern": "a\n*"}, "control characters"),
        ({"group": " "}, "group is empty"),
        ({"url": "memory:"}, "its process's own"),
        ({"url": "http://localhost:8400"}, "is a server"),
        ({"url": "kafka:9092"}, "no scheme that penstock knows"),
    ],
)
def test_a_wrong_value_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        parse(**options)


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({"subscribe": "b, a ,a"}, ("a", "b")),
        ({"subscribe": '["with, comma", "b"]'}, ("b", "with, comma")),
        ({"subscribePattern": "canvas-*,orders"}, ("canvas-*", "orders")),
    ],
)
def test_topics_are_listed_with_commas_or_as_json(
    options: dict[str, str], topics: tuple[str, ...]
) -> None:
    assert parse(**options).topics == topics


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": "Earliest"}, Start("earliest")),
        ({"startingOffsets": "42"}, Start(after=41)),
        ({"startingOffsets": "0"}, Start(after=0)),
        ({"startingOffsets": "abc-1:42"}, Start(after=42, epoch="abc-1")),
        ({"startingTimestamp": "1500"}, Start(at=1_500_000)),
        ({"startingTimestamp": "1970-01-01T00:00:02Z"}, Start(at=2_000_000)),
        ({"startingTimestamp": "1970-01-01T01:00:02+01:00"}, Start(at=2_000_000)),
    ],
)
def test_a_place_is_a_word_an_offset_a_position_or_a_time(
    options: dict[str, str], start: Start
) -> None:
    assert parse(**options).starting == start


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("1 h", 3600), ("2 min", 120)]
)
def test_a_delay_is_written_as_spark_writes_it(text: str, seconds: float) -> None:
    assert parse(minOffsetsPerTrigger=1, maxTriggerDelay=text).delay_max_seconds == seconds


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "group"])
def test_what_is_for_streams_is_refused_in_a_batch(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"{name} is for streams"):
        check_batch(parse(**{name: "1"}))


@pytest.mark.parametrize(
    "options", [{"endingOffsets": 1}, {"endingTimestamp": 1}, {"pushdown": "true"}]
)
def test_what_is_for_batches_is_refused_in_a_stream(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="is for batches"):
        check_stream(parse(**options))


def test_the_url_comes_from_the_environment_and_becomes_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Executors have a folder of their own: the path that counts is the driver's."""
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///my%20hub.db")
    monkeypatch.chdir(tmp_path)

    url = parse_source({}, ENTITIES).settings.url

    assert url == f"sqlite:///{tmp_path}/my%20hub.db"


def test_settings_of_the_driver_travel_with_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PAYLOAD_BYTES_MAX", "77")

    assert sink(topic="a").settings.payload_bytes_max == 77


# The sink


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "a", "queue": "q"}, "Both topic and queue"),
        ({"topic": "a", "entity": "jobs"}, "topic is for messages"),
        ({"queue": "q", "entity": "messages"}, "queue is for jobs"),
        ({"topic": "a", "onConflict": "return"}, "onConflict is for jobs"),
        ({"topic": "a*"}, "has '\\*'"),
        ({"queue": "q\n"}, "queue name"),
        ({"topic": "a", "valueFormat": "raw"}, "valueFormat is not 'raw'"),
        ({"topic": "a", "maxRowsPerTransaction": 20_001}, "from 1 to 20,000"),
        ({"topic": "a", "txnVersion": "-3"}, "whole number"),
        ({"topic": "a", "txnAppID2": "x"}, "There is no option"),
        ({"topic": "a", "subscribe": "x"}, "There is no option"),
    ],
)
def test_wrong_options_of_a_sink_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        sink(**options)


def test_a_queue_makes_it_a_sink_for_jobs() -> None:
    assert (sink(queue="q").entity, sink(topic="t").entity, sink().entity) == (
        *("jobs", "messages", "messages"),
    )
    assert sink(queue="q").on_conflict == "return"
