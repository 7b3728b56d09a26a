"""An archive killed between every two steps: every message is in the lake once (S3).

The steps are Spark's and ours: offsets written, files written by each task, files and coverage
entered, other attempts removed, small files merged, the batch noted in the checkpoint.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from penstock.model import Retention
from penstock.spark import archiving, compaction
from tests.factories import hub_on
from tests.processes import in_fork
from tests.spark.lakes import (
    ArchiveEngine,
    archive,
    files_on_disk,
    rows_in_lake,
    rows_in_log,
    store_of,
)

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

MESSAGES = 20
FEW = Retention(messages_max=1)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "TASK_ROWS", 5)
    monkeypatch.setattr(compaction, "FILES_MIN", 2)


class Query:
    """Lives in children: each run is a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hub.db"
        self.checkpoint = folder / "checkpoint"

    def publish(self, count: int) -> None:
        with hub_on(self.path) as hub:
            for topic in ("a", "B/ä"):
                hub.topics.publish_many(topic, range(count // 2))

    def run(self, kill_at: int | None = None) -> int:
        """How it ended: 0, or by a kill at the step of this number."""

        def work() -> None:
            steps = 0

            def on_step(name: str) -> None:
                nonlocal steps
                steps += 1
                if steps == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

            ArchiveEngine(self.path, self.checkpoint, on_step, rows_max=14, tasks=2).run()

        return in_fork(work)

    def sweep(self) -> None:
        with store_of(self.path) as store:
            writer = store.open_writer()
            for topic in ("a", "B/ä"):
                with writer.transaction() as transaction:
                    transaction.topics.sweep(topic, FEW, now=2**50, limit=1000)
            writer.close()


def test_a_kill_between_any_two_steps_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    kill_at, ended = 1, -signal.SIGKILL
    while ended == -signal.SIGKILL:
        query = Query(tmp_path / str(kill_at))
        query.path.parent.mkdir()
        query.publish(MESSAGES)
        expected = rows_in_log(query.path)
        ended = query.run(kill_at)
        assert ended in (0, -signal.SIGKILL)

        query.sweep()  # What is not archived must survive this.
        assert query.run() == 0

        assert rows_in_lake(query.path) == expected, f"killed at step {kill_at}"
        kill_at += 1
    assert kill_at > 18, "there are two batches of many steps"


def test_kills_at_many_steps_of_one_query(tmp_path: Path) -> None:
    query = Query(tmp_path)
    chance = random.Random(7)
    published = 0
    for _ in range(12):
        query.publish(10)
        published += 10
        query.run(chance.randrange(1, 20))
    assert query.run() == 0

    found = rows_in_lake(query.path)
    assert len(found) == published
    assert found == rows_in_log(query.path)


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.publish(MESSAGES)
    in_fork(lambda: stop_at(query, "written"))
    assert files_on_disk(query.path)

    assert query.run() == 0

    def unknown() -> set[str]:
        found = files_on_disk(query.path)
        with store_of(query.path) as store:
            return found - store.lake.is_known(sorted(found))

    assert unknown() == set()


def stop_at(query: Query, step: str) -> None:
    def on_step(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    archive(query.path, query.checkpoint, on_step=on_step)
