"""`python -m bench.mailboxes`: what a mailbox costs, held against its budgets."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import penstock
from bench import report
from bench.arena import Arena
from bench.figures import Budget, Figure, Key, show
from bench.memory import status
from bench.process import Link, Meter, call
from bench.topics import add_arguments, context
from bench.workload import SIZES, url

PRODUCERS = 64
BODY = bytes(range(256))
DRAIN_AT = 120
"""Below the quota that is shipped: boxes are emptied between two bursts."""


@dataclass(frozen=True)
class Sizes:
    """How much each measurement does."""

    runs: int
    pairs: int
    """Runs of what is held against a sync each: a disk's pace and a processor's change apart."""
    bursts: int
    sync_each: int
    many: int
    """Boxes of the measurement over many of them."""
    boxes: int
    """Boxes of the measurements of memory, growth and recovery."""
    writes: int


MAILBOX_SIZES = {
    "full": Sizes(3, 15, 5, 2_000, 10_000, 100_000, 20_000),
    "quick": Sizes(1, 1, 2, 500, 2_000, 10_000, 5_000),
    "tiny": Sizes(1, 1, 1, 20, 70, 200, 200),
}

KEYS = (
    Key(
        "put_durable_64_producers_per_s",
        None,
        "64 tasks of one event loop, each awaiting its own `put` of 256 bytes in a loop, into a "
        "box each; answered means fsynced.",
    ),
    Key(
        "put_durable_one_box_per_s",
        None,
        "The same, all into one box, whose quota is raised for this.",
    ),
    Key(
        "put_durable_many_boxes_per_s",
        None,
        "The same, over 10,000 boxes in turn, which have a message each already.",
    ),
    Key(
        "bare_group_put_per_s",
        None,
        "The floor: 64 tasks awaiting one thread that writes as many bytes to a file for each, "
        "and to a log that it syncs; no ids, checksums, locks or quota.",
    ),
    Key(
        "bare_durable_put_per_s",
        None,
        "The floor of shared boxes: the same with what they cannot do without: mutex, one lock on "
        "all, look at the others, ids, records and log entries with checksums, a note where each "
        "is, receipts; no folders, rotation, quota, options, counts.",
    ),
    Key(
        "ratio_vs_fdatasync_each",
        Budget(at_least=10),
        "The first, over a loop that writes the same bytes to 64 files in turn and calls "
        "`fdatasync` after each, in the same run.",
    ),
    Key(
        "first_put_new_box_per_s",
        None,
        "64 tasks, each `put` into a box that is not there yet: a folder and a file come to be.",
    ),
    Key(
        "put_os_per_s",
        None,
        "`put` with mailbox_durability='os' into 64 boxes in turn, in one thread.",
    ),
    Key(
        "bare_put_per_s",
        None,
        "The floor: one function that does what a put into a box shared by threads and processes "
        "cannot do without: mutex, lock, look at the others, id, record with checksums, "
        "`os.pwrite`, a note where it is, receipt; no folders, rotation, quota, options, counts.",
    ),
    Key(
        "ratio_vs_bare_pwrite",
        Budget(at_least=0.2),
        "That, over a loop of `os.pwrite` of as many bytes as a record has, to 64 files in turn.",
    ),
    Key("ack_per_s", None, "`peek` and `ack`, one message after the other, in one thread."),
    Key(
        "rss_mb_100k_boxes",
        Budget(at_most=150),
        "What resident memory grows by while 100,000 boxes get a message each and are peeked at.",
    ),
    Key("open_files_max", None, "Descriptors of the process after that, of all kinds."),
    Key(
        "growth_put_100k_boxes_vs_100",
        Budget(at_most=2),
        "Time per `put` with 64 in flight, over 100,000 boxes in turn against 100.",
    ),
    Key(
        "recover_s_100k_boxes",
        None,
        "Opening the folder after the process with 100,000 boxes was killed, its log replayed.",
    ),
)


def run(
    arena: Arena, sizes: Sizes, begin: Callable[[str], object] = lambda what: None
) -> dict[str, Figure]:
    figures = []
    # Files that are gone slow down making new ones for minutes: all stay until the end.
    with arena.keeping():
        for measure in (durable, new_boxes, unsynced, acks, at_large):
            begin(measure.__name__)
            figures += list(measure(arena, sizes))
    found = {figure.key: figure for figure in figures}
    return {key.name: found[key.name] for key in KEYS}


def durable(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    runs: dict[str, list[dict[str, Any]]] = {
        "each": [],
        "one": [],
        "many": [],
        "bare": [],
        "floor": [],
    }
    bursts, body = {"bursts": sizes.bursts}, {"body_bytes": len(BODY)}
    works: dict[str, tuple[str, dict[str, int]]] = {
        "each": ("mailboxes:put_durable", {"boxes": PRODUCERS} | bursts),
        "bare": ("peers.files:sync_each", {"writes": sizes.sync_each} | body),
        "one": ("mailboxes:put_durable", {"boxes": 1} | bursts),
        "many": ("mailboxes:put_durable", {"boxes": sizes.many} | bursts),
        "floor": ("peers.files:group_put", {"writes": sizes.writes} | body),
    }
    for number in range(sizes.pairs):
        for name in works if number < sizes.runs else ("each", "bare"):
            work, amount = works[name]
            with arena.fresh() as folder:
                runs[name].append(call(f"bench.{work}", folder, **amount))
    for key, name in (
        ("put_durable_64_producers_per_s", "each"),
        ("put_durable_one_box_per_s", "one"),
        ("put_durable_many_boxes_per_s", "many"),
    ):
        cpu = statistics.median(run["cpu_us"] for run in runs[name])
        yield Figure.of(
            key,
            [run["per_second"] for run in runs[name]],
            f"{show(cpu)} µs of processor time a put, tasks included",
        )
    bare = [run["per_second"] for run in runs["bare"]]
    for key, name in (
        ("bare_group_put_per_s", "per_second"),
        ("bare_durable_put_per_s", "durable_per_second"),
    ):
        floor = [run[name] for run in runs["floor"]]
        times = statistics.median(f / b for f, b in zip(floor, bare[: len(floor)], strict=True))
        yield Figure.of(key, floor, f"{times:.1f} times a sync each")
    pairs = zip(runs["each"], bare, strict=True)
    yield Figure.of(
        "ratio_vs_fdatasync_each",
        [run["per_second"] / alone for run, alone in pairs],
        f"a sync each: {show(statistics.median(bare))}/s",
    )


def new_boxes(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    runs = []
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            runs.append(call("bench.mailboxes:put_first", folder, boxes=sizes.many)["per_second"])
    yield Figure.of("first_put_new_box_per_s", runs, f"{show(sizes.many)} boxes")


def unsynced(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    runs, bare, floor = [], [], []
    amount = {"body_bytes": len(BODY), "writes": sizes.writes}
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            found = call("bench.mailboxes:put_unsynced", folder, writes=sizes.writes)
            runs.append(found["per_second"])
        with arena.fresh() as folder:
            found = call("bench.peers.files:write_each", folder, **amount)
            bare.append(found["per_second"])
            floor.append(found["put_per_second"])
    yield Figure.of("put_os_per_s", runs)
    yield Figure.of(
        "bare_put_per_s",
        floor,
        f"{statistics.median(f / b for f, b in zip(floor, bare, strict=True)):.2f} of a bare "
        "`os.pwrite`",
    )
    yield Figure.of(
        "ratio_vs_bare_pwrite",
        [run / alone for run, alone in zip(runs, bare, strict=True)],
        f"bare: {show(statistics.median(bare))}/s",
    )


def acks(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    runs = []
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            found = call("bench.mailboxes:peek_and_ack", folder, boxes=sizes.writes // DRAIN_AT + 1)
            runs.append(found["per_second"])
    yield Figure.of("ack_per_s", runs)


def at_large(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    with arena.fresh() as folder:
        found = call("bench.mailboxes:touch_many", folder, boxes=sizes.boxes, bursts=sizes.bursts)
        again = call("bench.mailboxes:reopen", folder, boxes=sizes.boxes)
    many = show(sizes.boxes)
    yield Figure.of(
        "rss_mb_100k_boxes", [found["rss_mb"]], f"{many} boxes; above {show(found['before_mb'])} MB"
    )
    yield Figure.of("open_files_max", [found["open_files"]])
    yield Figure.of(
        "growth_put_100k_boxes_vs_100",
        [found["many_us"] / found["few_us"]],
        f"{show(found['many_us'])} against {show(found['few_us'])} µs each, {many} boxes",
    )
    yield Figure.of(
        "recover_s_100k_boxes",
        [again["seconds"]],
        f"{show(again['found'])} of {many} boxes have their message; the log had the last of them",
    )


# In processes of their own


async def put_round(hub: penstock.Hub, names: Sequence[str], count: int) -> None:
    """So many puts by 64 tasks, over these boxes in turn."""
    boxes = [hub.aio.mailboxes.open(name) for name in names]

    async def produce(first: int) -> None:
        for number in range(first, count, PRODUCERS):
            await boxes[number % len(boxes)].put(BODY)

    await asyncio.gather(*(produce(first) for first in range(PRODUCERS)))


def drain(hub: penstock.Hub, names: Sequence[str]) -> None:
    for name in names:
        box = hub.mailboxes.open(name)
        while mails := box.peek_many(DRAIN_AT * 2):
            box.ack(mails[-1].id, through=True)


def put_durable(link: Link, *, boxes: int, bursts: int) -> dict[str, Any]:
    names = [f"box-{number}" for number in range(boxes)]
    large = {"mailbox_messages_max": 1_000_000, "mailbox_file_messages_max": 1_000_001}
    with penstock.connect(url(Path.cwd()), **(large if boxes == 1 else {})) as hub:

        async def measure() -> dict[str, Any]:
            await put_round(hub, names, max(boxes, PRODUCERS))
            count = min(PRODUCERS * DRAIN_AT, boxes * DRAIN_AT) if boxes > 1 else 8_000
            link.ready()
            link.wait_go()
            seconds = cores = 0.0
            for _ in range(bursts):
                drain(hub, names)
                with Meter() as meter:
                    await put_round(hub, names, count)
                seconds += meter.seconds
                cores += meter.cores * meter.seconds
            done = count * bursts
            return {"per_second": done / seconds, "cpu_us": cores * 1e6 / done}

        return asyncio.run(measure())


def put_first(link: Link, *, boxes: int) -> dict[str, Any]:
    with penstock.connect(url(Path.cwd())) as hub:

        async def measure() -> float:
            await put_round(hub, [f"warm-{number}" for number in range(PRODUCERS)], PRODUCERS)
            link.ready()
            link.wait_go()
            with Meter() as meter:
                await put_round(hub, [f"box-{number}" for number in range(boxes)], boxes)
            return boxes / meter.seconds

        return {"per_second": asyncio.run(measure())}


def put_unsynced(link: Link, *, writes: int) -> dict[str, Any]:
    with penstock.connect(url(Path.cwd()), mailbox_durability="os") as hub:
        names = [f"box-{number}" for number in range(PRODUCERS)]
        boxes = [hub.mailboxes.open(name) for name in names]
        for box in boxes:
            box.put(BODY)
        link.ready()
        link.wait_go()
        seconds, done = 0.0, 0
        while done < writes:
            drain(hub, names)
            count = min(PRODUCERS * DRAIN_AT, writes - done)
            with Meter() as meter:
                for number in range(count):
                    boxes[number % PRODUCERS].put(BODY)
            seconds += meter.seconds
            done += count
    return {"per_second": done / seconds}


def peek_and_ack(link: Link, *, boxes: int) -> dict[str, Any]:
    with penstock.connect(url(Path.cwd())) as hub:
        names = [f"box-{number}" for number in range(boxes)]
        for name in names:
            hub.mailboxes.open(name).put_many([BODY] * DRAIN_AT)
        link.ready()
        link.wait_go()
        done = 0
        with Meter() as meter:
            for name in names:
                box = hub.mailboxes.open(name)
                mail = box.peek()
                while mail is not None:
                    mail = box.ack_and_peek(mail.id)
                    done += 1
        return {"per_second": done / meter.seconds}


def touch_many(link: Link, *, boxes: int, bursts: int) -> dict[str, Any]:
    names = [f"box-{number}" for number in range(boxes)]
    few = names[:100]
    hub = penstock.connect(url(Path.cwd()))

    async def measure() -> dict[str, Any]:
        await put_round(hub, ["warm"], 1)
        link.ready()
        link.wait_go()
        before = status()["VmRSS"]
        await put_round(hub, names, boxes)
        for name in names:
            found = hub.mailboxes.open(name).peek()
            assert found is not None
        rss = status()["VmRSS"] - before
        open_files = len(os.listdir("/proc/self/fd"))
        count = min(boxes, PRODUCERS * DRAIN_AT // 2)
        taken: dict[str, list[float]] = {"few": [], "many": []}
        for burst in range(bursts):
            for name, chosen in (("few", few), ("many", names[burst * count :][:count])):
                if len(chosen) < min(count, len(few)):
                    continue
                amount = min(count, len(chosen) * (DRAIN_AT // 2))
                with Meter() as meter:
                    await put_round(hub, chosen, amount)
                taken[name].append(meter.seconds * 1e6 / amount)
            drain(hub, few)
        return {
            "before_mb": before,
            "rss_mb": rss,
            "open_files": open_files,
            "few_us": statistics.median(taken["few"]),
            "many_us": statistics.median(taken["many"]),
        }

    found = asyncio.run(measure())
    link.finish(found)
    os._exit(0)  # As if killed: the log stays behind.


def reopen(link: Link, *, boxes: int) -> dict[str, Any]:
    link.ready()
    link.wait_go()
    started = time.perf_counter()
    with penstock.connect(url(Path.cwd())) as hub:
        hub.mailboxes.open("box-0").peek()
        seconds = time.perf_counter() - started
        found = sum(
            hub.mailboxes.open(f"box-{number}").peek() is not None
            for number in range(100, boxes, max(1, boxes // 1_000))
        )
        step = len(range(100, boxes, max(1, boxes // 1_000)))
    return {"seconds": seconds, "found": boxes * found // max(1, step)}


def settings(size: str) -> dict[str, Any]:
    """What the figures were made with."""
    return {"mailboxes": asdict(MAILBOX_SIZES[size])}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.mailboxes", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    size = "quick" if options.quick else options.size
    arena = Arena(options.dir, needs_disk=size != "tiny")
    about = context(arena, size, SIZES[size])
    about["settings"] |= settings(size)
    with Console(stderr=True).status("Measuring …") as display:
        figures = run(
            arena, MAILBOX_SIZES[size], lambda what: display.update(f"Measuring {what} …")
        )
    if options.json:
        print(report.as_json(KEYS, figures, about))
    else:
        report.print_table(Console(), KEYS, figures)
    return 1 if options.check and report.missed(KEYS, figures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
