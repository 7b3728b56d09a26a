"""Archiving, retention, crashes, lost checkpoints, further topics and compaction in any order (S3).

Against what was published: after each step every message is in the lake once or still in the log,
and `read_topic` would take it from exactly one of the two.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.clock import SystemClock
from penstock.model import Retention
from penstock.spark import archiving, compaction
from penstock.spark.entities import ENTITIES, MESSAGES
from penstock.spark.lake import Reader, Wanted
from penstock.spark.lake_rest import RestReader
from penstock.spark.options import parse_source
from penstock.stores import open_scanner
from tests.factories import file_url, hub_on, settings_for
from tests.spark.driving import shipped
from tests.spark.lakes import ArchiveEngine, rows_in_lake, store_of

TOPICS = ("a", "b", "C/d")
ASKED: tuple[tuple[str, ...], ...] = ((), ("a",), ("a", "b"), ("?", "C*"))


class Crash(BaseException):
    """As if the process were gone."""


class ArchiveMachine(RuleBasedStateMachine):
    @initialize(asked=st.sampled_from(ASKED))
    def start(self, asked: tuple[str, ...]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "hub.db"
        self.hub = hub_on(self.path, durability="os")
        self.hub.topics.position()
        self.checkpoints = itertools.count()
        self.asked = asked
        self.new_checkpoint()
        self.published: dict[int, tuple[str, int]] = {}
        self.numbers = itertools.count()
        self.tasks, self.files = archiving.TASK_ROWS, compaction.FILES_MIN
        archiving.TASK_ROWS, compaction.FILES_MIN = 3, 2

    def new_checkpoint(self) -> None:
        self.checkpoint = Path(self.folder.name) / f"checkpoint-{next(self.checkpoints)}"

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 7))
    def publish(self, topic: str, count: int) -> None:
        payloads = [next(self.numbers) for _ in range(count)]
        receipts = self.hub.topics.publish_many(topic, payloads)
        for receipt, payload in zip(receipts, payloads, strict=True):
            self.published[receipt.id] = topic, payload

    @rule(rows_max=st.integers(1, 9), crash_at=st.none() | st.integers(1, 30))
    def archive(self, rows_max: int, crash_at: int | None) -> None:
        steps = 0

        def on_step(name: str) -> None:
            nonlocal steps
            steps += 1
            if steps == crash_at:
                raise Crash

        try:
            engine = ArchiveEngine(
                self.path, self.checkpoint, on_step, topics=self.asked, rows_max=rows_max
            )
            engine.run()
        except Crash:
            pass

    @rule(topic=st.sampled_from(TOPICS), keep=st.integers(1, 4))
    def sweep(self, topic: str, keep: int) -> None:
        """Only where the lake holds it back; elsewhere it would take away what it may."""
        with store_of(self.path) as store:
            covered = [(c.subscription, c.through) for c in store.lake.coverage() if c.is_held]
            if not any(archiving.Pattern(text).matches(topic) for text, _ in covered):
                return
            writer = store.open_writer()
            with writer.transaction() as transaction:
                transaction.topics.sweep(topic, Retention(messages_max=keep), now=2**50, limit=1000)
            writer.close()

    @rule()
    def lose_checkpoint(self) -> None:
        self.new_checkpoint()

    @rule(asked=st.sampled_from(ASKED))
    def ask_for_others(self, asked: tuple[str, ...]) -> None:
        """As the pipeline wants it: with a new checkpoint."""
        if asked != self.asked:
            self.asked = asked
            self.new_checkpoint()

    @invariant()
    def each_message_is_read_once(self) -> None:
        lake = [(row["offset"], row["topic"], int(row["value"])) for row in rows_in_lake(self.path)]
        rest = [(row["offset"], row["topic"], int(row["value"])) for row in self.rest()]
        expected = [(id, *message) for id, message in sorted(self.published.items())]
        assert sorted(lake + rest) == expected

    def rest(self) -> list[dict[str, Any]]:
        """What `read_topic` takes from the log."""
        settings = settings_for(file_url(self.path))
        scanner = open_scanner(settings, SystemClock())
        try:
            reader = Reader(None, settings)  # type: ignore[arg-type]
            _, rest = reader.look(scanner, Wanted(("*",)), "both")
        finally:
            scanner.close()
        options = parse_source({"url": file_url(self.path), "includeHeaders": "true"}, ENTITIES)
        log = RestReader(options, MESSAGES.schema(include=MESSAGES.optional), rest)
        return [
            row
            for part in log.partitions()
            for batch in shipped(log).read(shipped(part))
            for row in batch.to_pylist()
        ]

    def teardown(self) -> None:
        archiving.TASK_ROWS, compaction.FILES_MIN = self.tasks, self.files
        self.hub.close()
        self.folder.cleanup()


TestArchiveMachine = ArchiveMachine.TestCase
TestArchiveMachine.settings = settings(max_examples=25, stateful_step_count=14)
