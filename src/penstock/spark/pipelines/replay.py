"""replay: messages of the past into a topic or a queue, filtered, no faster than wanted, once."""

from __future__ import annotations

import time

import msgspec

from penstock.clock import SystemClock
from penstock.errors import InvalidOption
from penstock.model import Pattern, check_name
from penstock.spark.lake import Reader, Wanted
from penstock.spark.payloads import parse_payloads
from penstock.spark.registry import Option, Pipeline
from penstock.spark.replaying import Plan, Replayer, Target
from penstock.spark.runner import Run
from penstock.stores import open_store

MICROSECONDS = 1_000_000


def run(run: Run) -> None:
    """Replay what was asked for, or go on with it. Nothing if it was replayed before."""
    plan = _plan(run)
    id = run.options["id"] or plan.id
    check_name(id, "id")
    rate = run.options["rate"]
    if rate is not None and not rate > 0:
        raise InvalidOption(f"The rate is {rate:g} rows a second.", hint="It is above 0.")
    clock = SystemClock()
    store = open_store(run.settings, clock)
    try:
        replayer = Replayer(store, run.settings, id, plan, on_step=run.step, clock=clock)
        found = replayer.find()
        if found is None:
            rows = Reader(run.spark, msgspec.structs.replace(run.settings, lake=run.lake)).read(
                Wanted(
                    plan.topics,
                    None if run.since is None else round(run.since.timestamp() * MICROSECONDS),
                    None if run.until is None else round(run.until.timestamp() * MICROSECONDS),
                ),
                "both" if run.source == "lake" else "log",
            )
            if plan.schema is not None:
                rows = parse_payloads(rows, plan.schema)
            found = replayer.plan(rows, rate=rate)
        if found.finished_at is not None:
            replayer.clean()
            return
        left, last_at = found.rows, time.monotonic()

        def progress(number: int, count: int) -> None:
            nonlocal left, last_at
            left, before, last_at = max(0, left - count), last_at, time.monotonic()
            run.report(rows=count, batch=number, lag=left, seconds=last_at - before)

        replayer.write(found, rate=rate, wait=run.stop.wait, progress=progress)
    finally:
        store.close()


def _plan(run: Run) -> Plan:
    options = run.options
    if not options["topics"] or not options["to"]:
        raise InvalidOption(
            "A replay needs topics and to.",
            hint="Such as --topics orders --to topic:orders-again.",
        )
    Target.parse(options["to"])
    if options["keep_ids"] and options["to"].startswith("queue:"):
        raise InvalidOption("keep_ids is for topics.", hint="A job gets an id of its own.")
    return Plan(
        tuple(sorted({Pattern.parse(name).text for name in options["topics"]})),
        options["to"],
        run.source,
        options["where"],
        options["schema"],
        None if run.since is None else run.since.isoformat(),
        None if run.until is None else run.until.isoformat(),
        options["type"],
        options["keep_ids"],
    )


PIPELINE = Pipeline(
    name="replay",
    summary="Messages of the past into a topic or a queue, once",
    run=run,
    is_continuous=False,
    options=(
        Option("topics", "Names and globs with commas between them.", (), list),
        Option("to", "Where they go: topic:NAME or queue:NAME."),
        Option("where", "Which of them: SQL over a message's columns."),
        Option("schema", "Of the payloads, for where: 'id BIGINT' makes payload.id a column."),
        Option("rate", "Rows a second, at most. Default: as fast as it goes.", None, float),
        Option("type", "Their type, instead of their own."),
        Option("keep_ids", "Keep message ids: a topic that has one takes it once.", False, bool),
        Option("id", "The replay's name. The same one is never replayed twice."),
    ),
)
