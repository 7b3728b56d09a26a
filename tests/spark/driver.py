"""A Spark driver to be killed: a stream from topic to topic. Run as a script.

URL CHECKPOINT STEP MARK: at the step of the sink's commit it writes the mark and stands still,
until somebody kills it. Without a step it runs to the end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from penstock.spark import session
from penstock.spark.options import parse_sink
from penstock.spark.sink import StreamWriter
from pyspark_penstock import DefaultSource


class Trapped(DefaultSource):
    """The sink as it is, told to stand still at a step."""

    @classmethod
    def name(cls) -> str:
        return "trapped"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        options = dict(self.options)
        step, mark = options.pop("step"), options.pop("mark")

        def stand_still(name: str) -> None:
            if name == step:
                Path(mark).write_text(name)
                time.sleep(600)

        return StreamWriter(parse_sink(options), on_step=stand_still)


def main(url: str, checkpoint: str, step: str = "", mark: str = "") -> None:
    spark = session("victim" if step else "heir", master="local[2]")
    spark.dataSource.register(Trapped)
    rows = (
        spark.readStream.format("penstock")
        .options(url=url, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=2500)
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
    )
    sink = rows.writeStream.format("trapped" if step else "penstock")
    if step:
        sink = sink.options(step=step, mark=mark)
    query = (
        sink.options(url=url, topic="out", maxRowsPerTransaction=1000, maxInlineBytes=0)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
