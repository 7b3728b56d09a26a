"""What a worker and its processes say to each other: frames of MessagePack over a socket pair."""

from __future__ import annotations

import socket
import struct

import msgspec

from penstock.job import Answer, Claim, Progress, Setback

_LENGTH = struct.Struct("!I")


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first word: where Python finds the user's code."""

    path: list[str]
    main: str | None
    """The file that was run as a program, for handlers that are defined in it."""


class Task(msgspec.Struct, frozen=True, tag=True):
    module: str
    name: str
    claim: Claim
    payload_bytes_max: int
    compress_above_bytes: int
    result_seconds: float | None


class Stop(msgspec.Struct, frozen=True, tag=True):
    """The job is asked to stop: `job.is_cancelled`."""

    id: int


class Begun(msgspec.Struct, frozen=True, tag=True):
    """The handler is found and called: its time runs."""


class Said(msgspec.Struct, frozen=True, tag=True):
    progress: Progress


class Ended(msgspec.Struct, frozen=True, tag=True):
    answer: Answer | None = None
    setback: Setback | None = None
    is_settled: bool = False


ToProcess = Hello | Task | Stop
FromProcess = Begun | Said | Ended

_encoder = msgspec.msgpack.Encoder()
to_process = msgspec.msgpack.Decoder(ToProcess)
from_process = msgspec.msgpack.Decoder(FromProcess)


def send(connection: socket.socket, message: ToProcess | FromProcess) -> None:
    body = _encoder.encode(message)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket) -> bytes | None:
    """The next frame; None when the other side is gone."""
    head = _read(connection, _LENGTH.size)
    return None if head is None else _read(connection, _LENGTH.unpack(head)[0])


def _read(connection: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        try:
            piece = connection.recv(count - len(parts))
        except TimeoutError:
            if parts:
                continue  # The rest of what has begun is on its way.
            raise
        except ConnectionError:
            return None
        if not piece:
            return None
        parts += piece
    return bytes(parts)
