"""What `read_topic` takes from the log beside the lake, without a JVM (S3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.clock import SystemClock
from penstock.errors import DataLost, EpochChanged
from penstock.model import Retention
from penstock.ports.lake import LakeView
from penstock.ports.scan import Scanner
from penstock.spark.entities import ENTITIES, MESSAGES
from penstock.spark.lake import Part, Reader, Wanted, archived_at_least, escape
from penstock.spark.lake_files import Parquet
from penstock.spark.lake_rest import Rest, RestReader
from penstock.spark.options import parse_source
from penstock.stores import open_scanner
from tests.factories import file_url, settings_for
from tests.spark.driving import shipped
from tests.spark.lakes import archive, lake_of, store_of


def look(
    path: Path,
    *topics: str,
    source: Part = "both",
    wrap: Callable[[Scanner], Any] = lambda scanner: scanner,
    **wanted: Any,
) -> tuple[LakeView, Rest]:
    settings = settings_for(file_url(path))
    scanner = open_scanner(settings, SystemClock())
    try:
        reader = Reader(None, settings)  # type: ignore[arg-type]
        return reader.look(wrap(scanner), Wanted(topics or ("*",), **wanted), source)
    finally:
        scanner.close()


def from_log(path: Path, rest: Rest) -> list[int]:
    options = parse_source({"url": file_url(path), "includeHeaders": "true"}, ENTITIES)
    reader = RestReader(options, MESSAGES.schema(include=MESSAGES.optional), rest)
    return [
        offset
        for part in reader.partitions()
        for batch in shipped(reader).read(shipped(part))
        for offset in batch.column("offset").to_pylist()
    ]


def from_lake(path: Path, view: LakeView) -> list[int]:
    return [
        offset
        for file in view.files
        for batch in Parquet().rows(lake_of(path) / file.path)
        for offset in batch.column("offset").to_pylist()
    ]


def sweep(path: Path, topic: str, keep: int) -> None:
    with store_of(path) as store:
        writer = store.open_writer()
        with writer.transaction() as transaction:
            few = Retention(messages_max=keep)
            transaction.topics.sweep(topic, few, now=2**50, limit=1000)
        writer.close()


def test_a_message_is_taken_from_one_of_the_two(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("orders", range(10))
    archive(path)
    hub.topics.publish_many("orders", range(5))

    view, rest = look(path)
    assert from_lake(path, view) == list(range(1, 11))
    assert from_log(path, rest) == list(range(11, 16))
    view, rest = look(path, source="log")
    assert from_log(path, rest) == list(range(1, 16))


def test_what_is_archived_or_published_later_changes_nothing(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("orders", range(10))
    archive(path)
    hub.topics.publish_many("orders", range(5))
    view, rest = look(path)

    archive(path)
    hub.topics.publish_many("orders", range(5))
    sweep(path, "orders", 20)

    assert from_lake(path, view) + from_log(path, rest) == list(range(1, 16))


def test_what_was_archived_and_removed_since_is_told(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("orders", range(10))
    archive(path)
    hub.topics.publish_many("orders", range(5))
    _, rest = look(path)
    archive(path)
    sweep(path, "orders", 2)

    with pytest.raises(DataLost, match="Call read_topic again"):
        from_log(path, rest)

    view, rest = look(path)
    assert from_lake(path, view) + from_log(path, rest) == list(range(1, 16))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_is_archived_and_removed_during_the_look_is_not_missed(
    hub: penstock.Hub, path: Path, moment: str
) -> None:
    hub.topics.publish_many("orders", range(10))
    archive(path)
    hub.topics.publish_many("orders", range(5))

    class Moved:
        """A scanner; messages move beside the view it gives of the lake."""

        def __init__(self, scanner: Scanner) -> None:
            self._scanner = scanner
            self.lake = self

        def view(self, **asked: Any) -> LakeView:
            if moment == "before":
                self.move()
            found = self._scanner.lake.view(**asked)
            if moment == "after":
                self.move()
            return found

        def move(self) -> None:
            archive(path)
            sweep(path, "orders", 2)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._scanner, name)

    view, rest = look(path, wrap=Moved)
    if moment == "before":
        assert from_lake(path, view) + from_log(path, rest) == list(range(1, 16))
    else:
        with pytest.raises(DataLost):
            from_log(path, rest)


def test_what_was_removed_by_hand_before_is_no_loss(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("orders", range(10))
    archive(path)
    hub.topics.publish_many("orders", range(5))
    hub.topics.trim("orders", keep=2)

    view, rest = look(path)
    assert from_lake(path, view) + from_log(path, rest) == [*range(1, 11), 14, 15]


def test_topics_that_are_archived_to_different_ids_are_each_read_once(
    hub: penstock.Hub, path: Path
) -> None:
    hub.topics.publish_many("orders", range(5))
    hub.topics.publish_many("users", range(5))
    archive(path, topics=("orders",))
    hub.topics.publish_many("orders", range(5))
    sweep(path, "orders", 6)

    for topics in (("*",), ("orders", "users"), ("o*", "users")):
        view, rest = look(path, *topics)
        assert sorted(from_lake(path, view) + from_log(path, rest)) == list(range(1, 16))


def test_a_database_that_was_replaced_is_noticed(
    hub: penstock.Hub, path: Path, tmp_path: Path
) -> None:
    hub.topics.publish_many("orders", range(5))
    hub.backup(tmp_path / "backup.db")
    _, rest = look(path)
    hub.restore(tmp_path / "backup.db")

    with pytest.raises(EpochChanged):
        from_log(path, rest)


def test_a_time_is_looked_up_in_both(hub: penstock.Hub, path: Path) -> None:
    hub.topics.publish_many("orders", range(3))
    archive(path)
    middle = hub.topics.publish("orders", 3).created_at
    hub.topics.publish("orders", 4)

    _, rest = look(path, since=middle)
    assert from_log(path, rest) == [4, 5]
    _, rest = look(path, until=middle)
    assert from_log(path, rest) == []


@pytest.mark.parametrize(
    ("text", "through"),
    [("a", 7), ("ab", 5), ("b", 5), ("a*", 7), ("*", 5), ("b*", 5), ("penstock.x", 0)],
)
def test_how_far_a_topic_or_a_glob_is_in_the_lake_for_certain(text: str, through: int) -> None:
    covered = [("a", 7), ("*", 5), ("a*", 7)] if text == "a*" else [("a", 7), ("*", 5)]
    assert archived_at_least(text, covered) == through


def test_a_path_is_no_pattern() -> None:
    assert escape("/a [b]/{c}*?\\d #%20") == "/a \\[b\\]/\\{c\\}\\*\\?\\\\d #%20"
