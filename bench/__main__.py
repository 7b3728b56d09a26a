"""`python -m bench`: measures everything, prints it, and writes RESULTS.md.

With `--quick` or `--json`, nothing is written: those are for looking, not for the record.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench import fanout, jobs, ledger, load, mailboxes, queues, report, spark, topics
from bench.arena import Arena
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
    options = parser.parse_args(arguments)
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
            now = datetime.now(UTC)
            RESULTS.write_text(report.as_markdown(SECTIONS, figures, about, now), encoding="utf-8")
    return 1 if options.check and report.missed(keys, figures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
