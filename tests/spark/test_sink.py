"""The sink without a JVM: once, in chunks, resumed, refused, cleaned up (S2)."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

import penstock
from penstock.errors import InvalidOption, SinkReused, StagingDamaged
from penstock.spark import forget_sink
from penstock.spark.options import parse_sink
from penstock.spark.sink import BatchWriter, Report, StreamWriter
from tests.factories import file_url
from tests.spark.driving import Row, shipped, source, write_batch, write_part, write_stream

VALUES = StructType([StructField("value", StringType())])
PAYLOADS = StructType([StructField("payload", StringType())])


def rows(first: int, last: int) -> list[Row]:
    return [{"value": str(number)} for number in range(first, last)]


def written(hub: penstock.Hub, topic: str = "t") -> list[Any]:
    return [m.payload for m in hub.topics.read(topic, limit=100_000)]


def staged(path: Path) -> list[Path]:
    folder = path.with_name(path.name + "-staging")
    return list(folder.iterdir()) if folder.exists() else []


def batches(hub: penstock.Hub) -> list[tuple[Any, ...]]:
    with hub.connection() as connection:
        return connection.execute(
            "SELECT sink, number, rows, chunks, chunks_done FROM penstock_sink_batches"
            " ORDER BY sink, number"
        )


class Crash(Exception):
    """In place of a kill: everything after it does not happen."""


def crashing_at(step: str) -> Callable[[str], None]:
    def on_step(name: str) -> None:
        if name == step:
            raise Crash(step)

    return on_step


def stream_commit(
    path: Path,
    parts: list[list[Row]],
    batch: int,
    *,
    query: str = "query-1",
    crash_at: str = "",
    **options: Any,
) -> None:
    given = {"url": file_url(path), **{k: str(v) for k, v in options.items()}}
    writer = StreamWriter(parse_sink(given), on_step=crashing_at(crash_at))
    plain = StreamWriter(parse_sink(given))
    messages = [
        write_part(plain, VALUES, part, partition=n, query=query, batch=batch)
        for n, part in enumerate(parts)
    ]
    writer.commit(messages, batch)


# Once


def test_a_batch_is_written_in_the_order_of_its_partitions(hub: penstock.Hub, path: Path) -> None:
    write_stream(path, VALUES, [rows(0, 3), [], rows(3, 5)], 0, topic="t")

    assert written(hub) == [0, 1, 2, 3, 4]
    assert batches(hub) == [("query-1:messages:t", 0, 5, 1, 1)]


def test_the_same_batch_again_is_a_no_op(hub: penstock.Hub, path: Path) -> None:
    for _ in range(3):
        write_stream(path, VALUES, [rows(0, 3), rows(3, 5)], 7, topic="t")
    write_stream(path, VALUES, [rows(5, 6)], 8, topic="t")
    # In another order: a shuffle does not keep it.
    write_stream(path, VALUES, [rows(5, 6)], 8, topic="t")

    assert written(hub) == [0, 1, 2, 3, 4, 5]


def test_rows_in_another_order_are_the_same_batch(hub: penstock.Hub, path: Path) -> None:
    write_stream(path, VALUES, [rows(0, 3), rows(3, 5)], 0, topic="t")
    write_stream(path, VALUES, [rows(3, 5), rows(0, 3)[::-1]], 0, topic="t")

    assert written(hub) == [0, 1, 2, 3, 4]


def test_an_empty_batch_writes_nothing_at_all(hub: penstock.Hub, path: Path) -> None:
    hub.topics.position()
    write_stream(path, VALUES, [[], []], 0, topic="t")
    write_stream(path, VALUES, [], 1, topic="t")

    assert (written(hub), batches(hub), staged(path)) == ([], [], [])


def test_two_sinks_of_one_query_are_two(hub: penstock.Hub, path: Path) -> None:
    for topic in ("t", "u"):
        write_stream(path, VALUES, [rows(0, 2)], 0, topic=topic)

    assert (written(hub, "t"), written(hub, "u")) == ([0, 1], [0, 1])


def test_jobs_are_enqueued_once(hub: penstock.Hub, path: Path) -> None:
    values = [{"payload": str(number)} for number in range(5)]
    for _ in range(2):
        write_stream(path, PAYLOADS, [values], 0, queue="q", type="work")

    [stats] = hub.jobs.stats()
    assert (stats.queue, stats.pending) == ("q", 5)
    assert [hub.jobs.get(number).payload for number in range(1, 6)] == [0, 1, 2, 3, 4]


def test_what_is_written_wakes_those_who_listen(hub: penstock.Hub, path: Path) -> None:
    with hub.topics.subscribe("t") as subscription:
        write_stream(path, VALUES, [rows(0, 2)], 0, topic="t")

        assert [subscription.get(timeout=60).payload for _ in range(2)] == [0, 1]


def test_a_batch_named_by_the_user_is_written_once(hub: penstock.Hub, path: Path) -> None:
    options = {"topic": "t", "txnAppId": "nightly", "txnVersion": 20260101}
    for _ in range(2):
        write_batch(path, VALUES, [rows(0, 3)], **options)
    write_batch(path, VALUES, [rows(3, 4)], **{**options, "txnVersion": 20260102})

    assert written(hub) == [0, 1, 2, 3]


def test_a_batch_without_a_name_is_written_each_time(hub: penstock.Hub, path: Path) -> None:
    for _ in range(2):
        write_batch(path, VALUES, [rows(0, 5)], topic="t", maxRowsPerTransaction=2)

    assert written(hub) == [0, 1, 2, 3, 4] * 2
    assert batches(hub) == []


# What is refused


def test_a_deleted_checkpoint_under_a_name_that_is_kept_is_refused(
    hub: penstock.Hub, path: Path
) -> None:
    """Its batches count from 0 again: they would be taken for written, and lost."""
    options = {"topic": "t", "txnAppId": "mine"}
    write_stream(path, VALUES, [rows(0, 3)], 0, query="first", **options)

    for number in (0, 1):
        with pytest.raises(SinkReused, match="belongs to another query"):
            write_stream(path, VALUES, [rows(3, 6)], number, query="second", **options)
    assert written(hub) == [0, 1, 2]

    assert forget_sink(file_url(path), "mine") == 1
    write_stream(path, VALUES, [rows(3, 6)], 0, query="second", **options)
    assert written(hub) == [0, 1, 2, 3, 4, 5]


def test_a_deleted_checkpoint_without_a_name_is_a_new_query(hub: penstock.Hub, path: Path) -> None:
    for query in ("first", "second"):
        write_stream(path, VALUES, [rows(0, 2)], 0, query=query, topic="t")

    assert written(hub) == [0, 1, 0, 1]


@pytest.mark.parametrize("others", [rows(0, 4), rows(1, 4), [{"value": "0"}] * 3])
def test_other_rows_under_the_same_number_are_refused(
    hub: penstock.Hub, path: Path, others: list[Row]
) -> None:
    """A checkpoint that was set back, or batches with the same number on two days."""
    write_stream(path, VALUES, [rows(0, 3)], 0, topic="t")
    write_batch(path, VALUES, [rows(0, 3)], topic="u", txnAppId="a", txnVersion=1)

    with pytest.raises(SinkReused, match="was written with 3 rows, and comes again"):
        write_stream(path, VALUES, [others], 0, topic="t")
    with pytest.raises(SinkReused, match="was written with 3 rows, and comes again"):
        write_batch(path, VALUES, [others], topic="u", txnAppId="a", txnVersion=1)
    write_stream(path, VALUES, [others], 0, topic="t", failOnMismatch="false")
    assert (written(hub, "t"), written(hub, "u")) == ([0, 1, 2], [0, 1, 2])


def test_a_query_whose_checkpoint_was_set_back_is_refused(hub: penstock.Hub, path: Path) -> None:
    for number in (0, 2):
        write_stream(path, VALUES, [rows(number, number + 1)], number, topic="t")

    # Batch 1 was empty then, and is not now.
    with pytest.raises(SinkReused, match="got to batch 2, and now batch 1 has come"):
        write_stream(path, VALUES, [rows(5, 6)], 1, topic="t")


def test_options_of_batches_and_streams_are_kept_apart(path: Path) -> None:
    with pytest.raises(InvalidOption, match="belong together"):
        source(path, topic="t", txnAppId="a").writer(VALUES, overwrite=False)
    with pytest.raises(InvalidOption, match="belong together"):
        source(path, topic="t", txnVersion=1).writer(VALUES, overwrite=False)
    with pytest.raises(InvalidOption, match="txnVersion is for batches"):
        source(path, topic="t", txnAppId="a", txnVersion=1).streamWriter(VALUES, overwrite=False)


def test_a_spark_that_does_not_tell_the_query_needs_a_name(hub: penstock.Hub, path: Path) -> None:
    hub.topics.position()
    writer = source(path, topic="t").streamWriter(VALUES, overwrite=False)
    message = write_part(writer, VALUES, rows(0, 1))
    with pytest.raises(InvalidOption, match="does not tell which query"):
        writer.commit([message], 0)
    named = source(path, topic="t", txnAppId="x").streamWriter(VALUES, overwrite=False)
    named.commit([message], 0)
    assert written(hub) == [0]


# Chunks


def test_a_large_batch_is_staged_and_written_in_chunks(hub: penstock.Hub, path: Path) -> None:
    parts = [rows(0, 5), rows(5, 12)]
    write_stream(path, VALUES, parts, 0, topic="t", maxRowsPerTransaction=5, maxInlineBytes=0)

    assert written(hub) == list(range(12))
    assert batches(hub) == [("query-1:messages:t", 0, 12, 3, 3)]
    assert staged(path) == []
    times = {m.created_at for m in hub.topics.read("t", limit=100)}
    assert len(times) == 3, "one transaction each"


STEPS = ["staged", "entered", "chunk 0", "chunk 1", "chunk 2", "written", "cleaned"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("inline", [0, 10**6])
def test_a_batch_that_was_cut_short_goes_on_behind_its_last_chunk(
    hub: penstock.Hub, path: Path, step: str, inline: int
) -> None:
    options = {"topic": "t", "maxRowsPerTransaction": 5, "maxInlineBytes": inline}
    parts = [rows(0, 5), rows(5, 12)]
    with pytest.raises(Crash):
        stream_commit(path, parts, 0, crash_at=step, **options)
    before = written(hub)
    assert before == list(range(len(before)))

    # The tasks ran again, and the rows came in another order.
    write_stream(path, VALUES, [rows(5, 12)[::-1], rows(0, 5)], 0, **options)

    assert Counter(written(hub)) == Counter(range(12))
    assert written(hub)[: len(before)] == before
    write_stream(path, VALUES, parts, 0, **options)
    assert len(written(hub)) == 12


@pytest.mark.parametrize("step", ["staged", "appended", "written", "cleaned"])
def test_a_small_batch_is_written_whole_or_not_at_all(
    hub: penstock.Hub, path: Path, step: str
) -> None:
    with pytest.raises(Crash):
        stream_commit(path, [rows(0, 4)], 0, crash_at=step, topic="t")
    assert written(hub) in ([], [0, 1, 2, 3])

    write_stream(path, VALUES, [rows(0, 4)], 0, topic="t")
    assert written(hub) == [0, 1, 2, 3]


def test_a_batch_goes_on_under_another_limit(hub: penstock.Hub, path: Path) -> None:
    small = {"topic": "t", "maxRowsPerTransaction": 5}
    with pytest.raises(Crash):
        stream_commit(path, [rows(0, 12)], 0, crash_at="chunk 0", **small)

    write_stream(path, VALUES, [rows(0, 12)], 0, topic="t")

    assert written(hub) == list(range(12))


def test_files_of_the_first_attempt_that_are_gone_are_replaced_by_the_same_rows(
    hub: penstock.Hub, path: Path
) -> None:
    options = {"topic": "t", "maxRowsPerTransaction": 5, "maxInlineBytes": 0}
    parts = [rows(0, 5), rows(5, 12)]
    with pytest.raises(Crash):
        stream_commit(path, parts, 0, crash_at="chunk 0", **options)
    for file in staged(path):
        file.unlink()

    with pytest.raises(StagingDamaged):  # The same rows, but which of them are in?
        write_stream(path, VALUES, [rows(0, 12)], 0, **options)
    write_stream(path, VALUES, parts, 0, **options)

    assert written(hub) == list(range(12))


def test_a_damaged_file_is_an_error_and_nothing_of_it_is_written(
    hub: penstock.Hub, path: Path
) -> None:
    hub.topics.position()
    writer = source(path, topic="t", maxInlineBytes=0).streamWriter(VALUES, overwrite=False)
    message = write_part(writer, VALUES, rows(0, 100), query="q", batch=0)
    [file] = staged(path)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)

    with pytest.raises(StagingDamaged, match="is damaged"):
        writer.commit([message], 0)
    assert (written(hub), batches(hub)) == ([], [])


# Tasks


def test_the_files_of_tasks_that_were_not_chosen_are_orphans(hub: penstock.Hub, path: Path) -> None:
    """Speculation: two attempts at one partition, of which Spark takes one."""
    hub.topics.position()
    writer = source(path, topic="t", maxInlineBytes=0).streamWriter(VALUES, overwrite=False)
    chosen, _ = (write_part(writer, VALUES, rows(0, 3), query="q", batch=0) for _ in range(2))
    writer.commit([chosen], 0)

    assert written(hub) == [0, 1, 2]
    [orphan] = staged(path)
    os.utime(orphan, (time.time() - 2 * 86_400,) * 2)
    later = write_part(writer, VALUES, rows(3, 4), query="q", batch=1)
    writer.commit([later], 1)
    assert staged(path) == []


def test_an_abort_removes_what_was_staged(hub: penstock.Hub, path: Path) -> None:
    hub.topics.position()
    options = {"topic": "t", "maxInlineBytes": 0}
    stream = source(path, **options).streamWriter(VALUES, overwrite=False)
    batch = source(path, **options).writer(VALUES, overwrite=False)
    first = write_part(stream, VALUES, rows(0, 3), query="q", batch=0)
    second = write_part(batch, VALUES, rows(0, 3))
    assert len(staged(path)) == 2

    stream.abort([first, None], 0)  # type: ignore[list-item]
    shipped(batch).abort([None, second])
    stream.abort([], 1)

    assert (staged(path), written(hub)) == ([], [])


def test_an_abort_leaves_what_a_batch_has_begun_with(hub: penstock.Hub, path: Path) -> None:
    """Spark aborts after a commit that failed: the next attempt must find the plan's files."""
    given = {"url": file_url(path), "topic": "t", "maxRowsPerTransaction": "5"}
    options = parse_sink({**given, "maxInlineBytes": "0"})
    writer = StreamWriter(options, on_step=crashing_at("chunk 0"))
    plain = StreamWriter(options)
    message = write_part(plain, VALUES, rows(0, 12), query="query-1", batch=0)
    with pytest.raises(Crash):
        writer.commit([message], 0)
    plain.abort([message], 0)

    assert len(staged(path)) == 1
    write_stream(path, VALUES, [rows(0, 12)], 0, topic="t", maxInlineBytes=0)
    assert written(hub) == list(range(12))
    assert staged(path) == []


