"""The source and the sink over Spark Connect: they live on the server (S1, S2, S9)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("connected.py")
PATIENCE_SECONDS = 400.0


def test_source_and_sink_work_over_spark_connect(
    spark: SparkSession, connect_url: str, hub: penstock.Hub, tmp_path: Path
) -> None:
    """From a process of its own: one process has either kind of session."""
    pytest.importorskip("grpc_status", reason="needs pyspark[connect]")
    hub.topics.publish_many("in", range(100))
    done = subprocess.run(
        [sys.executable, str(PROGRAM), connect_url, hub.url, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    assert "read 100" in done.stdout
    for topic in ("batch", "stream"):
        found = [message.payload for message in hub.topics.read(topic, limit=1000)]
        assert sorted(found) == list(range(100))
