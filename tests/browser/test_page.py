"""The built-in page: watch, publish, presence, tokens; nothing that is published runs (T9, T17)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

import penstock
from tests.browser.tab import Tab
from tests.client_js.servers import Server, free_port
from tests.factories import payloads
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

OpenTab = Callable[..., Tab]


def test_what_is_published_is_shown_and_on_disk(
    server: Server, open_tab: OpenTab, hub: penstock.Hub
) -> None:
    tab = open_tab(server.url)
    tab.page.get_by_label("Type").fill("made")
    tab.page.get_by_label("Key").fill("k")
    tab.publish('{"id": 7, "lines": [1, 2]}')
    tab.wait_for_row('{"id":7,"lines":[1,2]}')
    [message] = hub.topics.read("orders")
    assert (message.payload, message.type, message.key) == ({"id": 7, "lines": [1, 2]}, "made", "k")
    expect(tab.page.locator("#outcome")).to_contain_text(f"On disk as {message.id}")
    summary = tab.page.locator("summary")
    assert summary.locator(".id").inner_text() == str(message.id)
    assert summary.locator(".type").inner_text() == "made"
    assert summary.locator(".latency").inner_text().endswith("ms")
    summary.click()
    assert tab.page.locator("pre").inner_text() == json.dumps(message.payload, indent=2)
    tab.publish("not JSON")
    tab.wait_for_row("not JSON")
    assert tab.problems == []


def test_pages_on_two_instances_see_each_other(
    start_server: Callable[..., Server], open_tab: OpenTab
) -> None:
    """T17, T9: messages and presence cross in both directions."""
    here, there = (open_tab(start_server().url) for _ in range(2))
    instances = [tab.page.locator("#state-detail").inner_text() for tab in (here, there)]
    assert instances[0] != instances[1]
    here.publish('"from here"')
    there.wait_for_row("from here")
    there.publish('"from there"')
    here.wait_for_row("from there")
    assert here.shown() == there.shown() == ["from here", "from there"]
    for tab in (here, there):
        expect(tab.page.locator("#members li")).to_have_count(2)
        expect(tab.page.locator("#members .you")).to_have_count(1)
    there.page.context.close()
    expect(here.page.locator("#members li")).to_have_count(1)


def test_a_page_goes_on_at_another_instance_without_a_gap(
    start_server: Callable[..., Server], open_tab: OpenTab, hub: penstock.Hub
) -> None:
    """T17, D6: kill -9 of the server that a page is connected to."""
    ports = [free_port(), free_port()]
    origins = [f"http://127.0.0.1:{port}" for port in ports]
    first, second = (start_server(bind_port=port, origins=origins) for port in ports)
    tab = open_tab(first.url, topic=f"orders&also={second.url}")
    was_at = tab.page.locator("#state-detail").inner_text()
    hub.topics.publish_many("orders", [f"message {n}" for n in range(10)])
    tab.wait_for_row("message 9")
    first.kill()
    hub.topics.publish_many("orders", [f"message {n}" for n in range(10, 20)])
    tab.wait_for_row("message 19")
    tab.publish("message 20")
    tab.wait_for_row("message 20")
    assert tab.shown() == [f"message {n}" for n in range(21)]
    assert tab.page.locator("#state-detail").inner_text() != was_at
    assert payloads(hub.topics.read("orders")) == [f"message {n}" for n in range(21)]
    assert tab.page.locator(".note").count() == 0


def test_what_was_published_while_there_was_no_server_arrives_once(
    start_server: Callable[..., Server], open_tab: OpenTab, hub: penstock.Hub
) -> None:
    port = free_port()
    server = start_server(bind_port=port)
    tab = open_tab(server.url)
    server.kill()
    tab.page.wait_for_selector('#state:not([data-state="connected"])')
    tab.publish('"waits"')
    expect(tab.page.locator("#outcome")).to_contain_text("Waiting")
    start_server(bind_port=port)
    tab.wait_for_row("waits")
    assert payloads(hub.topics.read("orders")) == ["waits"]


HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


def test_nothing_that_is_published_is_taken_for_html(
    server: Server, open_tab: OpenTab, hub: penstock.Hub
) -> None:
    tab = open_tab(server.url)
    receipt = hub.topics.publish(
        "orders", {HOSTILE: [HOSTILE]}, type=HOSTILE, key=HOSTILE, headers={HOSTILE: HOSTILE}
    )
    hub.topics.publish("orders", HOSTILE)
    tab.page.evaluate(
        """async (name) => {
            const { connect } = await import("/static/penstock.js");
            const hub = connect(location.origin, { client: name });
            hub.subscribe("orders", { join: { name } }, () => {});
        }""",
        HOSTILE,
    )
    expect(tab.page.locator("#members .name", has_text="<script>")).to_have_count(1)
    tab.page.locator("summary", has_text=str(receipt.id)).last.click()
    tab.page.locator("summary").first.click()
    expect(tab.page.locator("pre")).to_have_count(2)
    assert HOSTILE in tab.page.locator("pre").first.inner_text()
    found = tab.page.evaluate("document.querySelectorAll('main script, main img').length")
    assert found == 0
    assert tab.page.evaluate("window.hacked") is None
    assert tab.problems == []


def test_a_hostile_topic_is_text_too(server: Server, open_tab: OpenTab, hub: penstock.Hub) -> None:
    tab = open_tab(server.url, topic="*")
    hub.topics.publish(HOSTILE, 1)
    expect(tab.page.locator("summary .topic")).to_have_text(HOSTILE)
    assert tab.page.evaluate("window.hacked") is None
    assert tab.problems == []


def test_everything_comes_from_the_server_itself(server: Server, open_tab: OpenTab) -> None:
    """No other host is asked, and nothing that the page needs is missing or forbidden to it."""
    tab = open_tab(server.url)
    assert tab.requested
    assert [url for url in tab.requested if not url.startswith(server.url)] == []
    policy = tab.page.request.get(server.url).headers["content-security-policy"]
    assert "unsafe" not in policy
    assert tab.problems == []
    for name in ("API", "Metrics"):
        link = tab.page.get_by_role("link", name=name)
        answer = tab.page.request.get(f"{server.url}/{link.get_attribute('href')}")
        assert answer.ok, name


def test_the_list_is_bounded(server: Server, open_tab: OpenTab, hub: penstock.Hub) -> None:
    tab = open_tab(server.url)
    hub.topics.publish_many("orders", [f"message {n}" for n in range(1200)])
    tab.wait_for_row("message 1199")
    assert tab.shown() == [f"message {n}" for n in range(700, 1200)]
    expect(tab.page.locator("#figures")).to_contain_text("1,200 messages")


def test_pausing_clearing_and_filtering(
    server: Server, open_tab: OpenTab, hub: penstock.Hub
) -> None:
    tab = open_tab(server.url)
    hub.topics.publish_many("orders", ["apple", "pear"])
    tab.wait_for_row("pear")
    tab.page.get_by_label("Filter").fill("APP")
    assert tab.shown() == ["apple"]
    tab.page.get_by_label("Filter").fill("")
    tab.page.get_by_role("button", name="Pause").click()
    hub.topics.publish_many("orders", ["plum", "fig"])
    resume = tab.page.get_by_role("button", name="Resume (2 new)")
    resume.wait_for()
    assert tab.shown() == ["apple", "pear"]
    resume.click()
    tab.wait_for_row("fig")
    assert tab.shown() == ["apple", "pear", "plum", "fig"]
    tab.page.get_by_role("button", name="Clear").click()
    assert tab.shown() == []
    expect(tab.page.locator("#empty")).to_be_visible()


def test_globs_are_watched_and_bad_names_explained(
    server: Server, open_tab: OpenTab, hub: penstock.Hub
) -> None:
    tab = open_tab(server.url, topic="elsewhere")
    tab.page.get_by_label("Topic or glob").fill("orders.*")
    tab.page.get_by_role("button", name="Watch").click()
    expect(tab.page.locator("#presence-note")).to_contain_text("glob")
    wait_until(lambda: "orders.*" in tab.page.title())
    for region in ("eu", "us"):
        hub.topics.publish(f"orders.{region}", region)
    tab.wait_for_row("us")
    topics = tab.page.locator("summary .topic").all_inner_texts()
    assert topics == ["orders.us", "orders.eu"]
    tab.page.get_by_label("Topic or glob").fill("bad\x7fname")
    tab.page.get_by_role("button", name="Watch").click()
    expect(tab.page.get_by_role("alert")).to_be_visible()


def test_a_token_is_asked_for_kept_for_the_tab_and_forgotten(
    start_server: Callable[..., Server], open_tab: OpenTab, tmp_path: Path
) -> None:
    file, key = make_key(tmp_path)
    server = start_server(tokens_file=str(file))
    tab = open_tab(server.url, state="closed")
    token = tab.page.get_by_label("Token", exact=True)
    token.fill("wrong")
    token.press("Enter")
    tab.wait_for_state("closed")
    expect(tab.page.locator("#token-panel")).to_be_visible()
    token.fill(key)
    token.press("Enter")
    tab.wait_for_state("connected")
    expect(tab.page.locator("#token-panel")).to_be_hidden()
    tab.publish('"allowed"')
    tab.wait_for_row("allowed")
    tab.page.reload()
    tab.wait_for_state("connected")
    assert key not in tab.page.url
    assert [url for url in tab.requested if key in url] == []
    assert tab.page.evaluate("localStorage.length") == 0
    tab.page.get_by_role("button", name="Token").click()
    tab.page.get_by_role("button", name="Forget").click()
    tab.wait_for_state("closed")


def make_key(folder: Path) -> tuple[Path, str]:
    """A tokens file with one key for everything, and that key."""
    import hashlib

    key = "pk_" + "k" * 43
    file = folder / "tokens.toml"
    digest = hashlib.sha256(key.encode()).hexdigest()
    file.write_text(f'[keys.page]\nsha256 = "{digest}"\npublish = ["*"]\nsubscribe = ["*"]\n')
    file.chmod(0o600)
    return file, key
