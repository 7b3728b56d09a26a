"""Follows several pages in one process, one folder and one Spark session. Run as a script.

Reads a list of plans as JSON from standard input, as `tests.docs.walker` reads one, and says of
each, on a line of its own, whether the page told the truth.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path

from tests.docs.walker import walk


def main() -> None:
    folder = Path.cwd()
    answers = os.fdopen(os.dup(1), "w")
    for plan in json.load(sys.stdin):
        # The same folder for all: Spark's own processes stay where they were started.
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        complaint = io.StringIO()
        with contextlib.redirect_stderr(complaint):
            code = walk(plan)
        answer = {"page": plan["page"], "code": code, "complaint": complaint.getvalue()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
