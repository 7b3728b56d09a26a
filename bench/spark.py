"""`python -m bench.spark`: what reading and writing through Spark costs, against its budgets."""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import psutil
from rich.console import Console

import penstock
from bench import report
from bench.arena import Arena
from bench.figures import Budget, Figure, Key, percentile, show
from bench.process import Link, Worker, call
from bench.topics import add_arguments, context
from bench.workload import DATABASE, PAYLOAD, SIZES, TYPE, url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS = 4
FILL_BATCH = 20_000
SAMPLE_SECONDS = 0.1
PAUSE_SECONDS = 0.005
COLUMNS = (
    "id, topic_id, created_at, expires_at, type, key, encoding, headers, message_id, producer, body"
)


@dataclass(frozen=True)
class Sizes:
    """How much each measurement does."""

    runs: int
    rows: int
    """Read and written in one run."""
    growth_small: int
    growth_large: int
    batches: int
    """Micro-batches with nothing to write."""


SPARK_SIZES = {
    "full": Sizes(3, 1_000_000, 100_000, 10_000_000, 30),
    "quick": Sizes(1, 200_000, 50_000, 500_000, 10),
    "tiny": Sizes(1, 500, 100, 500, 3),
}

KEYS = (
    Key(
        "source_rows_per_s",
        None,
        "`spark.read.format('penstock')` of messages with 250 bytes of JSON, all columns, counted "
        "by topic and type; local[*], a warm session.",
    ),
    Key(
        "bare_scan_rows_per_s",
        None,
        "The same rows and columns through one bare apsw cursor, in Python, and thrown away.",
    ),
    Key(
        "ratio_source_vs_bare_scan",
        Budget(at_least=0.35),
        "The first over the second, run by run.",
    ),
    Key(
        "archive_rows_per_s",
        None,
        "`run('archive')` of the same messages into a lake, from the call to its return: files, "
        "manifest and holds.",
    ),
    Key(
        "ratio_archive_vs_parquet_copy",
        Budget(at_least=0.4),
        "That over Spark copying what was archived, Parquet to Parquet with the same compression, "
        "without partitions, in the same warm session.",
    ),
    Key(
        "empty_batch_ms",
        None,
        "Duration of a micro-batch of a stream from topic to topic that reads one row and writes "
        "none, as Spark reports it; the median.",
    ),
    Key(
        "sink_rows_per_s",
        None,
        "`write.format('penstock')` of rows with 250 bytes of JSON made by Spark into one topic, "
        "under a txnAppId, until the write returns: everything is on disk.",
    ),
    Key(
        "publish_p99_ms_beside_sink",
        None,
        "Duration of publish() in another process, one message every 5 ms, while the sink writes.",
    ),
    Key(
        "growth_batch_10m_vs_100k_rows",
        Budget(at_most=1.3),
        "Time per row of a batch over 10,000,000 rows over that of one over 100,000; both in a "
        "warm session.",
    ),
    Key(
        "peak_rss_mb_10m",
        None,
        "The most memory that the driver, its JVM and all Python workers held together while the "
        "10,000,000 rows were read.",
    ),
)


def run(
    arena: Arena, sizes: Sizes, begin: Callable[[str], object] = lambda what: None
) -> dict[str, Figure]:
    figures: list[Figure] = []
    for measure in (reading, archiving, streaming, writing, growing):
        begin(measure.__name__)
        figures += measure(arena, sizes)
    found = {figure.key: figure for figure in figures}
    return {key.name: found[key.name] for key in KEYS}


