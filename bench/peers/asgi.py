"""What one writes first: FastAPI on uvicorn, one send per message and subscriber."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from picows import WSFrame, WSMsgType, WSTransport

from bench.dialects import Ear, Series
from bench.servers import Server, free_port

app = FastAPI()
subscribers: set[WebSocket] = set()


@app.websocket("/subscribe")
async def subscribe(socket: WebSocket) -> None:
    await socket.accept()
    subscribers.add(socket)
    await socket.send_text("ready")
    try:
        await socket.receive_text()
    except WebSocketDisconnect:
        pass
    finally:
        subscribers.discard(socket)


@app.websocket("/publish")
async def publish(socket: WebSocket) -> None:
    await socket.accept()
    try:
        while True:
            message = await socket.receive_text()
            for subscriber in tuple(subscribers):
                await subscriber.send_text(message)
    except WebSocketDisconnect:
        pass


class AsgiServer(Server):
    """With uvicorn's own choice of event loop and WebSocket implementation."""

    name = "uvicorn"

    def __init__(self, folder: Path, *, core: int | None = None) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "bench.peers.asgi", str(self.port)]
        super().__init__(command, folder, core=core)

    def wait(self) -> None:
        self.wait_port(self.port)


class Asgi:
    path = "/subscribe"
    subprotocol: str | None = None
    kind = WSMsgType.TEXT
    hello: tuple[bytes, ...] = ()

    def ear(self, series: Series, on_ready: Any) -> Ear:
        return AsgiEar(series, on_ready)

    def publication(self, number: int, body: bytes) -> bytes:
        return body


class AsgiEar(Ear):
    """Each frame is a message as it was published."""

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        data = frame.get_payload_as_bytes()
        bodies = self.series.bodies
        if self.heard < len(bodies) and data == bodies[self.heard]:
            self.heard += 1
            self.frames += 1
        elif frame.msg_type == WSMsgType.TEXT:
            if data == b"ready":
                self._on_ready()
            else:
                self.changed += 1


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
