"""`python -m bench.jobs`: what jobs cost, held against their budgets and against other queues."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from bench import drain, queues, report
from bench.arena import Arena
from bench.drain import BULK_BATCH, CONCURRENCY, IDLE_PAUSE_MS
from bench.figures import Budget, Figure, Key
from bench.queues import PEERS, TUNED
from bench.topics import add_arguments, context
from bench.workload import SIZES


@dataclass(frozen=True)
class Sizes:
    """How much each measurement does."""

    runs: int
    seconds: float
    """Of one run of enqueueing."""
    warm_up_seconds: float
    drain_jobs: int
    peer_jobs: int
    """That others drain: fewer, so that a run of the slowest takes seconds."""
    bulk_jobs: int
    idle_jobs: int
    growth_small: int
    growth_large: int
    bursts: int


JOB_SIZES = {
    "full": Sizes(3, 3.0, 0.5, 100_000, 5_000, 200_000, 300, 1_000, 1_000_000, 9),
    "quick": Sizes(1, 1.0, 0.2, 20_000, 1_000, 50_000, 60, 1_000, 100_000, 5),
    "tiny": Sizes(1, 0.05, 0.01, 200, 20, 2_000, 5, 10, 1_000, 1),
}


@dataclass(frozen=True)
class Subject:
    """Keys that one measurement answers."""

    measure: Callable[[Arena, Sizes, set[str]], Iterator[Figure]]
    keys: tuple[Key, ...]


def _peers(what: str, verb: str) -> tuple[Key, ...]:
    return tuple(Key(peer.key(what), None, f"The same, {verb}: {peer.how}.") for peer in PEERS)


SUBJECTS = (
    Subject(
        queues.draining,
        (
            Key(
                "drain_per_s",
                None,
                f"One worker process with {CONCURRENCY} slots works off a filled queue of jobs of "
                "250 bytes of JSON; the handler is a coroutine that does nothing. Every answer is "
                "fsynced (`durability` full), and with it the starts that it makes room for.",
            ),
            Key(
                "drain_os_per_s",
                None,
                "The same with `durability` os: written, and synced by the operating system.",
            ),
            *_peers("drain", "with 5,000 jobs in the queue, from the first to the last"),
            Key(
                "ratio_drain_vs_best_peer",
                Budget(at_least=15),
                "`drain_per_s` over the fastest of these, run by run.",
            ),
            *(
                Key(
                    f"{name}_tuned_drain_per_s",
                    None,
                    f"As {name} above with {how}: named by its docs, not advised by them, and so "
                    "not in the ratio.",
                )
                for name, how in TUNED.items()
            ),
        ),
    ),
    Subject(
        queues.enqueueing,
        (
            Key(
                "enqueue_inflight100_per_s",
                None,
                "100 tasks of one event loop, each awaiting its own `hub.aio.jobs.enqueue` in a "
                "loop; acknowledged means fsynced.",
            ),
            *_peers("enqueue", "enqueued as shipped, coroutines with 100 in flight too"),
            Key(
                "ratio_enqueue_vs_best_peer",
                Budget(at_least=3),
                "The first over the fastest of these, ours fsynced, theirs as shipped.",
            ),
        ),
    ),
    Subject(
        drain.bulk,
        (
            Key(
                "enqueue_many_per_s",
                None,
                f"`hub.jobs.enqueue_many` of {BULK_BATCH:,} payloads at a time, each batch on disk "
                "before the next.",
            ),
        ),
    ),
    Subject(
        drain.when_idle,
        (
            Key(
                "idle_start_p50_ms",
                Budget(at_most=2),
                "From the call of `hub.jobs.enqueue` in one process to the first line of the "
                "handler in another, with the enqueueing on disk and the start written: it is "
                "synced with the answer, as no power loss that takes it leaves the worker. One job "
                f"at a time, with pauses of {IDLE_PAUSE_MS[0]:.0f} to {IDLE_PAUSE_MS[1]:.0f} ms.",
            ),
        ),
    ),
    Subject(
        drain.growth,
        (
            Key(
                "growth_claim_1m_vs_1k",
                Budget(at_most=1.5),
                "Time per job of claiming, starting and completing in transactions of "
                f"{CONCURRENCY}, beside 1,000,000 jobs over beside 1,000; the worst of a million "
                "ready, a million finished and a million scheduled ones.",
            ),
        ),
    ),
    Subject(
        drain.two_workers,
        (
            Key(
                "two_workers_speedup",
                None,
                "Two worker processes on one file over one, each with 100 slots.",
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
        names = {key.name for key in subject.keys} & wanted
        if names:
            begin(subject.keys[0].name)
            found = subject.measure(arena, sizes, names)
            figures |= {figure.key: figure for figure in found if figure.key in wanted}
    return figures


def settings(size: str) -> dict[str, Any]:
    """What the figures were made with."""
    return {"jobs": asdict(JOB_SIZES[size]) | {"concurrency": CONCURRENCY}}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.jobs", description=__doc__)
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
    arena = Arena(options.dir, needs_disk=size != "tiny")
    about = context(arena, size, SIZES[size])
    about["settings"] |= settings(size)
    with Console(stderr=True).status("Measuring …") as status:
        figures = run(
            arena,
            JOB_SIZES[size],
            set(options.only or (key.name for key in KEYS)),
            lambda what: status.update(f"Measuring {what} …"),
        )
    about["peers"] = queues.as_object(figures)
    if options.json:
        print(report.as_json(KEYS, figures, about))
    else:
        report.print_table(Console(), KEYS, figures)
    return 1 if options.check and report.missed(KEYS, figures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
