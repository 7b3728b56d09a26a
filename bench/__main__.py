"""`python -m bench`: measures everything, prints it, and writes RESULTS.md.

With `--quick` or `--json`, nothing is written: those are for looking, not for the record. With
`--from`, RESULTS.md is written from what the sections have printed with `--json`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import fanout, jobs, ledger, load, mailboxes, queues, report, spark, topics
from bench.arena import Arena
from bench.figures import Figure
from bench.workload import SIZES

RESULTS = Path(__file__).with_name("RESULTS.md")
SECTIONS = (
    ("Topics", "python -m bench.topics", topics.KEYS),
    ("Load", "python -m bench.load", load.KEYS),
    ("Fan-out", "python -m bench.fanout", fanout.KEYS),
    ("Jobs", "python -m bench.jobs", jobs.KEYS),
    ("Ledger", "python -m bench.ledger", ledger.KEYS),
    ("Mailboxes", "python -m bench.mailboxes", mailboxes.KEYS),
    ("Spark", "python -m bench.spark", spark.KEYS),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    topics.add_arguments(parser)
    parser.add_argument(
        "--from",
        nargs="+",
        type=Path,
        default=[],
        dest="measured",
        metavar="FILE",
        help="measure nothing: put together what sections have printed with --json",
    )
    options = parser.parse_args(arguments)
    if options.measured:
        found = [json.loads(path.read_text(encoding="utf-8")) for path in options.measured]
        write(*report.read(found))
        return 0
    size = "quick" if options.quick else options.size
    arena = Arena(options.dir, needs_disk=size != "tiny")
    keys = [key for _, _, keys in SECTIONS for key in keys]
    about = topics.context(arena, size, SIZES[size])
    about["settings"] |= {"seconds": load.SECONDS[size], **fanout.settings(size)}
    for section in (jobs, ledger, mailboxes, spark):
        about["settings"] |= section.settings(size)
    with Console(stderr=True).status("Measuring …") as status:

        def begin(what: str) -> None:
            status.update(f"Measuring {what} …")

        figures = topics.run(arena, SIZES[size], {key.name for key in topics.KEYS}, begin)
        figures |= load.run(arena, load.SECONDS[size], begin)
        figures |= fanout.run(arena, fanout.FAN_SIZES[size], begin)
        wanted = {key.name for key in jobs.KEYS}
        figures |= jobs.run(arena, jobs.JOB_SIZES[size], wanted, begin)
        figures |= ledger.run(arena, ledger.LEDGER_SIZES[size], begin)
        figures |= mailboxes.run(arena, mailboxes.MAILBOX_SIZES[size], begin)
        figures |= spark.run(arena, spark.SPARK_SIZES[size], begin)
    about["peers"] = queues.as_object(figures)
    if options.json:
        print(report.as_json(keys, figures, about))
    else:
        report.print_table(Console(), keys, figures)
        if size == "full":
            write(figures, about)
    return 1 if options.check and report.missed(keys, figures) else 0


def write(figures: Mapping[str, Figure], about: Mapping[str, Any]) -> None:
    sections = [section for section in SECTIONS if any(key.name in figures for key in section[2])]
    text = report.as_markdown(sections, figures, about, datetime.now(UTC))
    RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
