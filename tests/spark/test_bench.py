"""The benchmark of Spark measures what it says. How fast is never asserted here."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from bench import spark as bench
from bench.arena import Arena
from bench.figures import Figure
from tests.factories import file_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ISSUED = {
    "source_rows_per_s",
    "ratio_source_vs_bare_scan",
    "archive_rows_per_s",
    "ratio_archive_vs_parquet_copy",
    "empty_batch_ms",
    "sink_rows_per_s",
    "growth_batch_10m_vs_100k_rows",
    "peak_rss_mb_10m",
}


class Here:
    """The measuring process's link, for one that is this process."""

    def __init__(self) -> None:
        self.stopping = threading.Event()

    def ready(self) -> None: ...
    def wait_go(self) -> None: ...
    def watch(self) -> None: ...


def call_here(target: str, folder: Path, **arguments: Any) -> dict[str, Any]:
    """In this process, so that all of it uses the one session."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        found: dict[str, Any] = getattr(bench, target.partition(":")[2])(Here(), **arguments)
        return found
    finally:
        os.chdir(before)


def test_every_key_of_the_issue_is_measured() -> None:
    assert {key.name for key in bench.KEYS} >= ISSUED
    assert {key.name for key in bench.KEYS if key.budget is not None} == {
        "ratio_source_vs_bare_scan",
        "ratio_archive_vs_parquet_copy",
        "growth_batch_10m_vs_100k_rows",
    }


@pytest.mark.soak
@pytest.mark.parametrize(
    "measure", [bench.reading, bench.archiving, bench.streaming, bench.growing]
)
def test_a_measurement_gives_its_figures(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure: Any
) -> None:
    monkeypatch.setattr(bench, "call", call_here)
    figures: list[Figure] = list(
        measure(Arena(tmp_path, needs_disk=False), bench.SPARK_SIZES["tiny"])
    )

    assert figures
    known = {key.name for key in bench.KEYS}
    for figure in figures:
        assert figure.key in known
        assert 0 < figure.low <= figure.value <= figure.high
        assert figure.note


def test_writing_is_measured_while_another_process_publishes(
    spark: SparkSession, tmp_path: Path
) -> None:
    call_here("bench.spark:fill", tmp_path, rows=1)
    found = call_here("bench.spark:write", tmp_path, rows=2_000)

    assert found["per_second"] > 0
    with penstock.connect(file_url(tmp_path / bench.DATABASE)) as hub:
        assert hub.topics.stats("out").messages == 3_000
