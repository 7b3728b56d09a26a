"""One Spark session for all tests here: it takes longer to start than they take together."""

from __future__ import annotations

import os
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
def spark(java_home: Path) -> Iterator[SparkSession]:
    """Never stopped by a test."""
    from penstock.spark import session

    started = session(
        "penstock tests", master="local[2,2]", conf={"spark.sql.shuffle.partitions": 2}
    )
    yield started
    started.stop()