def reading(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    with arena.fresh() as folder:
        call("bench.spark:fill", folder, rows=sizes.rows)
        found = call("bench.spark:read", folder, rows=sizes.rows, runs=sizes.runs)
    ours, bare = found["source"], found["bare"]
    note = f"{show(sizes.rows)} rows a run"
    yield Figure.of("source_rows_per_s", ours, f"{note}; {show(found['partitions'])} partitions")
    yield Figure.of("bare_scan_rows_per_s", bare, note)
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    yield Figure.of("ratio_source_vs_bare_scan", ratios, "in turns, in one process")


def archiving(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    runs = []
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            call("bench.spark:fill", folder, rows=sizes.rows)
            runs.append(call("bench.spark:archive", folder, rows=sizes.rows))
    note = f"{show(sizes.rows)} rows a run, {TOPICS} topics"
    yield Figure.of("archive_rows_per_s", [run["archive"] for run in runs], note)
    copied = statistics.median(run["copy"] for run in runs)
    yield Figure.of(
        "ratio_archive_vs_parquet_copy",
        [run["archive"] / run["copy"] for run in runs],
        f"the copy: {show(copied)} rows/s",
    )


def streaming(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    with arena.fresh() as folder:
        found = call("bench.spark:stream", folder, batches=sizes.batches)
    taken = found["batch_ms"]
    yield Figure.of(
        "empty_batch_ms",
        [statistics.median(taken)],
        f"{len(taken)} batches after the first few; p95 {show(percentile(taken, 95))} ms",
    )


def writing(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    rates, waits = [], []
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            call("bench.spark:fill", folder, rows=1)
            with Worker("bench.spark:publish_meanwhile", folder) as publisher:
                publisher.wait_ready()
                publisher.go()
                rates.append(call("bench.spark:write", folder, rows=sizes.rows)["per_second"])
                publisher.stop()
                waits.append(publisher.result()["taken_ms"])
    yield Figure.of("sink_rows_per_s", rates, f"{show(sizes.rows)} rows a run")
    yield Figure.of(
        "publish_p99_ms_beside_sink",
        [percentile(wait, 99) for wait in waits],
        f"p50 {show(statistics.median(percentile(wait, 50) for wait in waits))} ms; from the start "
        "of the session to its end",
    )


def growing(arena: Arena, sizes: Sizes) -> Iterator[Figure]:
    with arena.fresh() as folder:
        call("bench.spark:fill", folder, rows=sizes.growth_large)
        found = call(
            "bench.spark:grow",
            folder,
            small=sizes.growth_small,
            large=sizes.growth_large,
            runs=sizes.runs,
        )
    ratios = [b / a for a, b in zip(found["small_us"], found["large_us"], strict=True)]
    sizes_told = f"{show(sizes.growth_large)} rows against {show(sizes.growth_small)}"
    small, large = (statistics.median(found[name]) for name in ("small_us", "large_us"))
    yield Figure.of(
        "growth_batch_10m_vs_100k_rows",
        ratios,
        f"{sizes_told}; {show(large)} against {show(small)} µs a row",
    )
    yield Figure.of(
        "peak_rss_mb_10m",
        [found["peak_mb"]],
        f"{show(found['idle_mb'])} MB before, with the session warm",
    )


# In processes of their own


def fill(link: Link, *, rows: int) -> dict[str, Any]:
    link.ready()
    link.wait_go()
    with penstock.connect(url(Path.cwd()), durability="os", commit_group_max=FILL_BATCH) as hub:
        for first in range(0, rows, FILL_BATCH):
            # Each its own, as messages are: to write the same one a million times says nothing.
            numbers = range(first, min(first + FILL_BATCH, rows))
            payloads = [{**PAYLOAD, "number": number} for number in numbers]
            topic = f"canvas-{first // FILL_BATCH % TOPICS}"
            hub.topics.publish_many(topic, payloads, type=TYPE)
    return {}


def read(link: Link, *, rows: int, runs: int) -> dict[str, Any]:
    spark = started(link)
    frame = source(spark)
    count_by_topic(frame)  # Classes are loaded, and the pages are in the system's cache.
    bare_scan()
    ours, bare = [], []
    for _ in range(runs):
        seconds, counted = timed(lambda: count_by_topic(frame))
        assert counted == rows
        ours.append(rows / seconds)
        seconds, counted = timed(bare_scan)
        assert counted == rows
        bare.append(rows / seconds)
    partitions = frame.rdd.getNumPartitions()
    return {"source": ours, "bare": bare, "partitions": partitions}


def archive(link: Link, *, rows: int) -> dict[str, Any]:
    from penstock.spark import run as run_pipeline

    spark = started(link)
    lake = Path.cwd() / "lake"
    # Both have been done once before, with little: sessions stay, and so do loaded classes.
    small = f"sqlite:///{Path.cwd() / 'warm.db'}"
    with penstock.connect(small) as hub:
        hub.topics.publish_many("canvas-0", [PAYLOAD] * 1_000, type=TYPE)
    run_pipeline("archive", small, spark=spark)
    archived, status = timed(
        lambda: run_pipeline("archive", url(Path.cwd()), spark=spark, lake=str(lake))
    )
    assert status.rows == rows, status
    frame = spark.read.parquet(*(str(path) for path in lake.rglob("*.parquet")))
    assert frame.count() == rows

    def copy() -> None:
        frame.write.mode("overwrite").option("compression", "zstd").parquet(str(lake) + "-copy")

    copy()
    copied, _ = timed(copy)
    return {"archive": rows / archived, "copy": rows / copied}


def stream(link: Link, *, batches: int) -> dict[str, Any]:
    spark = started(link)
    warm_up = 5
    with penstock.connect(url(Path.cwd())) as hub:
        hub.topics.publish_many("in", [PAYLOAD] * (batches + warm_up))
    query = (
        spark.readStream.format("penstock")
        .options(url=url(Path.cwd()), subscribe="in")
        .options(startingOffsets="earliest", maxOffsetsPerTrigger=1)
        .load()
        .where("key = 'nobody'")
        .selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("penstock")
        .options(url=url(Path.cwd()), topic="out", checkpointLocation=str(Path.cwd() / "check"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    taken = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
    return {"batch_ms": [float(value) for value in taken[warm_up:]]}


def write(link: Link, *, rows: int) -> dict[str, Any]:
    spark = started(link)
    value = json.dumps(PAYLOAD, separators=(",", ":"))

    def save(count: int, version: int) -> None:
        frame = spark.range(count).selectExpr(
            f"replace('{value}', 'obj-7f3a9c52', lpad(hex(id), 12, '0')) AS value"
        )
        frame.write.format("penstock").mode("append").options(
            url=url(Path.cwd()), topic="out", txnAppId="bench", txnVersion=version
        ).save()

    save(min(rows, 1_000), 0)
    seconds, _ = timed(lambda: save(rows, 1))
    return {"per_second": rows / seconds}


def publish_meanwhile(link: Link) -> dict[str, Any]:
    taken = []
    with penstock.connect(url(Path.cwd())) as hub:
        hub.topics.publish("live", PAYLOAD)
        link.ready()
        link.wait_go()
        link.watch()
        while not link.stopping.wait(PAUSE_SECONDS):
            started_at = time.perf_counter()
            hub.topics.publish("live", PAYLOAD)
            taken.append((time.perf_counter() - started_at) * 1000)
    return {"taken_ms": taken}


def grow(link: Link, *, small: int, large: int, runs: int) -> dict[str, Any]:
    spark = started(link)
    little, much = source(spark, endingOffsets=small + 1), source(spark)
    for _ in range(2):
        count_by_topic(little)
    small_us, large_us = [], []
    with Weighed() as weighed:
        for _ in range(runs):
            seconds, counted = timed(lambda: count_by_topic(little))
            assert counted == small
            small_us.append(seconds * 1e6 / small)
            seconds, counted = timed(lambda: count_by_topic(much))
            assert counted == large
            large_us.append(seconds * 1e6 / large)
    return {
        "small_us": small_us,
        "large_us": large_us,
        "peak_mb": weighed.peak_mb,
        "idle_mb": weighed.first_mb,
    }


def started(link: Link) -> SparkSession:
    """A session, which ends with the process."""
    from penstock.spark import session

    spark = session("bench")
    link.ready()
    link.wait_go()
    return spark


def source(spark: SparkSession, **options: Any) -> DataFrame:
    return spark.read.format("penstock").options(url=url(Path.cwd()), **options).load()


def count_by_topic(frame: DataFrame) -> int:
    return sum(row["count"] for row in frame.groupBy("topic", "type").count().collect())


def bare_scan() -> int:
    connection = apsw.Connection(str(Path.cwd() / DATABASE), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        count = 0
        for _ in connection.execute(f"SELECT {COLUMNS} FROM penstock_messages"):
            count += 1
        return count
    finally:
        connection.close()


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started_at = time.perf_counter()
    found = work()
    return time.perf_counter() - started_at, found


class Weighed:
    """The memory of this process and all its children, looked at again and again."""

    def __enter__(self) -> Weighed:
        self._stop = threading.Event()
        self.first_mb = self.peak_mb = self._now()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.peak_mb = max(self.peak_mb, self._now())

    def _now(self) -> float:
        total = 0
        family = psutil.Process()
        for member in (family, *family.children(recursive=True)):
            try:
                total += member.memory_info().rss
            except psutil.NoSuchProcess:
                continue  # A worker that has just ended.
        return total / 2**20


def settings(size: str) -> dict[str, Any]:
    """What the figures were made with."""
    return {"spark": asdict(SPARK_SIZES[size])}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    size = "quick" if options.quick else options.size
    arena = Arena(options.dir, needs_disk=size != "tiny")
    about = context(arena, size, SIZES[size])
    about["settings"] |= settings(size)
    with Console(stderr=True).status("Measuring …") as status:
        figures = run(arena, SPARK_SIZES[size], lambda what: status.update(f"Measuring {what} …"))
    if options.json:
        print(report.as_json(KEYS, figures, about))
    else:
        report.print_table(Console(), KEYS, figures)
    return 1 if options.check and report.missed(KEYS, figures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
