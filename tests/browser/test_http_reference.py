"""`/docs`: the OpenAPI document as a page, offline and under a strict policy."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.browser.tab import Tab
from tests.client_js.servers import Server

pytestmark = pytest.mark.browser


def test_the_reference_shows_every_operation_and_asks_nobody_else(
    server: Server, browser: Browser
) -> None:
    with browser.new_context() as context:
        tab = Tab(context.new_page())
        tab.page.goto(f"{server.url}/docs")
        tab.page.wait_for_selector("details")
        paths = tab.page.evaluate("fetch('/openapi.json').then((a) => a.json())")["paths"]
        wanted = {f"{method.upper()} {path}" for path in paths for method in paths[path]}
        shown = {
            f"{summary.locator('.method').inner_text()} {summary.locator('code').inner_text()}"
            for summary in tab.page.locator("summary").all()
        }
        assert shown == wanted
        publish = tab.page.locator("details", has_text="Publish one message").first
        publish.locator("summary").click()
        assert '"idempotency_key"?' in publish.locator("pre").first.inner_text()
        # A policy that is broken, or a file that is missing, is a complaint in the console.
        assert tab.problems == []
        assert all(url.startswith(server.url) for url in tab.requested)
