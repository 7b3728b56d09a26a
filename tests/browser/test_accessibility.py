"""The built-in page with a keyboard, with a screen reader, in the dark, on a phone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

import penstock
from tests.browser.tab import Tab
from tests.client_js.servers import Server

pytestmark = pytest.mark.browser

OpenTab = Callable[..., Tab]

NAMELESS = """() => [...document.querySelectorAll("input, select, textarea, button, a")]
    .filter((control) => !control.labels?.length && !control.textContent.trim())
    .map((control) => control.outerHTML)"""

CONTRASTS = """() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgb = (colour) => {
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255);
    };
    const luminance = (colour) => {
        const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = rgb(colour).map(linear);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (node) => {
        const { backgroundColor } = getComputedStyle(node);
        const isClear = backgroundColor === "rgba(0, 0, 0, 0)";
        return isClear && node.parentElement ? ground(node.parentElement) : backgroundColor;
    };
    const poor = [];
    for (const node of document.querySelectorAll("body *")) {
        const isText = (child) => child.nodeType === Node.TEXT_NODE && child.data.trim();
        const isShown = node.checkVisibility() && !node.matches("script, noscript, option");
        if (!isShown || ![...node.childNodes].some(isText)) continue;
        const [a, b] = [luminance(getComputedStyle(node).color), luminance(ground(node))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) poor.push([node.outerHTML.slice(0, 80), ratio]);
    }
    return poor;
}"""


def test_every_control_has_a_name(server: Server, open_tab: OpenTab) -> None:
    assert open_tab(server.url).page.evaluate(NAMELESS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(server: Server, open_tab: OpenTab, hub: penstock.Hub, scheme: str) -> None:
    """WCAG AA: a contrast of 4.5 to 1."""
    tab = open_tab(server.url, color_scheme=scheme, reduced_motion="reduce")
    hub.topics.publish("orders", {"id": 1}, type="made")
    tab.wait_for_row("id")
    tab.page.locator("summary").click()
    tab.page.locator("pre").wait_for()
    assert tab.page.evaluate(CONTRASTS) == []


def test_the_page_can_be_used_by_keyboard_alone(
    server: Server, open_tab: OpenTab, hub: penstock.Hub
) -> None:
    tab = open_tab(server.url)
    page = tab.page
    page.get_by_label("Topic or glob").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("news")
    page.keyboard.press("Enter")
    expect(page).to_have_title("news · penstock")
    page.get_by_label("Payload").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type('{"by": "keyboard"}')
    page.keyboard.press("Control+Enter")
    tab.wait_for_row("keyboard")
    page.get_by_role("button", name="Clear").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("pre")).to_be_visible()
    assert [message.payload for message in hub.topics.read("news")] == [{"by": "keyboard"}]


def test_a_phone_need_not_scroll_sideways(
    server: Server, open_tab: OpenTab, hub: penstock.Hub
) -> None:
    tab = open_tab(server.url, viewport={"width": 360, "height": 740})
    hub.topics.publish("orders", {"long": "x" * 500}, type="y" * 100)
    tab.wait_for_row("long")
    widths = tab.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]
