"""Small files become large ones, without anybody noticing (S3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.clock import SECOND
from penstock.errors import LakeDamaged
from penstock.ports import Store
from penstock.ports.lake import LakeFile
from penstock.settings import Settings
from penstock.spark import compaction
from penstock.spark.compaction import Compacted, Compactor, fill, orphans, size_class, tiers
from penstock.spark.lake_folder import LakeFolder
from penstock.testing import FakeClock
from tests.factories import file_url, hub_on, settings_for
from tests.spark.lakes import (
    archive,
    files_on_disk,
    lake_of,
    rows_in_lake,
    rows_in_log,
    store_of,
)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FILES_MIN", 4)


def compact(path: Path, *, clock: Any = None, **options: Any) -> Compacted:
    with store_of(path) as store:
        return compactor(path, store, clock=clock).run(**options)


def compactor(path: Path, store: Store, **options: Any) -> Compactor:
    return Compactor(store, LakeFolder(str(lake_of(path))), settings_of(path), **options)


def settings_of(path: Path) -> Settings:
    return settings_for(file_url(path))


def fill_lake(hub: penstock.Hub, path: Path, times: int, topic: str = "orders") -> None:
    for number in range(times):
        hub.topics.publish_many(topic, [{"id": number, "part": part} for part in range(3)])
        archive(path, compact=False)


def files_of(path: Path) -> list[LakeFile]:
    with store_of(path) as store:
        return list(store.lake.view().files)


def test_files_of_a_size_are_merged_when_there_are_enough(hub: penstock.Hub, path: Path) -> None:
    fill_lake(hub, path, 3)
    assert compact(path) == Compacted(0, 0, 0)
    fill_lake(hub, path, 1)

    assert compact(path) == Compacted(merged=4, made=1)

    [file] = files_of(path)
    assert (file.rows, file.first_id, file.last_id) == (12, 1, 12)
    assert rows_in_lake(path) == rows_in_log(path)
    assert compact(path) == Compacted(0, 0, 0)


def test_an_archive_that_runs_often_has_few_files(hub: penstock.Hub, path: Path) -> None:
    for number in range(13):
        hub.topics.publish_many("orders", range(number))
        hub.topics.publish("users", number)
        archive(path)

    assert len(files_of(path)) <= 8
    assert rows_in_lake(path) == rows_in_log(path)


def test_everything_is_merged_when_that_is_asked_for(hub: penstock.Hub, path: Path) -> None:
    fill_lake(hub, path, 2)
    fill_lake(hub, path, 2, topic="users")

    assert compact(path, everything=True) == Compacted(merged=4, made=2)

    assert sorted(file.folder for file in files_of(path)) == ["orders", "users"]
    assert rows_in_lake(path) == rows_in_log(path)


def test_a_date_that_is_over_is_merged_whatever_is_left_of_it(path: Path) -> None:
    clock = FakeClock()
    with hub_on(path, clock=clock) as hub:
        fill_lake(hub, path, 2)
        assert compact(path).made == 0
        clock.advance(86_400)
        fill_lake(hub, path, 1)

        assert compact(path) == Compacted(merged=2, made=1)
    assert [file.rows for file in files_of(path)] == [6, 3]
    assert len({file.date for file in files_of(path)}) == 2


def test_readers_that_have_begun_find_their_files_for_a_while(
    hub: penstock.Hub, path: Path
) -> None:
    fill_lake(hub, path, 4)
    begun = files_of(path)
    compact(path)
    assert all((lake_of(path) / file.path).exists() for file in begun)

    clock = FakeClock()
    keep = settings_of(path).lake_replaced_seconds
    with store_of(path) as store:
        replaced_at = max(addition.at for addition in store.lake.additions(limit=9))
    clock.advance((replaced_at - clock.now()) / SECOND + keep - 60)
    assert compact(path, clock=clock).removed == 0
    clock.advance(3600)
    assert compact(path, clock=clock).removed == 4

    assert files_on_disk(path) == {file.path for file in files_of(path)}
    assert not any((lake_of(path) / file.path).parent.exists() for file in begun)
    assert rows_in_lake(path) == rows_in_log(path)
    with store_of(path) as store:
        assert store.lake.totals().replaced_files == 0


@pytest.mark.parametrize("step", ["merged", "replaced"])
def test_a_crash_amid_a_merge_changes_nothing_that_is_read(
    hub: penstock.Hub, path: Path, step: str
) -> None:
    class Crash(BaseException):
        pass

    def on_step(name: str) -> None:
        if name == step:
            raise Crash

    fill_lake(hub, path, 4)
    with store_of(path) as store, pytest.raises(Crash):
        compactor(path, store, on_step=on_step).run()

    assert rows_in_lake(path) == rows_in_log(path)
    compact(path)
    assert len(files_of(path)) == 1
    assert rows_in_lake(path) == rows_in_log(path)


def test_of_two_that_merge_the_same_files_one_gives_way(hub: penstock.Hub, path: Path) -> None:
    fill_lake(hub, path, 4)
    with store_of(path) as store:
        slow = compactor(path, store)
        [group] = slow.due()
        compact(path)

        assert slow.merge(group) is False

    assert rows_in_lake(path) == rows_in_log(path)
    assert len(files_on_disk(path)) == 5


def test_a_damaged_file_is_not_merged_away(hub: penstock.Hub, path: Path) -> None:
    fill_lake(hub, path, 4)
    victim = lake_of(path) / files_of(path)[2].path
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0xFF
    victim.write_bytes(content)

    with pytest.raises(LakeDamaged, match="not as it was written"):
        compact(path)

    assert len(files_of(path)) == 4


def test_files_that_are_in_no_book_are_found_when_they_are_old(
    hub: penstock.Hub, path: Path
) -> None:
    fill_lake(hub, path, 4)
    compact(path)  # The four are still in the books.
    stray = lake_of(path) / "messages/batch=gone-1/topic=a/date=2026-01-31/x.parquet"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"half a file")
    with store_of(path) as store:
        folder = LakeFolder(str(lake_of(path)))
        written = stray.stat().st_mtime

        assert orphans(store, folder, older_than_seconds=60, now=written) == []
        found = orphans(store, folder, older_than_seconds=60, now=written + 61)
    assert found == [str(stray.relative_to(lake_of(path)))]


def entry(size: int) -> LakeFile:
    return LakeFile(f"f{size}", "a", "2026-01-31", 1, size, 1, 1, 1, 1, "d")


@given(st.lists(st.integers(0, 2**28), max_size=60))
def test_only_files_of_about_the_same_size_are_merged(sizes: list[int]) -> None:
    for group in tiers([entry(size) for size in sizes]):
        assert len(group) >= compaction.FILES_MIN
        assert len({size_class(file.bytes) for file in group}) == 1


@given(st.lists(st.integers(0, 100), max_size=60))
def test_files_are_filled_in_order_and_not_overfilled(sizes: list[int]) -> None:
    files = [entry(size) for size in sizes]
    groups = list(fill(files, 100))

    flat = [file for group in groups for file in group]
    places = [next(i for i, file in enumerate(files) if file is one) for one in flat]
    assert places == sorted(places)
    for group in groups:
        assert len(group) > 1
        assert sum(file.bytes for file in group) <= 100
