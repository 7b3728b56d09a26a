"""A server process and what talks to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.client_js.node import Node
from tests.client_js.servers import Server


@pytest.fixture
def start_server(path: Path) -> Iterator[Callable[..., Server]]:
    """Servers on one file, ended with the test: `start_server(bind_port=…)`."""
    with ExitStack() as stack:

        def start(file: Path = path, **settings: Any) -> Server:
            return stack.enter_context(Server(file, **settings))

        yield start


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    return start_server()


@pytest.fixture
def run(server: Server) -> Iterator[Callable[..., Node]]:
    """Node programs whose `url` is the server's: `run("say(await …)")`."""
    with ExitStack() as stack:

        def run_one(code: str, *arguments: object, url: str = server.url) -> Node:
            return stack.enter_context(Node(code, url, *arguments))

        yield run_one
