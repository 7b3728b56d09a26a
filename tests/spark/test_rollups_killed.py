"""A real Spark driver killed while it rolls up, and started again (S4)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.clock import SECOND
from penstock.spark.pipelines.rollups import PIPELINE
from penstock.spark.runner import Run
from penstock.testing import FakeClock
from tests.spark.families import kill_with_children
from tests.spark.rollup_world import NOON, World, fill
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(900)]

DRIVER = Path(__file__).with_name("rollups_driver.py")
PATIENCE_SECONDS = 240.0


@pytest.fixture
def world(open_hub: Callable[..., penstock.Hub]) -> World:
    clock = FakeClock(int(NOON.timestamp()) * SECOND)
    return World(open_hub(clock=clock, name="publisher", sweep_interval_seconds=1e6), clock)


@pytest.fixture
def start(world: World, tmp_path: Path) -> Callable[[str], subprocess.Popen[bytes]]:
    """A driver that is at a step, or has started its query."""

    def start(step: str) -> subprocess.Popen[bytes]:
        mark, complaints = tmp_path / "mark", tmp_path / "complaints"
        mark.unlink(missing_ok=True)
        with complaints.open("wb") as stderr:
            driver = subprocess.Popen(
                [sys.executable, str(DRIVER), world.hub.url, step, str(mark)],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd=DRIVER.parents[2],
                env={**os.environ, "PATH": "/usr/bin:/bin"},
            )
        try:
            wait_until(
                lambda: mark.exists() or driver.poll() is not None,
                "the driver is where it was to be",
                seconds=PATIENCE_SECONDS,
            )
            assert mark.exists(), complaints.read_text()
        except BaseException:
            kill_with_children(driver)
            raise
        return driver

    return start


Start = Callable[[str], "subprocess.Popen[bytes]"]


def check(world: World, spark: SparkSession) -> None:
    """The next run goes on where the last one was killed, and comes to what SQL says."""
    PIPELINE.run(Run(PIPELINE, spark, world.hub.settings))
    for resolution in ("minute", "hour", "day"):
        assert world.published(resolution) == world.truth(resolution), resolution


@pytest.mark.soak
@pytest.mark.parametrize("step", ["part written", "published", "compacted"])
def test_a_driver_killed_amid_a_batch_loses_nothing_and_counts_nothing_twice(
    world: World, start: Start, spark: SparkSession, step: str
) -> None:
    fill(world)

    kill_with_children(start(step))

    check(world, spark)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_twenty_kills_at_random_moments(world: World, start: Start, spark: SparkSession) -> None:
    chance, hit = random.Random(), 0
    for _ in range(20):
        fill(world)
        victim = start("")
        try:
            time.sleep(chance.uniform(0, 6))  # The moment is the point.
            hit += victim.poll() is None
        finally:
            kill_with_children(victim)

    check(world, spark)
    assert hit > 5, "most of them were still at work"
