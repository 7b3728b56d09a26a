"""WebSocket connections: picows on the port that uvicorn listens on.

uvicorn parses the request that asks for an upgrade and hands the connection to the class given as
`ws`. From then on picows reads and writes the socket itself, and a `Connection` is the socket of
one delivery session.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)

# Not among its public names, though its own server is built on it.
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from penstock.delivery.access import Access
from penstock.delivery.session import Session
from penstock.delivery.switchboard import Switchboard
from penstock.errors import BadRequest, Forbidden, LimitReached, PenstockError, Unauthorized
from penstock.protocol import JSON_WIRE, SUBPROTOCOLS, WEBSOCKET_PATH, WIRES, Close, Problem, Wire
from penstock.server.auth import bearer, refuse_token_in_url
from penstock.server.exposure import is_allowed_origin
from penstock.server.limits import Connections, Proxies
from penstock.settings import Settings

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

CLOSE_SECONDS: Final = 2.0
"""How long a client may take to answer a close frame before it is cut off."""
CLOSE_ROUNDS_MAX: Final = 4
"""How many times longer, while it reads what was sent before."""
TCP_INFO_BYTES: Final = 192
TCP_INFO_BYTES_ACKED: Final = 120
"""Where Linux puts tcpi_bytes_acked."""
READ_BUFFER_BYTES: Final = 2048
"""To begin with; picows doubles it as frames ask for it."""

READ_BYTES_MAX: Final = 16384
"""At once from one client. Left to itself, picows doubles its buffer for whoever fills it, up to
what the kernel holds: megabytes for each, and as much work before it is another one's turn."""

COPIED_BYTES_MAX: Final = 8192
"""Up to here picows copies what it sends. Beyond, it hands its one header buffer to uvloop, which
may still refer to it when the next frame's header is written there: frames would be cut wrongly."""
HEADER_BYTES_MAX: Final = 14
"""The room that picows needs in front of what it is not to copy."""

logger = logging.getLogger("penstock.websocket")


