"""A real Spark driver killed amid a commit, and started again (S2)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import IO

import pytest

import penstock
from tests.spark.families import kill_with_children
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(600)]

DRIVER = Path(__file__).with_name("driver.py")
PATIENCE_SECONDS = 240.0
MESSAGES = 6000


def start(complaints: Path, *arguments: object) -> subprocess.Popen[bytes]:
    with complaints.open("wb") as stderr:
        return start_with(stderr, *arguments)


def start_with(stderr: IO[bytes], *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(DRIVER), *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        # An environment that is not activated: nothing of ours is on the PATH.
        env={**os.environ, "PATH": "/usr/bin:/bin"},
        cwd=DRIVER.parents[2],
    )


@pytest.mark.soak
@pytest.mark.parametrize("step", ["chunk 1"])
def test_a_driver_killed_amid_a_batch_loses_nothing_and_repeats_nothing(
    java_home: Path, hub: penstock.Hub, tmp_path: Path, step: str
) -> None:
    hub.topics.publish_many("in", range(MESSAGES))
    checkpoint, mark = tmp_path / "checkpoint", tmp_path / "mark"
    complaints = tmp_path / "complaints"
    victim = start(complaints, hub.url, checkpoint, step, mark)
    try:
        wait_until(
            lambda: mark.exists() or victim.poll() is not None,
            "the commit is at its second chunk",
            seconds=PATIENCE_SECONDS,
        )
        assert victim.poll() is None, complaints.read_text()
        written = hub.topics.stats("out").messages
        assert written == 2000, "two of three chunks"
    finally:
        kill_with_children(victim)

    heir = start(complaints, hub.url, checkpoint)
    assert heir.wait(PATIENCE_SECONDS) == 0, complaints.read_text()

    found = Counter(m.payload for m in hub.topics.read("out", limit=100_000))
    assert found == Counter(range(MESSAGES))
