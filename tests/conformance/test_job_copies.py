"""Jobs in a backup, and after the way back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.job import State
from penstock.testing import FakeClock
from tests.audit import audit_jobs
from tests.conformance.desk import Desk, new_job
from tests.conformance.test_job_answers import REFUSED, answers


@pytest.fixture
def copied(desk: Desk, tmp_path: Path) -> Callable[[], None]:
    """The call brings back the backup in `copy`."""
    if not desk.store.capabilities.backup:
        pytest.skip("the store makes no backups")

    def go_back() -> None:
        desk.store.restore(tmp_path / "copy")

    return go_back


def test_no_claim_of_the_backup_is_alive(
    desk: Desk, copied: Callable[[], None], tmp_path: Path, clock: FakeClock
) -> None:
    """Failure mode 2: though the process that had them then is alive, and goes on."""
    desk.put(*(new_job() for _ in range(3)))
    desk.enter()
    started, claimed = desk.take(), desk.claim()[0]
    desk.store.backup(tmp_path / "copy")
    desk.complete(started)
    copied()

    assert desk.store.jobs.workers() == []
    assert answers(desk, started) == answers(desk, claimed) == REFUSED
    assert desk.store.jobs.has_lost()
    assert sorted(desk.rescue()) == [started.id, claimed.id]
    assert desk.states(started.id, claimed.id) == [State.SCHEDULED, State.PENDING]
    desk.enter()
    assert [worker.instance for worker in desk.store.jobs.workers()] == [desk.instance.id]
    clock.advance(1)
    assert len(desk.claimed()) == 3


def test_tokens_and_ids_of_before_never_come_again(
    desk: Desk, copied: Callable[[], None], tmp_path: Path
) -> None:
    desk.store.backup(tmp_path / "copy")
    desk.put(*(new_job() for _ in range(5)))
    old = desk.take_many(5)
    events = desk.store.jobs.events(after=0, limit=99)
    copied()
    desk.put(*(new_job() for _ in range(5)))
    new = desk.take_many(5)

    assert min(claim.id for claim in new) > max(claim.id for claim in old)
    assert min(claim.token for claim in new) > max(claim.token for claim in old)
    later = desk.store.jobs.events(after=0, limit=99)
    assert later[0].id > events[-1].id
    assert desk.complete(*old) == []
    assert len(desk.complete(*new)) == 5


def test_jobs_that_were_pruned_are_back_under_their_ids(
    desk: Desk, copied: Callable[[], None], tmp_path: Path
) -> None:
    ids = [job.id for job in desk.put(*(new_job() for _ in range(5)))]
    desk.store.backup(tmp_path / "copy")
    desk.cancel(*ids)
    desk.clock.advance(10)
    assert desk.prune({State.CANCELLED: 1}) == 5
    copied()

    audit_jobs(desk.store)
    assert desk.claimed() == ids
    assert desk.enqueue() > ids[-1]


def test_what_was_in_the_queues_is_so_again(
    desk: Desk, copied: Callable[[], None], tmp_path: Path, clock: FakeClock
) -> None:
    ready, later = desk.enqueue(), desk.enqueue(delay=60, unique_key="k")
    child = desk.enqueue(after=(ready,))
    dead = desk.done(State.FAILED)
    desk.limit(concurrency_max=2)
    desk.store.backup(tmp_path / "copy")
    desk.cancel(ready, later)
    desk.retry(dead)
    desk.limit()
    copied()
    audit_jobs(desk.store)

    assert desk.states(ready, later, child, dead) == [
        State.PENDING,
        State.SCHEDULED,
        State.WAITING,
        State.FAILED,
    ]
    assert desk.store.jobs.limits("q").concurrency_max == 2
    clock.advance(60)
    assert desk.claimed() == [ready, later]


def test_a_new_generation_takes_nothing_out_of_workers_hands(desk: Desk) -> None:
    desk.enqueue()
    desk.enter()
    claim = desk.take()
    desk.store.new_generation()

    assert desk.rescue() == []
    assert desk.complete(claim) == [claim.id]
