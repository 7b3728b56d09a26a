"""Server processes on one database file."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from tests.factories import file_url
from tests.processes import Child

_SERVE = """
    import json, sys
    import penstock
    from penstock.server.serve import serve
    from penstock.settings import load

    hub = penstock.Hub(load(sys.argv[1], environ={}, **json.loads(sys.argv[2])))
    try:
        serve(hub, on_ready=lambda url: print(url, flush=True))
    finally:
        hub.close()
    """


class Server(Child):
    """A server on a port of its own, which is ready when this is made."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(_SERVE, file_url(path), json.dumps({"bind_port": 0, **settings}))
        self.url = self.first_word()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def terminate(self) -> None:
        """As an operator stops it: it drains."""
        self._process.terminate()
        assert self.wait() == 0


def free_port() -> int:
    """A port that nobody listens on now, for a server that has to come back to it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
