"""One Spark session for all tests here: it takes longer to start than they take together."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import JavaNotFound
from penstock.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def java_home() -> Path:
    """Of a Java that Spark runs on. Skipped where there is none, except in CI."""
    try:
        return find_java()
    except JavaNotFound as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def connect_url() -> str:
    """Where the session's JVM serves Spark Connect, too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"sc://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(scope="session")
def spark(java_home: Path, connect_url: str) -> Iterator[SparkSession]:
    """Never stopped by a test."""
    from penstock.spark import session

    conf = {
        "spark.sql.shuffle.partitions": 2,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": connect_url.rpartition(":")[2],
    }
    # A second attempt at each task, as clusters make it.
    started = session("penstock tests", master="local[2,2]", conf=conf)
    yield started
    started.stop()
