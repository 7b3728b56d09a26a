"""A Spark session that penstock's source and sink are found in, tuned for one machine."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from importlib import resources
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from penstock.spark.java import find_java

LOCAL = "local[*]"
CONNECT = "sc://"
SHUFFLE_PARTITIONS_MAX = 8

# What every session gets, on whatever master.
EVERYWHERE = {
    # Times are instants; how they look must not depend on the machine.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # Without it, a reader that takes filters is refused.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.stopTimeout": "60000",
}
ON_ONE_MACHINE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Jobs of small batches spend their time on bookkeeping: as little of it as possible.
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "8",
    "spark.cleaner.periodicGC.interval": "10min",
}


def session(
    app: str = "penstock",
    *,
    master: str | None = None,
    conf: Mapping[str, Any] | None = None,
    ui: bool = False,
) -> SparkSession:
    """The process's session; started if there is none yet.

    On this machine's cores unless `master` names a cluster, or a server of Spark Connect by
    `sc://host:port`. `conf` goes over what is set here. Raises `JavaNotFound` if there is no
    Java 17 or 21.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        for name, value in (conf or {}).items():
            active.conf.set(name, str(value))
        return active
    where = master or os.environ.get("SPARK_MASTER") or LOCAL
    # It writes the whole Java stack of an error that is raised anyway.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    if where.startswith(CONNECT):
        return _connected(app, where, conf or {})
    prepare_environment(is_local=where.startswith("local"))
    builder = SparkSession.builder.appName(app).master(where)
    for name, value in configuration(where, ui=ui, conf=conf).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _connected(app: str, url: str, conf: Mapping[str, Any]) -> SparkSession:
    """Of a server, which has its own Java and its own Python."""
    builder = SparkSession.builder.appName(app).remote(url)
    for name, value in {**EVERYWHERE, **conf}.items():
        builder = builder.config(name, str(value))
    return builder.getOrCreate()


def configuration(
    master: str, *, ui: bool = False, conf: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """The settings of a session on this master."""
    cores = os.cpu_count() or 2
    values = {
        **EVERYWHERE,
        "spark.sql.shuffle.partitions": str(min(cores, SHUFFLE_PARTITIONS_MAX)),
    }
    if master.startswith("local"):
        log4j = resources.files("penstock.spark").joinpath("log4j2.properties")
        values |= {
            **ON_ONE_MACHINE,
            "spark.driver.memory": driver_memory(),
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j}",
        }
    if ui:
        values["spark.ui.enabled"] = "true"
    return values | {name: str(value) for name, value in (conf or {}).items()}


def prepare_environment(*, is_local: bool = True) -> None:
    """What the JVM and its Python processes take from the environment, before they start."""
    os.environ["JAVA_HOME"] = str(find_java())
    # Otherwise Spark runs the `python3` of the PATH, which need not have penstock at all.
    if is_local:
        os.environ["PYSPARK_PYTHON"] = worker_python()
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    else:
        # On a cluster the path is another, and whoever set it knows.
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            os.environ.setdefault(name, sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def worker_python() -> str:
    """This Python, without the half second that Spark's zipped copy of pyspark costs each start."""
    launcher = str(resources.files("penstock.spark").joinpath("worker-python"))
    installed = os.path.dirname(pyspark.__file__)
    is_installed = os.environ.get("SPARK_HOME", installed) == installed
    return launcher if is_installed and os.access(launcher, os.X_OK) else sys.executable


def driver_memory() -> str:
    """A quarter of the machine's, from 1 to 4 GB."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return "1g"
    return f"{min(4, max(1, total // 2**30 // 4))}g"
