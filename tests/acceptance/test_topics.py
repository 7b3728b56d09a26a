"""`penstock topics …` and `penstock consumers …` (T1, T3, T7)."""

from __future__ import annotations

import pytest

import penstock
from penstock.model import Delivery, Retention
from tests.acceptance.terminal import Terminal


def test_topics_are_listed_by_name_with_their_size(terminal: Terminal, hub: penstock.Hub) -> None:
    hub.topics.publish_many("orders", [1, 2, 3])
    hub.topics.publish("canvas", 1)

    listed = terminal.done("topics", "list")
    topics = terminal.done("topics", "list", "--json").json

    assert [line.split()[0] for line in listed.lines[2:]] == ["canvas", "orders"]
    assert [(topic["name"], topic["messages"]) for topic in topics] == [
        ("canvas", 1),
        ("orders", 3),
    ]


def test_a_list_of_no_topics_says_so(terminal: Terminal) -> None:
    assert terminal.done("topics", "list").out == "No topics yet: publishing makes one.\n"
    assert terminal.done("topics", "list", "--json").json == []


def test_a_glob_lists_what_it_stands_for(terminal: Terminal, hub: penstock.Hub) -> None:
    for name in ("canvas-a", "canvas-b", "orders"):
        hub.topics.publish(name, 1)

    topics = terminal.done("topics", "list", "canvas-?", "--json").json

    assert [topic["name"] for topic in topics] == ["canvas-a", "canvas-b"]


def test_penstocks_own_topics_are_listed_only_when_asked_for(terminal: Terminal) -> None:
    terminal.done("doctor")

    assert terminal.done("topics", "list", "--json").json == []
    own = terminal.done("topics", "list", "penstock.*", "--json").json
    assert [topic["name"] for topic in own] == ["penstock.doctor"]


