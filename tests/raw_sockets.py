"""Clients that do as they please, byte by byte, and one that behaves well meanwhile."""

from __future__ import annotations

import base64
import itertools
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.serving import HttpServer
from tests.waiting import wait_until

JSON = "penstock.v1.json"
MSGPACK = "penstock.v1.msgpack"
DEADLINE_SECONDS = 60.0

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    reserved: int = 0,
    is_masked: bool = True,
    declared: int | None = None,
) -> bytes:
    """A frame as a client sends it, or as it should not."""
    size = len(payload) if declared is None else declared
    mask_bit = 0x80 if is_masked else 0
    head = bytes([(0x80 if fin else 0) | reserved << 4 | opcode])
    if size < 126:
        head += bytes([mask_bit | size])
    elif size < 65536:
        head += bytes([mask_bit | 126]) + struct.pack("!H", size)
    else:
        head += bytes([mask_bit | 127]) + struct.pack("!Q", size)
    if not is_masked:
        return head + payload
    # A mask of zeros leaves the payload as it is.
    return head + bytes(4) + payload


def command(op: str, id: int, **fields: Any) -> bytes:
    return frame(TEXT, json.dumps({"op": op, "id": id, **fields}).encode())


class RawSocket:
    """A WebSocket connection without any manners of its own: it answers no ping and no close."""

    def __init__(
        self,
        port: int,
        *,
        subprotocol: str | None = JSON,
        receive_buffer: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(DEADLINE_SECONDS)
        self.socket.connect(("127.0.0.1", port))
        self._received = b""
        lines = {
            "Host": f"127.0.0.1:{port}",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            **({"Sec-WebSocket-Protocol": subprotocol} if subprotocol else {}),
            **(headers or {}),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.socket.sendall(f"GET /ws HTTP/1.1\r\n{head}\r\n".encode())
        answer = self._read_until(b"\r\n\r\n")
        self.status = int(answer.split()[1])

    def connected(self, **fields: Any) -> RawSocket:
        """After the first command."""
        self.send(command("connect", 0, **fields))
        reply = self.reply(0)
        assert "ok" in reply, reply
        return self

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_while_it_listens(self, data: bytes, seconds: float = 1.0) -> int:
        """Until the server has not taken any for so long; how many bytes it took."""
        sent = 0
        view = memoryview(data)
        self.socket.settimeout(seconds)
        try:
            while sent < len(data):
                sent += self.socket.send(view[sent : sent + 65536])
        except (TimeoutError, ConnectionError):
            pass
        self.socket.settimeout(DEADLINE_SECONDS)
        return sent

    def ask(self, op: str, id: int, **fields: Any) -> dict[str, Any]:
        self.send(command(op, id, **fields))
        return self.reply(id)

    def reply(self, id: int) -> dict[str, Any]:
        """The reply to a command; pushes before it are left out."""
        while True:
            opcode, payload = self.receive()
            assert opcode == TEXT, (opcode, payload[:200])
            found: dict[str, Any] = json.loads(payload)
            if found.get("id") == id:
                return found

    def receive(self) -> tuple[int, bytes]:
        """The next frame; `ConnectionError` at the end.

        After a `TimeoutError` what has come of it stays, for the next call.
        """
        self._wait_for(2)
        size, start = self._received[1] & 0x7F, 2
        if size > 125:
            start = 4 if size == 126 else 10
            self._wait_for(start)
            size = int.from_bytes(self._received[2:start], "big")
        self._wait_for(start + size)
        opcode, payload = self._received[0] & 0x0F, self._received[start : start + size]
        self._received = self._received[start + size :]
        return opcode, payload

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Until the connection ends."""
        try:
            while True:
                yield self.receive()
        except ConnectionError:
            return

    def close_code(self) -> int | None:
        """Why the server closed; None if it said nothing before it hung up."""
        for opcode, payload in self.frames():
            if opcode == CLOSE:
                return int(struct.unpack("!H", payload[:2])[0])
        return None

    def is_cut_off(self) -> bool:
        """Whether the connection has ended, once what was sent is read. Answers nothing."""
        for _ in self.frames():
            continue
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_for(self, size: int) -> None:
        while len(self._received) < size:
            self._fill()

    def _read_until(self, end: bytes) -> bytes:
        while end not in self._received:
            self._fill()
        taken, _, self._received = self._received.partition(end)
        return taken

    def _fill(self) -> None:
        piece = self.socket.recv(262_144)
        if not piece:
            raise ConnectionError("the server hung up")
        self._received += piece


class Witness(threading.Thread):
    """Publishes and hears what it published, one by one, on connections of its own."""

    def __init__(self, port: int, topic: str = "witness", token: str | None = None) -> None:
        super().__init__(name="witness", daemon=True)
        self.latencies: list[float] = []
        self._topic = topic
        self._token = token
        self._url = f"ws://127.0.0.1:{port}/ws"
        self._is_stopping = threading.Event()
        self._failure: BaseException | None = None
        self._heard: list[int] = []
        self._count = 0

    def run(self) -> None:
        try:
            with self._connect() as publisher, self._connect() as subscriber:
                _ask(subscriber, 1, op="subscribe", topic=self._topic)
                for n in itertools.count():
                    self._exchange(publisher, subscriber, n)
                    if self._is_stopping.wait(0.002):
                        return
        except BaseException as error:  # noqa: BLE001 - told to the test by check()
            self._failure = error

    def check(self) -> None:
        """It was served all the time, and is still."""
        seen = self._count
        try:
            wait_until(lambda: self._count > seen or self._failure, "the witness is served")
        finally:
            self._is_stopping.set()
            self.join(DEADLINE_SECONDS)
        if self._failure is not None:
            raise AssertionError("the well-behaved client was not served") from self._failure
        assert self._heard == list(range(self._count)), "missed, repeated or reordered"

    def begin(self) -> None:
        self.start()
        wait_until(lambda: self._count or self._failure, "the witness is served")

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        with connect(self._url, subprotocols=[Subprotocol(JSON)], compression=None) as made:
            _ask(made, 0, op="connect", **({"token": self._token} if self._token else {}))
            yield made

    def _exchange(self, publisher: Any, subscriber: Any, n: int) -> None:
        started = time.perf_counter()
        _ask(publisher, n, op="publish", topic=self._topic, payload=n)
        push = json.loads(subscriber.recv(DEADLINE_SECONDS))
        self.latencies.append(time.perf_counter() - started)
        self._heard += [entry["payload"] for entry in push["messages"]]
        self._count += 1


def _ask(connection: Any, id: int, **fields: Any) -> None:
    connection.send(json.dumps({"id": id, **fields}))
    reply = json.loads(connection.recv(DEADLINE_SECONDS))
    assert reply["id"] == id, reply
    assert "ok" in reply, reply


def memory_kb(pid: int, field: str = "VmRSS") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])


@contextmanager
def unharmed(
    server: HttpServer, *, growth_mb: float = 24, token: str | None = None, topic: str = "witness"
) -> Iterator[None]:
    """Whatever happens inside: others are served, memory is bounded, nothing is in the log.

    The bound holds for the highest point of memory, not for what is left at the end.
    """
    witness = Witness(server.port, topic, token)
    witness.begin()
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")
    before = memory_kb(server.pid)
    log_start = server.log.stat().st_size
    try:
        yield
    finally:
        witness.check()
    grown = memory_kb(server.pid, "VmHWM") - before
    assert grown < growth_mb * 1024, f"the server grew by {grown // 1024} MB"
    assert httpx.get(f"{server.url}/health/live").status_code == 200
    log = server.log.read_bytes()[log_start:].decode()
    assert "Traceback" not in log, log
    worst = sorted(witness.latencies)[int(len(witness.latencies) * 0.99)]
    print(f"witness: {len(witness.latencies)} exchanges, p99 {worst * 1000:.1f} ms, +{grown} KB")
