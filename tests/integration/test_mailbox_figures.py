"""Mailboxes in `/metrics` and in health: what was done, and what is wrong (M4, M11, M14)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import penstock
from penstock.errors import MailboxCorrupt, MailboxesFailed, QuotaExceeded
from penstock.mailboxes.figures import MailboxFigures
from tests.factories import hub_on
from tests.serving import HttpServer
from tests.waiting import wait_until


@pytest.fixture
def hub(path: Path) -> Iterator[penstock.Hub]:
    with hub_on(path, mailbox_messages_max=3, mailbox_file_messages_max=8) as hub:
        yield hub


def checks_of(hub: penstock.Hub, name: str) -> list[tuple[str, str]]:
    return [
        (check.status, check.found) for check in hub.health().checks if check.name.startswith(name)
    ]


def test_a_hub_that_uses_none_has_no_figures_and_opens_nothing(hub: penstock.Hub) -> None:
    assert hub.metrics().mailboxes == MailboxFigures()
    assert not hub._open().mail.is_open
    assert checks_of(hub, "mailbox") == []


def test_puts_acks_and_refusals_are_counted_once(hub: penstock.Hub) -> None:
    ann, bob = hub.mailboxes.open("ann"), hub.mailboxes.open("bob")
    ann.put(1, id="one")
    ann.put(1, id="one")
    ann.put_many([2, 3])
    for _ in range(2):
        with pytest.raises(QuotaExceeded):
            ann.put(4)
    bob.put(1)
    first = ann.peek()
    assert first is not None
    ann.ack(first.id)
    ann.ack(first.id)
    ann.ack(ann.peek_many(5)[-1].id, through=True)

    found = hub.metrics().mailboxes
    assert (found.known, found.puts, found.acks, found.quota_refusals) == (2, 4, 4, 2)
    assert found.log_bytes > 0
    assert (found.waiting_puts, found.damaged, found.is_failed) == (0, 0, False)


def test_a_damaged_box_is_critical_and_named(hub: penstock.Hub) -> None:
    box = hub.mailboxes.open("ann")
    box.put_many(["x" * 50, "y" * 50])
    folder = hub._open().mail.folder
    with folder.locked("ann") as found:
        entry = found.pending[0]
        path = Path(found.path(entry.file))
        content = bytearray(path.read_bytes())
        content[entry.offset + 60] ^= 0xFF
        path.write_bytes(content)
        found.forget()
    with pytest.raises(MailboxCorrupt):
        box.peek()
    assert hub.metrics().mailboxes.damaged == 1
    [(status, text)] = checks_of(hub, "mailboxes")
    assert (status, "ann" in text) == ("critical", True)
    assert hub.health().status == "critical"


def test_a_disk_that_failed_is_critical_until_the_process_is_started_anew(path: Path) -> None:
    with hub_on(path) as hub:
        hub.mailboxes.put("ann", 1)
        hub._open().mail.folder.fail(OSError(errno.EIO, "it broke"))
        with pytest.raises(MailboxesFailed):
            hub.mailboxes.put("ann", 2)
        assert hub.metrics().mailboxes.is_failed
        assert [status for status, _ in checks_of(hub, "mailboxes")] == ["critical"]
    with hub_on(path) as hub:
        hub.mailboxes.put("ann", 3)
        assert checks_of(hub, "mailboxes") == []


def test_subscriptions_that_nobody_feeds_are_a_warning(hub: penstock.Hub) -> None:
    hub.mailboxes.subscribe("ann", "orders")
    [(status, text)] = checks_of(hub, "mailbox feeding")
    assert (status, text) == ("warning", "nobody feeds 1 subscriptions")
    with hub.start_feeding() as feeder:
        wait_until(lambda: feeder.is_feeding)
        assert checks_of(hub, "mailbox feeding") == []
        hub.topics.publish_many("orders", list(range(5)))
        wait_until(lambda: hub.metrics().mailboxes.full == 1)
        found = hub.metrics().mailboxes
        assert (found.subscriptions, found.is_feeding, found.fed, found.behind) == (1, True, 3, 0)
        # A full mailbox waits for its recipient; nothing is wrong with it.
        assert checks_of(hub, "mailbox") == []


def test_a_server_tells_the_same_in_both_forms(tmp_path: Path) -> None:
    """JSON for the dashboard, OpenMetrics for Prometheus; counters of this instance."""
    with HttpServer(tmp_path / "hub.db", mailbox_messages_max=3) as server:
        for number in range(3):
            server.http.post(
                "/v1/mailboxes/ann/messages", json={"payload": number, "id": str(number)}
            )
        server.http.post("/v1/mailboxes/ann/messages", json={"payload": 4})
        server.http.post("/v1/mailboxes/ann/ack", json={"id": "1", "through": True})
        server.http.put("/v1/mailboxes/bob/subscriptions/orders", json={})
        server.http.post("/v1/topics/orders/messages", json={"payload": 1})

        def told() -> dict[str, float]:
            accept = {"accept": "application/openmetrics-text"}
            text = server.http.get("/metrics", headers=accept).text
            return {
                sample.name: sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name.startswith("penstock_mailbox")
            }

        wait_until(lambda: told()["penstock_mailbox_fed_total"] == 1)
        found = told()
        figures = server.http.get("/metrics").json()["queue"]["mailboxes"]
        assert server.http.get("/health").json()["metrics"]["mailboxes"]["puts"] == 4
    assert (figures["puts"], figures["acks"], figures["quota_refusals"]) == (4, 2, 1)
    assert (figures["known"], figures["subscriptions"], figures["is_feeding"]) == (2, 1, True)
    assert found["penstock_mailbox_puts_total"] == 4
    assert found["penstock_mailbox_acks_total"] == 2
    assert found["penstock_mailbox_quota_refusals_total"] == 1
    assert found["penstock_mailboxes_known"] == 2
    assert found["penstock_mailbox_subscriptions"] == 1
    assert found["penstock_mailbox_feeding"] == 1
    assert found["penstock_mailboxes_damaged"] == found["penstock_mailboxes_failed"] == 0
    assert found["penstock_mailbox_log_bytes"] > 0
    assert found["penstock_mailboxes_open"] == 0
