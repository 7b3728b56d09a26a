"""A real browser, and the built-in page in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.tab import Tab
from tests.client_js.servers import Server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium. Not for the whole session: while it runs, no other event loop can."""
    executable = shutil.which("chromium")
    if executable is None:
        reason = "There is no chromium on the PATH; 'apt-get install chromium' brings it."
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    # As root it cannot build its sandbox.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield found
        found.close()


@pytest.fixture
def start_server(path: Path) -> Iterator[Callable[..., Server]]:
    """Servers on one file, ended with the test: `start_server(bind_port=…)`."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Server:
            return stack.enter_context(Server(path, **settings))

        yield start


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    return start_server()


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """The page of a server, connected: `open_tab(server.url, topic="orders")`."""
    with ExitStack() as stack:

        def open_one(url: str, topic: str = "orders", state: str = "connected", **more: Any) -> Tab:
            context = stack.enter_context(browser.new_context(**more))
            tab = Tab(context.new_page())
            tab.page.goto(f"{url}/#topic={topic}")
            tab.wait_for_state(state)
            return tab

        yield open_one
