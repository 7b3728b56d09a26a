"""A client written from `docs/reference/protocol.md` alone, against real servers (D3, D6, T9, T17).

`PlainClient` knows the `websockets` library and that page, and nothing of penstock: read it as an
example of how a client in another language begins.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec.msgpack
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.acceptance.terminal import Running, Terminal

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "protocol.md"
DEADLINE_SECONDS = 60.0

FORMATS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "penstock.v1.json": (json.dumps, json.loads),
    "penstock.v1.msgpack": (msgspec.msgpack.encode, msgspec.msgpack.decode),
}


class PlainClient:
    """Commands with their replies, pushes by kind, and the position of each subscription."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._encode, self._decode = FORMATS[socket.subprotocol or "penstock.v1.json"]
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pushes: dict[str, asyncio.Queue[dict[str, Any]]] = defaultdict(asyncio.Queue)
        self.positions: dict[str, str] = {}
        self._reader = asyncio.create_task(self._read())

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: str, subprotocol: str = "penstock.v1.json", **fields: Any
    ) -> AsyncIterator[PlainClient]:
        async with connect(url, subprotocols=[subprotocol]) as socket:  # type: ignore[list-item]
            client = cls(socket)
            await client.call("connect", **fields)
            yield client
            client._reader.cancel()

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a command and wait for its reply: `ok`, or the error's code as an exception."""
        id = next(self._ids)
        reply = self._replies[id] = asyncio.get_running_loop().create_future()
        await self._socket.send(self._encode({"op": op, "id": id, **fields}))
        async with asyncio.timeout(DEADLINE_SECONDS):
            frame = await reply
        if "error" in frame:
            raise RuntimeError(frame["error"]["code"])
        ok: dict[str, Any] = frame["ok"]
        return ok

    async def subscribe(self, topic: str, **fields: Any) -> dict[str, Any]:
        ok = await self.call("subscribe", topic=topic, **fields)
        self.positions.setdefault(topic, ok["position"])
        return ok

    async def push(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self._pushes[kind].get()

    async def messages(self, count: int) -> list[dict[str, Any]]:
        """The next messages, from as many pushes as it takes."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += (await self.push("messages"))["messages"]
        return found

    async def payloads(self, count: int) -> list[Any]:
        return [entry["payload"] for entry in await self.messages(count)]

    async def closed(self) -> int | None:
        """The server's close code."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self._socket.wait_closed()
        return self._socket.close_code

    async def _read(self) -> None:
        try:
            async for data in self._socket:
                frame = self._decode(data)
                if "id" in frame:
                    self._replies.pop(frame["id"]).set_result(frame)
                    continue
                if frame["push"] == "messages":
                    epoch = self.positions.get(frame["topic"], ":").rpartition(":")[0]
                    self.positions[frame["topic"]] = f"{epoch}:{frame['messages'][-1]['id']}"
                self._pushes[frame["push"]].put_nowait(frame)
        except ConnectionClosed:
            return


class Servers:
    """Instances of `penstock serve` on one file."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def start(self, *arguments: str) -> tuple[str, Running]:
        """A server's WebSocket URL, and its process."""
        running = self._terminal.start("serve", "--port", 0, "--json", *arguments)
        address = running.message()["address"]
        return f"ws{address.removeprefix('http')}/ws", running


@pytest.fixture
def servers(terminal: Terminal) -> Servers:
    return Servers(terminal)


@pytest.fixture
def url(servers: Servers) -> str:
    return servers.start()[0]


subprotocols = pytest.mark.parametrize("subprotocol", FORMATS)


@subprotocols
async def test_it_publishes_and_subscribes(url: str, subprotocol: str) -> None:
    async with PlainClient.open(url, subprotocol) as client:
        await client.subscribe("orders")
        receipt = await client.call(
            "publish", topic="orders", payload={"id": 7}, type="placed", headers={"by": "ann"}
        )
        [entry] = await client.messages(1)
        assert entry["payload"] == {"id": 7}
        assert (entry["type"], entry["headers"]) == ("placed", {"by": "ann"})
        assert receipt["position"] == client.positions["orders"]
        assert receipt["at"] == entry["at"]


async def test_bytes_cross_between_the_formats(url: str) -> None:
    async with (
        PlainClient.open(url, "penstock.v1.json") as text,
        PlainClient.open(url, "penstock.v1.msgpack") as binary,
    ):
        for client in (text, binary):
            await client.subscribe("blobs")
        await text.call("publish", topic="blobs", base64="AP8=")
        await binary.call("publish", topic="blobs", payload=b"\xff\x00")
        assert [entry["base64"] for entry in await text.messages(2)] == ["AP8=", "/wA="]
        assert await binary.payloads(2) == [b"\x00\xff", b"\xff\x00"]


@subprotocols
async def test_it_resumes_after_its_server_was_killed_on_another_one(
    servers: Servers, subprotocol: str
) -> None:
    """T17: nothing is missing and nothing comes twice."""
    (first, process), (second, _) = servers.start(), servers.start()
    async with PlainClient.open(second, subprotocol) as writer:
        async with PlainClient.open(first, subprotocol) as reader:
            await reader.subscribe("orders")
            await writer.call("publish", topic="orders", payload=1)
            assert await reader.payloads(1) == [1]
            process.kill()
            await reader.closed()
            position = reader.positions["orders"]
        await writer.call("publish_many", topic="orders", messages=[{"payload": 2}, {"payload": 3}])
        async with PlainClient.open(second, subprotocol) as reader:
            ok = await reader.subscribe("orders", after=position)
            assert ok["recovered"] is True
            await writer.call("publish", topic="orders", payload=4)
            assert await reader.payloads(3) == [2, 3, 4]


async def test_publishing_again_after_a_lost_socket_stores_it_once(url: str) -> None:
    async with PlainClient.open(url) as client:
        first = await client.call("publish", topic="orders", payload=1, idempotency_key="k")
    async with PlainClient.open(url) as client:
        again = await client.call("publish", topic="orders", payload=1, idempotency_key="k")
        assert again == {**first, "duplicate": True}
        with pytest.raises(RuntimeError, match="idempotency_conflict"):
            await client.call("publish", topic="orders", payload=2, idempotency_key="k")


@subprotocols
async def test_a_durable_consumer_goes_on_after_what_it_acknowledged(
    servers: Servers, subprotocol: str
) -> None:
    url, process = servers.start()
    consumer = {"consumer": "billing", "start": "earliest"}
    async with PlainClient.open(url, subprotocol) as client:
        await client.call(
            "publish_many", topic="orders", messages=[{"payload": n} for n in range(3)]
        )
        ok = await client.subscribe("orders", **consumer)
        entries = await client.messages(3)
        epoch = ok["position"].rpartition(":")[0]
        done = f"{epoch}:{entries[1]['id']}"
        assert await client.call("ack", topic="orders", position=done) == {"position": done}
        async with PlainClient.open(url, subprotocol) as other:
            with pytest.raises(RuntimeError, match="consumer_busy"):
                await other.subscribe("orders", **consumer)
        with pytest.raises(RuntimeError, match="invalid_input"):
            await client.call("ack", topic="orders", position=f"{epoch}:999")
        process.kill()
    url, _ = servers.start()
    async with PlainClient.open(url, subprotocol) as client:
        ok = await client.subscribe("orders", **consumer)
        assert ok["position"] == done
        assert await client.payloads(1) == [2]


@subprotocols
async def test_it_sees_who_is_there_on_any_instance(servers: Servers, subprotocol: str) -> None:
    """T9: first everybody, then who joins and leaves, also by kill -9."""
    (first, _), (second, process) = servers.start(), servers.start()
    async with PlainClient.open(first, subprotocol, client="ann") as ann:
        await ann.subscribe("lobby", join={"name": "Ann"}, presence=True)
        everybody = (await ann.push("presence"))["members"]
        assert [(m["client"], m["info"]) for m in everybody] == [("ann", {"name": "Ann"})]
        async with PlainClient.open(second, subprotocol, client="bob") as bob:
            await bob.subscribe("lobby", join={})
            present = await said(ann, "bob", "joined")
            assert present["topic"] == "lobby"
            listed = await bob.call("presence", topic="lobby")
            assert {m["client"] for m in listed["members"]} == {"ann", "bob"}
            assert listed["is_complete"] is True
            process.kill()
            assert await said(ann, "bob", "left")


async def said(watcher: PlainClient, client: str, what: str) -> dict[str, Any]:
    """The presence push that tells of somebody; one's own arrival may be told again before."""
    while True:
        push = await watcher.push("presence")
        names = [m if isinstance(m, str) else m["client"] for m in push.get(what, [])]
        if client in names:
            return push


async def test_a_server_that_stops_says_so_and_has_sent_everything(servers: Servers) -> None:
    """D8: close code 3001 after the last batch."""
    url, process = servers.start()
    async with PlainClient.open(url) as client:
        await client.subscribe("orders")
        for number in range(100):
            await client.call("publish", topic="orders", payload=number)
        ended = await asyncio.to_thread(process.signal, signal.SIGTERM)
        assert await client.closed() == 3001
        assert await client.payloads(100) == list(range(100))
        assert ended.code == 0, ended


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("/elsewhere", {}, 404),
        ("/ws?token=secret", {}, 400),
        ("/ws", {"subprotocols": ["chat"]}, 400),
        ("/ws", {"origin": "https://evil.example"}, 403),
        ("/ws", {"additional_headers": {"Authorization": "Basic x"}}, 401),
    ],
)
async def test_a_handshake_that_is_refused_says_why(
    url: str, path: str, options: dict[str, Any], status: int
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(url.removesuffix("/ws") + path, **options)
    response = refused.value.response
    assert response.status_code == status
    assert json.loads(response.body or b"")["error"]["code"]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("hello", 3501),
        (b"\x00", 3501),
        (json.dumps({"op": "ping", "id": 1}), 3500),
        (json.dumps({"op": "connect", "id": 1, "client": "x" * 3_000_000}), 1009),
    ],
    ids=["no command", "binary on JSON", "before connect", "too large"],
)
async def test_what_breaks_the_protocol_is_closed_with_its_code(
    url: str, frame: str | bytes, code: int
) -> None:
    async with connect(url) as socket:
        await socket.send(frame)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await socket.wait_closed()
        assert socket.close_code == code


