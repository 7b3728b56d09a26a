"""Real servers in processes of their own, that can be killed and come back on the same port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.factories import file_url
from tests.waiting import is_readable

DEADLINE_SECONDS = 60.0


class Server:
    """`penstock serve` on a file. `port` 0 takes a free one, which it keeps over restarts."""

    def __init__(self, file: Path, *options: str, **environment: str) -> None:
        self._file = file
        self._options = options
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it listens."""
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "penstock", "serve", "--json"),
                *("--url", file_url(self._file), "--port", str(self.port), *self._options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **self._environment},
            cwd=self._file.parent,
        )
        try:
            self.port = self._hear_port()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _hear_port(self) -> int:
        assert self._process is not None
        out = self._process.stdout
        assert out is not None
        assert is_readable(out, DEADLINE_SECONDS), "the server said nothing in time"
        line = out.readline()
        assert line, f"the server ended with {self._process.wait()}"
        return int(json.loads(line)["address"].rpartition(":")[2])

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """As a power cut would end it."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """As a deployment does."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        code = self._process.wait(DEADLINE_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def restart(self) -> None:
        self.kill()
        self.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self.wait()