def test_the_staging_folder_can_be_elsewhere(hub: penstock.Hub, path: Path, tmp_path: Path) -> None:
    hub.topics.position()
    options = {"topic": "t", "maxInlineBytes": 0, "stagingDir": tmp_path / "elsewhere"}
    writer = source(path, **options).writer(VALUES, overwrite=False)
    message = write_part(writer, VALUES, rows(0, 3))

    assert len(list((tmp_path / "elsewhere").iterdir())) == 1
    assert staged(path) == []
    writer.commit([message])
    assert written(hub) == [0, 1, 2]


def test_a_report_travels_and_says_whose_rows_it_has(path: Path) -> None:
    writer = BatchWriter(parse_sink({"url": file_url(path), "topic": "t"}))
    report = write_part(writer, VALUES, rows(0, 3), partition=4, query="q", batch=9)

    assert isinstance(report, WriterCommitMessage)
    assert isinstance(report, Report)
    assert (report.partition, report.query, report.batch, report.part.rows) == (4, "q", 9, 3)


def test_writers_at_the_same_time_take_turns(hub: penstock.Hub, path: Path) -> None:
    """A publisher beside a large commit waits for a chunk, not for the batch."""
    seen: list[int] = []

    def publish_between(step: str) -> None:
        if step.startswith("chunk"):
            seen.append(hub.topics.publish("t", "between").id)

    given = {"url": file_url(path), "topic": "t", "maxRowsPerTransaction": "3"}
    writer = StreamWriter(parse_sink(given), on_step=publish_between)
    message = write_part(StreamWriter(parse_sink(given)), VALUES, rows(0, 6), query="q", batch=0)
    writer.commit([message], 0)

    assert written(hub) == [0, 1, 2, "between", 3, 4, 5, "between"]
    assert len(seen) == 2