async def test_a_token_comes_with_connect_or_in_a_header(
    servers: Servers, terminal: Terminal
) -> None:
    tokens = terminal.folder / "tokens.toml"
    made = terminal.done(
        "tokens", "create", "ann", "--file", tokens, "--subscribe", "orders", "--json"
    )
    url, _ = servers.start("--tokens-file", str(tokens))
    token = made.json["token"]
    async with PlainClient.open(url, token=token) as client:
        await client.subscribe("orders")
        with pytest.raises(RuntimeError, match="forbidden"):
            await client.subscribe("payroll")
    async with connect(url, additional_headers={"Authorization": f"Bearer {token}"}) as socket:
        client = PlainClient(socket)
        assert (await client.call("connect"))["client"].startswith("ann/")
    async with connect(url) as socket:
        client = PlainClient(socket)
        with pytest.raises(RuntimeError, match="unauthorized"):
            await client.call("connect", token="wrong")
        assert await client.closed() == 3500


# The example of the page


def example() -> list[tuple[str, dict[str, Any]]]:
    [block] = re.findall(r"```text\n(→.+?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return [(line[0], json.loads(line[2:])) for line in block.splitlines()]


def plain(value: Any, epoch: str) -> Any:
    """With what differs from run to run made the same."""
    if isinstance(value, dict):
        free = {"at", "joined_at", "instance", "version"}
        return {k: "…" if k in free else plain(v, epoch) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(one, epoch) for one in value]
    return value.replace(epoch, "EPOCH") if isinstance(value, str) else value


async def test_the_example_of_the_page_is_what_happens(
    terminal: Terminal, servers: Servers
) -> None:
    # Statistics are messages too, and would have ids among those of the example.
    terminal.environment["PENSTOCK_STATS_SECONDS"] = "0"
    url, _ = servers.start()
    shown = example()
    theirs = shown[1][1]["ok"]["epoch"]
    ours = ""
    async with connect(url) as socket:
        for at, (direction, frame) in enumerate(shown):
            if direction == "→":
                await socket.send(json.dumps(frame).replace(theirs, ours or theirs))
                following = itertools.takewhile(lambda line: line[0] == "←", shown[at + 1 :])
                expected = [plain(one, theirs) for _, one in following]
                found: list[Any] = []
                while len(found) < len(expected):
                    async with asyncio.timeout(DEADLINE_SECONDS):
                        heard = json.loads(await socket.recv())
                    ours = ours or heard["ok"]["epoch"]
                    gather(found, plain(heard, ours), expected)
                assert sorted(found, key=str) == sorted(expected, key=str)


def gather(found: list[Any], frame: Any, expected: list[Any]) -> None:
    """Messages may come in two pushes where the example shows one, and who is in a list already
    may be told to have joined."""
    if frame.get("push") == "presence" and "joined" in frame:
        return
    last = found[-1] if found else {}
    if frame.get("push") == "messages" == last.get("push") and last not in expected:
        last["messages"] += frame["messages"]
    else:
        found.append(frame)
