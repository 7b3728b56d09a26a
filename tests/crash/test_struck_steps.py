"""A thread that is struck at any step of what it does stands in nobody's way (T4, J11, L3, M12).

Each operation is done once for each of its steps, and struck there. After that its hub and another
one, as of another process, do the same: no lock was kept, and nobody knows less than is on disk.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import LeaseLost, OutcomeUnknown, TransactionTimeout
from tests.crash.steps import strike_at_each
from tests.factories import hub_on
from tests.waiting import SOON

ROOMY = {"mailbox_messages_max": 100_000, "mailbox_file_messages_max": 200_000}
LOST_SECONDS = 1.0
"""After which a task that was struck is given up."""
CHECK_EACH = 10
"""What is slow to check is checked after so many strikes."""


class World:
    """A hub whose threads are struck, and another one on the same file."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.hub = hub_on(path, **settings)
        self.other = hub_on(path, **settings)
        self._numbers = itertools.count()
        self.hub.topics.publish("first", 0)
        self.other.topics.publish("first", 0)

    def number(self) -> int:
        return next(self._numbers)

    def close(self) -> None:
        self.hub.close()
        self.other.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


@pytest.fixture
def world(path: Path) -> Iterator[World]:
    world = World(path)
    yield world
    world.close()


def payloads(hub: penstock.Hub, topic: str) -> list[Any]:
    return [message.payload for message in hub.topics.read(topic, limit=10**6)]


# Topics


@pytest.mark.parametrize("how", ["publish", "publish_soon_enough", "publish_many", "keyed"])
def test_publishing(world: World, how: str) -> None:
    acknowledged: list[int] = []

    def publish(step: int) -> None:
        if how == "publish_many":
            world.hub.topics.publish_many("t", [step, step])
        elif how == "keyed":
            world.hub.topics.publish("t", step, idempotency_key=f"key-{step}")
        else:
            timeout = None if how == "publish" else SOON
            world.hub.topics.publish("t", step, timeout=timeout)
        acknowledged.append(step)

    steps = 0
    for step in strike_at_each(publish):
        steps += 1
        ours = world.hub.topics.publish("t", -1, timeout=SOON)
        theirs = world.other.topics.publish("t", -1, timeout=SOON)
        assert ours.id < theirs.id
        if how == "keyed":
            # Whether or not it was written before the strike, it is there once.
            world.hub.topics.publish("t", step, idempotency_key=f"key-{step}", timeout=SOON)
    assert steps > 20
    found = payloads(world.other, "t")
    assert set(acknowledged) <= set(found)
    if how == "keyed":
        assert [n for n in found if n >= 0] == [*range(steps), steps]


def test_a_transaction(world: World) -> None:
    """All of it or nothing, and the next one has its turn."""
    with world.hub.transaction() as tx:
        tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    done: list[int] = []

    def write(step: int) -> None:
        while True:
            try:
                with world.hub.transaction() as tx:
                    tx.execute("INSERT INTO orders (id) VALUES (?)", (step,))
                    tx.publish("orders", step)
                break
            except TransactionTimeout:
                continue  # The machine was too slow for it.
        done.append(step)

    steps = 0
    for step in strike_at_each(write):
        steps += 1
        world.hub.topics.publish("t", step, timeout=SOON)
        world.other.topics.publish("t", step, timeout=SOON)
    assert steps > 20
    with world.other.transaction() as tx:
        rows = [row[0] for row in tx.execute("SELECT id FROM orders ORDER BY id")]
    assert rows == payloads(world.other, "orders")
    assert set(done) <= set(rows)


# Also finalizers are struck here, and say so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", ["subscribe", "follow"])
def test_listening(world: World, how: str) -> None:
    """Who was struck while it listened is not listening any more, and the next one hears all."""
    world.hub.topics.publish_many("t", [1, 2, 3])

    def listen(step: int) -> None:
        if how == "subscribe":
            with world.hub.topics.subscribe("t") as live:
                world.other.topics.publish("t", step)
                next(iter(live))
        else:
            batches = world.hub.topics.follow("t", consumer=f"c-{step}", start="earliest")
            try:
                assert next(iter(batches)).payload == 1
            finally:
                batches.close()

    steps = 0
    for step in strike_at_each(listen, stride=3):
        steps += 1
        if how == "follow" and step % CHECK_EACH == 0:
            with world.hub.topics.follow("t", consumer="another", start="earliest") as following:
                assert next(iter(following)) is not None
        world.other.topics.publish("t", step, timeout=SOON)
    assert steps > 20


# Ledger, jobs and locks


def test_the_ledger(world: World) -> None:
    won: list[int] = []

    def mark(step: int) -> None:
        if world.hub.ledger.mark_processed("scope", f"m-{step}"):
            won.append(step)

    steps = 0
    for step in strike_at_each(mark):
        steps += 1
        world.other.ledger.mark_processed("scope", f"m-{step}")
        assert world.hub.ledger.is_processed("scope", f"m-{step}")
    assert steps > 20
    assert won == [steps], "only who was not struck was told that it has won"


def test_enqueueing(world: World) -> None:
    done: list[int] = []

    def enqueue(step: int) -> None:
        world.hub.jobs.enqueue("queue", "work", {"step": step})
        done.append(step)

    steps = 0
    for _ in strike_at_each(enqueue):
        steps += 1
        world.other.jobs.enqueue("queue", "work", {"step": -1})
        world.hub.jobs.enqueue("queue", "work", {"step": -1})
    assert steps > 20
    found = [job.payload["step"] for job in world.other.jobs.list(queue="queue", limit=10_000)]
    assert set(done) <= set(found)
    assert found.count(-1) == 2 * steps


