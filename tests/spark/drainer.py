"""A driver that drains a queue on a cluster of two executors. Run as a script.

URL: prints lines of JSON: the application, each report, the end. The handlers are here, too.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import penstock

hub = penstock.connect("memory:")


@hub.job(queue="q")
def work(n: int) -> int:
    time.sleep(0.0005)
    return n + 1


def main(url: str) -> None:
    from penstock.spark import run, session
    from penstock.spark.runner import Report

    sys.path.insert(0, str(Path(__file__).parent))
    spark = session(
        "drainer", master="local-cluster[2,1,1024]", conf={"spark.executor.memory": "512m"}
    )
    print(json.dumps({"application": spark.sparkContext.applicationId}), flush=True)

    def tell(report: Report) -> None:
        print(json.dumps({"rows": report.rows, "lag": report.lag}), flush=True)

    started = time.monotonic()
    status = run("drain", url, spark=spark, app="drainer:hub", on_report=tell)
    took = time.monotonic() - started
    print(json.dumps({"state": status.state, "rows": status.rows, "seconds": took}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
