"""Whatever a client sends: a reply, an error or a close code, and others are not touched (D2)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

import penstock
from penstock.delivery.switchboard import Switchboard
from penstock.protocol import JSON_WIRE, MSGPACK_WIRE, Wire
from tests.integration.conftest import Join
from tests.sockets import Client

OPS = ["connect", "refresh", "subscribe", "unsubscribe", "publish", "publish_many", "ack"]
OPS += ["presence", "ping", "nonsense", ""]
OPS += ["mailbox.open", "mailbox.close", "mailbox.put", "mailbox.ack"]
FIELDS = ["topic", "payload", "base64", "type", "key", "headers", "ttl", "idempotency_key"]
FIELDS += ["format", "conflate", "messages", "position", "after", "last", "consumer", "start"]
FIELDS += ["join", "presence", "token", "client", "window", "message", "through", "mailbox"]
TEXTS = ["", "a", "a*", "?", "penstock.x", "é" * 200, "a\x00", "e:1", "json", "AA==", "earliest"]
NUMBERS = [0, -1, 1, 2**53, 2**63, -(2**63), 0.5, -0.0, 1e308]
RAW = [b"", b"{}", b"[]", b"null", b"{" * 5000, b'{"op":"ping","id":1}x', b"\xff\xff", b"\xc1"]


class Monkey:
    """Makes commands up, sensible enough to get far and wrong enough to hurt."""

    def __init__(self, seed: int, wire: Wire) -> None:
        self._choose = random.Random(seed)
        self._wire = wire

    def value(self, depth: int = 0) -> Any:
        choose = self._choose
        kinds = [choose.choice(TEXTS), choose.choice(NUMBERS), None, True, False]
        if not self._wire.is_text:
            kinds += [b"\x00\xff", msgspec.msgpack.Ext(choose.randint(0, 127), b"x"), {None: 1}]
        if depth < 3:
            kinds.append([self.value(depth + 1) for _ in range(choose.randint(0, 3))])
            kinds.append({choose.choice(TEXTS): self.value(depth + 1) for _ in range(2)})
            kinds.append({"payload": self.value(depth + 1)})
        return choose.choice(kinds)

    def command(self, id: int) -> dict[str, Any]:
        choose = self._choose
        command: dict[str, Any] = {"op": choose.choice(OPS), "id": id}
        names = ["a", "b", "a*", "room"]
        if command["op"].startswith("mailbox."):
            command["mailbox"] = choose.choice(names)
            usual: dict[str, dict[str, Any]] = {
                "mailbox.put": {"payload": self.value()},
                "mailbox.ack": {"message": choose.choice(TEXTS)},
            }
            if choose.random() < 0.7:
                return {**command, **usual.get(command["op"], {})}
        elif choose.random() < 0.8:
            command["topic"] = choose.choice(names)
        for name in choose.sample(FIELDS, choose.randint(0, 3)):
            command[name] = self.value()
        return command


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("wire", [JSON_WIRE, MSGPACK_WIRE], ids=["json", "msgpack"])
async def test_every_command_is_answered_or_the_socket_closed(
    board: Switchboard, join: Join, hub: penstock.Hub, wire: Wire, seed: int
) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, what: failures.append(what))
    witnesses = [await join(board, JSON_WIRE), await join(board, MSGPACK_WIRE)]
    for witness in witnesses:
        await witness.ask("subscribe", topic="a")
    monkey = Monkey(seed, wire)
    for _ in range(12):
        client = await join(board, wire)
        await pester(client, monkey)
        client.goes()
    hub.topics.publish("a", "the end")
    for witness in witnesses:
        await witness.until(lambda w=witness: b"the end" in w.socket.frames[-1])  # type: ignore[misc]
    assert failures == []


async def pester(client: Client, monkey: Monkey) -> None:
    asked: list[int] = []
    for id in range(1000, 1030):
        try:
            data = client.socket.wire.encode(monkey.command(id))
        except (TypeError, OverflowError):
            continue  # This format cannot say it.
        asked.append(id)
        client.session.receive(data)
        if id % 7 == 0:
            await asyncio.sleep(0)
    await client.until(lambda: client.socket.closed or set(asked) <= answered(client))
    ids = [frame["id"] for frame in client.heard if frame.get("id", 0) >= 1000]
    assert len(ids) == len(set(ids)), "one reply each"


def answered(client: Client) -> set[int]:
    return {frame["id"] for frame in client.heard if "id" in frame}


@pytest.mark.parametrize("raw", RAW)
@pytest.mark.parametrize("wire", [JSON_WIRE, MSGPACK_WIRE], ids=["json", "msgpack"])
async def test_noise_closes_the_socket(
    board: Switchboard, join: Join, wire: Wire, raw: bytes
) -> None:
    client = await join(board, wire)
    client.session.receive(raw)
    code, _ = await client.is_closed()
    assert code == 3501