def test_a_lock(path: Path) -> None:
    """A lock that was taken for a thread that was struck is free again, at the latest when its
    time is over."""
    world = World(path)
    steps = 0

    def hold(step: int) -> None:
        try:
            with world.hub.lock("lock", lease_seconds=0.05) as lock:
                lock.check()
        except LeaseLost:
            return  # On a slow machine.

    try:
        for _ in strike_at_each(hold):
            steps += 1
            with world.other.lock("lock", timeout=SOON) as theirs:
                assert theirs.is_held
            with world.hub.lock("lock", timeout=SOON) as ours:
                assert ours.is_held
    finally:
        world.close()
    assert steps > 20


# Mailboxes


class Boxes:
    """One box as two processes see it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.world = World(path, **{**ROOMY, **settings})
        self.ours = self.world.hub.mailboxes.open("box")
        self.theirs = self.world.other.mailboxes.open("box")
        self.accepted: list[str] = []
        self.taken: list[str] = []
        self.put()
        self.theirs.peek()

    def put(self) -> None:
        self.accepted.append(self.ours.put(b"x" * 100).id)

    def take(self) -> None:
        mail = self.ours.peek()
        if mail is not None:
            self.taken.append(mail.id)
            self.ours.ack(mail.id)

    def check_the_next(self) -> None:
        """Both may use the box, and number its messages in one order."""
        ours, theirs = self.ours.put("ours", timeout=SOON), self.theirs.put("theirs", timeout=SOON)
        assert theirs.seq == ours.seq + 1
        self.accepted += [ours.id, theirs.id]
        assert self.ours.size() == self.theirs.size()

    def check_all(self) -> None:
        """What was accepted is there, in order, and nothing is damaged."""
        assert self.world.other.mailboxes.verify().findings == []
        while mail := self.theirs.peek():
            self.taken.append(mail.id)
            self.theirs.ack(mail.id)
        seen = list(dict.fromkeys(self.taken))
        known = set(self.accepted)
        assert [id for id in seen if id in known] == self.accepted


def put_by_a_task(boxes: Boxes) -> None:
    """Its own tasks may never hear of a strike; others do not wait."""

    async def put() -> None:
        async with asyncio.timeout(LOST_SECONDS):
            posted = await boxes.world.hub.aio.mailboxes.open("box").put("x")
        boxes.accepted.append(posted.id)

    # Not `asyncio.run`, whose own steps would be struck, too.
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(put())
    except (OutcomeUnknown, TimeoutError):
        return
    finally:
        loop.close()


DURABILITIES = ["durable", "os"]
USES: dict[str, Callable[[Boxes], object]] = {
    "put": Boxes.put,
    "put_in_time": lambda boxes: boxes.accepted.append(boxes.ours.put("x", timeout=SOON).id),
    "put_by_a_task": put_by_a_task,
    "put_many": lambda boxes: boxes.accepted.extend(
        [posted.id for posted in boxes.ours.put_many(["a", "b"])]
    ),
    "take": Boxes.take,
    "peek_many": lambda boxes: boxes.ours.peek_many(10),
    "size": lambda boxes: boxes.ours.size(),
    "stats": lambda boxes: boxes.ours.stats(),
    "wait": lambda boxes: boxes.ours.wait(SOON),
    "expire": lambda boxes: boxes.ours.expire(3600),
}


@pytest.mark.parametrize(
    ("use", "durability"),
    # What is not synced is put by a thread of asyncio's, which has locks of its own.
    [each for each in itertools.product(USES, DURABILITIES) if each != ("put_by_a_task", "os")],
)
def test_using_a_mailbox(path: Path, use: str, durability: str) -> None:
    boxes = Boxes(path, mailbox_durability=durability)
    steps = 0
    try:
        for _ in strike_at_each(lambda step: USES[use](boxes)):
            steps += 1
            boxes.check_the_next()
        assert steps > 10
        boxes.check_all()
    finally:
        boxes.world.close()


@pytest.mark.parametrize("durability", DURABILITIES)
def test_deleting_a_mailbox(path: Path, durability: str) -> None:
    """It is there or not, and can be put into again."""
    world = World(path, mailbox_durability=durability)
    ours, theirs = world.hub.mailboxes.open("box"), world.other.mailboxes.open("box")
    steps = 0

    try:
        ours.put_many(["a", "b"])
        for _ in strike_at_each(lambda step: ours.delete()):
            steps += 1
            count = theirs.size()
            assert count in (0, 2)
            assert theirs.put("theirs", timeout=SOON).was_empty == (count == 0)
            assert ours.size() == count + 1
            assert ours.delete()
            assert theirs.size() == 0
            ours.put_many(["a", "b"])
        assert steps > 10
        assert world.other.mailboxes.verify().findings == []
    finally:
        world.close()


def test_files_that_are_begun_and_left(path: Path) -> None:
    """The message that needs a new file, and the acknowledgement that leaves the old one."""
    boxes = Boxes(path, mailbox_messages_max=3, mailbox_file_messages_max=4)
    steps = 0

    def go_round(step: int) -> None:
        for _ in range(5):
            boxes.take()
            boxes.put()

    try:
        for _ in strike_at_each(go_round, stride=5):
            steps += 1
            while boxes.theirs.size():
                boxes.take()
            boxes.check_the_next()
        assert steps > 100
        boxes.check_all()
    finally:
        boxes.world.close()


def test_a_subscription_of_a_mailbox(world: World) -> None:
    """It is there or not; subscribed again, it is there once."""
    steps = 0

    def subscribe(step: int) -> None:
        world.hub.mailboxes.subscribe(f"box-{step}", "t")

    for step in strike_at_each(subscribe):
        steps += 1
        world.other.mailboxes.subscribe(f"box-{step}", "t")
        assert len(world.hub.mailboxes.subscriptions(f"box-{step}")) == 1
    assert steps > 20
