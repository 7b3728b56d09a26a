"""archive: topics into the lake, each message once, before retention may remove it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import SystemClock
from penstock.errors import InvalidOption
from penstock.model import Pattern
from penstock.ports import Store
from penstock.ports.lake import Coverage
from penstock.spark import checkpoints
from penstock.spark.archiving import FORMAT, Archive, ArchiveSource, Report
from penstock.spark.compaction import Compactor
from penstock.spark.entities import ENTITIES
from penstock.spark.lake_files import COMPRESSIONS, Parquet
from penstock.spark.lake_folder import LakeFolder, writing
from penstock.spark.options import parse_source
from penstock.spark.registry import Option, Pipeline
from penstock.spark.runner import Run
from penstock.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_MAX = 1_000_000
ROWS_MIN = 10_000
BYTES_ABOUT = 512 * 1024 * 1024
"""Of payload in a batch, as far as messages are of an average size: to weigh each of a million
takes as long as it takes to archive a tenth of them."""
EVERYTHING = "*"
LIMITS = {"rows_per_batch": "maxOffsetsPerTrigger", "bytes_per_batch": "maxBytesPerTrigger"}


def run(run: Run) -> None:
    """Archive what the topics have, and hold retention back for what is still to come."""
    _check(run)
    clock = SystemClock()
    folder = LakeFolder(run.lake)
    parse_source({"url": run.url, **_source(run)}, ENTITIES)
    store = open_store(run.settings, clock)
    try:
        source = {"maxOffsetsPerTrigger": str(rows_for_batch(store)), **_source(run)}
        parsed = parse_source({"url": run.url, **source}, ENTITIES)
        folder.claim(store, clock)
        hold(run, store, parsed.topics or (EVERYTHING,))
        run.step("held")
        run.spark.dataSource.register(ArchiveSource)
        run.sources.append(parsed)
        reports = (
            run.spark.readStream.format(FORMAT)
            .option("url", run.url)
            .options(**source)
            .option("lake", str(folder.path))
            .option("attempt", uuid.uuid4().hex[:12])
            .option("tasks", run.spark.sparkContext.defaultParallelism)
            .option("compression", run.options["compression"])
            .load()
        )
        archive = Archive(store, folder, clock=clock)
        compactor = Compactor(
            store,
            folder,
            run.settings,
            format=Parquet(run.options["compression"]),
            clock=clock,
            on_step=run.step,
        )

        def enter(batch: DataFrame, number: int) -> None:
            run.step("batch")
            found = [msgspec.json.decode(row.report, type=Report) for row in batch.collect()]
            entered = archive.enter(found, run.step)
            run.counted[number] = 0 if entered is None else entered.rows
            if entered is not None and run.options["compact"]:
                compactor.run(should_stop=lambda: run.is_stopping)

        run.drive(reports.writeStream.foreachBatch(enter))
    finally:
        store.close()


def hold(run: Run, store: Store, subscriptions: tuple[str, ...]) -> list[Coverage]:
    """Retention waits for these subscriptions from now on.

    Raises if one is new and there is a checkpoint: it would begin where the others are.
    """
    known = {found.subscription for found in store.lake.coverage()}
    new = [text for text in subscriptions if text not in known]
    if new and checkpoints.is_used(run.checkpoint, run.spark):
        raise InvalidOption(
            f"{', '.join(new)} was not archived so far.",
            hint="'penstock pipeline reset archive' lets it begin with what is there; what is in "
            "the lake stays, and is not archived twice.",
        )
    with writing(store) as transaction:
        return transaction.lake.hold(subscriptions, now=SystemClock().now())


def rows_for_batch(store: Store) -> int:
    """As many as make a good batch: its files are large, and it is done in a minute or so."""
    topics = store.topics.find()
    messages, size = sum(topic.messages for topic in topics), sum(topic.bytes for topic in topics)
    if not size:
        return ROWS_MAX
    return max(ROWS_MIN, min(ROWS_MAX, BYTES_ABOUT * messages // size))


def _check(run: Run) -> None:
    if run.since is not None or run.until is not None or run.source != "log":
        raise InvalidOption(
            "archive takes all there is in the log, and goes on where the lake ends.",
            hint="Leave out since, until and from.",
        )
    compression = run.options["compression"]
    if compression not in COMPRESSIONS:
        raise InvalidOption(
            f"There is no compression {compression!r}.",
            hint=f"There are {', '.join(COMPRESSIONS)}.",
        )


def _source(run: Run) -> dict[str, str]:
    """The options of the stream."""
    options = run.options
    given = {
        "failOnDataLoss": str(not options["allow_loss"]).lower(),
        "includeHeaders": "true",
    }
    for name, option in LIMITS.items():
        if options[name] is not None:
            given[option] = str(options[name])
    if options["topics"]:
        names = [Pattern.parse(name).text for name in options["topics"]]
        given["subscribePattern"] = msgspec.json.encode(names).decode()
    return given


PIPELINE = Pipeline(
    name="archive",
    summary="Topics into the lake, before retention removes them",
    run=run,
    options=(
        Option(
            "topics", "Names and globs with commas between them. Default: all topics.", (), list
        ),
        Option(
            "rows_per_batch", "Messages in a batch. Default: a million, or half a GB.", None, int
        ),
        Option("bytes_per_batch", "Bytes of payload in a batch. Default: any.", None, int),
        Option("compression", f"Of the files: {', '.join(COMPRESSIONS)}.", "zstd"),
        Option("compact", "Whether small files are merged after a batch.", True, bool),
        Option("allow_loss", "Go on when messages were removed before their time.", False, bool),
    ),
    on_reset=lambda settings: ["What is in the lake stays; archive goes on where it ends."],
)
