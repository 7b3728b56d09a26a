"""`python -m bench.load`: the load tests of the source document, T14, and its targets, T15."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import report
from bench.arena import Arena
from bench.crowd import PROCESSES, THREADS, TOPICS
from bench.figures import Budget, Figure, Key, percentile, show
from bench.process import Worker, call
from bench.topics import add_arguments, context
from bench.workload import SIZES

READ_LOG = 10_000
SECONDS = {"full": 60.0, "quick": 5.0, "tiny": 0.3}

KEYS = (
    Key(
        "load_write_p95_ms",
        Budget(at_most=100),
        "10 writers (2 processes of 5 threads) publish 100 messages a second each, for a minute; "
        "from the instant a message was due to its receipt, so a stall counts for all it delays.",
    ),
    Key(
        "load_writes_per_s",
        Budget(at_least=990),
        "Messages acknowledged a second in that minute; 1,000 were due.",
    ),
    Key(
        "load_end_to_end_p95_ms",
        Budget(at_most=100),
        "The same messages, from the instant each was due to the hands of a subscriber of all "
        "topics in a third process.",
    ),
    Key(
        "load_poll_p95_ms",
        Budget(at_most=5),
        "50 threads of one process, a topic each, call `hub.topics.read(topic, after=…)` every 50 "
        "ms for a minute while 1,000 messages a second are published from two others.",
    ),
    Key("load_polls_per_s", Budget(at_least=990), "Such reads a second; 1,000 were due."),
    Key(
        "load_follow_end_to_end_p95_ms",
        Budget(at_most=100),
        "The same messages, from the instant each was due to the hands of one of 50 subscriptions, "
        "a topic and a thread each, in a process of its own.",
    ),
    Key(
        "reads_per_s",
        Budget(at_least=10_000),
        "One thread calls `hub.topics.read` for the next message of one of 50 topics, and again.",
    ),
    Key(
        "messages_read_per_s",
        None,
        "The same thread reads 500 at a time instead of one.",
    ),
)


def run(arena: Arena, seconds: float, begin: Callable[[str], object]) -> dict[str, Figure]:
    begin(f"10 writers for {seconds:g} seconds")
    figures = list(ten_writers(arena, seconds))
    begin(f"{TOPICS} topics polled and followed for {seconds:g} seconds")
    figures += fifty_topics(arena, seconds)
    begin("reading")
    figures += reading(arena, min(seconds, 5.0))
    return {figure.key: figure for figure in figures}


def ten_writers(arena: Arena, seconds: float) -> Iterator[Figure]:
    with arena.fresh() as folder, ExitStack() as stack:
        listener = stack.enter_context(Worker("bench.crowd:listener", folder, patterns=["*"]))
        listener.wait_ready()
        listener.go()
        writers = _start_writers(stack, folder, seconds)
        written = [writer.result() for writer in writers]
        heard = _hear_all(listener, written)
    yield from _written(written)
    yield _single(
        "load_end_to_end_p95_ms",
        percentile(heard["delays_ms"], 95),
        f"p50 {show(percentile(heard['delays_ms'], 50))} ms, p99 "
        f"{show(percentile(heard['delays_ms'], 99))} ms; all "
        f"{show(len(heard['delays_ms']))} messages came",
    )


def fifty_topics(arena: Arena, seconds: float) -> Iterator[Figure]:
    names = [f"topic-{number}" for number in range(TOPICS)]
    with arena.fresh() as folder, ExitStack() as stack:
        listener = stack.enter_context(Worker("bench.crowd:listener", folder, patterns=names))
        listener.wait_ready()
        listener.go()
        pollers = stack.enter_context(
            Worker("bench.crowd:pollers", folder, topics=names, seconds=seconds)
        )
        pollers.wait_ready()
        pollers.go()
        writers = _start_writers(stack, folder, seconds)
        written = [writer.result() for writer in writers]
        polled = pollers.result()
        heard = _hear_all(listener, written)
    taken = polled["taken_ms"]
    yield _single(
        "load_poll_p95_ms",
        percentile(taken, 95),
        f"p50 {show(percentile(taken, 50))} ms, p99 {show(percentile(taken, 99))} ms; "
        f"{show(polled['messages'])} messages found; the pollers keep {polled['cores']:.2f} "
        "cores busy",
    )
    yield _single("load_polls_per_s", len(taken) / polled["seconds"], f"{show(len(taken))} reads")
    yield _single(
        "load_follow_end_to_end_p95_ms",
        percentile(heard["delays_ms"], 95),
        f"p50 {show(percentile(heard['delays_ms'], 50))} ms, p99 "
        f"{show(percentile(heard['delays_ms'], 99))} ms",
    )


def reading(arena: Arena, seconds: float) -> Iterator[Figure]:
    with arena.fresh() as folder:
        found = call("bench.crowd:reader", folder, topics=TOPICS, log=READ_LOG, seconds=seconds)
    yield _single(
        "reads_per_s", found["reads_per_second"], f"one thread, {found['cores']:.2f} cores busy"
    )
    yield _single("messages_read_per_s", found["messages_per_second"], "payloads not decoded")


def _start_writers(stack: ExitStack, folder: Path, seconds: float) -> list[Worker]:
    writers = [
        stack.enter_context(
            Worker("bench.crowd:writers", folder, first=number * THREADS, seconds=seconds)
        )
        for number in range(PROCESSES)
    ]
    for writer in writers:
        writer.wait_ready()
    for writer in writers:
        writer.go()
    return writers


def _hear_all(listener: Worker, written: list[dict[str, Any]]) -> dict[str, Any]:
    listener.stop()
    heard = listener.result()
    count = sum(len(found["taken_ms"]) for found in written)
    if len(heard["delays_ms"]) != count:
        raise RuntimeError(f"{count} messages were published, {len(heard['delays_ms'])} came.")
    return heard


def _written(written: list[dict[str, Any]]) -> Iterator[Figure]:
    taken = [value for found in written for value in found["taken_ms"]]
    calls = [value for found in written for value in found["calls_ms"]]
    cores = statistics.mean(found["cores"] for found in written)
    yield _single(
        "load_write_p95_ms",
        percentile(taken, 95),
        f"p50 {show(percentile(taken, 50))} ms, p99 {show(percentile(taken, 99))} ms, worst "
        f"{show(max(taken))} ms; publish() itself p95 {show(percentile(calls, 95))} ms; each "
        f"writing process keeps {cores:.2f} cores busy",
    )
    yield _single(
        "load_writes_per_s",
        sum(len(found["taken_ms"]) / found["seconds"] for found in written),
        f"{show(len(taken))} messages",
    )


def _single(key: str, value: float, note: str) -> Figure:
    return Figure.of(key, [value], note)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--seconds", type=float, help="length of each load test (default: 60)")
    options = parser.parse_args(arguments)
    size = "quick" if options.quick else options.size
    seconds = options.seconds or SECONDS[size]
    arena = Arena(options.dir, needs_disk=size != "tiny")
    about = context(arena, size, SIZES[size])
    about["settings"] |= {"seconds": seconds}
    with Console(stderr=True).status("Measuring …") as status:
        figures = run(arena, seconds, lambda what: status.update(f"Measuring {what} …"))
    if options.json:
        print(report.as_json(KEYS, figures, about))
    else:
        report.print_table(Console(), KEYS, figures)
    return 1 if options.check and report.missed(KEYS, figures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
