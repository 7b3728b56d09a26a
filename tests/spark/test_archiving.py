"""Topics into the lake: every message once, whatever comes between (S3)."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import codec
from penstock.errors import DataLost, EpochChanged, ForeignLake, LakeConflict, LakeDamaged
from penstock.model import NewMessage, Retention
from penstock.spark import archiving
from penstock.spark.archiving import Archive, Report
from penstock.spark.lake_folder import MARKER
from penstock.spark.pipelines.archive import rows_for_batch
from penstock.stores import open_migrations
from penstock.testing import FakeClock
from tests.factories import file_url, hub_on, new_message, settings_for
from tests.spark.lakes import (
    ArchiveEngine,
    archive,
    files_on_disk,
    lake_of,
    rows_in_lake,
    rows_in_log,
    store_of,
)


@pytest.fixture(autouse=True)
def _small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks for a few messages."""
    monkeypatch.setattr(archiving, "TASK_ROWS", 5)


def publish_all_kinds(hub: penstock.Hub, path: Path) -> None:
    """Messages with and without everything there is."""
    hub.topics.publish("orders", {"id": 1}, type="paid", key="k", headers={"a": "b", "c": ""})
    hub.topics.publish("orders", None)
    hub.topics.publish("orders", b"\x00\xff", ttl=3600)
    hub.topics.publish("orders", b"")
    hub.topics.publish("orders", {"id": 2}, format="msgpack", idempotency_key="once")
    hub.topics.publish("orders", {"text": "x" * 100_000})
    hub.topics.publish("Größe/../..", ["no plain name"])
    append(path, new_message("orders", b'{"id": ', encoding=codec.JSON))


def append(path: Path, *messages: NewMessage) -> None:
    """As no publisher could."""
    with store_of(path) as store:
        writer = store.open_writer()
        with writer.transaction() as transaction:
            transaction.topics.append(messages, producer="p", now=1)
        writer.close()


def sweep(path: Path, topic: str, retention: Retention) -> tuple[int, int]:
    with store_of(path) as store:
        writer = store.open_writer()
        with writer.transaction() as transaction:
            swept = transaction.topics.sweep(topic, retention, now=2**50, limit=1000)
        writer.close()
    return swept.removed, swept.broken


def test_every_column_of_every_kind_of_message_is_kept(hub: penstock.Hub, path: Path) -> None:
    publish_all_kinds(hub, path)

    assert archive(path) == 8

    assert rows_in_lake(path) == rows_in_log(path)
    with store_of(path) as store:
        totals = store.lake.totals()
    json, octets = codec.CONTENT_TYPES[codec.JSON], codec.CONTENT_TYPES[codec.BYTES]
    assert totals.formats == {json: 5, octets: 2, codec.CONTENT_TYPES[codec.MSGPACK]: 1}
    assert (totals.rows, totals.unparsable) == (8, 1)


