"""How soon a message is in another process's hands.

Three stamps of CLOCK_MONOTONIC, which all processes of one machine share: before publish() is
called; when SQLite has finished COMMIT, taken by its own trace, so nothing of penstock's way to
the bell is left out; and when the subscriber's callback is called with the message.
"""

from __future__ import annotations

import asyncio
import bisect
import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

import penstock
from bench.figures import Figure, percentile, show
from bench.process import Link, Meter, Worker, call
from bench.publish import publish_so_many
from bench.workload import PAYLOAD, TYPE, url

if TYPE_CHECKING:
    from bench.arena import Arena
    from bench.workload import Sizes

WARM_UP = 50
PAUSE_MS = (0.2, 1.0)
"""About a thousand messages a second, with their commits."""
CALM_PAUSE_MS = (1.0, 5.0)
CALM_SHARE = 0.5
IDLE_PAUSE_MS = (10.0, 20.0)
"""Long enough for caches to grow cold and the processor to go to sleep."""
IDLE_SHARE = 0.1
POLL_MS = 50.0
FILL_TASKS = 500
GET_SECONDS = 60.0


def to_another_process(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    runs = []
    for seed in range(sizes.runs):
        with arena.fresh() as folder:
            runs.append(measure(folder, sizes.wake_messages, seed=seed))
    cores = statistics.median(run["publisher_cores"] for run in runs)
    pauses = (
        f"{show(sizes.wake_messages)} messages a run; the publisher keeps {cores:.2f} cores busy"
    )
    yield Figure.of(
        "wake_p50_ms",
        [percentile(run["wake"], 50) for run in runs],
        f"{pauses}, so it waits for its pauses and not for the machine",
    )
    yield Figure.of("wake_p99_ms", [percentile(run["wake"], 99) for run in runs], pauses)
    commit = statistics.median(percentile(run["commit"], 50) for run in runs)
    yield Figure.of(
        "publish_to_subscriber_p50_ms",
        [percentile(run["whole"], 50) for run in runs],
        f"of it, {show(commit)} ms until the commit is on disk",
    )
    for key, pause_ms, share in (
        ("wake_p50_ms_at_1_to_5_ms", CALM_PAUSE_MS, CALM_SHARE),
        ("wake_idle_p50_ms", IDLE_PAUSE_MS, IDLE_SHARE),
    ):
        if key in wanted:
            yield at_pace(arena, sizes, key, pause_ms, share)


def at_pace(
    arena: Arena, sizes: Sizes, key: str, pause_ms: tuple[float, float], share: float
) -> Figure:
    runs = []
    messages = max(20, round(sizes.wake_messages * share))
    for seed in range(sizes.runs):
        with arena.fresh() as folder:
            runs.append(measure(folder, messages, seed=seed, pause_ms=pause_ms))
    return Figure.of(
        key,
        [percentile(run["wake"], 50) for run in runs],
        f"{show(messages)} messages a run; both processes wake from sleep for each",
    )


def against_polling(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    ratios, ours, theirs = [], [], []
    for seed in range(sizes.runs):
        with arena.fresh() as folder:
            run = measure(folder, sizes.poll_messages, seed=seed, beside_poller=True)
        ours.append(percentile(run["wake"], 50))
        theirs.append(percentile(run["poll"], 50))
        ratios.append(theirs[-1] / ours[-1])
    yield Figure.of(
        "ratio_wake_vs_poll_50ms",
        ratios,
        f"p50 {show(statistics.median(ours))} ms against {show(statistics.median(theirs))} ms, "
        "the same messages in the same run",
    )


def by_number_of_topics(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    small, large = sizes.growth_topics_small, sizes.growth_topics_large
    p50: dict[tuple[int, str], list[float]] = {}
    for seed in range(sizes.runs):
        for topics in (small, large):
            for pattern in ("topic-0", "topic-*"):
                with arena.fresh() as folder:
                    run = measure(
                        folder, sizes.growth_wakes, seed=seed, topics=topics, pattern=pattern
                    )
                p50.setdefault((topics, pattern), []).append(percentile(run["wake"], 50))
    ratios = {
        pattern: [b / a for a, b in zip(p50[small, pattern], p50[large, pattern], strict=True)]
        for pattern in ("topic-0", "topic-*")
    }
    one, glob = (statistics.median(ratios[pattern]) for pattern in ("topic-0", "topic-*"))
    worse = "topic-0" if one >= glob else "topic-*"
    medians = {place: show(statistics.median(values)) for place, values in p50.items()}
    yield Figure.of(
        "growth_wake_10k_topics_vs_10",
        ratios[worse],
        f"{show(large)} topics against {show(small)}; one topic {one:.2f} "
        f"({medians[large, 'topic-0']} against {medians[small, 'topic-0']} ms), a glob over all, "
        f"each message in another topic, {glob:.2f} "
        f"({medians[large, 'topic-*']} against {medians[small, 'topic-*']} ms); the worse counts",
    )


def measure(
    folder: Path,
    messages: int,
    *,
    seed: int,
    topics: int = 1,
    pattern: str = "topic-0",
    beside_poller: bool = False,
    pause_ms: tuple[float, float] = PAUSE_MS,
) -> dict[str, Any]:
    """Milliseconds from commit to hand-over, message by message, and what else was stamped."""
    call("bench.wake:fill", folder, topics=topics)
    total = WARM_UP + messages
    spread = topics if pattern != "topic-0" else 1
    with ExitStack() as stack:
        subscriber = stack.enter_context(
            Worker("bench.wake:subscriber", folder, pattern=pattern, messages=total)
        )
        subscriber.wait_ready()
        subscriber.go()
        poller = None
        if beside_poller:
            poller = stack.enter_context(
                Worker("bench.peers.sqlite:poller", folder, messages=total, every_ms=POLL_MS)
            )
            poller.wait_ready()
            poller.go()
        publisher = stack.enter_context(
            Worker(
                "bench.wake:publisher",
                folder,
                messages=total,
                topics=spread,
                seed=seed,
                pause_ms=pause_ms,
            )
        )
        publisher.wait_ready()
        publisher.go()
        published = publisher.result()
        handed = dict(subscriber.result()["seen"])
        polled = {} if poller is None else dict(poller.result()["seen"])
    stamps = published["stamps"][WARM_UP:]
    return {
        "wake": [max(0, handed[number] - commit) / 1e6 for number, _, commit in stamps],
        "whole": [(handed[number] - before) / 1e6 for number, before, _ in stamps],
        "commit": [(commit - before) / 1e6 for _, before, commit in stamps],
        "poll": [max(0, polled[n] - commit) / 1e6 for n, _, commit in stamps if n in polled],
        "publisher_cores": published["cores"],
    }


# In processes of their own


def fill(link: Link, *, topics: int) -> dict[str, Any]:
    """Topics with one message each."""
    link.ready()
    link.wait_go()
    names = tuple(f"topic-{number}" for number in range(topics))
    with penstock.connect(url(Path.cwd())) as hub:
        asyncio.run(publish_so_many(hub, min(FILL_TASKS, topics), topics, names))
    return {}


def publisher(
    link: Link, *, messages: int, topics: int, seed: int, pause_ms: tuple[float, float]
) -> dict[str, Any]:
    """One publish at a time, with a random pause before each."""
    commits: list[int] = []

    def finished(event: dict[str, Any]) -> None:
        if event["sql"].startswith("COMMIT"):
            commits.append(time.monotonic_ns())

    apsw.connection_hooks.append(
        lambda connection: connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, finished)
    )
    chance = random.Random(seed)
    stamps: list[tuple[int, int, int]] = []
    with penstock.connect(url(Path.cwd())) as hub:
        hub.topics.list()
        link.ready()
        link.wait_go()
        with Meter() as meter:
            for number in range(messages):
                time.sleep(chance.uniform(*pause_ms) / 1000)
                before = time.monotonic_ns()
                receipt = hub.topics.publish(f"topic-{number % topics}", PAYLOAD, type=TYPE)
                # The first COMMIT after the call; a later one is not this message's.
                commit = commits[bisect.bisect_left(commits, before)]
                stamps.append((receipt.id, before, commit))
    return {"stamps": stamps, "cores": meter.cores}


def subscriber(link: Link, *, pattern: str, messages: int) -> dict[str, Any]:
    """A callback, as with `hub.topics.listen(...)`."""
    seen: list[tuple[int, int]] = []
    done = threading.Event()

    def stamp(message: penstock.Message) -> None:
        seen.append((message.id, time.monotonic_ns()))
        if len(seen) == messages:
            done.set()

    with penstock.connect(url(Path.cwd())) as hub, hub.topics.listen(pattern, stamp):
        link.ready()
        link.wait_go()
        assert done.wait(GET_SECONDS), f"{len(seen)} of {messages} messages came"
    return {"seen": seen}
