"""Running the server: one process, one port, one hub."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from penstock.errors import InvalidSettings
from penstock.hub import Hub
from penstock.server.app import create_app
from penstock.server.auth import make_authenticator
from penstock.server.exposure import check_exposure
from penstock.server.http import uvicorn_settings
from penstock.server.limits import Connections
from penstock.server.websocket import Front

BACKLOG = 2048
GC_THRESHOLDS = (20_000, 20, 50)
"""A message makes a dozen objects that live for a moment: the defaults would have the collector
run hundreds of times a second, and now and then through everything."""


def serve(
    hub: Hub, *, insecure: bool = False, on_ready: Callable[[str], None] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. `on_ready` gets the server's address.

    Does not close the hub.
    """
    check_exposure(hub.settings, insecure)
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            runner.run(_serve(hub, on_ready))
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def _serve(hub: Hub, on_ready: Callable[[str], None] | None) -> None:
    settings = hub.settings
    authenticator = make_authenticator(settings)
    with _listening_socket(settings.bind_host, settings.bind_port) as listener:
        switchboard = hub.open_delivery(authenticator)
        await switchboard.start()
        connections = Connections(settings)
        app = create_app(hub, switchboard, authenticator, connections)
        front = Front(switchboard, connections)
        config: dict[str, Any] = {**uvicorn_settings(settings), "ws": front.protocol()}
        server = Server(uvicorn.Config(app, **config), switchboard.drain)
        if on_ready is not None:
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            server.on_started = lambda: on_ready(f"http://{shown}:{port}")
        feeder = hub.start_feeding()
        try:
            await server.serve([listener])
        finally:
            await switchboard.drain(settings.drain_seconds)
            await switchboard.close()
            await asyncio.to_thread(feeder.stop)


class Server(uvicorn.Server):
    """uvicorn's, which drains our sockets before it waits for connections to end."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[float], Any]) -> None:
        super().__init__(config)
        self._drain = drain
        self.on_started: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What is there now stays; looking through it again and again stalls every client.
        gc.collect()
        gc.freeze()
        if self.started and self.on_started is not None:
            self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()  # Nobody new comes in meanwhile.
        await self._drain(self.config.timeout_graceful_shutdown or 0)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop gracefully at the first signal, at once at the second.

        uvicorn's own raises the signal again at the end, before what is ours is closed.
        """
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def _listening_socket(host: str, port: int) -> socket.socket:
    """Bound before anything else starts, so that a port in use is an error and not a log line."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        raise InvalidSettings(
            f"The server cannot listen on {host}:{port}: {error.strerror or error}.",
            hint="Choose another port with --port, or 0 for a free one.",
        ) from error
    return listener


def _new_event_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()
