"""Conflated publishing: the latest per key, in front of what follows (T8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import penstock
from penstock.errors import IdempotencyConflict, InvalidInput, InvalidPayload, QueueFull, StoreBusy
from penstock.testing import memory_hub
from tests.factories import payloads
from tests.waiting import wait_until

OpenHub = Callable[..., penstock.Hub]
NEVER_MS = 3_600_000.0


@pytest.fixture
def hub() -> Iterator[penstock.Hub]:
    """Flushed only when a test says so."""
    with memory_hub(conflate_interval_ms=NEVER_MS, conflate_keys_max=3) as hub:
        yield hub


def put(hub: penstock.Hub, key: str, payload: object, topic: str = "cursors") -> penstock.Receipt:
    return hub.topics.publish(topic, payload, key=key, conflate=True, type="cursor")


def flush(hub: penstock.Hub) -> None:
    hub._open().conflator.run_once()


def entries(hub: penstock.Hub, topic: str = "cursors") -> list[list[tuple[str, object]]]:
    return [[(e.key, e.payload) for e in m.conflated] for m in hub.topics.read(topic)]


def test_the_latest_message_per_key_is_written_as_one(hub: penstock.Hub) -> None:
    for x in range(5):
        put(hub, "ann", {"x": x})
    put(hub, "bob", {"x": 9})
    flush(hub)

    (message,) = hub.topics.read("cursors")
    assert message.type == "batch"
    assert entries(hub) == [[("ann", {"x": 4}), ("bob", {"x": 9})]]
    assert message.conflated[0].type == "cursor"


def test_its_receipt_says_that_it_is_not_durable(hub: penstock.Hub) -> None:
    receipt = put(hub, "ann", 1)

    assert (receipt.durable, receipt.position) == (False, None)
    with pytest.raises(InvalidInput):
        _ = receipt.id


def test_each_topic_has_its_own_message(hub: penstock.Hub) -> None:
    put(hub, "ann", 1, "a")
    put(hub, "ann", 2, "b")
    flush(hub)

    assert (entries(hub, "a"), entries(hub, "b")) == ([[("ann", 1)]], [[("ann", 2)]])


def test_nothing_waiting_writes_nothing(hub: penstock.Hub) -> None:
    flush(hub)

    assert hub.topics.position().offset == 0


def test_a_flush_writes_only_what_is_new(hub: penstock.Hub) -> None:
    put(hub, "ann", 1)
    flush(hub)
    put(hub, "bob", 2)
    flush(hub)

    assert entries(hub) == [[("ann", 1)], [("bob", 2)]]


def test_the_interval_flushes_by_itself() -> None:
    with memory_hub(conflate_interval_ms=5) as hub:
        put(hub, "ann", 1)

        wait_until(lambda: entries(hub) == [[("ann", 1)]])


def test_a_normal_publish_takes_what_waits_along_in_front(hub: penstock.Hub) -> None:
    put(hub, "ann", 1)
    put(hub, "eve", 2, "elsewhere")
    receipt = hub.topics.publish("cursors", "left")

    messages = hub.topics.read("cursors")
    assert [message.type for message in messages] == ["batch", None]
    assert receipt.id == messages[1].id
    assert hub.topics.read("elsewhere") == []


def test_publishing_many_takes_it_along_and_returns_its_own_receipts(hub: penstock.Hub) -> None:
    put(hub, "ann", 1)
    receipts = hub.topics.publish_many("cursors", ["a", "b"])

    assert [receipt.id for receipt in receipts] == [2, 3]
    assert payloads(hub.topics.read("cursors"))[1:] == ["a", "b"]


def test_publishing_nothing_takes_nothing_along(hub: penstock.Hub) -> None:
    put(hub, "ann", 1)

    assert hub.topics.publish_many("cursors", []) == []


async def test_a_coroutine_takes_it_along_too(hub: penstock.Hub) -> None:
    put(hub, "ann", 1)
    receipt = await hub.aio.topics.publish("cursors", "left")
    put(hub, "bob", 2)
    receipts = await hub.aio.topics.publish_many("cursors", ["a", "b"])

    assert receipt.id == 2
    assert [r.id for r in receipts] == [4, 5]


def test_what_could_not_be_written_waits_again(hub: penstock.Hub) -> None:
    hub.topics.publish("cursors", 0, idempotency_key="k")
    put(hub, "ann", 1)
    with pytest.raises(IdempotencyConflict):
        hub.topics.publish("cursors", 1, idempotency_key="k")
    flush(hub)

    assert entries(hub)[1:] == [[("ann", 1)]]


@pytest.mark.parametrize(
    "publish",
    [
        lambda topics: topics.publish("cursors", "x"),
        lambda topics: topics.publish_many("cursors", ["x"]),
    ],
    ids=["one", "many"],
)
def test_what_a_busy_database_refused_waits_again(
    open_hub: OpenHub, publish: Callable[..., object]
) -> None:
    hub = open_hub(conflate_interval_ms=NEVER_MS, lock_timeout_seconds=0.05)
    put(hub, "ann", "old")
    put(hub, "bob", 1)
    writer = hub._open().store.open_writer()
    writer.begin()
    with pytest.raises(StoreBusy):
        publish(hub.topics)
    with pytest.raises(StoreBusy):
        hub._open().conflator.flush()
    writer.close()
    put(hub, "ann", "new")
    flush(hub)

    assert entries(hub) == [[("bob", 1), ("ann", "new")]]


def test_closing_the_hub_writes_what_waits(open_hub: OpenHub) -> None:
    hub = open_hub(conflate_interval_ms=NEVER_MS)
    put(hub, "ann", 1)
    hub.close()

    assert entries(open_hub()) == [[("ann", 1)]]


def test_too_many_keys_are_backpressure(open_hub: OpenHub) -> None:
    hub = open_hub(conflate_interval_ms=NEVER_MS, conflate_keys_max=2, lock_timeout_seconds=0.2)
    writer = hub._open().store.open_writer()
    writer.begin()

    def overflow() -> None:
        for number in range(100):
            put(hub, f"k{number}", number)

    with pytest.raises(QueueFull) as caught:
        overflow()
    assert caught.value.retryable
    writer.close()


def test_a_full_set_of_keys_is_flushed_at_once(hub: penstock.Hub) -> None:
    for number in range(3):
        put(hub, f"k{number}", number)

    wait_until(lambda: sum(map(len, entries(hub))) == 3)


def test_entries_larger_than_one_message_become_several() -> None:
    with memory_hub(conflate_interval_ms=NEVER_MS, payload_bytes_max=1_000) as hub:
        for number in range(10):
            put(hub, f"k{number}", "x" * 300)
        flush(hub)

        assert [key for batch in entries(hub) for key, _ in batch] == [f"k{n}" for n in range(10)]
        assert len(entries(hub)) > 1


@pytest.mark.parametrize(
    "options",
    [
        {"key": None},
        {"key": ""},
        {"key": "k", "ttl": 5},
        {"key": "k", "headers": {"a": "b"}},
        {"key": "k", "idempotency_key": "i"},
        {"key": "k", "format": "msgpack"},
    ],
    ids=str,
)
def test_what_a_conflated_message_cannot_carry_is_refused(
    hub: penstock.Hub, options: dict[str, object]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        hub.topics.publish("cursors", 1, conflate=True, **options)
    assert caught.value.hint


def test_a_conflated_payload_is_json(hub: penstock.Hub) -> None:
    with pytest.raises(InvalidPayload):
        put(hub, "ann", b"bytes")


@pytest.mark.parametrize("type", ["", "a\nb", 7])
def test_a_conflated_type_is_checked_like_any_other(hub: penstock.Hub, type: object) -> None:
    with pytest.raises(InvalidInput):
        hub.topics.publish("cursors", 1, key="k", conflate=True, type=type)
