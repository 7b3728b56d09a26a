"""A driver killed between every two steps of a stream from topic to topic: nothing is lost,
nothing is there twice (S1, S2)."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from penstock.errors import SinkReused, StagingDamaged
from tests.factories import hub_on
from tests.processes import in_fork
from tests.spark.engine import Engine

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

MESSAGES = 23
SOURCE = {"subscribe": "in", "startingOffsets": "earliest", "minPartitions": "2"}
SINK = {"topic": "out", "valueFormat": "json"}
# A batch in chunks from files, in chunks from the message, and whole.
SHAPES = {
    "chunks from files": ("12", {"maxRowsPerTransaction": "5", "maxInlineBytes": "0"}),
    "chunks from messages": ("12", {"maxRowsPerTransaction": "5"}),
    "whole": ("12", {"maxInlineBytes": "0"}),
}


class Query:
    """Lives in children: each run is a process of its own."""

    def __init__(self, folder: Path, shape: str) -> None:
        self.path = folder / "hub.db"
        self.checkpoint = folder / "checkpoint"
        self.rows_max, self.sink = SHAPES[shape]

    def publish(self, count: int) -> None:
        with hub_on(self.path) as hub:
            hub.topics.publish_many("in", range(count))

    def run(self, kill_at: int | None = None) -> int:
        """How it ended: 0, or by a kill at the step of this number."""

        def work() -> None:
            steps = 0

            def on_step(name: str) -> None:
                nonlocal steps
                steps += 1
                if steps == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

            Engine(
                f"sqlite:///{self.path}",
                self.checkpoint,
                on_step,
                source={**SOURCE, "maxOffsetsPerTrigger": self.rows_max},
                sink={**SINK, **self.sink},
            ).run()

        return in_fork(work)

    def check(self, count: int) -> None:
        with hub_on(self.path) as hub:
            found = Counter(message.payload for message in hub.topics.read("out", limit=10_000))
        assert found == Counter(range(count)), "lost or there twice"

    @property
    def staged(self) -> list[Path]:
        folder = self.path.with_name("hub.db-staging")
        return list(folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("shape", SHAPES)
def test_killed_between_every_two_steps_a_stream_delivers_each_message_once(
    tmp_path: Path, shape: str
) -> None:
    kill_at = 1
    while True:
        query = Query(make_folder(tmp_path, kill_at), shape)
        query.publish(MESSAGES)
        status = query.run(kill_at)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        assert query.run() == 0
        query.check(MESSAGES)
        kill_at += 1

    query.check(MESSAGES)
    assert kill_at > 12, "it was killed at as many places as there are"


def make_folder(parent: Path, number: int) -> Path:
    folder = parent / str(number)
    folder.mkdir()
    return folder


@pytest.mark.parametrize("shape", SHAPES)
def test_killed_again_and_again_it_still_comes_to_the_end(tmp_path: Path, shape: str) -> None:
    query = Query(tmp_path, shape)
    query.publish(MESSAGES)
    chance = random.Random(shape)
    for _ in range(12):
        assert query.run(chance.randint(1, 14)) in (0, -signal.SIGKILL)
    assert query.run() == 0

    query.check(MESSAGES)


def test_two_drivers_of_one_query_write_each_message_once(tmp_path: Path) -> None:
    """Whoever finds that the other has gone on is refused; what is there is whole."""
    query = Query(tmp_path, "chunks from files")
    query.publish(MESSAGES)

    def race() -> None:
        first, second = (
            Engine(
                f"sqlite:///{query.path}",
                query.checkpoint,
                lambda name: None,
                source={**SOURCE, "maxOffsetsPerTrigger": query.rows_max},
                sink={**SINK, **query.sink},
            )
            for _ in range(2)
        )
        # Between two chunks of the first, the second does the same batch from its beginning.
        fired: list[str] = []

        def interrupt(name: str) -> None:
            if name == "chunk 0" and not fired:
                fired.append(name)
                second.run()

        first._on_step = interrupt
        with pytest.raises((SinkReused, StagingDamaged)):
            first.run()

    assert in_fork(race) == 0
    query.check(MESSAGES)


def test_what_a_killed_task_leaves_is_told_apart_and_swept(tmp_path: Path) -> None:
    query = Query(tmp_path, "chunks from files")
    query.publish(MESSAGES)
    assert query.run(3) == -signal.SIGKILL  # After some rows of the first part.
    left = query.staged
    assert left
    assert query.run() == 0
    query.check(MESSAGES)
    for path in query.staged:
        os.utime(path, (0, 0))
    query.publish(1)
    assert query.run() == 0

    assert query.staged == []
    with hub_on(query.path) as hub:
        assert len(hub.topics.read("out", limit=100)) == MESSAGES + 1
