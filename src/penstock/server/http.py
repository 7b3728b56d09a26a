"""uvicorn's HTTP connection, with the deadlines and limits that it leaves to a proxy.

A client has `request_seconds` to send a request, from its first byte (or from connecting) to the
last byte of its body; the head of a request has `request_head_bytes_max`. So clients that drip a
header a minute (slowloris) hold a socket for that long and no longer. A client that takes nothing
of its answer for as long is cut, too, be it a page of messages or a stream of events; one that
takes a little is not.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from penstock.settings import Settings

KEEP_ALIVE_SECONDS = 75
HEADER_OVERHEAD = 4
"""The colon, the space and the line's end, which the parser leaves out."""


def uvicorn_settings(settings: Settings) -> dict[str, Any]:
    """What `uvicorn.Config` is to be given, beside the application and the `ws` class."""
    return {
        "host": settings.bind_host,
        "port": settings.bind_port,
        "http": http_protocol(settings),
        "loop": "auto",
        "interface": "asgi3",
        "lifespan": "on",
        # It would believe X-Forwarded-For from loopback, whoever sent it first.
        "proxy_headers": False,
        # Its lines have query strings, and with them what people put there by mistake.
        "access_log": False,
        "server_header": False,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": max(1, round(settings.drain_seconds)),
        "ws_max_size": settings.frame_bytes_max,
        "ws_per_message_deflate": False,
        "log_config": None,
    }


def http_protocol(settings: Settings) -> type[asyncio.Protocol]:
    """The class of a connection under these settings, as uvicorn wants it."""

    class LimitedHttp(Http):
        request_seconds = settings.request_seconds
        head_bytes_max = settings.request_head_bytes_max
        connections_max = settings.connections_max

    return LimitedHttp


class Http(HttpToolsProtocol):
    request_seconds: float
    head_bytes_max: int
    connections_max: int

    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _unsent = 0
    _is_in_head = True
    _head_bytes = 0
    _refusal = 400

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._refuse(503, "Too many connections.")
            return
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.parser is None or self.transport.is_closing():
            return  # The rest of what was refused.
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if not (self._is_in_head and self._head_bytes):
            return
        if self._head_bytes > self.head_bytes_max:
            self._refuse(431, "The head of the request is too large.")
        elif self._deadline is None:
            # Empty lines between requests begin none, and end uvicorn's wait for one.
            self._start_deadline()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:
            self._start_deadline()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        size = len(self.url) + sum(len(n) + len(v) + HEADER_OVERHEAD for n, v in self.headers)
        if size > self.head_bytes_max:
            # The parser stops at an error of ours, and the connection answers it.
            self._refusal = 431
            raise ValueError("The head of the request is too large.")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        self._stop_deadline()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        self._stop_waiting()
        super().resume_writing()

    def handle_websocket_upgrade(self) -> None:
        self._stop_deadline()
        self._stop_waiting()
        # Firefox asks for "keep-alive, Upgrade", and picows listens to the one word only.
        self.scope["headers"] = [
            (name, b"Upgrade" if name == b"connection" else value)
            for name, value in self.scope["headers"]
        ]
        super().handle_websocket_upgrade()

    def timeout_keep_alive_handler(self) -> None:
        self._stop_deadline()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal, msg if self._refusal == 400 else "Too large.")

    def _abort(self) -> None:
        """Cut the client off, with what the kernel holds for it: a reset instead of a goodbye."""
        found = self.transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _wait_for_reader(self) -> None:
        self._unsent = self._count_unsent()
        self._stalled = self.loop.call_later(self.request_seconds, self._check_reader)

    def _check_reader(self) -> None:
        self._stalled = None
        if self._count_unsent() < self._unsent:
            self._wait_for_reader()  # Slow, but reading.
        else:
            self._abort()

    def _count_unsent(self) -> int:
        """Bytes the client has not taken. The kernel's count: it makes room only in big steps."""
        waiting = self.transport.get_write_buffer_size()
        descriptor = self.transport.get_extra_info("socket").fileno()
        if descriptor < 0:
            return waiting
        queued = fcntl.ioctl(descriptor, termios.TIOCOUTQ, b"\0\0\0\0")
        return waiting + int(struct.unpack("i", queued)[0])

    def _stop_waiting(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self.request_seconds, self._time_is_up)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_is_up(self) -> None:
        self._deadline = None
        self._refuse(408, "The request took too long.")

    def _refuse(self, status: int, text: str) -> None:
        """Say why, if nothing was said yet, and hang up."""
        self._stop_deadline()
        if self.transport.is_closing():
            return
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not (is_answering and self.cycle.response_started):
            body = text.encode("ascii")
            head = b"content-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        if is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
