"""The page of the documentation, on a site of its own (D6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import penstock
from tests.client_js.servers import Server
from tests.docs.pages import DOCS, blocks
from tests.factories import payloads

pytestmark = pytest.mark.browser

DOCUMENTED = "http://127.0.0.1:8400"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address under which its files are served."""
    folder = tmp_path / "site"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{web.server_port}"
        web.shutdown()
        thread.join()


def test_the_smallest_page_works_on_another_site(
    site: tuple[Path, str],
    start_server: Callable[..., Server],
    browser: Browser,
    hub: penstock.Hub,
) -> None:
    folder, address = site
    server = start_server(origins=[address])
    [example] = [b for b in blocks(DOCS / "howto" / "browser.md") if b.language == "html"]
    (folder / "index.html").write_text(example.text.replace(DOCUMENTED, server.url))
    hub.topics.publish("orders", {"text": "<b>earlier</b>"})
    with browser.new_page() as page:
        page.goto(address)
        expect(page.locator("#state")).to_contain_text("connected to")
        page.get_by_label("Order").fill("tea")
        page.get_by_role("button", name="Order").click()
        expect(page.locator("li")).to_have_text(["tea", "<b>earlier</b>"])
    assert payloads(hub.topics.read("orders", last=1)) == [{"text": "tea"}]


def test_a_site_that_the_server_does_not_know_is_refused(
    site: tuple[Path, str], server: Server, browser: Browser
) -> None:
    folder, address = site
    (folder / "index.html").write_text("<title>elsewhere</title>")
    with browser.new_page() as page:
        page.goto(address)
        outcome = page.evaluate(
            """(url) => new Promise((resolve) => {
                const socket = new WebSocket(url, "penstock.v1.json");
                socket.onopen = () => resolve("open");
                socket.onclose = () => resolve("refused");
            })""",
            server.url.replace("http", "ws") + "/ws",
        )
    assert outcome == "refused"
