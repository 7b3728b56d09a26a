"""`penstock lake …`: what is in the lake, whether it is whole, and keeping it in shape (S3)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import build
from tests.acceptance.terminal import Result
from tests.factories import file_url, hub_on
from tests.spark.lakes import archive, files_on_disk, lake_of, rows_in_lake, rows_in_log, store_of


class Terminal:
    """Commands in this process: each would import Spark anew in one of its own."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "hub.db"

    def run(self, *arguments: str) -> Result:
        done = CliRunner().invoke(build("lake"), ["--url", file_url(self.file), *arguments])
        return Result(done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


@pytest.fixture
def filled(terminal: Terminal) -> Path:
    path = terminal.file
    with hub_on(path) as hub:
        for number in range(3):
            hub.topics.publish_many("orders", range(number + 1))
            hub.topics.publish("users", b"bytes")
            archive(path, compact=False)
    return path


def test_an_empty_lake_says_how_to_begin(terminal: Terminal) -> None:
    with hub_on(terminal.file) as hub:
        hub.topics.publish("orders", 1)

    assert "penstock pipeline run archive" in terminal.run("lake", "show").out
    assert terminal.run("lake", "show", "--json").json["files"] == 0
    assert terminal.run("lake", "files").code == 0
    compacted = terminal.run("lake", "compact")
    assert compacted.code == 1
    assert "no lake" in compacted.err


def test_show_tells_what_is_in_it_and_how_far_it_is(terminal: Terminal, filled: Path) -> None:
    with hub_on(filled) as hub:
        hub.topics.publish_many("orders", range(5))

    shown = terminal.run("lake", "show", "--json").json

    assert (shown["files"], shown["rows"], shown["unparsable"]) == (6, 9, 0)
    assert shown["formats"] == {"application/json": 6, "application/octet-stream": 3}
    [coverage] = shown["coverage"]
    assert (coverage["subscription"], coverage["through"], coverage["behind"]) == ("*", 9, 5)
    assert coverage["is_held"] is True
    text = terminal.run("lake", "show").out
    assert "6 application/json" in text
    assert "1–2" in text, "the ids of the first batch"


def test_files_are_named_for_other_programs(terminal: Terminal, filled: Path) -> None:
    found = terminal.run("lake", "files", "orders", "--json").json

    assert [file["rows"] for file in found] == [1, 2, 3]
    assert all(Path(file["path"]).is_file() for file in found)
    assert len(terminal.run("lake", "files", "--json").json) == 6
    assert "no such files" in terminal.run("lake", "files", "nothing").out


def test_verify_finds_what_is_missing_or_damaged(terminal: Terminal, filled: Path) -> None:
    assert "all as they were written" in terminal.run("lake", "verify").out
    one, other, *_ = sorted(files_on_disk(filled))
    (lake_of(filled) / one).unlink()
    (lake_of(filled) / other).write_bytes(b"x")

    found = terminal.run("lake", "verify")

    assert found.code == 1
    assert one in found.out
    assert other in found.out
    assert "2 of 6 files" in found.err
    assert len(terminal.run("lake", "verify", "--json").json["wrong"]) == 2


def test_compact_merges_and_clean_removes_what_belongs_to_nobody(
    terminal: Terminal, filled: Path
) -> None:
    assert "Merged 0 files" in terminal.run("lake", "compact").out
    assert terminal.run("lake", "compact", "--everything", "--json").json == {
        "merged": 6,
        "made": 2,
        "removed": 0,
    }
    assert rows_in_lake(filled) == rows_in_log(filled)
    stray = lake_of(filled) / "messages/batch=x-0/topic=a/date=2026-01-31/x.parquet"
    stray.parent.mkdir(parents=True)
    stray.touch()
    assert terminal.run("lake", "clean", "--yes").out == "Removed 0 files.\n", "it is too young"
    os.utime(stray, (0, 0))

    asked = terminal.run("lake", "clean")
    assert asked.code == 1
    assert stray.exists()
    assert terminal.run("lake", "clean", "--yes").out == "Removed 1 file.\n"

    assert not stray.exists()
    assert rows_in_lake(filled) == rows_in_log(filled)


def test_release_lets_retention_go_on(terminal: Terminal, filled: Path) -> None:
    assert terminal.run("lake", "release").code == 1
    assert "1 subscription no longer" in terminal.run("lake", "release", "--yes").out

    with store_of(filled) as store:
        assert [found.is_held for found in store.lake.coverage()] == [False]


def test_a_lake_elsewhere_is_named(terminal: Terminal, filled: Path, tmp_path: Path) -> None:
    lake_of(filled).rename(tmp_path / "moved")

    assert terminal.run("lake", "verify").code == 1
    assert terminal.run("lake", "verify", "--lake", str(tmp_path / "moved")).code == 0
