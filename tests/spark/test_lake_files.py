"""Where messages go in the lake, and what a file's entry says of it (S3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.errors import InvalidTopic
from penstock.model import check_topic
from penstock.spark import lake_files
from penstock.spark.lake_files import (
    SCHEMA,
    Parquet,
    Place,
    digest_of,
    folder_of,
    folders_of,
    shared_folder_of,
    split,
)

BEGIN = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    base = {"value": b"1", "content_type": "application/json", "timestamp": BEGIN, "topic": "a"}
    schema = to_arrow_schema(SCHEMA, timezone="UTC")
    numbered = [{**base, "offset": number, **row} for number, row in enumerate(rows, 1)]
    return pa.RecordBatch.from_pylist(numbered, schema=schema)


def topics() -> st.SearchStrategy[str]:
    def is_topic(name: str) -> bool:
        try:
            check_topic(name)
        except InvalidTopic:
            return False
        return True

    return st.one_of(st.text(min_size=1, max_size=40), st.sampled_from(NASTY)).filter(is_topic)


NASTY = ["..", ".", "a/b", "a/../../b", "Orders", "orders", "~x", "+07", "a=b", "x" * 200, "con"]


@given(topics())
def test_no_byte_of_a_name_leads_out_of_its_folder(topic: str) -> None:
    for folder in folders_of(topic):
        assert set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-~+")
        assert folder.strip(".")
        assert len(folder) <= 64


@given(topics(), topics())
def test_two_topics_never_have_one_folder(one: str, other: str) -> None:
    assert (folder_of(one).lower() == folder_of(other).lower()) == (one == other)
    assert folder_of(one) not in {shared_folder_of(topic) for topic in (one, other)}


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "C", "d/e"]), st.integers(-3, 3)), max_size=30),
    st.booleans(),
)
def test_a_batch_is_split_into_its_folders_and_dates(
    places: list[tuple[str, int]], is_shared: bool
) -> None:
    rows = batch(
        [{"topic": topic, "timestamp": BEGIN + timedelta(days=day)} for topic, day in places]
    )
    find = shared_folder_of if is_shared else folder_of
    seen = set()
    found: list[dict[str, Any]] = []
    for folder, date, piece in split(rows, is_shared=is_shared):
        assert (folder, date) not in seen
        seen.add((folder, date))
        part = piece.to_pylist()
        assert part
        assert {find(row["topic"]) for row in part} == {folder}
        assert {row["timestamp"].strftime("%Y-%m-%d") for row in part} == {date}
        assert part == sorted(part, key=lambda row: row["offset"])
        found += part
    assert sorted(found, key=lambda row: row["offset"]) == rows.to_pylist()


def write(root: Path, *batches: pa.RecordBatch, is_shared: bool = False) -> list[Any]:
    writer = Parquet().open(Place(str(root), "messages/batch=q-0", "n", is_shared))
    for rows in batches:
        writer.add(rows)
    return writer.finish()


def test_a_file_is_described_without_being_opened(tmp_path: Path) -> None:
    later = BEGIN + timedelta(seconds=30)
    [file] = write(
        tmp_path,
        batch([{"offset": 5}, {"offset": 9, "value": b"{", "timestamp": later}]),
        batch([{"offset": 12, "value": b"x", "content_type": "application/octet-stream"}]),
    )

    path = tmp_path / file.path
    assert file.path == "messages/batch=q-0/topic=a/date=2026-01-31/n-0001.parquet"
    assert (file.rows, file.first_id, file.last_id, file.unparsable) == (3, 5, 12, 1)
    assert file.formats == {"application/json": 2, "application/octet-stream": 1}
    assert file.last_at - file.first_at == 30_000_000
    assert (file.bytes, file.digest) == (path.stat().st_size, digest_of(path))


def test_row_groups_are_large_however_small_the_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_files, "ROW_GROUP_ROWS", 10)
    [file] = write(tmp_path, *[batch([{"offset": 3 * n}] * 3) for n in range(9)])

    metadata = pq.read_metadata(tmp_path / file.path)
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert sizes == [12, 12, 3]


def test_what_waits_for_its_row_group_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_files, "WAITING_BYTES_MAX", 10_000)
    writer = lake_files.ParquetWriter(Place(str(tmp_path), "b", "n"), "zstd")
    for number in range(50):
        writer.add(batch([{"topic": f"t{number % 7}", "value": b'"' + b"x" * 3000 + b'"'}]))
        assert sum(file.waiting_bytes for file in writer._open.values()) <= 10_000

    assert sum(file.rows for file in writer.finish()) == 50


def test_very_many_files_are_not_open_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_files, "OPEN_MAX", 3)
    writer = lake_files.ParquetWriter(Place(str(tmp_path), "b", "n"), "zstd")
    for number in (1, 2, 3, 4, 5, 1, 5, 2):
        writer.add(batch([{"topic": f"t{number}"}]))
        assert len(writer._open) <= 3
    files = writer.finish()

    assert len({file.path for file in files}) == len(files) == 7
    assert sum(file.rows for file in files) == 8


def test_topics_that_share_a_file_lie_together_in_it(tmp_path: Path) -> None:
    topic = "t0"
    twins = [f"t{n}" for n in range(100) if shared_folder_of(f"t{n}") == shared_folder_of(topic)]
    rows = [{"topic": name} for _ in range(3) for name in twins]
    [file] = write(tmp_path, batch(rows), is_shared=True)

    assert len(twins) > 2
    found = pq.read_table(tmp_path / file.path, columns=["topic"]).column("topic").to_pylist()
    assert found == sorted(found)
    assert file.folder == shared_folder_of(topic)


def test_a_file_of_an_older_release_has_nulls_for_new_columns(tmp_path: Path) -> None:
    old = pa.table({"topic": ["a"], "offset": [1], "value": [b"1"]})
    pq.write_table(old, tmp_path / "old.parquet")

    [rows] = Parquet().rows(tmp_path / "old.parquet")

    assert rows.schema == to_arrow_schema(SCHEMA, timezone="UTC")
    assert rows.to_pylist()[0]["headers"] is None
    assert rows.to_pylist()[0]["offset"] == 1
