"""Roll-ups to be killed. Run as a script: URL [STEP MARK].

At the step it writes the mark and stands still, until somebody kills it. Without a step it says
so in the mark, if there is one, when the query has started, and runs to the end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from penstock.spark import session
from penstock.spark.options import settings_of
from penstock.spark.registry import find
from penstock.spark.running import Order, Runner


def main(url: str, step: str = "", mark: str = "") -> None:
    def on_step(name: str) -> None:
        if name == step:
            Path(mark).write_text(name)
            time.sleep(600)
        elif name == "start" and mark:
            Path(mark).write_text(name)

    options = {"max_offsets_per_trigger": 50, "compact": 1}
    with Runner(settings_of(url), session(master="local[2]"), on_step=on_step) as runner:
        runner.run(Order(find("rollups"), options))


if __name__ == "__main__":
    main(*sys.argv[1:])
