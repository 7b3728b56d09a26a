"""A runner killed amid a batch: the next one goes on, and nothing is there twice (S8)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.ports.pipelines import PipelineStatus
from penstock.spark import run
from tests.factories import file_url, hub_on
from tests.spark.families import kill_with_children
from tests.spark.piper import copy, table
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(900)]

PIPER = Path(__file__).with_name("piper.py")
PATIENCE_SECONDS = 300.0
MESSAGES = 600
PIPELINES = {"copy": copy, "table": table}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[penstock.Hub]:
    with hub_on(tmp_path / "hub.db") as hub:
        hub.topics.publish_many("in", range(MESSAGES))
        yield hub


def start(complaints: Path, *arguments: object) -> subprocess.Popen[bytes]:
    with complaints.open("ab") as stderr:
        return subprocess.Popen(
            [sys.executable, str(PIPER), *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "PATH": "/usr/bin:/bin"},
            cwd=PIPER.parents[2],
        )


def check(
    spark: SparkSession, hub: penstock.Hub, name: str, folder: Path, count: int = MESSAGES
) -> None:
    """Every message is there once."""
    if name == "copy":
        found = [message.payload for message in hub.topics.read("out", limit=100_000)]
    else:
        rows = spark.read.parquet(f"{folder}/hub.db.lake/_tables/table").select("value")
        found = [row.value for row in rows.collect()]
    assert Counter(found) == Counter(range(count))


def status_of(hub: penstock.Hub, name: str) -> PipelineStatus | None:
    return next((one for one in hub.metrics().pipelines if one.name == name), None)


@pytest.mark.parametrize(
    ("name", "step"),
    [pytest.param("table", "staged", marks=pytest.mark.soak), ("copy", "written")],
)
def test_a_runner_killed_between_two_steps_loses_nothing_and_repeats_nothing(
    spark: SparkSession, hub: penstock.Hub, tmp_path: Path, name: str, step: str
) -> None:
    """Staged, and not in its place; or written, and not in the checkpoint."""
    url, mark, complaints = file_url(tmp_path / "hub.db"), tmp_path / "mark", tmp_path / "err"
    victim = start(complaints, url, name, step, mark)
    try:
        wait_until(
            lambda: mark.exists() or victim.poll() is not None, step, seconds=PATIENCE_SECONDS
        )
        assert victim.poll() is None, complaints.read_text()
        running = status_of(hub, name)
        assert running is not None
        assert running.is_running
    finally:
        kill_with_children(victim)
    lost = status_of(hub, name)
    assert lost is not None
    assert lost.state == "lost"
    assert f"pipeline {name}" in {c.name for c in hub.health().checks if c.status == "warning"}

    assert run(PIPELINES[name], url, spark=spark).state == "finished"
    check(spark, hub, name, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["copy", "table"])
def test_twenty_kills_at_random_instants(
    spark: SparkSession, hub: penstock.Hub, tmp_path: Path, name: str
) -> None:
    url, complaints = file_url(tmp_path / "hub.db"), tmp_path / "err"
    chance = random.Random(5)
    for number in range(20):
        before = status_of(hub, name)
        runs = 0 if before is None else before.runs
        victim = start(complaints, url, name)
        try:
            wait_until(
                lambda runs=runs: (found := status_of(hub, name)) and found.runs > runs,
                "it has begun",
                seconds=PATIENCE_SECONDS,
            )
            time.sleep(chance.uniform(0, 8))
        finally:
            kill_with_children(victim)
        # Some more, so that none of them is at the end.
        hub.topics.publish_many("in", range(MESSAGES + number * 100, MESSAGES + number * 100 + 100))
    run(PIPELINES[name], url, spark=spark)
    check(spark, hub, name, tmp_path, MESSAGES + 2_000)