class _Failures(logging.Handler):
    """picows tells of each connection, and of what clients do wrong, which is no news to an
    operator. An exception is: it is a mistake of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            logger.handle(record)


_quiet = logging.getLogger("penstock.websocket.picows")
_quiet.setLevel(logging.ERROR)
_quiet.propagate = False
_quiet.addHandler(_Failures())


class Front:
    """What all connections of one server share."""

    def __init__(self, switchboard: Switchboard, connections: Connections) -> None:
        self.switchboard = switchboard
        self.settings: Settings = switchboard.runtime.settings
        self.connections = connections
        self.proxies = Proxies(self.settings.trusted_proxies)
        self._data = b""
        self._framed = bytearray()

    def framed(self, data: bytes) -> bytearray:
        """With room for a header in front: one copy for all sockets that a batch goes to."""
        if data is not self._data:
            self._data = data
            self._framed = bytearray(HEADER_BYTES_MAX) + data
        return self._framed

    def protocol(self) -> Callable[..., WebSocket]:
        """What uvicorn takes for the class of its WebSocket connections."""

        def make(config: Config, server_state: ServerState, app_state: Any) -> WebSocket:
            return WebSocket(self, server_state)

        return make


class WebSocket(WSProtocol):  # type: ignore[misc]
    """A connection from the upgrade on, as uvicorn sees it."""

    def __init__(self, front: Front, server_state: ServerState) -> None:
        self._front = front
        self._state = server_state
        self._connection: Connection | None = None
        self._address = ""
        super().__init__(
            None,  # host_port
            None,  # ws_path
            False,  # is_client_side
            self._accept,
            _quiet,
            True,  # disconnect_on_exception
            front.settings.connect_seconds,
            False,  # enable_auto_ping: one timer for all sessions pings them
            front.settings.ping_seconds,
            front.settings.pong_seconds,
            WSAutoPingStrategy.PING_WHEN_IDLE,
            False,  # enable_auto_pong: one who does not read would fill our memory with pongs
            front.settings.frame_bytes_max,
            None,  # extra_headers
            READ_BUFFER_BYTES,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._state.connections.add(self)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        super().connection_lost(exc)
        if self._connection is not None:
            self._connection.leave()  # picows tells of no end where the handshake failed.

    def data_received(self, data: bytes) -> None:
        """uvicorn hands over the request it has read; later data comes through `get_buffer`."""
        while data:
            room = self.get_buffer(len(data))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            self.buffer_updated(count)

    def get_buffer(self, size_hint: int) -> memoryview:
        """No more than is good for the others, however much has come."""
        return super().get_buffer(size_hint)[:READ_BYTES_MAX]  # type: ignore[no-any-return]

    def shutdown(self) -> None:
        """uvicorn is stopping."""
        if self._connection is not None:
            self._connection.shut_down()

    def _accept(self, request: WSUpgradeRequest) -> Any:
        try:
            connection, chosen = self._front_door(request)
        except PenstockError as error:
            return _refusal(error)
        self._connection = connection
        headers = {"Sec-WebSocket-Protocol": chosen} if chosen else None
        response = WSUpgradeResponse.create_101_response(headers)
        return WSUpgradeResponseWithListener(response, connection)

    def _front_door(self, request: WSUpgradeRequest) -> tuple[Connection, str | None]:
        front = self._front
        path, _, query = request.path.decode("latin-1").partition("?")
        headers = request.headers
        if path != WEBSOCKET_PATH:
            raise _NotFound(f"WebSockets connect to {WEBSOCKET_PATH}.")
        refuse_token_in_url(query)
        if not is_allowed_origin(headers.get("Origin"), headers.get("Host"), front.settings):
            raise Forbidden("Pages of this origin may not connect.", hint="See origins.")
        if front.switchboard.is_draining:
            raise LimitReached("The server is stopping.")
        chosen = _choose(headers.getall("Sec-WebSocket-Protocol", ()))
        address = front.proxies.client_address(self._address, headers.getall("X-Forwarded-For", ()))
        wire = WIRES[chosen] if chosen else JSON_WIRE
        token = bearer(headers.get("Authorization"))
        front.connections.enter(address)
        return Connection(front, wire, address, token), chosen


class Connection(WSListener):
    """The socket of one session."""

    def __init__(self, front: Front, wire: Wire, address: str, token: str | None) -> None:
        super().__init__()
        self.wire = wire
        self.is_paused = False
        self._front = front
        self._address = address
        self._token = token
        self._session: Session | None = None
        self._transport: WSTransport
        self._kind = WSMsgType.TEXT if wire.is_text else WSMsgType.BINARY
        self._parts: bytearray | None = None
        self._is_counted = True
        self._is_closing = False

    # What picows says

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        high = self._front.settings.socket_buffer_bytes_max
        transport.underlying_transport.set_write_buffer_limits(high=high, low=high // 4)
        self._session = Session(self._front.switchboard, self, token=self._token, admit=self._admit)
        self._token = None

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        assert self._session is not None
        kind = frame.msg_type
        if transport.is_close_frame_sent and kind != WSMsgType.CLOSE:
            return  # picows goes on with a frame that it has refused as too large.
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._session.close(1002, "Reserved bits are set.")
            return
        if kind is self._kind or kind == self._kind:
            if frame.fin and self._parts is None:
                self._session.receive(frame.get_payload_as_bytes())
            else:
                self._gather(frame, is_first=True)
        elif kind == WSMsgType.CONTINUATION:
            self._gather(frame, is_first=False)
        elif kind == WSMsgType.CLOSE:
            self._answer_close(transport)
        elif kind == WSMsgType.PONG:
            self._session.heard()
        elif kind == WSMsgType.PING:
            self._session.heard()
            if not self.is_paused:
                transport.send_pong(frame.get_payload_as_bytes())
        else:
            self._session.close(Close.BAD_REQUEST, "Frames are text for JSON, else binary.")

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.leave()
        if self._session is not None:
            self._session.ended()

    def pause_writing(self) -> None:
        self.is_paused = True
        if self._session is not None:
            self._session.pause()

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._session is not None:
            self._session.resume()

    # What the session says

    def send(self, data: bytes) -> None:
        if len(data) <= COPIED_BYTES_MAX:
            self._transport.send(self._kind, data)
            return
        frame = self._front.framed(data)
        self._transport.send_reuse_external_bytearray(self._kind, frame, HEADER_BYTES_MAX)

    def close(self, code: int, reason: str = "") -> None:
        transport = self._transport
        if transport.is_disconnected:
            return
        # Its enumeration has the standard's codes only; it sends any.
        transport.send_close(code, reason)  # type: ignore[arg-type]
        self._cut_off_later()

    def ping(self) -> None:
        self._transport.send_ping()

    def taken(self) -> int:
        """As the client's kernel has told ours."""
        connection = self._transport.underlying_transport.get_extra_info("socket")
        if sys.platform != "linux" or connection.fileno() < 0:
            return -self.unsent()
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        return int(struct.unpack_from("Q", info, TCP_INFO_BYTES_ACKED)[0])

    def unsent(self) -> int:
        transport = self._transport.underlying_transport
        waiting = int(transport.get_write_buffer_size())
        descriptor = transport.get_extra_info("socket").fileno()
        if descriptor < 0:
            return waiting
        queued = fcntl.ioctl(descriptor, termios.TIOCOUTQ, b"\0\0\0\0")
        return waiting + int(struct.unpack("i", queued)[0])

    def hold(self, is_held: bool) -> None:
        transport = self._transport.underlying_transport
        if transport.is_closing():
            return
        if is_held:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def shut_down(self) -> None:
        if self._session is not None:
            self._session.close(Close.SHUTDOWN, "The server is stopping.")

    def leave(self) -> None:
        """It counts as a connection no longer."""
        if self._is_counted:
            self._is_counted = False
            self._front.connections.leave(self._address)

    def _cut_off_later(self) -> None:
        """One who reads on sees why it was closed; one who does not is not waited for."""
        if not self._is_closing:
            self._is_closing = True
            self._wait_for_end(CLOSE_ROUNDS_MAX, self.unsent())

    def _wait_for_end(self, rounds: int, unsent: int) -> None:
        loop = self._front.switchboard.loop
        loop.call_later(CLOSE_SECONDS, self._check_end, rounds, unsent)

    def _check_end(self, rounds: int, before: int) -> None:
        if self._transport.is_disconnected:
            return
        unsent = self.unsent()
        if rounds and unsent < before:
            self._wait_for_end(rounds - 1, unsent)
        else:
            self._transport.underlying_transport.abort()

    def _admit(self, access: Access) -> Callable[[], None]:
        subject = access.subject
        self._front.connections.enter(None, subject)
        return lambda: self._front.connections.leave(None, subject)

    def _gather(self, frame: WSFrame, *, is_first: bool) -> None:
        """A message in several frames, which together are no larger than one may be."""
        assert self._session is not None
        if is_first != (self._parts is None):
            self._session.close(Close.BAD_REQUEST, "Fragments are out of order.")
            return
        if self._parts is None:
            self._parts = bytearray()
        self._parts += frame.get_payload_as_memoryview()
        if len(self._parts) > self._front.settings.frame_bytes_max:
            self._session.close(1009, "The message is too large.")
            return
        if frame.fin:
            data, self._parts = bytes(self._parts), None
            self._session.receive(data)

    def _answer_close(self, transport: WSTransport) -> None:
        if not transport.is_close_frame_sent:
            transport.send_close(WSCloseCode.OK)
        transport.disconnect()
        self._cut_off_later()


class _NotFound(BadRequest):
    """There is nothing here."""


def _choose(offered: Iterable[str]) -> str | None:
    """The first subprotocol of the client's list that we speak; None if it named none."""
    names = [name.strip() for header in offered for name in header.split(",") if name.strip()]
    for name in names:
        if name in SUBPROTOCOLS:
            return name
    if names:
        raise BadRequest(
            "None of the offered subprotocols is spoken here.",
            hint=f"Offer {' or '.join(SUBPROTOCOLS)}.",
        )
    return None


def _refusal(error: PenstockError) -> Any:
    status = HTTPStatus.BAD_REQUEST
    if isinstance(error, _NotFound):
        status = HTTPStatus.NOT_FOUND
    elif isinstance(error, Forbidden):
        status = HTTPStatus.FORBIDDEN
    elif isinstance(error, Unauthorized):
        status = HTTPStatus.UNAUTHORIZED
    elif isinstance(error, LimitReached):
        status = HTTPStatus.SERVICE_UNAVAILABLE
    body = JSON_WIRE.encode({"error": Problem.of(error)})
    response = WSUpgradeResponse.create_error_response(
        status, body, {"Content-Type": "application/json", "Connection": "close"}
    )
    return WSUpgradeResponseWithListener(response, None)
