"""A stream, restarted and trimmed at random, against what the log had (S1)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import penstock
from penstock.errors import DataLost
from penstock.testing import FakeClock
from tests.factories import hub_on
from tests.spark.driving import Stream, columns

TOPICS = ("a", "b", "penstock-like")
WANTED = columns("offset", "topic")


class StreamMachine(RuleBasedStateMachine):
    """What is delivered is exactly what was published of the topics that are meant, once each, in
    order, and either all of it or with an error that says what is missing."""

    @initialize(
        asked=st.sampled_from([None, "a", "a,b"]),
        rows_max=st.integers(1, 7),
        is_careful=st.booleans(),
        parts=st.sampled_from([None, 3]),
    )
    def start(self, asked: str | None, rows_max: int, is_careful: bool, parts: int | None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "hub.db"
        self.clock = FakeClock()
        self.hub = hub_on(self.path, clock=self.clock, durability="os")
        self.hub.topics.position()
        self.options: dict[str, Any] = {
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": rows_max,
            "failOnDataLoss": str(is_careful).lower(),
        }
        if asked is not None:
            self.options["subscribe"] = asked
        if parts is not None:
            self.options["minPartitions"] = parts
        self.asked = set(TOPICS if asked is None else asked.split(","))
        self.is_careful = is_careful
        self.published: dict[int, str] = {}
        self.trimmed: set[int] = set()
        self.seen: list[int] = []
        self.planned: tuple[Any, Any] | None = None
        self.checkpoint: Any = None
        self.has_ended = False
        self.open_stream()

    def open_stream(self) -> None:
        self.stream = Stream(self.path, WANTED, **self.options)
        self.stream.offset = self.checkpoint

    @property
    def place(self) -> int:
        return 0 if self.checkpoint is None else self.checkpoint["id"]

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 9))
    def publish(self, topic: str, count: int) -> None:
        receipts = self.hub.topics.publish_many(topic, range(count))
        self.published.update((receipt.id, topic) for receipt in receipts)

    @rule(topic=st.sampled_from(TOPICS), keep=st.integers(0, 5))
    def trim(self, topic: str, keep: int) -> None:
        mine = sorted(i for i, t in self.published.items() if t == topic and i not in self.trimmed)
        if len(mine) > keep:
            through = mine[len(mine) - keep - 1]
            epoch = self.hub.topics.position().epoch
            self.hub.topics.trim(topic, through=penstock.Position(epoch, through))
            self.trimmed |= {number for number in mine if number <= through}

    @precondition(lambda self: not self.has_ended)
    @rule()
    def plan(self) -> None:
        """Spark writes the plan down before anything is read."""
        if self.planned is not None:
            return
        if self.checkpoint is None:
            # Not written down before there is a plan: asked again after each restart.
            self.stream.offset = None
            self.born_after = set(self.trimmed)
        start = self.stream.begin()
        lost = self.lost_after(start["id"])
        try:
            end = self.stream.plan()
        except DataLost:
            assert self.is_careful
            assert lost
            self.has_ended = True
            return
        if end != start:
            assert not (lost and self.is_careful)
            self.known = set(self.trimmed)
            self.planned = (start, end)

    def lost_after(self, place: int) -> set[int]:
        known = self.born_after if self.checkpoint is None else self.known
        return {
            number
            for number in self.trimmed - known
            if number > place and self.published[number] in self.asked
        }

    @precondition(lambda self: self.planned is not None and not self.has_ended)
    @rule(times=st.integers(1, 2), is_done=st.booleans())
    def run(self, times: int, is_done: bool) -> None:
        """A batch may be read several times; only the last reading counts, if the batch is done."""
        assert self.planned is not None
        start, end = self.planned
        rows: list[int] = []
        for _ in range(times):
            try:
                rows = [row["offset"] for row in self.stream.read(start, end)]
            except DataLost:
                assert self.is_careful
                self.has_ended = True
                return
        expected = [
            number
            for number, topic in sorted(self.published.items())
            if start["id"] < number <= end["id"]
            and topic in self.asked
            and number not in self.trimmed
        ]
        assert rows == expected
        assert len(rows) <= self.options["maxOffsetsPerTrigger"]
        if self.is_careful:
            gone = self.trimmed - self.known
            assert not {n for n in gone if n > start["id"] and self.published[n] in self.asked}
        if is_done:
            self.seen += rows
            self.checkpoint = self.stream.offset = end
            self.planned = None

    @rule()
    def restart(self) -> None:
        self.stream.close()
        self.open_stream()
        if self.planned is not None:
            self.stream.offset = self.planned[0]

    @invariant()
    def delivered_once_in_order(self) -> None:
        if hasattr(self, "seen"):
            assert self.seen == sorted(set(self.seen))

    def teardown(self) -> None:
        if not hasattr(self, "hub"):
            return
        if not self.has_ended and self.planned is None:
            while not self.has_ended:
                self.plan()
                if self.planned is None:
                    break
                self.run(1, True)
            if not self.has_ended:
                missing = {
                    number
                    for number, topic in self.published.items()
                    if topic in self.asked and number not in self.seen
                }
                assert missing <= self.trimmed
        self.stream.close()
        self.hub.close()
        self.folder.cleanup()


TestStream = StreamMachine.TestCase
TestStream.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
