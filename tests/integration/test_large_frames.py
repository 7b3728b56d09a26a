"""Frames beyond what picows copies reach a client whole, also one whose socket has backed up (D5).

picows 2.3 gives uvloop a view of the one buffer it writes headers to. While a frame waits, the
header of the next one would overwrite it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

SUBPROTOCOL: Any = "penstock.v1.json"
FRAMES = 500
PER_FRAME = 20


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0", "--json"]
    environment = {**os.environ, "PENSTOCK_URL": f"sqlite:///{tmp_path / 'hub.db'}"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        yield int(address.rpartition(":")[2])
        server.terminate()


@contextmanager
def open_socket(port: int, **options: Any) -> Iterator[ClientConnection]:
    with connect(
        f"ws://127.0.0.1:{port}/ws",
        subprotocols=[SUBPROTOCOL],
        compression=None,
        proxy=None,
        max_size=None,
        **options,
    ) as client:
        ask(client, {"op": "connect", "id": 1})
        yield client


def ask(client: ClientConnection, command: dict[str, Any]) -> Any:
    client.send(json.dumps(command))
    reply = json.loads(client.recv(timeout=60))
    assert "error" not in reply, reply
    return reply["ok"]


def test_a_client_that_pauses_gets_every_large_frame_as_it_was_sent(port: int) -> None:
    # Both kernels together hold about half of it; the server has to keep frames, of many lengths.
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.connect(("127.0.0.1", port))
    sent = [
        [f"{frame}-{n}-" + "x" * (560 + frame % 97) for n in range(PER_FRAME)]
        for frame in range(FRAMES)
    ]
    with open_socket(port, sock=small, max_queue=1) as slow, open_socket(port) as publisher:
        ask(slow, {"op": "subscribe", "id": 2, "topic": "large"})
        for number, payloads in enumerate(sent):
            messages = [{"payload": payload} for payload in payloads]
            command = {"op": "publish_many", "id": number + 2, "topic": "large"}
            ask(publisher, {**command, "messages": messages})
        wanted = [payload for payloads in sent for payload in payloads]
        received: list[str] = []
        while len(received) < len(wanted):
            push = json.loads(slow.recv(timeout=60))
            received += [entry["payload"] for entry in push["messages"]]
        assert received == wanted
