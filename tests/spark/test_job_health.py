"""How jobs fare: the same as SQL over their history (S5)."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.clock import SECOND
from penstock.errors import InvalidInput, JobTimeout
from penstock.figures import JOB_HEALTH_TOPIC, FailureClass, JobHealth, Newest
from penstock.job import Failure, Kind
from penstock.spark.pipelines.job_health import CLASSES_MAX, EVENTS, PIPELINE, job_health
from penstock.spark.runner import Run, Stop
from penstock.testing import FakeClock
from tests.conformance.desk import Desk

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
TIMEOUT = f"{JobTimeout.__module__}.JobTimeout"
Line = tuple[float, str, str | None]
"""Seconds after NOW, what happened, and its data."""
Life = list[Line]


def line(seconds: float, kind: str, **data: Any) -> Line:
    return seconds, kind, json.dumps(data) if data else None


@pytest.fixture
def health(spark: SparkSession) -> Callable[..., list[Row]]:
    def health(*lives: Life, **queues: list[Life]) -> list[Row]:
        """Of jobs, each with its life: those of a queue that is gone, and those of others."""
        jobs = [(None, life) for life in lives]
        jobs += [(queue, life) for queue, lives in queues.items() for life in lives]  # type: ignore[misc]
        rows = [
            (
                *(100 * number + place, NOW + timedelta(seconds=seconds), number, kind, 1),
                *(queue, "work", data),
            )
            for number, (queue, life) in enumerate(jobs, 1)
            for place, (seconds, kind, data) in enumerate(life)
        ]
        return job_health(spark.createDataFrame(rows, EVENTS)).collect()

    return health


Health = Callable[..., list["Row"]]


def test_waiting_begins_when_a_job_could_have_been_started(health: Health) -> None:
    """Not while it was delayed, was to be tried again later, or waited for other jobs."""

    def micros(seconds: float) -> int:
        return int(NOW.timestamp() + seconds) * SECOND

    [row] = health(
        [line(0, "enqueued"), line(1, "started"), line(2, "completed")],
        [
            line(0, "enqueued", run_at=micros(100)),
            line(102, "started"),
            line(103, "snoozed", retry_at=micros(200)),
            line(203, "started"),
            line(210, "failed", error="E", retry_at=micros(220)),
            line(224, "started"),
        ],
        [
            line(0, "enqueued", waiting=True),
            line(900, "started"),
            line(901, "released"),
            line(906, "started"),
            line(906, "progress", done=1),
            line(907, "completed"),
        ],
        [line(0, "enqueued"), line(50, "replaced", run_at=micros(60)), line(66, "started")],
        [
            line(0, "enqueued", run_at=micros(10)),
            line(9, "started"),
            line(10, "died", error="E"),
            line(20, "retried"),
            line(27, "started"),
        ],
        [line(5, "started")],
    )

    # 1; 2, 3, 4; unknown, 5; 6; not below 0, 7; unknown.
    assert row.waits == 8
    assert (row.wait_p50_seconds, row.wait_max_seconds) == (3.0, 7.0)
    assert (row.run_p50_seconds, row.run_max_seconds) == (1.0, 1.0), "of completed attempts"
    assert (row.jobs, row.attempts, row.running) == (6, 10, 4)
    assert row.events == 23, "progress is not counted"


def test_rates_are_of_what_has_ended(health: Health) -> None:
    done = [line(0, "enqueued"), line(1, "started"), line(2, "completed")]
    [row] = health(
        *[done] * 6,
        [
            line(0, "enqueued"),
            line(1, "started"),
            line(2, "failed"),
            line(3, "started"),
            line(4, "rescued"),
            line(5, "started"),
            line(6, "died"),
        ],
        [line(0, "enqueued"), line(9, "expired", error="DeadlinePassed")],
        [line(0, "enqueued"), line(9, "cancelled", reason="x")],
        [line(0, "enqueued"), line(9, "started")],
    )

    assert (row.completed, row.failed, row.rescued, row.died) == (6, 1, 1, 1)
    assert (row.expired, row.cancelled, row.running) == (1, 1, 1)
    assert (row.retry_rate, row.failure_rate) == (pytest.approx(2 / 9), pytest.approx(3 / 9))
    assert row.death_rate == 2 / 8
    assert row.attempts_per_job == 10 / 8
    assert row.suggested_timeout_seconds is None, "too few to tell"


def test_failures_are_counted_by_class_and_those_without_one_too(health: Health) -> None:
    """Broken JSON is kept and counted."""
    failed = [line(0, "enqueued"), line(1, "started")]
    [row] = health(
        [*failed, line(2, "died", error="ValueError", message="first")],
        [*failed, line(2, "failed", error="ValueError", message="last"), line(3, "started")],
        [*failed, line(2, "rescued", error="WorkerLost")],
        [*failed, (2, "died", "{broken"), line(3, "retried"), line(4, "started")],
        [*failed, (2, "died", None)],
        [(0, "enqueued", "[1"), line(60, "started")],
    )

    assert [tuple(failure) for failure in row.failures] == [
        ("ValueError", 2, "last"),
        ("unknown", 2, None),
        ("WorkerLost", 1, None),
    ]
    assert row.broken == 2
    assert row.wait_max_seconds == 1.0, "what cannot be read says nothing about waiting"


def test_only_the_most_frequent_classes_are_told(health: Health) -> None:
    def dead(error: str) -> Life:
        return [line(0, "enqueued"), line(1, "started"), line(2, "died", error=error)]

    [row] = health(*(dead(f"E{number:02}") for number in range(CLASSES_MAX + 5)), dead("E24"))

    assert [failure.error for failure in row.failures] == [
        "E24",
        *(f"E{number:02}" for number in range(CLASSES_MAX - 1)),
    ]


def test_a_timeout_is_suggested_from_how_long_jobs_take(health: Health) -> None:
    """What was cut off would have taken longer than it ran."""
    cases = {
        "short": (0.01, None, 1.0),
        "round": (3.0, None, 6.0),
        "long": (61.7, None, 130.0),
        "cut off": (3.0, 30.0, 60.0),
    }
    lives: dict[str, list[Life]] = {}
    for queue, (ran, cut_off, _) in cases.items():
        done = [line(0, "enqueued"), line(1, "started"), line(1 + ran, "completed")]
        lives[queue] = [done] * 20
        if cut_off is not None:
            lives[queue].append([line(0, "started"), line(cut_off, "failed", error=TIMEOUT)])

    rows = {row.queue: row for row in health(**lives)}

    assert {queue: row.suggested_timeout_seconds for queue, row in rows.items()} == {
        queue: suggested for queue, (_, _, suggested) in cases.items()
    }
    assert [queue for queue, row in rows.items() if row.timed_out] == ["cut off"]


def test_no_history_one_event_and_jobs_that_are_gone(health: Health) -> None:
    assert health() == []
    [row] = health([line(0, "enqueued")])
    assert (row.queue, row.type, row.jobs, row.attempts, row.failures) == (None, "work", 1, 0, None)
    assert (row.retry_rate, row.attempts_per_job, row.wait_p50_seconds) == (None, None, None)


# The pipeline


@pytest.fixture
def desk(open_hub: Callable[..., penstock.Hub]) -> Iterator[Desk]:
    clock = FakeClock(int(NOW.timestamp()) * SECOND)
    runtime = open_hub(clock=clock)._open()
    writer = runtime.store.open_writer()
    desk = Desk(runtime.store, writer, clock, "worker")
    desk.enter(3_600, mail=100, thumbnails=100)
    yield desk
    writer.close()


def live(desk: Desk, dice: random.Random) -> None:
    """Some jobs, and what becomes of them."""
    for _ in range(120):
        queue = dice.choice(["mail", "thumbnails"])
        desk.enqueue(
            queue,
            type=dice.choice(["send", "make"]),
            max_attempts=3,
            delay=dice.choice([None, None, 5.0]),
        )
        desk.clock.advance(dice.random())
        for claim in desk.take_many(dice.randint(0, 3), queue):
            desk.clock.advance(dice.random() * 2)
            end = dice.random()
            if end < 0.6:
                desk.complete(claim)
            elif end < 0.7:
                desk.release(claim)
            elif end < 0.75:
                desk.set_back(claim, Kind.SNOOZED, retry=1, failure=None)
            elif end < 0.95:
                error = dice.choice(["ValueError", "OSError", TIMEOUT])
                desk.set_back(claim, Kind.FAILED, retry=2, failure=Failure(error, "…"))


QUERY = """
WITH lines AS (
    SELECT e.id, e.kind, e.job_id, j.queue, j.type, e.at, json_extract(e.data, '$.error') AS error,
        lag(max(e.at, coalesce(json_extract(e.data, '$.run_at'),
            json_extract(e.data, '$.retry_at'), 0))) OVER life AS ready_at,
        lead(e.kind) OVER life AS next_kind, lead(e.at) OVER life AS next_at
    FROM penstock_job_events e JOIN penstock_jobs j ON j.id = e.job_id
    WHERE e.kind <> 11 WINDOW life AS (PARTITION BY e.job_id ORDER BY e.id)
)
SELECT queue, type, kind, job_id, error, max(0, at - ready_at), next_kind, next_at - at FROM lines
"""


def truth(hub: penstock.Hub) -> dict[tuple[str, str], dict[str, Any]]:
    """What SQL finds in the history."""
    with hub.transaction(limit_seconds=60) as tx:
        rows = tx.execute(QUERY)
    found = {}
    for key in {row[:2] for row in rows}:
        lines = [row[2:] for row in rows if row[:2] == key]
        kinds = Counter(Kind(line[0]).name.lower() for line in lines)
        starts = [line for line in lines if line[0] == Kind.STARTED]
        waits = sorted(line[3] / SECOND for line in starts)
        runs = sorted(line[5] / SECOND for line in starts if line[4] == Kind.COMPLETED)
        errors = Counter(line[2] for line in lines if line[2] is not None)
        found[key] = {
            "events": len(lines),
            "jobs": len({line[1] for line in lines}),
            "attempts": len(starts),
            "running": sum(line[4] is None for line in starts),
            "completed": kinds["completed"],
            "failed": kinds["failed"],
            "died": kinds["died"],
            "released": kinds["released"],
            "snoozed": kinds["snoozed"],
            "waits": len(waits),
            "wait_p50_seconds": pytest.approx(rank(waits, 0.5)),
            "wait_p95_seconds": pytest.approx(rank(waits, 0.95)),
            "wait_max_seconds": pytest.approx(waits[-1]),
            "run_p50_seconds": pytest.approx(rank(runs, 0.5)),
            "run_p99_seconds": pytest.approx(rank(runs, 0.99)),
            "run_max_seconds": pytest.approx(runs[-1]),
            "timed_out": errors[TIMEOUT],
            "failures": sorted(
                (FailureClass(error, count, "…") for error, count in errors.items()),
                key=lambda failure: (-failure.count, failure.error),
            ),
        }
    return found


def rank(values: list[float], share: float) -> float:
    return values[math.ceil(share * len(values)) - 1]


def test_a_report_is_what_sql_finds_in_the_history(
    desk: Desk, hub: penstock.Hub, spark: SparkSession
) -> None:
    live(desk, random.Random(5))
    reports: list[JobHealth] = []

    def report(**arguments: Any) -> Run:
        run = Run(PIPELINE, spark, hub.settings, options={"hours": 0}, **arguments)
        PIPELINE.run(run)
        newest = Newest(hub.topics, JOB_HEALTH_TOPIC, JobHealth)
        newest.refresh()
        reports[:] = newest.values()
        return run

    run = report()

    expected = truth(hub)
    assert run.rows == sum(found["events"] for found in expected.values())
    assert {(str(found.queue), str(found.type)) for found in reports} == set(expected)
    for found in reports:
        wanted = expected[str(found.queue), str(found.type)]
        assert {name: getattr(found, name) for name in wanted} == wanted

    # While it goes on, nothing is reported unless something has happened.
    stop, messages = Stop(), hub.topics.stats(JOB_HEALTH_TOPIC).messages
    looks = iter([lambda: None, lambda: None, lambda: desk.enqueue("mail", type="send"), stop.ask])
    stop.wait = lambda seconds: (next(looks)(), stop.is_asked)[1]  # type: ignore[method-assign]
    report(once=False, stop=stop)
    assert hub.topics.stats(JOB_HEALTH_TOPIC).messages == messages + 2 * len(expected)


def test_a_report_of_another_time_has_what_happened_then(
    desk: Desk, hub: penstock.Hub, spark: SparkSession
) -> None:
    desk.enqueue("mail")
    desk.clock.advance(60)
    desk.enqueue("mail")
    desk.clock.advance(60)
    desk.enqueue("mail")
    span = {"since": NOW + timedelta(seconds=30), "until": NOW + timedelta(seconds=90)}

    run = Run(PIPELINE, spark, hub.settings, **span)  # type: ignore[arg-type]
    PIPELINE.run(run)

    assert run.rows == 1
    [message] = hub.topics.read(JOB_HEALTH_TOPIC)
    assert message.decode(JobHealth).jobs == 1
    with pytest.raises(InvalidInput, match="not in the lake"):
        PIPELINE.run(Run(PIPELINE, spark, hub.settings, source="lake"))