def test_a_second_run_does_nothing(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("orders", range(20))
    assert archive(path) == 20
    before = files_on_disk(path)

    assert archive(path) == 0
    assert files_on_disk(path) == before
    with store_of(path) as store:
        assert len(store.lake.additions(limit=10)) == 1


def test_what_comes_later_is_archived_by_the_next_run(hub: penstock.Hub, path: Path) -> None:
    for count in (3, 20, 1):
        hub.topics.publish_many("orders", range(count))
        assert archive(path, rows_max=7) == count
        assert archive(path) == 0

    assert rows_in_lake(path) == rows_in_log(path)


def test_an_empty_database_and_one_message(hub: penstock.Hub, path: Path) -> None:
    assert archive(path) == 0
    assert archive(path) == 0
    hub.topics.publish("orders", 1)
    assert archive(path) == 1
    assert rows_in_lake(path) == rows_in_log(path)


def test_files_are_by_topic_and_date_and_in_the_books(hub: penstock.Hub, path: Path) -> None:
    clock = FakeClock()
    other = hub_on(path, clock=clock)
    for _ in range(2):
        for topic in ("a", "b"):
            other.topics.publish_many(topic, range(3))
        clock.advance(86_400)
    other.close()

    archive(path, tasks=1)

    with store_of(path) as store:
        files = store.lake.view().files
    assert len({(file.folder, file.date) for file in files}) == len(files) == 4
    for file in files:
        assert f"/topic={file.folder}/date={file.date}/" in file.path
        rows = pq.ParquetFile(lake_of(path) / file.path).read().to_pylist()
        assert file.rows == len(rows) == 3
        assert {row["topic"] for row in rows} == {file.folder}
        assert {row["timestamp"].strftime("%Y-%m-%d") for row in rows} == {file.date}
        assert (file.first_id, file.last_id) == (rows[0]["offset"], rows[-1]["offset"])
        assert file.bytes == (lake_of(path) / file.path).stat().st_size
    assert files_on_disk(path) == {file.path for file in files}


def test_topics_that_are_many_share_folders(
    hub: penstock.Hub, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "NAMED_MAX", 10)
    for number in range(40):
        hub.topics.publish_many(f"topic-{number}", range(3))

    archive(path, tasks=1)

    assert rows_in_lake(path) == rows_in_log(path)
    with store_of(path) as store:
        assert len(store.lake.view().files) <= 16
        assert all(file.folder.startswith("+") for file in store.lake.view().files)
    hub.topics.publish("topic-7", "alone")
    archive(path, tasks=1)
    with store_of(path) as store:
        assert store.lake.view().files[-1].folder == "topic-7"


@pytest.mark.parametrize("topics", [("orders",), ("ord*", "users"), ()])
def test_only_the_topics_that_are_meant(
    hub: penstock.Hub, path: Path, topics: tuple[str, ...]
) -> None:
    for topic in ("orders", "users", "others", "orders", "penstock-like"):
        hub.topics.publish_many(topic, range(7))
    wanted = {(): {"orders", "users", "others", "penstock-like"}, ("orders",): {"orders"}}

    archive(path, topics=topics, rows_max=8)

    expected = wanted.get(topics, {"orders", "users"})
    assert rows_in_lake(path) == [row for row in rows_in_log(path) if row["topic"] in expected]


def test_a_lost_checkpoint_makes_no_duplicates(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("orders", range(20))
    archive(path)
    hub.topics.publish_many("orders", range(5))

    assert archive(path, path.with_name("another")) == 5

    assert rows_in_lake(path) == rows_in_log(path)


def test_a_checkpoint_that_was_set_back_makes_no_duplicates(hub: penstock.Hub, path: Path) -> None:
    checkpoint = path.with_name("checkpoint")
    hub.topics.publish_many("orders", range(10))
    archive(path, rows_max=4)
    shutil.copytree(checkpoint, path.with_name("kept"))
    hub.topics.publish_many("orders", range(10))
    archive(path)
    hub.topics.publish_many("orders", range(3))
    shutil.rmtree(checkpoint)
    shutil.copytree(path.with_name("kept"), checkpoint)

    # Its next batch has the number of one that is in the lake, and more in it.
    assert archive(path) == 3

    assert rows_in_lake(path) == rows_in_log(path)


def test_a_topic_that_is_archived_later_begins_with_what_is_there(
    hub: penstock.Hub, path: Path
) -> None:
    hub.topics.publish_many("orders", range(10))
    hub.topics.publish_many("users", range(10))
    assert archive(path, topics=("orders",)) == 10
    hub.topics.publish_many("orders", range(5))

    assert archive(path, path.with_name("another"), topics=("orders", "users")) == 15
    assert archive(path, path.with_name("third")) == 0

    assert rows_in_lake(path) == rows_in_log(path)


def test_what_is_in_the_lake_may_be_removed_while_another_topic_catches_up(
    hub: penstock.Hub, path: Path
) -> None:
    hub.topics.publish_many("users", range(10))
    hub.topics.publish_many("orders", range(10))
    expected = rows_in_log(path)
    archive(path, topics=("orders",))
    few = Retention(messages_max=3)
    assert sweep(path, "orders", few) == (7, 0)

    def on_step(name: str) -> None:
        if name == "worked":
            sweep(path, "orders", Retention(messages_max=1))

    both = path.with_name("both")
    assert archive(path, both, topics=("orders", "users"), rows_max=3, on_step=on_step) == 10

    assert rows_in_lake(path) == expected


def test_a_checkpoint_of_another_lake_leaves_no_gap(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("orders", range(10))
    archive(path)
    hub.topics.publish_many("orders", range(5))
    hub.close()
    schema = open_migrations(settings_for(file_url(path)))
    schema.down(7)  # The books are gone.
    schema.up()
    shutil.rmtree(lake_of(path))

    with pytest.raises(LakeConflict, match="would be missing"):
        archive(path)
    assert rows_in_lake(path) == []

    assert archive(path, path.with_name("another")) == 15
    assert rows_in_lake(path) == rows_in_log(path)


def test_retention_waits_from_the_first_run_on(hub: penstock.Hub, path: Path) -> None:
    few = Retention(messages_max=1)
    hub.topics.publish_many("orders", range(10))
    expected = rows_in_log(path)

    engine = ArchiveEngine(path, path.with_name("checkpoint"), rows_max=4)
    assert sweep(path, "orders", few) == (0, 0)
    engine.run()
    assert sweep(path, "orders", few) == (9, 0)

    assert rows_in_lake(path) == expected


def test_retention_between_all_steps_takes_nothing_away(hub: penstock.Hub, path: Path) -> None:
    few = Retention(messages_max=1)
    hub.topics.publish_many("orders", range(25))
    hub.topics.publish_many("users", range(25))
    expected = rows_in_log(path)

    def on_step(name: str) -> None:
        if name not in ("manifest", "hold"):  # Nobody else can write then.
            sweep(path, "orders", few)
            sweep(path, "users", few)

    archive(path, on_step=on_step, rows_max=9)

    assert rows_in_lake(path) == expected
    assert len(rows_in_log(path)) == 2


def test_what_was_removed_before_the_first_run_is_no_loss(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish("users", 1)
    hub.topics.publish_many("orders", range(10))
    hub.topics.trim("orders", through=hub.topics.position())
    hub.topics.publish_many("orders", range(3))

    assert archive(path) == 4
    assert rows_in_lake(path) == rows_in_log(path)


def test_messages_removed_against_the_hold_are_told(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("orders", range(5))
    archive(path)
    hub.topics.publish_many("orders", range(10))
    hub.topics.trim("orders", through=hub.topics.position())
    hub.topics.publish_many("orders", range(3))

    with pytest.raises(DataLost, match="orders"):
        archive(path)
    with pytest.raises(DataLost, match="orders"):
        archive(path, path.with_name("another"))

    assert archive(path, allow_loss=True) == 3
    assert [row["offset"] for row in rows_in_lake(path)] == [1, 2, 3, 4, 5, 16, 17, 18]


def test_the_files_of_a_failed_task_are_removed(
    hub: penstock.Hub, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.topics.publish_many("orders", range(20))
    engine = ArchiveEngine(path, path.with_name("checkpoint"), tasks=1)
    start = engine._reader.initialOffset()
    end = engine._reader.latestOffset(start, engine._reader.getDefaultReadLimit())
    [part] = engine.parts(start, end)

    def fail(growing: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr("penstock.spark.lake_files._Growing.flush", fail)
        with pytest.raises(OSError, match="no space"):
            engine.work(part, 0)
    engine.store.close()
    engine._reader.stop()

    assert files_on_disk(path) == set()


def test_of_a_task_that_ran_twice_one_counts(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("orders", range(20))
    engine = ArchiveEngine(path, path.with_name("checkpoint"), tasks=3)
    start = engine._reader.initialOffset()
    end = engine._reader.latestOffset(start, engine._reader.getDefaultReadLimit())
    reports: list[Report] = []
    for part in engine.parts(start, end):
        engine.work(part, 0, attempt=0)
        reports += engine.work(part, 0, attempt=1)
    assert len(files_on_disk(path)) == 6

    batch = Archive(engine.store, engine.folder).enter(reports, lambda name: None)
    engine.store.close()
    engine._reader.stop()

    assert batch is not None
    assert files_on_disk(path) == {file.path for file in batch.files}
    assert len(batch.files) == 3
    assert rows_in_lake(path) == rows_in_log(path)


def test_two_that_archive_the_same_batch_are_not_both_entered(
    hub: penstock.Hub, path: Path
) -> None:
    hub.topics.publish_many("orders", range(20))
    slow = ArchiveEngine(path, path.with_name("slow"))
    start = slow._reader.initialOffset()
    end = slow._reader.latestOffset(start, slow._reader.getDefaultReadLimit())
    reports = [report for part in slow.parts(start, end) for report in slow.work(part, 0)]
    assert archive(path, path.with_name("fast")) == 20

    with pytest.raises(LakeConflict):
        Archive(slow.store, slow.folder).enter(reports, lambda name: None)
    slow.store.close()
    slow._reader.stop()

    assert rows_in_lake(path) == rows_in_log(path)


@pytest.mark.parametrize("moment", ["planned", "worked", "written"])
def test_a_database_that_is_replaced_ends_the_run(
    hub: penstock.Hub, path: Path, tmp_path: Path, moment: str
) -> None:
    hub.topics.publish_many("orders", range(10))
    archive(path)
    hub.backup(tmp_path / "backup.db")
    hub.topics.publish_many("orders", range(10))

    def on_step(name: str) -> None:
        if name == moment:
            hub.restore(tmp_path / "backup.db")

    with pytest.raises(EpochChanged):
        archive(path, on_step=on_step)
    with pytest.raises(EpochChanged):
        archive(path)

    # The lake is as the restored database knows it, and goes on from there.
    assert len(rows_in_lake(path)) == 10
    hub.topics.publish_many("orders", range(5))
    assert archive(path, path.with_name("another")) == 5
    assert rows_in_lake(path) == rows_in_log(path)


def test_a_lake_belongs_to_one_database(hub: penstock.Hub, path: Path, tmp_path: Path) -> None:
    hub.topics.publish("orders", 1)
    archive(path)
    other = tmp_path / "other.db"
    with hub_on(other) as another:
        another.topics.publish("orders", 2)

    with pytest.raises(ForeignLake):
        archive(other, tmp_path / "other", lake=lake_of(path))
    assert archive(other, tmp_path / "other") == 1
    with pytest.raises(ForeignLake):
        archive(path, lake=lake_of(other))

    assert len(rows_in_lake(path)) == 1


def test_a_lake_that_is_not_where_it_was_is_missed(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish("orders", 1)
    archive(path)
    moved = path.with_name("moved")
    lake_of(path).rename(moved)
    hub.topics.publish("orders", 2)

    with pytest.raises(LakeDamaged, match="no lake"):
        archive(path)

    assert archive(path, lake=moved) == 1
    assert rows_in_lake(path, lake=moved) == rows_in_log(path)
    (moved / MARKER).write_text("{")
    with pytest.raises(LakeDamaged):
        archive(path, lake=moved)


def test_reports_survive_their_way(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish("orders", {"id": 1}, headers={"ä": "ö"})
    engine = ArchiveEngine(path, path.with_name("checkpoint"), tasks=1)
    start = engine._reader.initialOffset()
    end = engine._reader.latestOffset(start, engine._reader.getDefaultReadLimit())
    [report] = engine.work(engine.parts(start, end)[0], 7)
    engine.store.close()
    engine._reader.stop()

    assert (report.batch, report.after, report.through) == (7, 0, 1)
    assert report.expected == {"*": 0}
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [((), 1_000_000), ((10,), 1_000_000), ((5000, 5000), 107_374), ((900_000,), 10_000)],
)
def test_a_batch_is_as_large_as_its_messages_allow(
    hub: penstock.Hub, path: Path, sizes: tuple[int, ...], rows: int
) -> None:
    hub.topics.position()
    append(path, *[new_message("orders", b"x" * size) for size in sizes])

    with store_of(path) as store:
        assert rows_for_batch(store) == rows
