"""A runner of a pipeline, to be killed: from topic to topic, or into a table. Run as a script.

URL NAME STEP MARK: at the step of its second batch it writes the mark and stands still until
somebody kills it. Without a step it runs to the end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame

from penstock.spark import pipeline, session
from penstock.spark.options import settings_of
from penstock.spark.running import Order, Runner

LIMITS = {"maxOffsetsPerTrigger": 200}


@pipeline("copy", source="in", sink="topic:out", source_options=LIMITS)
def copy(messages: DataFrame) -> DataFrame:
    return messages.selectExpr("CAST(value AS STRING) AS value")


@pipeline("table", source="in", sink="lake:table", source_options=LIMITS)
def table(messages: DataFrame) -> DataFrame:
    return messages.selectExpr("CAST(CAST(value AS STRING) AS INT) AS value")


def main(url: str, wanted: str, step: str = "", mark: str = "") -> None:
    seen = 0

    def stand_still(name: str) -> None:
        nonlocal seen
        seen += name == step
        if name == step and seen == 2:
            Path(mark).write_text(name)
            time.sleep(600)

    spark = session("piper", master="local[2]", conf={"spark.sql.shuffle.partitions": 2})
    with Runner(settings_of(url), spark, on_step=stand_still) as runner:
        runner.run(Order({"copy": copy, "table": table}[wanted].pipeline))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
