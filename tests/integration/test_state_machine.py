"""Topics, consumers and retention against a plain model, in any order hypothesis finds.

The model is a list of messages and a few numbers. After every step the hub must show the same.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

import penstock
from penstock import Position, Publication, Retention
from penstock.errors import IdempotencyConflict, LogTrimmed, TopicNotFound
from penstock.model import Pattern
from penstock.testing import FakeClock
from tests.factories import hub_on

TOPICS = ("a", "b", "ab")
PATTERNS = ("a", "b", "a*", "*")
CONSUMERS = ("one", "two")
KEEP_SECONDS = 100.0
HELD = "one"
"""Topic "b" waits for this consumer, up to twice the age."""
KEY_SECONDS = 50.0


class Entry:
    """A message as the model has it."""

    def __init__(self, id: int, topic: str, value: object, at: float, ttl: float | None) -> None:
        self.id = id
        self.topic = topic
        self.value = value
        self.at = at
        self.ends_at = None if ttl is None else at + ttl
        self.is_hidden = False

    def is_expired(self, now: float) -> bool:
        return self.ends_at is not None and self.ends_at <= now


class Model:
    """What the hub must look like."""

    def __init__(self) -> None:
        self.now = 0.0
        self.last_id = 0
        self.entries: list[Entry] = []
        self.lost: dict[str, int] = {}
        self.live: set[str] = set()
        self.is_held = False
        self.keys: dict[tuple[str, str], tuple[int, object, float]] = {}
        self.watermarks: dict[tuple[str, str], int] = {}
        self.floors: dict[tuple[str, str], int] = {}

    def publish(self, topic: str, value: object, ttl: float | None, key: str | None) -> int | None:
        """The id; None for a conflict."""
        if key is not None:
            known = self.keys.get((topic, key))
            if known is not None and known[2] > self.now:
                return known[0] if known[1] == value else None
        self.last_id += 1
        if key is not None:
            self.keys[topic, key] = (self.last_id, value, self.now + KEY_SECONDS)
        self.entries.append(Entry(self.last_id, topic, value, self.now, ttl))
        self.live.add(topic)
        return self.last_id

    def visible(self, pattern: str, after: int = 0) -> list[Entry]:
        matches = Pattern(pattern).matches
        return [
            entry
            for entry in self.entries
            if entry.id > after
            and matches(entry.topic)
            and not entry.is_hidden
            and not entry.is_expired(self.now)
        ]

    def lost_through(self, pattern: str) -> int:
        matches = Pattern(pattern).matches
        return max((n for topic, n in self.lost.items() if matches(topic)), default=0)

    def hide(self, entries: list[Entry]) -> None:
        for entry in entries:
            if not entry.is_hidden:
                entry.is_hidden = True
                self.lost[entry.topic] = max(self.lost.get(entry.topic, 0), entry.id)

    def sweep(self, topic: str) -> None:
        for entry in [e for e in self.entries if e.topic == topic]:
            age = self.now - entry.at
            if not entry.is_hidden and not entry.is_expired(self.now):
                if age < KEEP_SECONDS:
                    break
                if topic == "b" and self._is_held(entry) and age < 2 * KEEP_SECONDS:
                    break
                self.lost[topic] = max(self.lost.get(topic, 0), entry.id)
            self.entries.remove(entry)

    def _is_held(self, entry: Entry) -> bool:
        if not self.is_held:
            return False
        marks = [
            mark
            for (name, pattern), mark in self.watermarks.items()
            if name == HELD and Pattern(pattern).matches(entry.topic)
        ]
        return not marks or entry.id > min(marks)


class HubMachine(RuleBasedStateMachine):
    positions = Bundle("positions")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.clock = FakeClock()
        self.model = Model()
        self.hub = self.open()
        self.value = 0

    def open(self) -> penstock.Hub:
        hub = hub_on(
            self.folder / "hub.db",
            clock=self.clock,
            retention_seconds=KEEP_SECONDS,
            hold_seconds_max=2 * KEEP_SECONDS,
            idempotency_seconds=KEY_SECONDS,
            durability="os",
            sweep_batch_max=3,
            follow_batch_max=3,
            commit_group_max=4,
        )
        # Only the rules sweep, and only they renew.
        hub._open().sweeper.stop()
        hub._open().keeper.stop()
        return hub

    def teardown(self) -> None:
        self.hub.close()
        shutil.rmtree(self.folder)

    @initialize()
    def hold(self) -> None:
        self.hub.topics.create("b", Retention(hold_for=(HELD,)))
        self.model.live.add("b")
        self.model.is_held = True

    # Publishing

    @rule(
        target=positions,
        topic=st.sampled_from(TOPICS),
        ttl=st.sampled_from([None, None, 10.0, 120.0]),
        key=st.sampled_from([None, None, None, "k1", "k2"]),
        repeat=st.booleans(),
    )
    def publish(self, topic: str, ttl: float | None, key: str | None, repeat: bool) -> int:
        if not (repeat and key is not None):
            self.value += 1
        expected = self.model.publish(topic, self.value, ttl, key)
        try:
            receipt = self.hub.topics.publish(topic, self.value, ttl=ttl, idempotency_key=key)
        except IdempotencyConflict:
            assert expected is None
            return self.model.last_id
        assert receipt.id == expected
        return receipt.id

    @rule(target=positions, topic=st.sampled_from(TOPICS), count=st.integers(1, 9))
    def publish_many(self, topic: str, count: int) -> int:
        values = [Publication(self.value + n + 1) for n in range(count)]
        self.value += count
        expected = [self.model.publish(topic, v.payload, None, None) for v in values]
        receipts = self.hub.topics.publish_many(topic, values)
        assert [receipt.id for receipt in receipts] == expected
        return self.model.last_id

    @rule(topic=st.sampled_from(TOPICS), commit=st.booleans())
    def transaction(self, topic: str, commit: bool) -> None:
        class Undone(Exception):
            pass

        self.value += 1
        try:
            with self.hub.transaction() as tx:
                tx.publish(topic, self.value)
                if not commit:
                    raise Undone
        except Undone:
            return
        self.model.publish(topic, self.value, None, None)

    # Time and removal

    @rule(seconds=st.sampled_from([1.0, 10.0, 50.0, 100.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds

    @rule()
    def sweep(self) -> None:
        while self._sweep_once():
            pass
        for topic in TOPICS:
            self.model.sweep(topic)

    def _sweep_once(self) -> int:
        runtime = self.hub._open()
        sweeper = type(runtime.sweeper)(
            runtime.store,
            runtime.committer,
            runtime.settings,
            runtime.clock,
            runtime.name,
            runtime.telemetry,
        )
        return sweeper.sweep()

    @rule(topic=st.sampled_from(TOPICS), position=positions)
    def trim(self, topic: str, position: int) -> None:
        through = Position(self.hub.topics.position().epoch, position)
        try:
            self.hub.topics.trim(topic, through=through)
        except TopicNotFound:
            assert topic not in self.model.live
            return
        assert topic in self.model.live
        self.model.hide([e for e in self.model.entries if e.topic == topic and e.id <= position])
        self.model.sweep(topic)  # by hand, what is due goes along

    @rule(topic=st.sampled_from(TOPICS))
    def delete(self, topic: str) -> None:
        try:
            self.hub.topics.delete(topic)
        except TopicNotFound:
            assert topic not in self.model.live
            return
        assert topic in self.model.live
        self.model.live.remove(topic)
        self.model.is_held &= topic != "b"  # a topic made again has the hub's default retention
        self.model.hide([e for e in self.model.entries if e.topic == topic])
        self.model.sweep(topic)

    # Reading

    @rule(pattern=st.sampled_from(PATTERNS), position=positions)
    def read_after(self, pattern: str, position: int) -> None:
        after = Position(self.hub.topics.position().epoch, position)
        is_lost = self.model.lost_through(pattern) > position
        try:
            messages = self.hub.topics.read(pattern, after=after)
        except LogTrimmed as trimmed:
            assert is_lost
            told = trimmed.first
        else:
            assert not is_lost
            assert [(m.id, m.payload) for m in messages] == [
                (e.id, e.value) for e in self.model.visible(pattern, position)
            ]
            return
        first = next((e.id for e in self.model.visible(pattern, position)), None)
        assert told == (None if first is None else Position(after.epoch, first))

    # Following

    @rule(
        name=st.sampled_from(CONSUMERS),
        pattern=st.sampled_from(PATTERNS),
        start=st.sampled_from(["earliest", "latest"]),
        skip=st.booleans(),
        commit=st.booleans(),
    )
    def follow(self, name: str, pattern: str, start: str, skip: bool, commit: bool) -> None:
        model, who = self.model, (name, pattern)
        if who not in model.watermarks:
            model.watermarks[who] = model.last_id if start == "latest" else 0
            model.floors[who] = model.lost_through(pattern)
        mark = model.watermarks[who]
        is_lost = model.lost_through(pattern) > max(mark, model.floors[who])
        expected = [(e.id, e.value) for e in model.visible(pattern, mark)][:3]
        with self.hub.topics.follow(
            pattern, consumer=name, start=start, on_trimmed="skip" if skip else "raise"
        ) as follower:
            try:
                batch = follower.take(timeout=0)
            except LogTrimmed:
                assert is_lost
                assert not skip
                return
            assert skip or not is_lost
            assert [(m.id, m.payload) for m in batch] == expected
            if commit and batch:
                follower.commit()
                model.watermarks[who] = batch[-1].id
                if is_lost:
                    model.floors[who] = model.lost_through(pattern)

    @rule(name=st.sampled_from(CONSUMERS), pattern=st.sampled_from(PATTERNS))
    def forget_consumer(self, name: str, pattern: str) -> None:
        if self.model.watermarks.pop((name, pattern), None) is not None:
            self.model.floors.pop((name, pattern))
            assert self.hub.consumers.delete(name, pattern) == 1

    @precondition(lambda self: self.model.watermarks)
    @rule(data=st.data(), position=consumes(positions))
    def seek(self, data: st.DataObject, position: int) -> None:
        who = data.draw(st.sampled_from(sorted(self.model.watermarks)))
        to = Position(self.hub.topics.position().epoch, position)
        self.hub.consumers.seek(*who, to)
        self.model.watermarks[who] = self.model.floors[who] = position

    # Another process

    @rule()
    def reopen(self) -> None:
        self.hub.close()
        self.hub = self.open()

    # What must hold

    @invariant()
    def the_hub_shows_what_the_model_has(self) -> None:
        assert self.hub.topics.position().offset == self.model.last_id
        for pattern in PATTERNS:
            messages = self.hub.topics.read(pattern)
            assert [(m.id, m.payload) for m in messages] == [
                (e.id, e.value) for e in self.model.visible(pattern)
            ]

    @invariant()
    def the_counters_are_exact(self) -> None:
        found = {topic.name: topic for topic in self.hub.topics.list()}
        assert set(found) == self.model.live
        for name, topic in found.items():
            stored = [e for e in self.model.entries if e.topic == name]
            assert topic.messages == len(stored)
            assert topic.deleted_through == self.model.lost.get(name, 0)

    @invariant()
    def watermarks_stand_where_they_were_put(self) -> None:
        found = {(c.name, c.subscription): c.position.offset for c in self.hub.consumers.list()}
        assert found == self.model.watermarks


HubMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTopicsAgainstAModel = HubMachine.TestCase
