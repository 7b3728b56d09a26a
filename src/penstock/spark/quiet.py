"""A session whose JVM says nothing on the terminal: its log is in a file beside the database."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.settings import Settings
from penstock.spark.runner import beside
from penstock.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGS_MAX = 10
"""Logs of earlier runs that are kept."""
STDERR = 2
CHATTY = ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j")
"""What pyspark itself logs here: errors that it also raises, whole stacks in one line."""


def started_quietly(
    settings: Settings,
    app: str,
    *,
    master: str | None = None,
    conf: Mapping[str, Any] | None = None,
    ui: bool = False,
    is_verbose: bool = False,
) -> tuple[SparkSession, str]:
    """The process's session, and the file with its log; empty if the log goes to the terminal."""
    if is_verbose:
        return session(app, master=master, conf=conf, ui=ui), ""
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    file = _new_log(Path(beside(settings, ".pipelines")) / "logs")
    with _said_to(file):
        return session(app, master=master, conf=conf, ui=ui), str(file)


def _new_log(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob("*.log"), key=lambda found: found.stat().st_mtime)[
        : -LOGS_MAX + 1
    ]:
        old.unlink(missing_ok=True)
    return folder / f"spark-{os.getpid()}.log"


@contextmanager
def _said_to(file: Path) -> Iterator[None]:
    """Programs that are started inside have the file as their standard error, for good."""
    sys.stderr.flush()
    before = os.dup(STDERR)
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.dup2(target, STDERR)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, STDERR)
        os.close(target)
        os.close(before)
