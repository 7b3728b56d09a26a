"""How a crowd of WebSocket clients speaks to one kind of server, and checks what it hears.

Every message carries its number in the series, and every byte that comes is compared: with what
was published where the server passes messages on as they are; otherwise with the frame that the
first of the clients got, which is taken apart. So a client costs little more than reading, and a
message that is lost, repeated, changed or out of order is still found, whoever it happens to.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport

from bench.workload import PAYLOAD, TYPE

TOPIC = "bench"
PREFIX = "obj-"


def body(number: int) -> bytes:
    """The message with this number in the series: the same size for each."""
    return msgspec.json.encode({**PAYLOAD, "id": f"{PREFIX}{number:08d}"})


class Series:
    """What is published, and what was seen of it."""

    def __init__(self, count: int) -> None:
        self.bodies = [body(number) for number in range(count)]
        self.frames: list[bytes] = []
        """What a client that gets each batch as it goes out has seen, frame by frame."""
        self.through: list[int] = []
        """How many messages there were after each of these frames."""


class Ear(WSListener):
    """A subscribed client. `heard` messages came in order; others are counted as what they are."""

    def __init__(self, series: Series, on_ready: Any) -> None:
        super().__init__()
        self.series = series
        self.heard = 0
        self.lost = 0
        self.duplicated = 0
        self.changed = 0
        self.frames = 0
        self.is_gone = False
        self._on_ready = on_ready

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.is_gone = True

    def count(self, number: int) -> None:
        """One message of the series came."""
        if number < self.heard:
            self.duplicated += 1
            return
        self.lost += number - self.heard
        self.heard = number + 1


class Dialect(Protocol):
    """One kind of server, as its clients see it."""

    path: str
    subprotocol: str | None
    hello: tuple[bytes, ...]
    """What a client sends to be subscribed."""
    kind: WSMsgType

    def ear(self, series: Series, on_ready: Any) -> Ear: ...

    def publication(self, number: int, body: bytes) -> bytes:
        """What a publisher sends for one message."""


class Penstock:
    """`penstock serve`, subprotocol penstock.v1.json."""

    path = "/ws"
    subprotocol: str | None = "penstock.v1.json"
    kind = WSMsgType.TEXT
    hello: tuple[bytes, ...] = (
        b'{"op":"connect","id":1}',
        b'{"op":"subscribe","id":2,"topic":"%s"}' % TOPIC.encode(),
    )
    publisher_hello: tuple[bytes, ...] = hello[:1]

    def ear(self, series: Series, on_ready: Any) -> Ear:
        return PenstockEar(series, on_ready)

    def publication(self, number: int, body: bytes) -> bytes:
        head = f'{{"op":"publish","id":{number + 2},"topic":"{TOPIC}","type":"{TYPE}","payload":'
        return head.encode() + body + b"}"


class _Entry(msgspec.Struct):
    payload: msgspec.Raw


class _Push(msgspec.Struct):
    id: int | None = None
    ok: Any = None
    error: Any = None
    push: str | None = None
    messages: list[_Entry] = []


class _Numbered(msgspec.Struct):
    id: str


_decode_push = msgspec.json.Decoder(_Push).decode
_decode_number = msgspec.json.Decoder(_Numbered).decode


class PenstockEar(Ear):
    """Batches are encoded once: all who keep up get the same bytes."""

    def __init__(self, series: Series, on_ready: Any) -> None:
        super().__init__(series, on_ready)
        self._is_alone = False

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        data = frame.get_payload_as_bytes()
        number = self.frames
        known = self.series.frames
        if number < len(known) and not self._is_alone and known[number] == data:
            self.frames = number + 1
            self.heard = self.series.through[number]
        elif frame.msg_type == WSMsgType.TEXT:
            self._take_apart(data)

    def _take_apart(self, data: bytes) -> None:
        push = _decode_push(data)
        if push.error is not None:
            raise RuntimeError(f"The server answered {data[:300]!r}.")
        if push.push != "messages":
            if push.id == 2:
                self._on_ready()
            return
        first = self.heard
        for entry in push.messages:
            raw = bytes(entry.payload)
            number = int(_decode_number(raw).id.removeprefix(PREFIX))
            self.changed += raw != self.series.bodies[number]
            self.count(number)
        is_next = self.frames == len(self.series.frames) and not self._is_alone
        if is_next and self.heard - first == len(push.messages) and not self.lost:
            self.series.frames.append(data)
            self.series.through.append(self.heard)
        else:
            self._is_alone = True
        self.frames += 1