def test_show_tells_where_a_topic_begins_and_ends_and_who_reads_it(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    receipts = hub.topics.publish_many("orders", [1, 2])
    hub.topics.follow("ord*", consumer="indexer").close()

    shown = terminal.done("topics", "show", "orders")
    found = terminal.done("topics", "show", "orders", "--json").json

    assert (found["first"], found["last"]) == tuple(str(r.position) for r in receipts)
    assert found["consumers"] == ["indexer"]
    assert "indexer" in shown.out


def test_create_keeps_what_was_asked_for(terminal: Terminal, hub: penstock.Hub) -> None:
    """T7"""
    limits = ("--keep-for", "12h", "--max-messages", 10, "--max-bytes", "10MB")
    holds = ("--hold-for", "a", "--hold-for", "b", "--hold-max-age", "2d", "--hold-max-bytes", "1k")

    terminal.done("topics", "create", "orders", *limits, *holds)

    assert hub.topics.get("orders").retention == Retention(
        age_seconds=43_200,
        messages_max=10,
        bytes_max=10_000_000,
        hold_for=("a", "b"),
        hold_seconds_max=172_800,
        hold_bytes_max=1_000,
    )


def test_a_topic_is_created_once(terminal: Terminal) -> None:
    terminal.done("topics", "create", "orders")

    result = terminal.run("topics", "create", "orders")

    assert (result.code, result.err.split("\n")[0][:6]) == (1, "error:")


def test_configure_changes_only_what_is_named(terminal: Terminal, hub: penstock.Hub) -> None:
    """T7"""
    hub.topics.create("orders", Retention(age_seconds=60, hold_for=("a",)))

    terminal.done("topics", "configure", "orders", "--max-messages", 5)
    changed = hub.topics.get("orders").retention
    terminal.done("topics", "configure", "orders", "--reset")

    assert changed == Retention(age_seconds=60, messages_max=5, hold_for=("a",))
    assert hub.topics.get("orders").retention == Retention()


def test_create_and_configure_say_how_a_topic_is_sent(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    """D1, D5"""
    terminal.done("topics", "create", "orders", "--batch-max", 5, "--slow-policy", "disconnect")
    created = hub.topics.get("orders")
    terminal.done("topics", "configure", "orders", "--batch-ms", "2.5", "--max-messages", 7)
    changed = hub.topics.get("orders")
    terminal.done("topics", "configure", "orders", "--slow-policy", "drop_oldest")
    terminal.done("topics", "configure", "orders", "--batch-ms", "0")
    last = hub.topics.get("orders")
    terminal.done("topics", "configure", "orders", "--reset")

    assert created.delivery == Delivery(5, None, "disconnect")
    assert changed.delivery == Delivery(5, 2.5, "disconnect")
    assert (last.delivery, last.retention) == (
        Delivery(5, 0, "drop_oldest"),
        Retention(messages_max=7),
    )
    reset = hub.topics.get("orders")
    assert (reset.delivery, reset.retention) == (Delivery(), Retention())


def test_show_tells_how_a_topic_is_sent(terminal: Terminal, hub: penstock.Hub) -> None:
    """D1, D5: what the topic says, and the hub's settings for the rest"""
    hub.topics.create("orders", delivery=Delivery(batch_ms=7))

    shown = terminal.run("topics", "show", "orders", PENSTOCK_SLOW_POLICY="disconnect")
    found = terminal.done("topics", "show", "orders", "--json").json
    [listed] = terminal.done("topics", "list", "--json").json

    [sends] = [line for line in shown.lines if line.startswith("sends")]
    assert sends.split(maxsplit=1)[1].strip() == (
        "batches of 10 (default) or 7 ms; slow clients: disconnect (default)"
    )
    assert found["delivery"] == {"batch_max": None, "batch_ms": 7.0, "slow_policy": None}
    assert listed["delivery"] == found["delivery"]


@pytest.mark.parametrize(
    "option", [("--batch-max", 0), ("--batch-ms", "-1"), ("--slow-policy", "wait")]
)
def test_a_delivery_that_makes_no_sense_is_a_usage_error(
    terminal: Terminal, option: tuple[object, ...]
) -> None:
    """D1, D5"""
    assert terminal.run("topics", "create", "orders", *option).code == 2


def test_configure_without_a_change_is_a_usage_error(terminal: Terminal) -> None:
    assert terminal.run("topics", "configure", "orders").code == 2


def test_delete_removes_the_topic_and_its_messages(terminal: Terminal, hub: penstock.Hub) -> None:
    hub.topics.publish_many("orders", [1, 2])

    result = terminal.done("topics", "delete", "orders", "--yes", "--json")

    assert result.json == {"topic": "orders", "removed": 2}
    assert hub.topics.list("*") == []


@pytest.mark.parametrize(
    ("options", "left"),
    [(("--keep", "2"), [3, 4]), (("--keep", "0"), []), (("--older-than", "1h"), [1, 2, 3, 4])],
)
def test_trim_removes_what_is_old(
    terminal: Terminal, hub: penstock.Hub, options: tuple[str, ...], left: list[int]
) -> None:
    """T7: by hand"""
    hub.topics.publish_many("orders", [1, 2, 3, 4])

    terminal.done("topics", "trim", "orders", *options)

    assert [message.payload for message in hub.topics.read("orders")] == left


def test_trim_removes_through_a_position(terminal: Terminal, hub: penstock.Hub) -> None:
    """T7: by hand"""
    receipts = hub.topics.publish_many("orders", [1, 2, 3])

    result = terminal.done("topics", "trim", "orders", "--through", receipts[1].position)

    assert result.out == "Removed 2 messages from orders.\n"
    assert [message.payload for message in hub.topics.read("orders")] == [3]


@pytest.mark.parametrize("options", [(), ("--keep", "1", "--older-than", "1h"), ("--keep", "-1")])
def test_trim_needs_one_bound(terminal: Terminal, options: tuple[str, ...]) -> None:
    assert terminal.run("topics", "trim", "orders", *options).code == 2


def test_consumers_are_listed_with_lag_position_and_holder(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    """T3"""
    hub.topics.publish_many("orders", [1, 2, 3])
    with hub.topics.follow("orders", consumer="indexer", start="earliest") as follower:
        follower.get(5)
        follower.commit()
        [found] = terminal.done("consumers", "list", "--json").json
        listed = terminal.done("consumers", "list").lines[-1].split()
        holder = hub.consumers.get("indexer", "orders").holder

    assert (found["name"], found["subscription"]) == ("indexer", "orders")
    assert (found["lag_messages"], found["lost"]) == (2, False)
    assert found["position"] == str(follower.position)
    assert holder is not None
    assert found["holder"] == holder
    assert (listed[:3], listed[-1]) == (["indexer", "orders", "2"], holder)


def test_a_consumer_is_shown_on_each_of_its_subscriptions(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    for topic in ("orders", "canvas-*"):
        hub.topics.follow(topic, consumer="indexer").close()

    shown = terminal.done("consumers", "show", "indexer")
    found = terminal.done("consumers", "show", "indexer", "--json").json

    assert {line["subscription"] for line in found} == {"orders", "canvas-*"}
    assert shown.out.count("nobody follows under this name now") == 2


@pytest.mark.parametrize(("where", "offset"), [("earliest", 0), ("latest", 3), ("second", 2)])
def test_seek_moves_a_consumer(
    terminal: Terminal, hub: penstock.Hub, where: str, offset: int
) -> None:
    """T3"""
    receipts = hub.topics.publish_many("orders", [1, 2, 3])
    hub.topics.follow("orders", consumer="indexer").close()
    to = str(receipts[1].position) if where == "second" else where

    terminal.done("consumers", "seek", "indexer", "orders", "--to", to)

    assert hub.consumers.get("indexer", "orders").position.offset == offset


def test_a_consumer_that_is_followed_is_not_moved(terminal: Terminal, hub: penstock.Hub) -> None:
    """T3"""
    with hub.topics.follow("orders", consumer="indexer"):
        result = terminal.run("consumers", "seek", "indexer", "orders", "--to", "earliest")

    assert result.code == 1
    assert result.err.startswith("error: ")


def test_a_deleted_consumer_is_forgotten(terminal: Terminal, hub: penstock.Hub) -> None:
    for topic in ("orders", "canvas-*"):
        hub.topics.follow(topic, consumer="indexer").close()

    one = terminal.done("consumers", "delete", "indexer", "orders", "--yes", "--json").json
    left = [consumer.subscription for consumer in hub.consumers.list()]
    rest = terminal.done("consumers", "delete", "indexer", "--yes")

    assert (one, left) == ({"consumer": "indexer", "deleted": 1}, ["canvas-*"])
    assert rest.out == "indexer is forgotten (1 subscription).\n"
    assert hub.consumers.list() == []
