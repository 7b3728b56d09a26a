"""Reading as a stream, without a JVM: offsets, limits, restarts, loss, groups (S1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

import penstock
from penstock.errors import ConsumerBusy, DataLost, EpochChanged, InvalidInput, StoreReplaced
from penstock.model import Retention
from penstock.spark import advance_group
from penstock.spark.offsets import Offset
from penstock.testing import FakeClock
from tests.factories import hub_on
from tests.spark.driving import Row, Stream, columns

OFFSETS = columns("offset")
MakeStream = Callable[..., Stream]


@pytest.fixture
def stream(hub: penstock.Hub, path: Path) -> Iterator[MakeStream]:
    """Streams of one file, stopped at the end: `stream(subscribe="a")`."""
    hub.topics.position()  # The file is there.
    started: list[Stream] = []

    def start(**options: Any) -> Stream:
        options = {"startingOffsets": "earliest", **options}
        wanted = columns("offset", entity=options.get("entity", "messages"))
        started.append(Stream(path, wanted, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def ids(rows: list[Row] | None) -> list[int]:
    assert rows is not None, "there was no batch"
    return [row["offset"] for row in rows]


def trim(hub: penstock.Hub, topic: str, through: int) -> None:
    hub.topics.trim(topic, through=penstock.Position(hub.topics.position().epoch, through))


# Batches


def test_a_stream_begins_with_what_comes_unless_told(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish("a", 1)
    stream = Stream(path, OFFSETS)
    assert stream.batch() == []
    hub.topics.publish("a", 2)

    assert ids(stream.batch()) == [2]
    stream.close()


def test_batches_follow_each_other_without_gap_or_overlap(
    hub: penstock.Hub, stream: MakeStream
) -> None:
    reading = stream()
    seen = []
    for size in (3, 1, 5):
        hub.topics.publish_many("a", range(size))
        seen.append(ids(reading.batch()))

    assert seen == [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    assert reading.batch() is None


def test_an_idle_stream_gives_its_offset_back_unchanged(
    hub: penstock.Hub, stream: MakeStream
) -> None:
    """Spark compares the text: any difference would be a batch."""
    hub.topics.publish("a", 1)
    reading = stream()
    reading.batch()

    assert reading.plan() == reading.offset
    assert list(reading.plan()) == list(reading.offset or {})


def test_the_first_batch_fixes_the_place_even_if_it_is_empty(hub: penstock.Hub, path: Path) -> None:
    """A stream that began at the end, and was stopped before anything came, misses nothing."""
    hub.topics.publish("a", 1)
    first = Stream(path, OFFSETS)
    assert first.batch() == []
    assert first.batch() is None
    first.close()
    hub.topics.publish("a", 2)

    second = Stream(path, OFFSETS)
    second.offset = first.offset  # What the checkpoint has.
    assert ids(second.batch()) == [2]
    second.close()


def test_what_is_published_elsewhere_makes_no_batch(hub: penstock.Hub, stream: MakeStream) -> None:
    hub.topics.publish("a", 1)
    reading = stream(subscribe="a")
    assert ids(reading.batch()) == [1]
    hub.topics.publish_many("b", range(1000))

    assert reading.batch() is None
    hub.topics.publish("a", 2)
    assert ids(reading.batch()) == [1002]


def test_new_topics_of_a_glob_are_found(hub: penstock.Hub, stream: MakeStream) -> None:
    reading = stream(subscribePattern="canvas-*")
    assert reading.batch() == []
    hub.topics.publish("canvas-1", 1)
    hub.topics.publish("other", 1)
    hub.topics.publish("canvas-2", 1)

    assert ids(reading.batch()) == [1, 3]


@pytest.mark.parametrize("entity", ["job_events", "ledger_events"])
def test_events_are_streamed(hub: penstock.Hub, stream: MakeStream, entity: str) -> None:
    reading = stream(entity=entity, maxOffsetsPerTrigger=2)
    assert reading.batch() == []
    for number in range(3):
        hub.jobs.enqueue("q", "t", number)
        hub.ledger.mark_processed("s", str(number))

    assert [ids(batch) for batch in reading.drain()] == [[1, 2], [3]]


# Limits


def test_a_batch_has_at_most_so_many_rows(hub: penstock.Hub, stream: MakeStream) -> None:
    for _ in range(4):
        hub.topics.publish("a", 1)
        hub.topics.publish("b", 1)
    reading = stream(subscribe="b", maxOffsetsPerTrigger=3)

    assert reading.reader.getDefaultReadLimit() == ReadMaxRows(3)
    assert ids(reading.batch()) == [2, 4, 6]
    assert ids(reading.batch()) == [8]


def test_a_batch_has_at_most_so_many_bytes_and_at_least_one_row(
    hub: penstock.Hub, stream: MakeStream
) -> None:
    for _ in range(3):
        hub.topics.publish("a", b"x" * 400)
    reading = stream(maxBytesPerTrigger=1000)

    assert ids(reading.batch()) == [1, 2]
    assert ids(reading.batch()) == [3]
    assert [ids(batch) for batch in stream(maxBytesPerTrigger=1).drain()] == [[1], [2], [3]]


def test_sparks_own_limits_come_first(hub: penstock.Hub, stream: MakeStream) -> None:
    hub.topics.publish_many("a", [b"x" * 100] * 6)
    reading = stream(maxOffsetsPerTrigger=1, maxBytesPerTrigger=100)

    assert ids(reading.batch(ReadMaxRows(1))) == [1]
    assert ids(reading.batch(ReadMaxBytes(200))) == [2]
    assert ids(reading.batch(ReadAllAvailable())) == [3, 4, 5, 6]


def test_a_batch_waits_for_enough_rows_but_not_for_ever(
    hub: penstock.Hub, stream: MakeStream
) -> None:
    reading = stream(subscribe="a", minOffsetsPerTrigger=3, maxTriggerDelay="1h")
    assert reading.batch() == []
    hub.topics.publish_many("a", range(2))
    hub.topics.publish_many("b", range(9))

    assert reading.batch() is None
    hub.topics.publish("a", 3)
    assert ids(reading.batch()) == [1, 2, 12]

    hub.topics.publish("a", 4)
    assert reading.batch() is None
    impatient = stream(subscribe="a", minOffsetsPerTrigger=3, maxTriggerDelay="0ms")
    impatient.offset = reading.offset
    assert ids(impatient.batch()) == [13]


def test_a_run_to_the_end_does_not_wait_for_enough_rows(
    hub: penstock.Hub, stream: MakeStream
) -> None:
    hub.topics.publish("a", 1)

    assert [ids(batch) for batch in stream(minOffsetsPerTrigger=100).drain()] == [[1]]


def test_a_run_to_the_end_stops_at_what_was_there_when_it_began(
    hub: penstock.Hub, stream: MakeStream
) -> None:
    hub.topics.publish_many("a", range(5))
    reading = stream(maxOffsetsPerTrigger=2)
    reading.reader.prepareForTriggerAvailableNow()
    assert isinstance(reading.reader, SupportsTriggerAvailableNow)
    seen = ids(reading.batch())
    hub.topics.publish_many("a", range(5))
    while (rows := reading.batch()) is not None:
        seen += ids(rows)

    assert seen == [1, 2, 3, 4, 5]
    assert [ids(batch) for batch in reading.drain()] == [[6, 7], [8, 9], [10]]
    assert reading.drain() == []


def test_the_end_of_the_log_is_reported_for_the_lag(hub: penstock.Hub, stream: MakeStream) -> None:
    hub.topics.publish_many("a", range(5))
    reading = stream(maxOffsetsPerTrigger=2)
    reading.batch()

    report = reading.reader.reportLatestOffset()
    assert report == {"v": 1, "db": hub.topics.position().epoch, "id": 5}
    assert (reading.offset or {})["id"] == 2


# Restarts


def test_a_batch_read_again_has_the_same_rows_whatever_has_expired(
    open_hub: Callable[..., penstock.Hub], path: Path
) -> None:
    """A sink that has it already must get the same again."""
    clock = FakeClock()
    hub = open_hub(clock=clock)
    hub.topics.publish("a", 1, ttl=60)
    hub.topics.publish("a", 2)
    reading = Stream(path, OFFSETS, startingOffsets="earliest")
    reading.reader._clock = clock
    start = reading.begin()
    end = reading.plan()
    clock.advance(600)

    assert ids(reading.read(start, end)) == [1, 2]
    late = Stream(path, OFFSETS, startingOffsets="earliest")
    late.reader._clock = clock
    assert ids(late.batch()) == [2]
    reading.close()
    late.close()


def test_a_reader_is_pickled_without_what_is_open(hub: penstock.Hub, stream: MakeStream) -> None:
    hub.topics.publish("a", 1)
    reading = stream()
    reading.begin()

    assert reading.reader._scanner is not None
    assert reading.reader.__getstate__()["_scanner"] is None


def test_the_checkpoint_of_another_source_is_refused(stream: MakeStream, hub: penstock.Hub) -> None:
    hub.topics.publish("a", 1)
    with pytest.raises(InvalidInput, match="is not an offset of penstock"):
        stream().reader.latestOffset({"orders": {"0": 5}}, ReadAllAvailable())


# Another database


def test_a_restored_database_is_noticed(
    hub: penstock.Hub, stream: MakeStream, tmp_path: Path
) -> None:
    hub.topics.publish("a", 1)
    hub.backup(tmp_path / "copy")
    reading = stream()
    start, end = reading.begin(), reading.plan()
    hub.restore(tmp_path / "copy")

    with pytest.raises(EpochChanged, match="checkpoint belongs to the database"):
        reading.plan()
    with pytest.raises(EpochChanged):
        reading.read(start, end)


def test_a_file_that_was_replaced_under_a_stream_is_noticed_and_after_a_restart(
    hub: penstock.Hub, stream: MakeStream, path: Path, tmp_path: Path
) -> None:
    hub.topics.publish_many("a", range(3))
    reading = stream()
    reading.batch()
    hub.close()
    with hub_on(tmp_path / "other.db") as other:
        other.topics.publish_many("a", range(10))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    (tmp_path / "other.db").rename(path)

    with pytest.raises(StoreReplaced):
        reading.plan()
    restarted = stream()
    restarted.offset = reading.offset
    with pytest.raises(EpochChanged, match="this one is"):
        restarted.plan()


def test_an_older_copy_of_the_file_is_noticed(hub: penstock.Hub, stream: MakeStream) -> None:
    hub.topics.publish("a", 1)
    reading = stream()
    reading.offset = Offset(hub.topics.position().epoch, 7, 1).as_json()

    with pytest.raises(EpochChanged, match="at 7, ahead of the database \\(1\\)"):
        reading.plan()


# Loss


def test_what_was_trimmed_before_the_stream_began_is_no_loss(
    hub: penstock.Hub, stream: MakeStream
) -> None:
    """Also where another topic still has older messages."""
    hub.topics.publish("b", 1)
    hub.topics.publish_many("a", range(9))
    trim(hub, "a", 5)
    reading = stream(maxOffsetsPerTrigger=2)

    assert reading.begin()["told"] == {"a": 5}
    assert [ids(batch) for batch in reading.drain()] == [[1], [6, 7], [8, 9], [10]]
    assert "told" not in (reading.offset or {})


def test_a_trim_past_the_stream_is_a_loss_and_stays_one(
    hub: penstock.Hub, stream: MakeStream
) -> None:
    hub.topics.publish_many("a", range(9))
    reading = stream(maxOffsetsPerTrigger=3)
    assert ids(reading.batch()) == [1, 2, 3]
    trim(hub, "a", 5)

    for _ in range(2):
        with pytest.raises(DataLost, match="messages of 'a' above 3, up to 5, were removed") as e:
            reading.batch()
    assert "failOnDataLoss" in e.value.hint


def test_a_trim_behind_the_stream_is_none(hub: penstock.Hub, stream: MakeStream) -> None:
    hub.topics.publish_many("a", range(9))
    reading = stream(maxOffsetsPerTrigger=3)
    reading.batch()
    trim(hub, "a", 3)

    assert ids(reading.batch()) == [4, 5, 6]


def test_a_trim_of_another_topic_is_none(hub: penstock.Hub, stream: MakeStream) -> None:
    hub.topics.publish_many("a", range(3))
    hub.topics.publish_many("b", range(3))
    reading = stream(subscribe="a", maxOffsetsPerTrigger=1)
    reading.batch()
    trim(hub, "b", 6)

    assert ids(reading.batch()) == [2]


def test_one_who_accepts_loss_reads_on_and_never_goes_back(
    hub: penstock.Hub, stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    hub.topics.publish_many("a", range(9))
    reading = stream(maxOffsetsPerTrigger=3, failOnDataLoss="false")
    assert ids(reading.batch()) == [1, 2, 3]
    trim(hub, "a", 5)

    assert [ids(batch) for batch in reading.drain()] == [[6, 7, 8], [9]]
    assert "messages of 'a' above 3, up to 5, were removed" in caplog.text
    assert "At most 2." in caplog.text
    # Said once: the checkpoint knows of it.
    assert caplog.text.count("were removed") == 1


def test_retention_between_planning_and_reading_is_noticed(
    hub: penstock.Hub, stream: MakeStream
) -> None:
    hub.topics.publish_many("a", range(9))
    reading = stream()
    start, end = reading.begin(), reading.plan()
    [part] = reading.reader.partitions(start, end)
    trim(hub, "a", 4)

    with pytest.raises(DataLost):
        list(reading.reader.read(part))
    with pytest.raises(DataLost):
        reading.read(start, end)
    careless = stream(failOnDataLoss="false")
    assert ids(careless.read(start, end)) == [5, 6, 7, 8, 9]


def test_a_deleted_topic_is_a_loss_to_who_had_not_read_it(
    hub: penstock.Hub, stream: MakeStream
) -> None:
    hub.topics.publish_many("a", range(4))
    reading = stream(maxOffsetsPerTrigger=2)
    reading.batch()
    hub.topics.delete("a")

    with pytest.raises(DataLost, match="above 2, up to 4"):
        reading.batch()


# Groups


def watermark(hub: penstock.Hub, group: str, subscription: str = "*") -> int:
    return hub.consumers.get(group, subscription).position.offset


def test_a_group_shows_how_far_the_stream_has_come(hub: penstock.Hub, stream: MakeStream) -> None:
    hub.topics.publish_many("a", range(6))
    reading = stream(group="pipeline", maxOffsetsPerTrigger=2)
    reading.batch()
    assert watermark(hub, "pipeline") == 0
    reading.batch()
    # Spark commits a batch when it plans the next.
    assert watermark(hub, "pipeline") == 2
    assert hub.consumers.lag("pipeline", "*").messages == 4

    advance_group(hub.url, "pipeline", None, Offset.parse(reading.offset or {}))
    assert watermark(hub, "pipeline") == 4


def test_a_group_keeps_what_the_stream_has_not_read(hub: penstock.Hub, stream: MakeStream) -> None:
    hub.topics.create("a", Retention(messages_max=1, hold_for=("lake",)))
    hub.topics.publish_many("a", range(6))
    reading = stream(subscribe="a", group="lake", maxOffsetsPerTrigger=2)
    reading.batch()
    reading.batch()
    hub._open().sweeper.run_once()

    assert hub.topics.stats("a").messages == 4
    assert ids(reading.batch()) == [5, 6]


def test_each_subscription_has_its_own_row_and_none_goes_back(
    hub: penstock.Hub, stream: MakeStream
) -> None:
    hub.topics.publish_many("a", range(6))
    epoch = hub.topics.position().epoch
    url = hub.url
    advance_group(url, "g", ("a", "b-*"), Offset(epoch, 5))
    advance_group(url, "g", ("a",), Offset(epoch, 3))

    assert (watermark(hub, "g", "a"), watermark(hub, "g", "b-*")) == (5, 5)
    with pytest.raises(EpochChanged):
        advance_group(url, "g", ("a",), Offset("other-1", 6))


def test_a_group_that_a_follower_holds_is_refused(hub: penstock.Hub, stream: MakeStream) -> None:
    hub.topics.publish("a", 1)
    with hub.topics.follow("a", consumer="billing", start="earliest") as follower:
        assert follower.get(timeout=60) is not None
        with pytest.raises(ConsumerBusy, match="is held by"):
            stream(subscribe="a", group="billing").batch()
