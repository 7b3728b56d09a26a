"""A client of Spark Connect that uses source and sink. Run as a script: SERVER URL FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.spark import session


def main(server: str, url: str, folder: str) -> None:
    spark = session(master=server)
    assert "connect" in type(spark).__module__
    rows = spark.read.format("penstock").options(url=url, subscribe="in").load()
    print("read", rows.count(), flush=True)
    values = rows.selectExpr("CAST(value AS STRING) AS value")
    options = {"url": url, "topic": "batch", "txnAppId": "connect", "txnVersion": 1}
    for _ in range(2):
        values.write.format("penstock").mode("append").options(**options).save()
        query = (
            spark.readStream.format("penstock")
            .options(url=url, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=40)
            .load()
            .selectExpr("CAST(value AS STRING) AS value")
            .writeStream.format("penstock")
            .options(url=url, topic="stream", checkpointLocation=str(Path(folder) / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
