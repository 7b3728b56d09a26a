"""WebSocket clients written from the protocol alone, with the plain `websockets` library.

A subscriber resumes by position wherever it lands; a publisher repeats with the same idempotency
key until it is answered. What they saw is checked against the log.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect

from penstock.model import Pattern

OPEN_SECONDS = 20.0
ANSWER_SECONDS = 60.0
LOST = (OSError, websockets.WebSocketException, TimeoutError, EOFError)


class Refused(Exception):
    """An error that saying it again would not help."""


class Client:
    """One connection at a time, to any of the ports."""

    def __init__(
        self, ports: Iterable[int], format: str = "json", seed: int = 0, name: str | None = None
    ) -> None:
        self.ports = list(ports)
        self._name = name
        self._chance = random.Random(seed)
        self._format = format
        module = msgspec.json if format == "json" else msgspec.msgpack
        self._encode, self._decode = module.encode, module.decode
        self._ids = itertools.count(1)
        self.connects = 0
        self.closes: Counter[int | None] = Counter()
        """Close codes; None where the connection just broke."""

    async def open(self) -> ClientConnection:
        """Connected and welcomed, however long that takes."""
        while True:
            try:
                return await self._open(self._chance.choice(self.ports))
            except LOST:
                await asyncio.sleep(self._chance.uniform(0.01, 0.1))

    async def _open(self, port: int) -> ClientConnection:
        connection = await connect(
            f"ws://127.0.0.1:{port}/ws",
            subprotocols=[websockets.Subprotocol(f"penstock.v1.{self._format}")],
            compression=None,
            open_timeout=OPEN_SECONDS,
            close_timeout=0.1,
            max_size=None,
            proxy=None,
        )
        try:
            await self.say(connection, op="connect", client=self._name)
            assert "ok" in await self.hear(connection)
        except BaseException:
            await connection.close()
            raise
        self.connects += 1
        return connection

    async def say(self, connection: ClientConnection, **fields: Any) -> int:
        id = next(self._ids)
        data = self._encode({"id": id, **fields})
        await connection.send(data, text=self._format == "json")
        return id

    async def hear(self, connection: ClientConnection) -> dict[str, Any]:
        async with asyncio.timeout(ANSWER_SECONDS):
            found: dict[str, Any] = self._decode(await connection.recv())
            return found

    async def ask(self, connection: ClientConnection, **fields: Any) -> dict[str, Any]:
        """The reply; nothing else may come before it."""
        id = await self.say(connection, **fields)
        reply = await self.hear(connection)
        assert reply.get("id") == id, reply
        return reply

    def lost(self, error: Exception) -> None:
        code = None
        if isinstance(error, websockets.ConnectionClosed) and error.rcvd is not None:
            code = error.rcvd.code
        self.closes[code] += 1


class Subscriber(Client):
    """Receives until it is told the last id that will come."""

    def __init__(
        self, ports: Iterable[int], topic: str, format: str = "json", seed: int = 0
    ) -> None:
        super().__init__(ports, format, seed)
        self.topic = topic
        self.received: list[int] = []
        self.position: str | None = None
        self.subscribed = asyncio.Event()
        self.progressed = asyncio.Event()
        self.gaps: list[Any] = []
        self._epoch = ""

    async def run(self) -> None:
        while True:
            connection = await self.open()
            try:
                await self._receive(connection)
            except LOST as error:
                self.lost(error)
            finally:
                await connection.close()

    async def reach(self, last: int) -> None:
        """Until it has received this id."""
        while not self.received or self.received[-1] < last:
            self.progressed.clear()
            await self.progressed.wait()

    async def _receive(self, connection: ClientConnection) -> None:
        start = {"start": "earliest"} if self.position is None else {"after": self.position}
        reply = await self.ask(connection, op="subscribe", topic=self.topic, **start)
        if "error" in reply:
            if not reply["error"].get("retryable"):
                raise Refused(reply)
            return
        answer = reply["ok"]
        if self.position is not None and answer.get("recovered") is not True:
            self.gaps.append(answer)
        self.position = answer["position"]
        self._epoch = answer["position"].rpartition(":")[0]
        self.subscribed.set()
        while True:
            self._take(self._decode(await connection.recv()))

    def _take(self, push: dict[str, Any]) -> None:
        if push["push"] == "messages":
            assert push["topic"] == self.topic
            ids = [entry["id"] for entry in push["messages"]]
            self.received += ids
            self.position = f"{self._epoch}:{ids[-1]}"
            self.progressed.set()
        else:
            self.gaps.append(push)


class Publisher(Client):
    """Publishes numbers one by one, each until it is acknowledged."""

    def __init__(
        self,
        ports: Iterable[int],
        name: str,
        topics: list[str],
        format: str = "json",
        seed: int = 0,
    ) -> None:
        super().__init__(ports, format, seed)
        self.name = name
        self.topics = topics
        self.acked: list[int] = []
        self.repeated = 0
        self.errors: Counter[str] = Counter()
        self.is_patient = False
        """Whether it tries again whatever it is told."""
        self.is_stopping = False

    async def run(self, pause_seconds: float = 0.004) -> None:
        connection: ClientConnection | None = None
        n = 0
        while not self.is_stopping:
            if connection is None:
                connection = await self.open()
            try:
                reply = await self.ask(
                    connection,
                    op="publish",
                    topic=self.topics[n % len(self.topics)],
                    payload=[self.name, n],
                    idempotency_key=f"{self.name}-{n}",
                )
            except LOST as error:
                self.lost(error)
                await connection.close()
                connection = None
                continue
            if "error" in reply:
                self.errors[reply["error"]["code"]] += 1
                if not reply["error"].get("retryable") and not self.is_patient:
                    raise Refused(reply)
                await asyncio.sleep(pause_seconds)
                continue
            self.repeated += reply["ok"].get("duplicate", False)
            self.acked.append(int(reply["ok"]["position"].rpartition(":")[2]))
            n += 1
            await asyncio.sleep(pause_seconds)
        if connection is not None:
            await connection.close()


def check(log: list[Any], publishers: list[Publisher], subscribers: list[Subscriber]) -> None:
    """Of the whole log: each acknowledged message once, and every subscriber has them all."""
    for publisher in publishers:
        found = [message.id for message in log if message.payload[0] == publisher.name]
        numbers = [message.payload[1] for message in log if message.payload[0] == publisher.name]
        assert numbers == list(range(len(numbers))), f"{publisher.name}: lost, repeated, reordered"
        assert found[: len(publisher.acked)] == publisher.acked, f"{publisher.name}: other ids"
        assert len(found) - len(publisher.acked) <= 1, "more than was under way"
    for subscriber in subscribers:
        expected = matching(log, subscriber.topic)
        assert not subscriber.gaps, subscriber.gaps
        assert subscriber.received == expected, _difference(subscriber, expected)


def matching(log: list[Any], topic: str) -> list[int]:
    pattern = Pattern.parse(topic)
    return [message.id for message in log if pattern.matches(message.topic)]


def _difference(subscriber: Subscriber, expected: list[int]) -> str:
    missing = sorted(set(expected) - set(subscriber.received))[:10]
    repeated = [id for id, n in Counter(subscriber.received).items() if n > 1][:10]
    return f"{subscriber.topic}: missing {missing}, repeated {repeated}, or not in order"
