"""Tables that pipelines write into the lake: a folder of Parquet, a folder in it for each batch.

A batch is written aside and then renamed to its place, so that it is there whole or not at all,
and once: a batch whose folder is there was written before.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidInput, SinkReused
from penstock.spark.checkpoints import hadoop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.runner import Run

FOLDER = "_tables"
STAGING = "_staging"
QUERY = "sql.streaming.queryId"
_TABLE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


def check_table(name: str) -> str:
    if not _TABLE.match(name):
        raise InvalidInput(
            f"{name!r} is no name for a table.", hint="Use letters, digits, '-', '_' and '.'."
        )
    return name


def table_of(lake: str, name: str) -> str:
    """Where a table is: `spark.read.parquet(table_of(lake, name))`."""
    return f"{lake}/{FOLDER}/{name}"


def write_batch(run: Run, name: str, batch: DataFrame, number: int, app: str | None = None) -> None:
    """Write a batch of this run's stream, or of a backfill under a name of its own, once."""
    query = batch.sparkSession.sparkContext.getLocalProperty(QUERY) if app is None else None
    writer = hashlib.blake2b((app or query or run.name).encode(), digest_size=4).hexdigest()
    folder = table_of(run.lake, name)
    files, root = hadoop(folder, batch.sparkSession)
    place = root.suffix(f"/batch={writer}-{number}")
    if files.exists(place):
        return
    if number == 0 and app is None:
        _refuse_strangers(files, root, run, name)
    staged = root.suffix(f"/{STAGING}/{writer}-{number}")
    batch.write.mode("overwrite").parquet(staged.toString())
    run.step("staged")
    if not files.rename(staged, place):
        raise SinkReused(f"The batch {number} of the table {name} cannot be put in its place.")
    run.step("written")


def _refuse_strangers(files: Any, root: Any, run: Run, name: str) -> None:
    """A stream that begins anew would write all it reads a second time."""
    if not files.exists(root):
        return
    if any(found.getPath().getName().startswith("batch=") for found in files.listStatus(root)):
        raise SinkReused(
            f"The table {name} was written by another run of {run.name}, whose checkpoint is gone.",
            hint=f"'penstock pipeline reset {run.name}' sets the table aside, too.",
        )


def read_lake(run: Run, topics: tuple[str, ...], *, value_format: str = "raw") -> DataFrame:
    """Messages of these topics between the run's times: from the lake, and from the log where
    they are not in the lake yet."""
    if not topics:
        raise InvalidInput(f"{run.name} reads events, and the lake has messages only.")
    # Imported here: most pipelines read no lake.
    from penstock.spark.lake import read_topic

    rows = read_topic(
        topics,
        url=run.url,
        spark=run.spark,
        since=run.since,
        until=run.until,
        value_format="json" if value_format == "json" else "raw",
        lake=run.lake,
    )
    return rows.drop("headers")
