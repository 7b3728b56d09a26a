"""An archive to be killed. Run as a script: URL [MARK [STEP]].

It writes a line into the mark for each step, and stands still at the one that is named, until
somebody kills it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from penstock.spark import session
from penstock.spark.options import settings_of
from penstock.spark.registry import find
from penstock.spark.running import Order, Runner


def main(url: str, mark: str = "", step: str = "") -> None:
    def on_step(name: str) -> None:
        if mark:
            with Path(mark).open("a") as file:
                file.write(f"{name}\n")
        if name == step:
            time.sleep(600)

    options = {"rows_per_batch": 500}
    with Runner(settings_of(url), session(master="local[2]"), on_step=on_step) as runner:
        status = runner.run(Order(find("archive"), options))
    print(status.rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
