"""Rows between a task and the commit: whole or absent, and told from damaged ones (S2)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StagingDamaged
from penstock.spark import staging
from penstock.spark.staging import Part, Stage

SCHEMA = pa.schema([("n", pa.int64())])


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA)


def staged(folder: Path, *batches: pa.RecordBatch, inline: int = 0) -> Part:
    with Stage(folder, SCHEMA, inline_bytes_max=inline) as stage:
        for one in batches:
            stage.add(one)
        return stage.finish()


def numbers(folder: Path, *parts: Part, rows: int = 100, skip: int = 0) -> list[list[int]]:
    chunks = staging.chunks(folder, parts, rows=rows, skip=skip)
    return [chunk.column(0).to_pylist() for chunk in chunks]


def test_small_parts_travel_and_leave_no_file(tmp_path: Path) -> None:
    part = staged(tmp_path / "s", batch(1, 2), batch(3), inline=1000)

    assert (part.rows, part.file) == (3, None)
    assert numbers(tmp_path / "s", part) == [[1, 2, 3]]
    assert not (tmp_path / "s").exists()


def test_large_parts_are_files(tmp_path: Path) -> None:
    part = staged(tmp_path / "s", batch(1, 2), batch(3))

    assert (part.rows, part.data) == (3, None)
    assert [path.name for path in (tmp_path / "s").iterdir()] == [part.file]
    staging.check(tmp_path / "s", [part])
    assert numbers(tmp_path / "s", part) == [[1, 2, 3]]


def test_no_rows_are_a_part_as_well(tmp_path: Path) -> None:
    part = staged(tmp_path)

    assert (part.rows, numbers(tmp_path, part)) == (0, [])


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with Stage(tmp_path, SCHEMA, inline_bytes_max=0) as stage:
            stage.add(batch(1))
            assert len(list(tmp_path.iterdir())) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert list(tmp_path.iterdir()) == []


@given(
    sizes=st.lists(st.lists(st.integers(0, 7), max_size=3), max_size=4),
    rows=st.integers(1, 9),
    skip=st.integers(0, 4),
)
def test_chunks_are_the_rows_in_order_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], rows: int, skip: int
) -> None:
    folder = tmp_path_factory.mktemp("staged")
    count = iter(range(1000))
    parts = [
        staged(
            folder,
            *(batch(*(next(count) for _ in range(size))) for size in part),
            inline=place % 2 * 1000,
        )
        for place, part in enumerate(sizes)
    ]
    everything = list(range(next(count)))
    expected = [everything[first : first + rows] for first in range(0, len(everything), rows)]

    assert numbers(folder, *parts, rows=rows, skip=skip) == expected[skip:]
    assert sum(part.rows for part in parts) == len(everything)


def test_a_part_is_put_into_a_file_once(tmp_path: Path) -> None:
    inline = staged(tmp_path, batch(1), inline=1000)
    put = staging.put(tmp_path, inline)

    assert (put.rows, put.digest, put.data) == (1, inline.digest, None)
    assert staging.put(tmp_path, put) == put
    staging.check(tmp_path, [put])


@pytest.mark.parametrize("damage", ["missing", "changed", "cut", "emptied"])
def test_a_damaged_file_is_found_before_it_is_read(tmp_path: Path, damage: str) -> None:
    part = staged(tmp_path, batch(*range(100)))
    path = tmp_path / str(part.file)
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "changed":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[:100] if damage == "cut" else b"")

    with pytest.raises(StagingDamaged):
        staging.check(tmp_path, [part])


def test_old_orphans_are_swept_and_nothing_else(tmp_path: Path) -> None:
    old = [staged(tmp_path, batch(n)) for n in range(3)]
    young = staged(tmp_path, batch(9))
    foreign = tmp_path / "notes.txt"
    foreign.write_text("mine")
    (tmp_path / "left.part").write_bytes(b"half")
    for name in (*(str(part.file) for part in old), "notes.txt", "left.part"):
        os.utime(tmp_path / name, (time.time() - 10_000,) * 2)

    planned = {str(old[0].file)}
    assert staging.sweep(tmp_path, lambda: planned, older_than_seconds=5_000) == 3

    assert {path.name for path in tmp_path.iterdir()} == {
        *planned,
        str(young.file),
        "notes.txt",
    }
    assert staging.sweep(tmp_path / "never", lambda: ()) == 0


def test_the_folder_is_beside_the_database(tmp_path: Path) -> None:
    assert staging.folder_of("sqlite:////data/hub.db") == Path("/data/hub.db-staging")
    assert staging.folder_of("sqlite:////data/hub.db", str(tmp_path)) == tmp_path
