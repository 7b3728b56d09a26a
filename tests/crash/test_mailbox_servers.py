"""Two servers and a process beside them on the same mailboxes at once, under load (M11, M12, M14).

The checker: what was accepted is read, nothing else is, in the order of each sender; and what is on
disk at the end is whole.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

import penstock
from tests.factories import file_url, hub_on
from tests.servers import Server

pytestmark = pytest.mark.crash

BOXES = [f"box-{number}" for number in range(24)]
SENDERS = 8
MESSAGES = 60
"""Of each sender."""
DEADLINE_SECONDS = 150.0
_encode, _decode = msgspec.json.encode, msgspec.json.decode


class Checker:
    """What was attempted, what was accepted, what was read."""

    def __init__(self, senders: int) -> None:
        self.attempted: set[str] = set()
        self.accepted: dict[str, str] = {}
        self.read: dict[str, list[str]] = defaultdict(list)
        self.senders = senders

    @property
    def is_complete(self) -> bool:
        return not self.senders and all(id in self.read[box] for id, box in self.accepted.items())

    def check(self) -> None:
        for box, ids in self.read.items():
            unexpected = set(ids) - {id for id in self.attempted if id.startswith(f"{box}/")}
            assert not unexpected, (box, unexpected)
            by_sender: dict[str, list[int]] = defaultdict(list)
            for id in dict.fromkeys(ids):
                _, sender, number = id.split("/")
                by_sender[sender].append(int(number))
            for sender, numbers in by_sender.items():
                assert numbers == sorted(numbers), (box, sender)
        lost = [id for id, box in self.accepted.items() if id not in self.read[box]]
        assert lost == []
        assert len(self.accepted) > len(BOXES)


async def send(checker: Checker, urls: list[str], sender: str, seed: int) -> None:
    """To mailboxes at random, by whichever server answers; again until it is accepted."""
    chance = random.Random(seed)
    async with httpx.AsyncClient(timeout=20) as http:
        for number in range(MESSAGES):
            box = chance.choice(BOXES)
            id = f"{box}/{sender}/{number}"
            checker.attempted.add(id)
            for turn in itertools.count(seed):
                url = f"{urls[turn % len(urls)]}/v1/mailboxes/{box}/messages"
                try:
                    answer = await http.post(url, json={"payload": number, "id": id})
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
                    continue
                if answer.status_code == 201:
                    checker.accepted[id] = box
                    break
                assert answer.json()["error"]["retryable"], answer.text
                await asyncio.sleep(0.02)
    checker.senders -= 1


async def read_by_socket(checker: Checker, url: str, boxes: list[str]) -> None:
    """All of them on one socket, with a window; again when the server is gone."""
    address = url.replace("http", "ws") + "/ws"
    while True:
        try:
            async with connect(address, subprotocols=["penstock.v1.json"]) as socket:  # type: ignore[list-item]
                ids = itertools.count(1)

                async def say(op: str, **fields: Any) -> None:
                    frame = {"op": op, "id": next(ids), **fields}  # noqa: B023
                    await socket.send(_encode(frame).decode())

                await say("connect")
                await socket.recv()
                for box in boxes:
                    await say("mailbox.open", mailbox=box, window=5)
                async for text in socket:
                    frame = _decode(text)
                    if frame.get("push") != "mail":
                        continue
                    box = frame["mailbox"]
                    for mail in frame["messages"]:
                        if mail.get("kind") != "quota":
                            checker.read[box].append(mail["id"])
                        await say("mailbox.ack", mailbox=box, message=mail["id"])
        except (OSError, ConnectionClosed, EOFError):
            await asyncio.sleep(0.05)


async def read_by_poll(checker: Checker, url: str, boxes: list[str]) -> None:
    async with httpx.AsyncClient(base_url=f"{url}/v1/mailboxes", timeout=30) as http:
        for box in itertools.cycle(boxes):
            try:
                answer = await http.get(f"/{box}/next", params={"limit": 20, "wait": 0.05})
                found = answer.json().get("messages", [])
                if found:
                    checker.read[box] += [m["id"] for m in found if m.get("kind") != "quota"]
                    body = {"id": found[-1]["id"], "through": True}
                    await http.post(f"/{box}/ack", json=body)
            except httpx.TransportError:
                await asyncio.sleep(0.05)


async def read_beside(checker: Checker, hub: penstock.Hub, boxes: list[str]) -> None:
    """As a command line would: on the files themselves."""
    for number in itertools.count():
        for name in boxes:
            box = hub.aio.mailboxes.open(name)
            found = await box.peek_many(10)
            if found:
                checker.read[name] += [m.id for m in found if m.kind.value != "quota"]
                await box.ack(found[-1].id, through=True)
        await asyncio.sleep(0.01 * (number % 3))


async def command_line(path: Path) -> None:
    """`penstock mailboxes`, again and again."""
    program = (sys.executable, "-m", "penstock", "mailboxes")
    for arguments in itertools.cycle((("list",), ("verify",), ("peek", BOXES[0]))):
        process = await asyncio.create_subprocess_exec(
            *(*program, *arguments, "--json", "--url", file_url(path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        assert process.returncode == 0, (arguments, out, err)


@pytest.fixture
def servers(path: Path) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Server(path)) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [0, 2])
async def test_two_servers_and_a_process_on_the_same_mailboxes(
    path: Path, servers: list[Server], kills: int
) -> None:
    """Also when servers are killed, and come back, in the middle of it."""
    checker = Checker(SENDERS)
    with hub_on(path) as hub:
        urls = [server.url for server in servers]
        third = len(BOXES) // 3
        readers = [
            read_by_socket(checker, urls[0], BOXES[:third]),
            read_by_poll(checker, urls[1], BOXES[third : 2 * third]),
            read_beside(checker, hub, BOXES[2 * third :]),
            command_line(path),
        ]
        senders = [send(checker, urls, f"s{number}", number) for number in range(SENDERS)]
        tasks = [asyncio.create_task(work) for work in (*senders, *readers)]
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                for number in range(kills):
                    share = (number + 1) * len(senders) * MESSAGES // (kills + 2)
                    while len(checker.accepted) < share:
                        await _check(tasks)
                    await asyncio.to_thread(servers[number % 2].restart)
                while not checker.is_complete:
                    await _check(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        checker.check()
        assert len(checker.accepted) == len(senders) * MESSAGES
        for box in map(hub.mailboxes.open, BOXES):
            # What is left was read, and its acknowledgement was on its way.
            assert {mail.id for mail in box.peek_many(200)} <= set(checker.read[box.id])
    for server in servers:
        assert server.stop() == 0
    with hub_on(path) as hub:
        assert hub.mailboxes.verify().findings == []


async def _check(tasks: list[asyncio.Task[None]]) -> None:
    """A reader or sender that failed ends the test with its error."""
    for task in tasks:
        if task.done() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]
    await asyncio.sleep(0.02)
