"""T8: what waits to be conflated goes in front of a bulk publish, and survives its failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.testing import memory_hub
from penstock.transaction import HubTransaction


@pytest.fixture
def hub() -> Iterator[penstock.Hub]:
    with memory_hub(conflate_interval_ms=3_600_000) as hub:
        hub.topics.publish("canvas", {"x": 1}, key="ann", conflate=True)
        yield hub


def kinds(hub: penstock.Hub) -> list[str | None]:
    return [message.type for message in hub.topics.read("canvas")]


def publish_and_fail(tx: HubTransaction) -> None:
    assert len(tx.publish_many("canvas", ["a", "b"])) == 2
    tx.publish("canvas", object())


def test_publish_many_returns_one_receipt_for_each_of_its_messages(hub: penstock.Hub) -> None:
    receipts = hub.topics.publish_many("canvas", ["a", "b"], type="text")
    assert kinds(hub) == ["batch", "text", "text"]
    assert [receipt.id for receipt in receipts] == [2, 3]


async def test_the_same_holds_for_coroutines(hub: penstock.Hub) -> None:
    receipts = await hub.aio.topics.publish_many("canvas", ["a", "b"], type="text")
    assert [receipt.id for receipt in receipts] == [2, 3]


def test_a_refused_bulk_publish_gives_back_what_it_took_along(hub: penstock.Hub) -> None:
    with pytest.raises(penstock.InvalidPayload):
        hub.topics.publish_many("canvas", iter(["a", object()]))
    hub.topics.publish("canvas", "end", type="text")
    assert kinds(hub) == ["batch", "text"]


async def test_a_refused_bulk_publish_of_a_coroutine_gives_it_back_too(hub: penstock.Hub) -> None:
    with pytest.raises(penstock.InvalidPayload):
        await hub.aio.topics.publish_many("canvas", [object()])
    hub.topics.publish("canvas", "end", type="text")
    assert kinds(hub) == ["batch", "text"]


def test_a_rolled_back_bulk_publish_gives_back_what_it_took_along(hub: penstock.Hub) -> None:
    with pytest.raises(penstock.InvalidPayload), hub.transaction() as tx:
        publish_and_fail(tx)
    hub.topics.publish("canvas", "end", type="text")
    assert kinds(hub) == ["batch", "text"]
