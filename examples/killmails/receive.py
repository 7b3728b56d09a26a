"""Kills come in: `python -m examples.killmails.receive 1 2 3`, or `--count 30`."""

from __future__ import annotations

import argparse

from examples.killmails import jobs, show


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="*", help="their numbers")
    parser.add_argument("--count", type=int, default=0, help="or how many, from 1 up")
    options = parser.parse_args()
    numbers = options.kills or list(range(1, options.count + 1))
    with jobs.hub as hub:
        jobs.prepare()
        last = jobs.receive(numbers)
        print(f"{len(last)} new kills of {len(numbers)}", flush=True)
        if last:
            show.watch(hub, sum(job.type == "notify" for job in hub.jobs.list(limit=10_000)))
            print("done")


if __name__ == "__main__":
    main()
