"""The folders of checkpoints, on this machine or wherever Spark reaches: hdfs://, s3a://."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+:/")


def is_remote(place: str) -> bool:
    """Whether it takes Spark to look there."""
    return bool(_SCHEME.match(place)) and not place.startswith("file:/")


def is_used(place: str, spark: SparkSession | None = None) -> bool:
    """Whether a stream has begun there."""
    if not is_remote(place):
        offsets = local(place) / "offsets"
        return offsets.is_dir() and any(
            not entry.name.startswith(".") for entry in offsets.iterdir()
        )
    files, path = hadoop(place, spark)
    offsets = path.suffix("/offsets")
    return bool(files.exists(offsets) and len(files.listStatus(offsets)) > 0)


def set_aside(place: str, spark: SparkSession | None = None) -> str | None:
    """Rename it, with the time. Returns where it is now; None if there was nothing."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = f"{place.rstrip('/')}.{stamp}"
    if not is_remote(place):
        if not local(place).exists():
            return None
        local(place).rename(local(aside))
        return str(local(aside))
    files, path = hadoop(place, spark)
    if not files.exists(path):
        return None
    assert files.rename(path, path.suffix(f".{stamp}")), f"{place} cannot be renamed"
    return aside


def local(place: str) -> Path:
    return Path(unquote(urlsplit(place).path)) if place.startswith("file:/") else Path(place)


def hadoop(place: str, spark: SparkSession | None) -> tuple[Any, Any]:
    """The file system of a place as Spark's JVM knows it, and the path in it."""
    assert spark is not None, f"{place} is reached through Spark"
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    return path.getFileSystem(configuration), path
