"""The status of pipelines: one runner at a time, and no word of one that was replaced (S10)."""

from __future__ import annotations

from typing import Any

from penstock.model import Lease
from penstock.ports.pipelines import PipelineRun, PipelineStatus, pipeline_lease
from tests.conformance.places import Place, Scribe


def begin(scribe: Scribe, name: str = "totals", **fields: Any) -> Lease | None:
    """As a runner does: the lease and the run in one transaction."""
    scribe.store.register("runner")
    values = {
        "home": "shop",
        "runner": "here:1",
        "is_continuous": True,
        "trigger": "10 seconds",
        "checkpoint": "/checkpoints/totals",
        "options": '{"currency":"EUR"}',
    } | fields

    def work(tx: Any) -> Lease | None:
        lease = tx.leases.acquire(pipeline_lease(name), owner="here:1", seconds=30)
        if lease is not None:
            run = PipelineRun(name, **values)
            tx.pipelines.begin(run, token=lease.token, now=scribe.clock.now())
        return lease  # type: ignore[no-any-return]

    return scribe.write(work)


def report(scribe: Scribe, token: int, name: str = "totals", **figures: Any) -> bool:
    values = {"rows": 10, "batch": 0, "lag": 5, "seconds": 0.5} | figures
    now = scribe.clock.now()
    return scribe.write(lambda tx: tx.pipelines.report(name, token=token, now=now, **values))


def end(scribe: Scribe, lease: Lease, state: Any = "finished", error: str = "") -> bool:
    now = scribe.clock.now()

    def work(tx: Any) -> bool:
        ended = tx.pipelines.end("totals", token=lease.token, state=state, error=error, now=now)
        tx.leases.release(lease)
        return bool(ended)

    return scribe.write(work)


def status(scribe: Scribe, name: str = "totals") -> PipelineStatus:
    [found] = scribe.store.pipelines.find(name)
    return found


def test_a_run_is_entered_as_it_begins(scribe: Scribe) -> None:
    assert scribe.store.pipelines.find() == []
    begin(scribe)

    found = status(scribe)
    assert (found.state, found.runs, found.rows, found.batch, found.lag) == (
        *("starting", 1, 0, None, None),
    )
    assert (found.home, found.runner, found.trigger) == ("shop", "here:1", "10 seconds")
    assert found.is_continuous is True
    assert found.options == '{"currency":"EUR"}'
    assert found.started_at == found.updated_at == scribe.clock.now()
    assert found.ended_at is None


def test_batches_are_counted(scribe: Scribe) -> None:
    lease = begin(scribe)
    assert lease is not None
    assert report(scribe, lease.token)
    scribe.clock.advance(7)
    assert report(scribe, lease.token, rows=3, batch=1, lag=None, seconds=1.25)

    found = status(scribe)
    assert (found.state, found.rows, found.rows_total, found.batches) == ("running", 13, 13, 2)
    assert (found.batch, found.batch_rows, found.batch_seconds, found.lag) == (1, 3, 1.25, None)
    assert found.updated_at == scribe.clock.now() > found.started_at


def test_a_beat_says_that_it_is_there_and_counts_nothing(scribe: Scribe) -> None:
    lease = begin(scribe)
    assert lease is not None
    report(scribe, lease.token)
    scribe.clock.advance(20)
    now = scribe.clock.now()
    beat = scribe.write(lambda tx: tx.pipelines.beat("totals", token=lease.token, lag=0, now=now))

    found = status(scribe)
    assert beat
    assert (found.rows, found.batches, found.lag, found.updated_at) == (10, 1, 0, now)


def test_a_later_run_keeps_the_total_and_the_last_error(scribe: Scribe) -> None:
    first = begin(scribe)
    assert first is not None
    report(scribe, first.token)
    assert end(scribe, first, "failed", "DataLost: rows were removed")
    failed = status(scribe)
    second = begin(scribe)
    assert second is not None
    report(scribe, second.token, rows=1)
    assert end(scribe, second)

    assert (failed.state, failed.error) == ("failed", "DataLost: rows were removed")
    found = status(scribe)
    assert (found.state, found.runs, found.rows, found.rows_total) == ("finished", 2, 1, 11)
    assert (found.error, found.error_at) == ("DataLost: rows were removed", failed.ended_at)


def test_the_second_runner_is_refused(scribe: Scribe) -> None:
    first = begin(scribe)
    assert first is not None
    assert begin(scribe, runner="there:2") is None
    assert begin(scribe, "another") is not None
    assert status(scribe).runner == "here:1"
    assert status(scribe).runs == 1


def test_one_whose_lease_ran_out_is_lost_and_has_no_more_to_say(scribe: Scribe) -> None:
    late = begin(scribe)
    assert late is not None
    report(scribe, late.token)
    scribe.clock.advance(31)
    lost = status(scribe)
    after = begin(scribe, runner="there:2")
    assert after is not None
    now = scribe.clock.now()

    assert lost.state == "lost"
    assert not report(scribe, late.token)
    assert not scribe.write(
        lambda tx: tx.pipelines.beat("totals", token=late.token, lag=0, now=now)
    )
    assert not end(scribe, late, "failed", "late")
    found = status(scribe)
    assert (found.state, found.runner, found.rows, found.error) == ("starting", "there:2", 0, "")


def test_one_whose_process_has_ended_is_lost_at_once(place: Place) -> None:
    runner = place.open()
    begin(Scribe(runner, place.writer(runner), place.clock))
    watcher = place.open()
    [before] = watcher.pipelines.find()
    place.end(runner)
    [after] = watcher.pipelines.find()

    assert (before.state, after.state) == ("starting", "lost")


def test_one_can_be_forgotten(scribe: Scribe) -> None:
    begin(scribe)
    begin(scribe, "another")

    assert scribe.write(lambda tx: tx.pipelines.forget("totals"))
    assert not scribe.write(lambda tx: tx.pipelines.forget("totals"))
    assert [found.name for found in scribe.store.pipelines.find()] == ["another"]
