"""Clients of the delivery core without a network: sockets in memory, sessions on a real hub."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.delivery.access import Access
from penstock.delivery.session import Session
from penstock.delivery.switchboard import Switchboard
from penstock.errors import Unauthorized
from penstock.protocol import JSON_WIRE, Wire

T = TypeVar("T")

DEADLINE_SECONDS = 60.0


class FakeSocket:
    """A `delivery.subscriber.Socket` that keeps what it is sent."""

    def __init__(self, wire: Wire = JSON_WIRE) -> None:
        self.wire = wire
        self.is_paused = False
        self.frames: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.pings = 0
        self.unsent_bytes = 0
        self.is_held = False
        self.on_send: Callable[[bytes], None] = lambda data: None
        self.changed = asyncio.Event()

    def send(self, data: bytes) -> None:
        assert self.closed is None, "nothing may follow a close frame"
        self.frames.append(data)
        self.on_send(data)
        self.changed.set()

    def close(self, code: int, reason: str = "") -> None:
        self.closed = (code, reason)
        self.changed.set()

    def ping(self) -> None:
        self.pings += 1
        self.changed.set()

    def unsent(self) -> int:
        return self.unsent_bytes

    def taken(self) -> int:
        return sum(map(len, self.frames)) - self.unsent_bytes

    def hold(self, is_held: bool) -> None:
        self.is_held = is_held


class Client:
    """One who speaks the protocol over a fake socket."""

    def __init__(self, switchboard: Switchboard, wire: Wire = JSON_WIRE, **session: Any) -> None:
        self.socket = FakeSocket(wire)
        self.session = Session(switchboard, self.socket, **session)
        self._ids = itertools.count(1)

    # Speaking

    def say(self, op: str, **fields: Any) -> int:
        """Send a command. Returns its id."""
        id = next(self._ids)
        self.session.receive(self.socket.wire.encode({"op": op, "id": id, **fields}))
        return id

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a command that succeeds, and return the reply's `ok`."""
        reply = await self.reply(self.say(op, **fields))
        assert "ok" in reply, reply
        answer: dict[str, Any] = reply["ok"]
        return answer

    async def refused(self, op: str, **fields: Any) -> str:
        """Send a command that fails, and return the error's code."""
        reply = await self.reply(self.say(op, **fields))
        assert "error" in reply, reply
        return str(reply["error"]["code"])

    # Hearing

    @property
    def heard(self) -> list[dict[str, Any]]:
        return [self.socket.wire.decode_any(frame) for frame in self.socket.frames]

    def pushes(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.heard if frame.get("push") == kind]

    def batches(self, topic: str | None = None) -> list[list[dict[str, Any]]]:
        found = self.pushes("messages")
        return [push["messages"] for push in found if topic in (None, push["topic"])]

    def payloads(self, topic: str | None = None) -> list[Any]:
        return [entry["payload"] for batch in self.batches(topic) for entry in batch]

    async def reply(self, id: int) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            return next((frame for frame in self.heard if frame.get("id") == id), None)

        return await self.until(find)

    async def push(self, kind: str, number: int = 0) -> dict[str, Any]:
        """The first push of a kind, or a later one."""
        await self.until(lambda: len(self.pushes(kind)) > number)
        return self.pushes(kind)[number]

    async def receives(self, count: int, topic: str | None = None) -> list[Any]:
        """The payloads, once there are so many."""
        await self.until(lambda: len(self.payloads(topic)) >= count)
        return self.payloads(topic)

    async def is_closed(self) -> tuple[int, str]:
        return await self.until(lambda: self.socket.closed)

    async def until(self, condition: Callable[[], T | None]) -> T:
        """The first true answer, asked again whenever something was sent."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                self.socket.changed.clear()
                found = condition()
                if found:
                    return found
                await self.socket.changed.wait()

    # How the network treats it

    def backs_up(self) -> None:
        """The client does not read: the socket's buffer is full."""
        self.socket.is_paused = True
        self.session.pause()

    def reads_on(self) -> None:
        self.socket.is_paused = False
        self.session.resume()

    def goes(self) -> None:
        """The connection is lost."""
        self.session.ended()


class Keys:
    """An `Authenticator` with tokens made up by a test."""

    def __init__(self, **access: Access) -> None:
        self.access = access
        self.revoked: set[str] = set()

    def authenticate(self, token: str | None) -> Access:
        if token not in self.access:
            raise Unauthorized
        return self.access[token]

    def is_revoked(self, access: Access) -> bool:
        return access.token_id in self.revoked


async def eventually(condition: Callable[[], T | None], what: str = "") -> T:
    """For what no socket tells: the first true answer, asked again and again."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                found = condition()
                if found:
                    return found
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"did not happen: {what or condition}") from None
