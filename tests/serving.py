"""A real server: uvicorn in a process of its own, on a file and a free port."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from penstock.server import tokens_file
from penstock.server.tokens_file import Key, TokensFile
from tests.factories import file_url
from tests.processes import DEADLINE_SECONDS, Child

_SERVE = """
    import json, logging, sys
    import penstock
    from penstock.server.serve import serve
    from penstock.settings import load

    logging.basicConfig(level=logging.INFO, filename=sys.argv[3])
    hub = penstock.Hub(load(sys.argv[1], environ={}, **json.loads(sys.argv[2])))
    try:
        serve(hub, on_ready=lambda url: print(url, flush=True))
    finally:
        hub.close()
    print("closed", flush=True)
    """


class HttpServer(Child):
    """Ready when it is made. `http` is a client of it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.log = path.with_suffix(f".{len(list(path.parent.glob('*.log')))}.log")
        given = json.dumps({"bind_port": 0, **settings})
        super().__init__(_SERVE, file_url(path), given, self.log)
        self.url = self.first_word()
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE_SECONDS)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def terminate(self) -> int:
        """As an operator stops it. Returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def __exit__(self, *arguments: Any) -> None:
        self.http.close()
        super().__exit__(*arguments)


@contextmanager
def guarded_server(
    folder: Path, keys: Mapping[str, Key], secret: str, **settings: Any
) -> Iterator[HttpServer]:
    """One that asks for these API keys, or for tokens signed with this secret."""
    tokens_file.write(folder / "tokens.toml", TokensFile(dict(keys)))
    (folder / "jwt.key").write_text(secret)
    (folder / "jwt.key").chmod(0o600)
    with HttpServer(
        folder / "hub.db",
        tokens_file=str(folder / "tokens.toml"),
        jwt_key_file=str(folder / "jwt.key"),
        **settings,
    ) as server:
        yield server


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
