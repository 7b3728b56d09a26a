"""Commands as children of one process that has loaded the command line already.

Each is the same code from `main` on, in a process of its own that ends as any other does, without
the third of a second in which Python loads it. What goes on, such as `follow`, is not started
here but as users do.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

LENGTH_BYTES = 4
LOADED = (
    "penstock.cli.app",
    "penstock.stores.sqlite.store",
    "penstock.client",
    "pydantic.type_adapter",
    "rich.progress",
    "rich.table",
)


class Nursery:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        """It ends with the socket."""

    def run(
        self,
        arguments: Sequence[str],
        given: bytes,
        environment: Mapping[str, str],
        folder: Path,
        seconds: float,
    ) -> tuple[int, bytes, bytes]:
        """A command to its end: its exit code, and what it printed."""
        wish = json.dumps([str(folder), dict(environment), [*arguments]]).encode()
        with (
            self._lock,
            tempfile.TemporaryFile() as standard_input,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            standard_input.write(given)
            standard_input.seek(0)
            parent = self._started()
            parent.settimeout(seconds)
            files = [standard_input.fileno(), out.fileno(), err.fileno()]
            try:
                socket.send_fds(parent, [len(wish).to_bytes(LENGTH_BYTES)], files)
                parent.sendall(wish)
                answer = parent.recv(LENGTH_BYTES)
            except OSError:
                self._end()  # Its late answer must not be taken for that of the next command.
                raise
            assert answer, "the nursery has died"
            out.seek(0)
            err.seek(0)
            return int.from_bytes(answer, signed=True), out.read(), err.read()

    def _started(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-W", "error", "-m", __name__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                )
        return self._socket

    def _end(self) -> None:
        assert self._socket is not None
        assert self._process is not None
        self._socket.close()
        self._process.kill()
        self._process.wait()
        self._socket = self._process = None


def _serve(descriptor: int) -> bool:
    """Fork for each command: true in a child, false when nobody will ask any more."""
    for name in LOADED:
        import_module(name)
    import_module("penstock.cli.app").build()
    gc.freeze()  # Children need not look through all this when they end.
    with socket.socket(fileno=descriptor) as parent:
        while True:
            length, files, _, _ = socket.recv_fds(parent, LENGTH_BYTES, 3)
            if not length:
                return False
            wish = b""
            while len(wish) < int.from_bytes(length):
                wish += parent.recv(int.from_bytes(length) - len(wish))
            child = os.fork()
            if not child:
                break
            for file in files:
                os.close(file)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            parent.sendall(code.to_bytes(LENGTH_BYTES, signed=True))
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    folder, environment, arguments = json.loads(wish)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    return True


if __name__ == "__main__" and _serve(int(sys.argv[1])):
    from penstock.cli import main

    main()
