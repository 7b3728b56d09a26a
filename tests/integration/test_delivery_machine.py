"""Delivery against a model: any interleaving of publishing, reading and leaving (D3, D5, D6).

A real hub on a real file, real sessions and channels, sockets in memory whose clients read when
they like. Whatever the order of things: a subscription receives exactly the log's messages after
its start, in order, once; what was trimmed before it came is a gap, and what its policy left out
is counted exactly.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.delivery.session import Session
from penstock.model import Delivery, Pattern, Position
from penstock.protocol import JSON_WIRE, MSGPACK_WIRE, Close, Wire
from tests.factories import hub_on

SMALL: dict[str, Any] = {
    # All limits so low that a few messages reach them.
    "durability": "os",
    "stats_seconds": 0,
    "batch_max": 3,
    "batch_ms": 1,
    "frame_messages_max": 4,
    "frame_payload_bytes_max": 40,
    "recent_messages_max": 4,
    "recent_bytes_max": 100,
    "subscriber_buffer_max": 6,
    "tail_batch_max": 5,
    "subscribe_rate_max": 100_000,
}
BUFFER_HIGH = 300
BUFFER_LOW = 75
SETTLE_SECONDS = 60.0

TOPICS = ("keep", "also", "drop", "strict")
PATTERNS = (*TOPICS, "*", "????")
NUMBERS = st.integers(0, 999)
POLICIES = {"drop": "drop_oldest", "strict": "disconnect"}


class PacedSocket:
    """Backs up as a real one does: in the middle of the call that sends."""

    def __init__(self, wire: Wire, trimmed: dict[str, int]) -> None:
        self.wire = wire
        self._trimmed = trimmed
        self.is_paused = False
        self.session: Session | None = None
        self.closed: tuple[int, str] | None = None
        self.read: list[tuple[dict[str, Any], dict[str, int]]] = []
        """Each frame, and what had been trimmed when it was sent."""
        self._buffer: deque[tuple[bytes, dict[str, int]]] = deque()
        self._size = 0

    def send(self, data: bytes) -> None:
        assert self.closed is None, "nothing may follow a close frame"
        self._buffer.append((data, dict(self._trimmed)))
        self._size += len(data)
        if self._size > BUFFER_HIGH and not self.is_paused:
            self.is_paused = True
            if self.session is not None:
                self.session.pause()

    def take(self, frames: int) -> int:
        """The client reads so many."""
        taken = 0
        while self._buffer and taken < frames:
            data, trimmed = self._buffer.popleft()
            self._size -= len(data)
            self.read.append((self.wire.decode_any(data), trimmed))
            taken += 1
        if self.is_paused and self._size <= BUFFER_LOW and self.closed is None:
            self.is_paused = False
            assert self.session is not None
            self.session.resume()
        return taken

    def close(self, code: int, reason: str = "") -> None:
        self.closed = (code, reason)

    def ping(self) -> None:
        return

    def unsent(self) -> int:
        return self._size

    def taken(self) -> int:
        return 0

    def hold(self, is_held: bool) -> None:
        return


class Watched:
    """One subscription, and what its client was told of it."""

    def __init__(self, pattern: str, *, is_resumed: bool = False, last: int | None = None) -> None:
        self.pattern = Pattern.parse(pattern)
        self.is_resumed = is_resumed
        self.last = last
        self.cursor: int | None = None
        self.told: dict[str, int] = {}
        """What was trimmed of each topic before it began, or was told as a gap: no loss to it."""
        self.gaps = 0


class Client:
    def __init__(self, machine: DeliveryMachine, wire: Wire) -> None:
        self.socket = PacedSocket(wire, machine.trimmed)
        self.session = Session(machine.board, self.socket)
        self.socket.session = self.session
        self.watched: dict[str, Watched] = {}
        """By topic: the subscription that is meant by pushes."""
        self.asked: dict[int, Watched] = {}
        self._ids = itertools.count(1)
        self._machine = machine
        self._seen = 0
        self.say("connect")

    def say(self, op: str, **fields: Any) -> int:
        id = next(self._ids)
        self.session.receive(self.socket.wire.encode({"op": op, "id": id, **fields}))
        return id

    def read(self, frames: int) -> int:
        taken = self.socket.take(frames)
        self.check()
        return taken

    def check(self) -> None:
        """Compare what was read since the last time with the model."""
        while self._seen < len(self.socket.read):
            found, trimmed = self.socket.read[self._seen]
            self._seen += 1
            if "id" in found:
                self._on_reply(found, trimmed)
            else:
                self._on_push(found, trimmed)

    def _on_reply(self, found: dict[str, Any], trimmed: dict[str, int]) -> None:
        watched = self.asked.pop(found["id"], None)
        if watched is None:
            assert "ok" in found, found
            return
        if "error" in found:
            assert found["error"]["message"] == "Unsubscribed meanwhile.", found
            return
        self.watched[found["ok"]["topic"]] = watched
        watched.cursor = Position.parse(found["ok"]["position"]).offset
        assert watched.cursor <= self._machine.last_id
        gap = found["ok"].get("gap")
        if gap is not None:
            self._check_gap(watched, gap, Position.parse(gap["after"]).offset, trimmed)
        if not watched.is_resumed:
            watched.told = trimmed
        if watched.last is not None:
            before = self._machine.between(watched.pattern, 0, watched.cursor)
            after = self._machine.between(watched.pattern, watched.cursor, self._machine.last_id)
            are_all = all(self._machine.is_trimmed(id) for id in before)
            assert len(after) >= watched.last or are_all, "fewer than the last so many"

    def _on_push(self, found: dict[str, Any], trimmed: dict[str, int]) -> None:
        watched = self.watched[found["topic"]]
        assert watched.cursor is not None
        if found["push"] == "messages":
            for entry in found["messages"]:
                missing = self._machine.missing(watched, entry["id"] - 1)
                assert not missing, f"{entry['id']} came instead of {missing[0]}"
                assert entry["id"] > watched.cursor, f"{entry['id']} came again"
                watched.cursor = entry["id"]
        elif found["push"] == "gap":
            self._check_gap(watched, found["gap"], watched.cursor, trimmed)
        else:
            assert found["push"] == "dropped"
            assert POLICIES.get(watched.pattern.text) == "drop_oldest"
            through = Position.parse(found["through"]).offset
            missing = self._machine.between(watched.pattern, watched.cursor, through)
            assert found["messages"] == len(missing), (found, missing)
            watched.cursor = through

    def _check_gap(
        self, watched: Watched, gap: dict[str, Any], after: int, trimmed: dict[str, int]
    ) -> None:
        """Up to where it resumes all is gone, and something is: perhaps further on, where of a
        glob's topics one was trimmed beyond what is left of another."""
        machine = self._machine
        assert gap["reason"] == "trimmed"
        assert Position.parse(gap["after"]).offset >= after
        resumes = Position.parse(gap["resumes"]).offset
        gone = {
            id
            for id in machine.between(watched.pattern, after, machine.last_id)
            if id <= trimmed[machine.topic_of(id)]
        }
        assert gone, f"nothing is missing: {gap}"
        watched.gaps += 1
        assert watched.gaps <= machine.trims, "the same gap is told again and again"
        assert set(machine.between(watched.pattern, after, resumes)) <= gone
        watched.cursor = resumes
        watched.told = trimmed


class DeliveryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-delivery-"))
        self.loop = asyncio.new_event_loop()
        self.complaints: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        self.hub = hub_on(self.folder / "hub.db", **SMALL)
        self.other = hub_on(self.folder / "hub.db", durability="os")
        for topic in TOPICS:
            policy: Any = POLICIES.get(topic)
            self.hub.topics.create(topic, delivery=Delivery(slow_policy=policy))
        self.log: list[tuple[int, str]] = []
        self.trimmed: dict[str, int] = dict.fromkeys(TOPICS, 0)
        self.epoch = self.hub.topics.position().epoch
        self.board = self.loop.run_until_complete(self._open())
        self.trims = 0
        self.clients: list[Client] = []
        self.connect(JSON_WIRE)
        self.connect(MSGPACK_WIRE)

    async def _open(self) -> Any:
        board = self.hub.open_delivery(None)
        await board.start()
        return board

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            for client in self.clients:
                client.session.ended()
            self.loop.run_until_complete(self.board.close())
            self.hub.close()
            self.other.close()
            self.loop.run_until_complete(asyncio.sleep(0))
            gc.collect()
            self.loop.close()
            shutil.rmtree(self.folder)
        assert not self.complaints, self.complaints

    # The model

    @property
    def last_id(self) -> int:
        return self.hub.topics.position().offset

    def between(self, pattern: Pattern, after: int, through: int) -> list[int]:
        return [id for id, topic in self.log if after < id <= through and pattern.matches(topic)]

    def missing(self, watched: Watched, through: int) -> list[int]:
        """What it has not received up to there, and was not told of, either."""
        assert watched.cursor is not None
        return [
            id
            for id in self.between(watched.pattern, watched.cursor, through)
            if id > watched.told.get(self.topic_of(id), 0)
        ]

    def topic_of(self, id: int) -> str:
        return dict(self.log)[id]

    def is_trimmed(self, id: int) -> bool:
        return id <= self.trimmed[self.topic_of(id)]

    # What happens

    @rule(
        topic=st.sampled_from(TOPICS),
        sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
        is_local=st.booleans(),
    )
    def publish(self, topic: str, sizes: list[int], is_local: bool) -> None:
        hub = self.hub if is_local else self.other
        receipts = hub.topics.publish_many(topic, ["x" * size for size in sizes])
        self.log += [(receipt.id, topic) for receipt in receipts]
        self.log.sort()

    @precondition(lambda self: len(self.clients) < 6)
    @rule(wire=st.sampled_from([JSON_WIRE, MSGPACK_WIRE]))
    def connect(self, wire: Wire) -> None:
        async def make() -> Client:
            return Client(self, wire)

        self.clients.append(self.loop.run_until_complete(make()))

    # What is drawn never depends on how far threads and timers have come: whom a rule is about
    # is a number, which means somebody or nobody when the time has come.

    @precondition(lambda self: self.clients)
    @rule(
        who=NUMBERS,
        pattern=st.sampled_from(PATTERNS),
        kind=st.sampled_from(["latest", "earliest", "last", "after"]),
        number=NUMBERS,
    )
    def subscribe(self, who: int, pattern: str, kind: str, number: int) -> None:
        client = self._client(who)
        if client is None or pattern in client.session.subscriptions:
            return
        start: dict[str, Any] = {
            "latest": {},
            "earliest": {"start": "earliest"},
            "last": {"last": 1 + number % 4},
            "after": {"after": f"{self.epoch}:{number % (self.last_id + 1)}"},
        }[kind]
        watched = Watched(pattern, is_resumed=kind == "after", last=start.get("last"))
        self._in_loop(lambda: self._subscribe(client, pattern, watched, start))

    def _subscribe(
        self, client: Client, pattern: str, watched: Watched, start: dict[str, Any]
    ) -> None:
        id = client.say("subscribe", topic=pattern, **start)
        client.asked[id] = watched

    @precondition(lambda self: self.clients)
    @rule(who=NUMBERS, which=NUMBERS, is_again=st.booleans())
    def unsubscribe(self, who: int, which: int, is_again: bool) -> None:
        """And perhaps subscribe again at once, before anything was answered."""
        client = self._client(who)
        if client is None or not client.session.subscriptions:
            return
        patterns = sorted(client.session.subscriptions)
        pattern = patterns[which % len(patterns)]

        def change() -> None:
            client.say("unsubscribe", topic=pattern)
            if is_again:
                self._subscribe(client, pattern, Watched(pattern), {})

        self._in_loop(change)

    @precondition(lambda self: self.clients)
    @rule(who=NUMBERS, frames=st.integers(1, 8))
    def read(self, who: int, frames: int) -> None:
        client = self._client(who)
        if client is not None:
            self._in_loop(lambda: client.read(frames))

    @precondition(lambda self: self.clients)
    @rule(who=NUMBERS)
    def leave(self, who: int) -> None:
        client = self.clients.pop(who % len(self.clients))
        self._in_loop(client.session.ended)

    @precondition(lambda self: self.log)
    @rule(which=NUMBERS)
    def trim(self, which: int) -> None:
        id, topic = self.log[which % len(self.log)]
        self._let_the_tail_read()
        self.trims += 1
        self.trimmed[topic] = max(self.trimmed[topic], id)
        self.hub.topics.trim(topic, through=Position(self.epoch, id))

    def _let_the_tail_read(self) -> None:
        """Who is live hears of a message from the tail, or not at all if it is trimmed before."""
        tail = self.board.runtime.tail
        while tail._has_any and tail.cursor < self.last_id:
            time.sleep(0.0005)

    @rule(turns=st.integers(0, 6))
    def go_on(self, turns: int) -> None:
        """Some steps of the event loop, or time for threads and timers."""
        for _ in range(turns):
            self.loop.run_until_complete(asyncio.sleep(0))
        if not turns:
            self.loop.run_until_complete(asyncio.sleep(0.003))

    @rule(pattern=st.sampled_from((None, *PATTERNS)))
    def look_after_channels(self, pattern: str | None) -> None:
        """Close those without subscribers; or forget what one keeps, as when all keep too much."""
        if pattern is None:
            self._in_loop(lambda: self.board._close_lingering(self.loop.time() + 1_000))
            return
        channel = self.board.find_channel(Pattern.parse(pattern))
        if channel is not None:
            channel.recent.restart(channel.sent_through)

    # What must hold

    @invariant()
    def channels_hold_no_more_than_they_may(self) -> None:
        for channel in self.board._channels.values():
            assert len(channel._pending) <= SMALL["frame_messages_max"]
            assert channel.subscriber_count <= len(self.clients) + self._opening()

    def _opening(self) -> int:
        return len(self.board._tasks)

    def settle(self) -> None:
        """Everybody reads on, until each has all that is its own."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while not all(self._is_served(client) for client in self.clients):
            assert time.monotonic() < deadline, self._missing()
            for client in self.clients:
                self._in_loop(lambda client=client: client.read(1_000))  # type: ignore[misc]
            self.loop.run_until_complete(asyncio.sleep(0.001))
        for client in self.clients:
            if client.socket.closed is not None:
                self._check_closed(client)

    def _is_served(self, client: Client) -> bool:
        if client.socket.closed is not None:
            return not client.socket.unsent()
        if client.asked:
            return False
        for topic in client.session.subscriptions:
            watched = client.watched.get(topic)
            if watched is None or watched.cursor is None:
                return False
            if self._left(watched):
                return False
        return True

    def _left(self, watched: Watched) -> list[int]:
        return self.missing(watched, self.last_id)

    def _missing(self) -> str:
        return "; ".join(
            f"{topic}: at {watched.cursor}, missing {self._left(watched)}"
            for client in self.clients
            for topic, watched in client.watched.items()
            if topic in client.session.subscriptions and watched.cursor is not None
        )

    def _check_closed(self, client: Client) -> None:
        """By its policy: the reason says exactly what it has."""
        assert client.socket.closed is not None
        code, reason = client.socket.closed
        assert code == Close.SLOW
        offset = Position.parse(reason).offset
        watched = client.watched["strict"]
        assert watched.cursor is not None
        assert self.missing(watched, offset) == []

    def _client(self, who: int) -> Client | None:
        client = self.clients[who % len(self.clients)]
        return None if client.socket.closed is not None else client

    def _in_loop(self, work: Callable[[], object]) -> None:
        async def run() -> None:
            work()

        self.loop.run_until_complete(run())


class TestDelivery(DeliveryMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=20, stateful_step_count=40, deadline=None)


@pytest.mark.soak
class TestDeliveryForLong(DeliveryMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=5_000, stateful_step_count=100, deadline=None)


def test_a_glob_that_was_trimmed_past_is_told_once_and_goes_on() -> None:
    """D6: one topic is trimmed further than where another's messages begin."""
    machine = DeliveryMachine()
    try:
        client = machine.clients[0]
        for topic in ("keep", "also", "keep", "also"):
            machine.publish(topic, [1], True)
        machine.trim(2)
        start = {"after": f"{machine.epoch}:0"}
        machine._in_loop(
            lambda: machine._subscribe(client, "*", Watched("*", is_resumed=True), start)
        )
        machine.settle()
        pushed = [found for found, _ in client.socket.read if "push" in found]
        assert [entry["id"] for push in pushed for entry in push["messages"]] == [2, 4]
        assert client.watched["*"].gaps == 1
    finally:
        machine.teardown()


def test_the_model_notices_a_message_that_is_missing() -> None:
    """A machine that cannot fail would prove nothing."""
    machine = DeliveryMachine()
    try:
        machine.connect(JSON_WIRE)
        client = machine.clients[0]
        machine._in_loop(
            lambda: machine._subscribe(client, "keep", Watched("keep"), {"start": "earliest"})
        )
        machine.publish("keep", [1, 1, 1], True)
        machine.settle()
        client.watched["keep"].cursor = 0
        push = {"push": "messages", "topic": "keep", "messages": [{"id": 2}]}
        client.socket.read.append((push, {}))
        with pytest.raises(AssertionError, match="2 came instead of"):
            client.check()
    finally:
        machine.clients.clear()
        machine.teardown()
