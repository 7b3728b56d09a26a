"""Who runs a pipeline, and what is told of it (S10). No JVM: the pipelines here need no Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from penstock.errors import (
    InvalidInput,
    LeaseLost,
    PipelineBusy,
    PipelineFailed,
    StoreBusy,
)
from penstock.ports.pipelines import PipelineStatus
from penstock.settings import Settings
from penstock.spark.registry import Option, Pipeline
from penstock.spark.reset import reset
from penstock.spark.runner import Report, Run, Stop, checkpoint_of
from penstock.spark.running import Order, Runner, stopped_by_signals
from tests.factories import file_url, hub_on, settings_for
from tests.waiting import wait_until

NO_SPARK: Any = None


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(file_url(tmp_path / "hub.db"))


@pytest.fixture
def runner(settings: Settings) -> Iterator[Runner]:
    with Runner(settings, NO_SPARK) as runner:
        yield runner


def order(work: Callable[[Run], None], **changes: Any) -> Order:
    options = (Option("currency", "Which.", "EUR"),)
    return Order(Pipeline("totals", "Sums", work, options, home="shop:totals"), **changes)


def status(tmp_path: Path) -> PipelineStatus:
    with hub_on(tmp_path / "hub.db") as hub:
        [found] = hub.metrics().pipelines
    return found


def two_batches(run: Run) -> None:
    run.report(rows=30, batch=4, lag=20, seconds=0.5)
    run.report(rows=20, batch=5, lag=0, seconds=0.25)


def test_a_run_reports_to_the_store_and_to_who_watches(runner: Runner, tmp_path: Path) -> None:
    seen: list[Report] = []
    returned = runner.run(order(two_batches), on_report=seen.append)

    assert [report.rows for report in seen] == [30, 20]
    found = status(tmp_path)
    assert (found.state, found.rows, found.batches, found.lag) == ("finished", 50, 2, 0)
    assert (returned.state, returned.rows, returned.home) == ("finished", 50, "shop:totals")
    assert returned.options == '{"currency":"EUR"}'
    assert runner.run(order(two_batches)).rows_total == 100


def test_the_second_runner_is_refused_while_the_first_runs(
    runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    begun, go = threading.Event(), threading.Event()

    def work(run: Run) -> None:
        begun.set()
        assert go.wait(60)

    first = threading.Thread(target=runner.run, args=(order(work),))
    first.start()
    try:
        assert begun.wait(60)
        with Runner(settings, NO_SPARK) as other:
            with pytest.raises(PipelineBusy, match="totals is being run by"):
                other.run(order(two_batches))
            with pytest.raises(PipelineBusy):
                reset(settings, order(work).pipeline)
        assert status(tmp_path).state == "starting"
    finally:
        go.set()
        first.join(60)
    with Runner(settings, NO_SPARK) as other:
        assert other.run(order(two_batches)).state == "finished"


def test_a_failure_is_kept_with_its_reason(runner: Runner, tmp_path: Path) -> None:
    def work(run: Run) -> None:
        run.report(rows=7, batch=0, lag=None, seconds=0.1)
        raise KeyError("customer")

    with pytest.raises(PipelineFailed, match="KeyError: 'customer'"):
        runner.run(order(work))
    found = status(tmp_path)
    assert (found.state, found.rows) == ("failed", 7)
    assert found.error == "PipelineFailed: KeyError: 'customer'"
    assert runner.run(order(two_batches)).state == "finished"
    assert status(tmp_path).error == found.error


def test_one_that_lost_its_lease_ends_and_says_no_more(settings: Settings, tmp_path: Path) -> None:
    """As a process does that was suspended for longer than its lease."""
    taken = threading.Event()

    def work(run: Run) -> None:
        run.report(rows=1, batch=0, lag=None, seconds=0.1)
        with hub_on(tmp_path / "hub.db") as hub:
            runtime = hub._open()
            runtime.committer.run(
                lambda tx: tx.leases.revoke("pipeline\x1ftotals")  # type: ignore[attr-defined]
            ).wait()
        with Runner(settings, NO_SPARK) as other:
            other.run(order(two_batches))
        taken.set()
        run.report(rows=1, batch=1, lag=None, seconds=0.1)

    with Runner(settings, NO_SPARK) as runner, pytest.raises(LeaseLost, match="taken over"):
        runner.run(order(work))
    assert taken.is_set()
    assert (status(tmp_path).state, status(tmp_path).rows) == ("finished", 50)


def test_a_lost_lease_stops_what_runs(tmp_path: Path) -> None:
    settings = settings_for(file_url(tmp_path / "hub.db"), pipeline_lease_seconds=0.3)

    def work(run: Run) -> None:
        with hub_on(tmp_path / "hub.db") as hub:
            hub._open().committer.run(
                lambda tx: tx.leases.revoke("pipeline\x1ftotals")  # type: ignore[attr-defined]
            ).wait()
        wait_until(lambda: run.stop.is_urgent, "the keeper has noticed")

    with Runner(settings, NO_SPARK) as runner, pytest.raises(LeaseLost):
        runner.run(order(work))


def test_one_that_is_told_to_stop_is_stopped(runner: Runner) -> None:
    stop = Stop()

    def work(run: Run) -> None:
        stop.ask()
        assert run.is_stopping
        assert not run.stop.is_urgent

    assert runner.run(order(work), stop=stop).state == "stopped"


def test_signals_ask_it_to_stop_and_the_second_at_once() -> None:
    import signal

    stop = Stop()
    before = signal.getsignal(signal.SIGTERM)
    with stopped_by_signals(stop):
        signal.raise_signal(signal.SIGINT)
        assert (stop.is_asked, stop.is_urgent) == (True, False)
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_urgent
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_may_pass_is_tried_again_and_goes_on(settings: Settings, tmp_path: Path) -> None:
    """A busy store, or a machine so slow that Spark gives up on its own processes."""
    trouble = [
        StoreBusy("busy"),
        PySparkException("[X] Python worker failed to connect back."),
        StoreBusy("busy"),
    ]

    def work(run: Run) -> None:
        run.report(rows=1, batch=0, lag=None, seconds=0.1)
        if trouble:
            raise trouble.pop()

    with Runner(settings, NO_SPARK, pauses=(0.0,)) as runner:
        found = runner.run(order(work))
    assert (found.state, found.rows, found.error, trouble) == ("finished", 4, "", [])


def test_patience_ends_where_nothing_gets_done(settings: Settings, tmp_path: Path) -> None:
    tries: list[int] = []

    def work(run: Run) -> None:
        tries.append(1)
        raise StoreBusy("busy")

    with Runner(settings, NO_SPARK, pauses=(0.0, 0.0)) as runner, pytest.raises(StoreBusy):
        runner.run(order(work))
    assert (len(tries), status(tmp_path).state) == (3, "failed")


def test_what_does_not_pass_is_not_tried_again(runner: Runner) -> None:
    tries: list[int] = []

    def work(run: Run) -> None:
        tries.append(1)
        raise InvalidInput("wrong")

    with pytest.raises(InvalidInput):
        runner.run(order(work))
    assert len(tries) == 1


def test_one_that_is_to_stop_does_not_wait_for_its_next_try(settings: Settings) -> None:
    stop = Stop()

    def work(run: Run) -> None:
        threading.Timer(0.05, stop.ask).start()
        raise StoreBusy("busy")

    with Runner(settings, NO_SPARK, pauses=(3600.0,)) as runner, pytest.raises(StoreBusy):
        runner.run(order(work), stop=stop)


def test_a_lost_lease_stops_no_other_pipeline(settings: Settings) -> None:
    stop = Stop()
    first, second = stop.child(), stop.child()
    first.ask()
    first.ask()
    assert (first.is_urgent, second.is_asked, stop.is_asked) == (True, False, False)
    stop.ask()
    assert (second.is_asked, second.is_urgent) == (True, False)
    assert stop.child().is_asked


def test_a_beat_is_seen(runner: Runner, tmp_path: Path) -> None:
    beats: list[int | None] = []

    def work(run: Run) -> None:
        run.beat(lag=3)
        assert (status(tmp_path).state, status(tmp_path).lag) == ("running", 3)

    runner.run(order(work), on_beat=beats.append)
    assert beats == [3]


def test_steps_are_told(settings: Settings) -> None:
    steps: list[str] = []
    with Runner(settings, NO_SPARK, on_step=steps.append) as runner:
        runner.run(order(lambda run: run.step("staged")))
    assert steps == ["staged"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"options": {"curency": "USD"}}, "no option --curency"),
        ({"trigger": "now and then"}, "is no time"),
        ({"since": datetime(2026, 1, 1)}, "since has no time zone"),  # noqa: DTZ001
        (
            {"since": datetime(2026, 1, 2, tzinfo=UTC), "until": datetime(2026, 1, 1, tzinfo=UTC)},
            "is not before until",
        ),
    ],
)
def test_what_cannot_be_run_like_this_is_refused_and_changes_nothing(
    runner: Runner, tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    wrong = order(two_batches, **changes)
    with pytest.raises(InvalidInput, match=text):
        wrong.check()
    with pytest.raises(InvalidInput, match=text):
        runner.run(wrong)
    with hub_on(tmp_path / "hub.db") as hub:
        assert hub.metrics().pipelines == []


def test_a_stream_cannot_be_run_over_a_piece_of_the_past(runner: Runner) -> None:
    follows = order(lambda run: run.stream(subscribe="a"), until=datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidInput, match="follows the log"):
        runner.run(follows)


def test_health_tells_of_a_pipeline_that_failed_or_runs(runner: Runner, tmp_path: Path) -> None:
    def look(run: Run) -> None:
        run.report(rows=1, batch=0, lag=9, seconds=1.0)
        with hub_on(tmp_path / "hub.db") as hub:
            [check] = [c for c in hub.health().checks if c.name == "pipeline totals"]
        assert (check.status, check.found) == ("ok", "running, 9 rows behind")
        raise InvalidInput("wrong")

    with pytest.raises(InvalidInput):
        runner.run(order(look))
    with hub_on(tmp_path / "hub.db") as hub:
        health = hub.health()
    [check] = [c for c in health.checks if c.name == "pipeline totals"]
    assert (check.status, check.found) == ("warning", "failed: InvalidInput: wrong")
    assert health.status == "warning"


def test_reset_keeps_the_old_checkpoint_aside(
    runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    pipeline = Pipeline("totals", "", two_batches, on_reset=lambda settings: ["The rest, too."])
    runner.run(Order(pipeline))
    checkpoint = Path(checkpoint_of(settings, "totals"))
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text("v1")
    done = reset(settings, pipeline)

    assert not checkpoint.exists()
    [aside] = checkpoint.parent.iterdir()
    assert aside.name.startswith("totals.2")
    assert (aside / "offsets" / "0").read_text() == "v1"
    assert done[0] == f"The checkpoint is now {aside}."
    assert "The rest, too." in done
    with hub_on(tmp_path / "hub.db") as hub:
        assert hub.metrics().pipelines == []
    assert reset(settings, pipeline)[0].startswith("There was no checkpoint")
