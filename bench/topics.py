"""`python -m bench.topics`: what topics cost, held against their budgets."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from bench import fairness, growth, machine, memory, publish, race, report, wake
from bench.arena import Arena
from bench.figures import Budget, Figure, Key
from bench.process import ROOT
from bench.workload import PAYLOAD, SIZES, Sizes

DEFAULT_FOLDER = ROOT / ".bench"

Measurement = Callable[[Arena, Sizes, set[str]], Iterator[Figure]]


@dataclass(frozen=True)
class Subject:
    """Keys that one measurement answers."""

    measure: Measurement
    keys: tuple[Key, ...]


SUBJECTS = (
    Subject(
        race.against_redis,
        (
            Key(
                "publish_inflight100_per_s",
                Budget(at_least=100_000),
                "100 tasks of one event loop, each awaiting its own `hub.aio.topics.publish` of "
                "250 bytes of JSON in a loop; acknowledged means fsynced.",
            ),
            Key(
                "redis_always_per_s",
                None,
                "Redis with `appendonly yes` and `appendfsync always` on the same disk, redis-py's "
                "asyncio client with hiredis, 50 tasks each awaiting its own XADD of the same "
                "payload.",
            ),
            Key(
                "bare_group_commit_per_s",
                None,
                "The floor: 100 tasks awaiting one thread that inserts an id, a number and 250 "
                "bytes, and commits, through bare apsw; the same disk and durability.",
            ),
            Key(
                "bare_publish_per_s",
                None,
                "The same with what a publish cannot do without: JSON encoded, the turnstile, the "
                "log's end, penstock's table and index, the topic's counts, a receipt, the bell.",
            ),
            Key(
                "ratio_publish_vs_redis_always",
                Budget(at_least=8),
                "The first over the second, run by run.",
            ),
        ),
    ),
    Subject(
        publish.bulk,
        (
            Key(
                "ratio_bulk_vs_raw_sqlite",
                Budget(at_least=0.7),
                "`publish_many` of 100 dicts at a time, each batch on disk before the next, over "
                "bare apsw that encodes them likewise and calls `executemany` for 100 rows a "
                "transaction, into penstock's own table, with the same columns and index; both "
                "WAL, `synchronous=FULL`.",
            ),
            Key(
                "ratio_bulk_vs_minimal_table",
                None,
                "The same, over bare apsw into a table of five columns and one index.",
            ),
        ),
    ),
    Subject(
        publish.beside_retention,
        (
            Key(
                "publish_steady_vs_burst",
                Budget(at_least=0.55),
                "Ten times the retained number of messages published with 100 in flight while "
                "retention (`messages_max`) sweeps, over the same without retention; void if the "
                "topic grows beyond twice its retained size.",
            ),
        ),
    ),
    Subject(
        wake.to_another_process,
        (
            Key(
                "wake_p50_ms",
                Budget(at_most=0.15),
                "From the end of COMMIT in the publishing process, stamped by SQLite's trace, to "
                "the callback of `hub.topics.listen` in another process; pauses of 0.2 to 1 ms "
                "between messages, each published and fsynced by itself.",
            ),
            Key("wake_p99_ms", Budget(at_most=3), "The same messages, 99th percentile."),
            Key(
                "publish_to_subscriber_p50_ms",
                None,
                "The same messages, from the call of publish(): encoding, group commit, fsync, "
                "bell, read and hand-over.",
            ),
            Key(
                "wake_p50_ms_at_1_to_5_ms",
                None,
                "As wake_p50_ms, with pauses of 1 to 5 ms between messages.",
            ),
            Key(
                "wake_idle_p50_ms",
                None,
                "As wake_p50_ms, with pauses of 10 to 20 ms between messages.",
            ),
        ),
    ),
    Subject(
        wake.against_polling,
        (
            Key(
                "ratio_wake_vs_poll_50ms",
                Budget(at_least=100),
                "Median delay after the commit of a bare apsw reader that looks every 50 ms, over "
                "that of a subscription, both in processes of their own on the same file.",
            ),
        ),
    ),
    Subject(
        fairness.light_writer,
        (
            Key(
                "light_writer_p99_ms",
                Budget(at_most=10),
                "Duration of publish() in a process that publishes one message every 10 ms, beside "
                "a process with 128 publishes in flight on the same file.",
            ),
            Key(
                "light_writer_p99_ms_without_turnstile",
                None,
                "The same with bare apsw and SQLite's busy handler, transactions of 1 beside "
                "transactions of 100 rows.",
            ),
        ),
    ),
    Subject(
        growth.by_length_of_log,
        (
            Key(
                "growth_publish_1m_vs_1k",
                Budget(at_most=1.5),
                "Time per publish into a log of 1,000,000 messages over that into one of 1,000, in "
                "short bursts with 100 in flight, and one by one; the worse of the two.",
            ),
        ),
    ),
    Subject(
        wake.by_number_of_topics,
        (
            Key(
                "growth_wake_10k_topics_vs_10",
                Budget(at_most=1.5),
                "wake_p50_ms with 10,000 topics over that with 10, for a subscription to one topic "
                "and to a glob over all; the worse of the two.",
            ),
        ),
    ),
    Subject(
        memory.of_a_hub,
        (
            Key(
                "rss_overhead_mb",
                Budget(at_most=10),
                "Resident memory of a process that published 100,000 messages with 100 in flight "
                "and followed them as a named consumer, less what it was after importing penstock.",
            ),
        ),
    ),
)
KEYS = tuple(key for subject in SUBJECTS for key in subject.keys)


def run(
    arena: Arena,
    sizes: Sizes,
    wanted: set[str],
    begin: Callable[[str], object] = lambda names: None,
) -> dict[str, Figure]:
    """Measure what is wanted. `begin` is told the keys that come next."""
    figures: dict[str, Figure] = {}
    for subject in SUBJECTS:
        names = [key.name for key in subject.keys if key.name in wanted]
        if names:
            begin(", ".join(names))
            found = subject.measure(arena, sizes, set(names))
            figures |= {figure.key: figure for figure in found if figure.key in wanted}
    return figures


def context(arena: Arena, size: str, sizes: Sizes) -> dict[str, Any]:
    """What the figures belong to. Taken before measuring: it notes the load."""
    return {
        "machine": machine.describe(arena.filesystem),
        "versions": machine.versions(),
        "settings": {
            **machine.defaults(),
            "event_loop": "asyncio",
            "payload_bytes": len(msgspec.json.encode(PAYLOAD)),
            "size": size,
            "sizes": sizes.as_settings(),
        },
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those that every benchmark has."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="small sizes and one run of each")
    parser.add_argument("--size", choices=list(SIZES), default="full", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a budget is missed")
    parser.add_argument(
        "--dir",
        type=Path,
        default=DEFAULT_FOLDER,
        metavar="FOLDER",
        help="where databases are made, on a real disk (default: .bench here)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.topics", description=__doc__)
    add_arguments(parser)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[key.name for key in KEYS],
        metavar="KEY",
        help="measure only these keys: " + ", ".join(key.name for key in KEYS),
    )
    options = parser.parse_args(arguments)
    size = "quick" if options.quick else options.size
    sizes = SIZES[size]
    arena = Arena(options.dir, needs_disk=size != "tiny")
    about = context(arena, size, sizes)
    with Console(stderr=True).status("Measuring …") as status:
        figures = run(
            arena,
            sizes,
            set(options.only or (key.name for key in KEYS)),
            lambda names: status.update(f"Measuring {names} …"),
        )
    if options.json:
        print(report.as_json(KEYS, figures, about))
    else:
        report.print_table(Console(), KEYS, figures)
    return 1 if options.check and report.missed(KEYS, figures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
