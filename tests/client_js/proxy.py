"""A TCP proxy in front of a server, which can be told to misbehave."""

from __future__ import annotations

import socket
import threading
from types import TracebackType


class Proxy:
    """Forwards to `port` until it is muted, cut off or sent elsewhere."""

    def __init__(self, port: int) -> None:
        self.target = port
        """Where new connections go."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._speaks = threading.Event()
        self._speaks.set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def mute(self) -> None:
        """What the server says no longer arrives; what the clients say does."""
        self._speaks.clear()

    def cut(self) -> None:
        """Break all connections, as a network does, and forward again for new ones."""
        for pair in self._pairs:
            for end in pair:
                _shut(end)
        self._pairs.clear()
        self._speaks.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                _shut(client)
                continue
            self._pairs.append((client, server))
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_from_server: bool) -> None:
        is_muted = False
        try:
            while data := source.recv(65536):
                is_muted = is_muted or (is_from_server and not self._speaks.is_set())
                if not is_muted:
                    sink.sendall(data)
        except OSError:
            pass
        _shut(sink)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()
