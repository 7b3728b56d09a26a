"""Topics → mailboxes: nothing skipped, repeats dropped, a full box holds up itself only (D12)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Publication
from penstock.errors import InsideTransaction, InvalidInput, InvalidMailbox, InvalidTopic, StoreBusy
from penstock.mail import Mail, MailKind
from penstock.mailboxes.feeder import Feeder
from penstock.mailboxes.mailboxes import Mailbox
from penstock.settings import Settings
from tests.factories import hub_on
from tests.waiting import wait_until

OpenHub = Callable[..., penstock.Hub]


def feed(hub: penstock.Hub) -> Feeder:
    """One that runs when it is told to. Ends with the hub."""
    runtime = hub._open()
    runtime.feeder = Feeder(runtime)
    return runtime.feeder


def settle(feeder: Feeder) -> None:
    """Until there is nothing left that it could put now."""
    wait_until(lambda: feeder.run_once() > 0 and feeder.is_feeding and not feeder.status().behind)


def drain(box: Mailbox) -> list[Mail]:
    """All that is in it, acknowledged one by one."""
    found: list[Mail] = []
    while (mail := box.peek()) is not None:
        box.ack(mail.id)
        found.append(mail)
    return found


def payloads(mails: list[Mail]) -> list[Any]:
    return [mail.payload for mail in mails]


@pytest.fixture
def hub(path: Path) -> Iterator[penstock.Hub]:
    with hub_on(path, mailbox_messages_max=10, mailbox_file_messages_max=16) as hub:
        yield hub


@pytest.fixture
def feeder(hub: penstock.Hub) -> Iterator[Feeder]:
    feeder = feed(hub)
    yield feeder
    feeder._on_stop()  # What its thread does at the end; here it has none.


# Subscribing


def test_a_message_comes_with_all_that_was_published(hub: penstock.Hub, feeder: Feeder) -> None:
    hub.topics.publish("orders", "before")
    hub.mailboxes.subscribe("ann", "orders")
    headers = {"trace": "t-1"}
    first = hub.topics.publish("orders", {"id": 7}, type="placed", key="k-7", headers=headers)
    hub.topics.publish("orders", b"\x00\xff")
    hub.topics.publish("other", "none of its business")
    settle(feeder)

    mail, plain = drain(hub.mailboxes.open("ann"))
    assert mail.payload == {"id": 7}
    assert (mail.type, mail.key, mail.headers) == ("placed", "k-7", headers)
    assert (mail.topic, mail.position, mail.kind) == ("orders", first.position, MailKind.MESSAGE)
    assert mail.id == str(first.position)
    assert (plain.payload, plain.type, plain.headers) == (b"\x00\xff", None, {})


def test_earliest_begins_with_what_is_there(hub: penstock.Hub, feeder: Feeder) -> None:
    hub.topics.publish_many("orders", list(range(5)))
    hub.topics.trim("orders", keep=3)
    hub.mailboxes.subscribe("ann", "orders", start="earliest")
    hub.topics.publish("orders", 5)
    settle(feeder)

    assert payloads(drain(hub.mailboxes.open("ann"))) == [2, 3, 4, 5]


def test_globs_and_many_topics_reach_those_who_want_them(hub: penstock.Hub, feeder: Feeder) -> None:
    """More topics than are read one by one."""
    for number in range(20):
        hub.mailboxes.subscribe(f"box-{number}", f"topic-{number}")
    hub.mailboxes.subscribe("even", "topic-*0")
    hub.mailboxes.subscribe("stats", "penstock.*")
    for number in range(20):
        hub.topics.publish(f"topic-{number}", number)
    hub.topics.publish("unrelated", "x")
    settle(feeder)

    for number in range(20):
        assert payloads(drain(hub.mailboxes.open(f"box-{number}"))) == [number]
    assert payloads(drain(hub.mailboxes.open("even"))) == [0, 10]
    assert drain(hub.mailboxes.open("stats")) == []


def test_subscribing_again_changes_nothing_and_ending_it_ends_it(
    hub: penstock.Hub, feeder: Feeder
) -> None:
    first = hub.mailboxes.subscribe("ann", "orders")
    hub.topics.publish("orders", 1)
    assert hub.mailboxes.subscribe("ann", "orders", start="earliest") == first
    hub.mailboxes.subscribe("ann", "news")
    hub.mailboxes.subscribe("bob", "orders")
    settle(feeder)
    assert [s.topic for s in hub.mailboxes.subscriptions("ann")] == ["orders", "news"]
    assert len(hub.mailboxes.subscriptions()) == 3
    after = hub.mailboxes.subscriptions(limit=1)[0].id
    assert [s.mailbox for s in hub.mailboxes.subscriptions(after=after)] == ["ann", "bob"]

    assert hub.mailboxes.unsubscribe("ann", "orders") == 1
    hub.topics.publish("orders", 2)
    hub.topics.publish("news", "n")
    settle(feeder)
    assert payloads(drain(hub.mailboxes.open("ann"))) == [1, "n"]
    assert payloads(drain(hub.mailboxes.open("bob"))) == [2]
    assert hub.mailboxes.unsubscribe("ann") == 1
    assert hub.mailboxes.unsubscribe("ann") == 0


def test_made_anew_it_begins_anew(hub: penstock.Hub, feeder: Feeder) -> None:
    hub.mailboxes.subscribe("ann", "orders")
    hub.topics.publish("orders", 1)
    settle(feeder)
    hub.mailboxes.unsubscribe("ann", "orders")
    hub.topics.publish("orders", 2)
    hub.mailboxes.subscribe("ann", "orders")
    hub.topics.publish("orders", 3)
    settle(feeder)

    assert payloads(drain(hub.mailboxes.open("ann"))) == [1, 3]


@pytest.mark.parametrize(
    ("mailbox", "topic", "start", "error"),
    [
        ("", "orders", "latest", InvalidMailbox),
        ("a\nb", "orders", "latest", InvalidMailbox),
        ("ann", "", "latest", InvalidTopic),
        ("ann", "orders", "now", InvalidInput),
    ],
)
def test_what_makes_no_sense_is_refused(
    hub: penstock.Hub, mailbox: str, topic: str, start: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        hub.mailboxes.subscribe(mailbox, topic, start)
    assert hub.mailboxes.subscriptions() == []


def test_a_transaction_cannot_subscribe(hub: penstock.Hub) -> None:
    with hub.transaction(), pytest.raises(InsideTransaction):
        hub.mailboxes.subscribe("ann", "orders")
    with hub.transaction(), pytest.raises(InsideTransaction):
        hub.mailboxes.unsubscribe("ann", "orders")


async def test_the_same_as_coroutines(hub: penstock.Hub) -> None:
    made = await hub.aio.mailboxes.subscribe("ann", "orders")
    assert await hub.aio.mailboxes.subscriptions("ann") == [made]
    assert await hub.aio.mailboxes.unsubscribe("ann", "orders") == 1
    assert await hub.aio.mailboxes.subscriptions() == []


# Full boxes


def test_a_full_box_holds_up_itself_only_and_gets_the_rest_later(
    hub: penstock.Hub, feeder: Feeder
) -> None:
    """No marker, no gap, in order, whatever the size of the pieces."""
    for name in ("ann", "bob"):
        hub.mailboxes.subscribe(name, "orders")
    bob = hub.mailboxes.open("bob")
    read: list[Mail] = []
    for number in range(60):
        hub.topics.publish("orders", number)
        feeder.run_once()
        read += drain(bob)
    settle(feeder)
    assert payloads(read + drain(bob)) == list(range(60))

    ann = hub.mailboxes.open("ann")
    assert (ann.size(), feeder.status().full) == (10, 1)
    late: list[Mail] = []
    while len(late) < 60:
        wait_until(lambda: feeder.run_once() is not None and ann.size())
        late += drain(ann)
    assert payloads(late) == list(range(60))
    assert {mail.kind for mail in late} == {MailKind.MESSAGE}
    settle(feeder)
    assert (feeder.status().full, ann.size()) == (0, 0)


def test_a_box_that_another_has_filled_is_fed_when_it_is_drained(
    hub: penstock.Hub, feeder: Feeder
) -> None:
    ann = hub.mailboxes.open("ann")
    for number in range(10):
        ann.put(f"direct {number}")
    with pytest.raises(penstock.errors.QuotaExceeded):
        ann.put("one too many")
    hub.mailboxes.subscribe("ann", "orders")
    hub.topics.publish("orders", "fed")
    settle(feeder)
    kinds = [mail.kind for mail in drain(ann)]
    assert kinds == [MailKind.MESSAGE] * 10 + [MailKind.QUOTA]
    wait_until(lambda: feeder.run_once() is not None and ann.size())

    assert payloads(drain(ann)) == ["fed"]


def test_a_batch_is_cut_to_what_a_box_remembers(hub: penstock.Hub, path: Path) -> None:
    """Many messages at once, and large ones, come whole."""
    with hub_on(path, commit_bytes_max=100_000) as other:
        feeder = feed(other)
        other.mailboxes.subscribe("ann", "orders")
        other.topics.publish_many("orders", [f"{n} " + "x" * 30_000 for n in range(100)])
        settle(feeder)
        found = drain(other.mailboxes.open("ann"))
        feeder._on_stop()

    assert [int(mail.payload.split()[0]) for mail in found] == list(range(100))


# Loss


def test_what_was_trimmed_meanwhile_is_told_where_it_is_missing(
    hub: penstock.Hub, feeder: Feeder
) -> None:
    hub.mailboxes.subscribe("ann", "orders")
    receipts = hub.topics.publish_many("orders", list(range(30)))
    settle(feeder)
    hub.topics.trim("orders", through=receipts[19].position)
    ann = hub.mailboxes.open("ann")
    assert payloads(drain(ann)) == list(range(10))
    wait_until(lambda: feeder.run_once() is not None and ann.size() == 10)

    gap, *rest = drain(ann)
    assert (gap.kind, gap.topic, gap.missing) == (MailKind.GAP, "orders", 0)
    assert gap.position == receipts[19].position
    assert gap.payload == {
        "reason": "trimmed",
        "topic": "orders",
        "after": str(receipts[9].position),
        "resumes": str(receipts[19].position),
    }
    assert payloads(rest) == list(range(20, 29))
    wait_until(lambda: feeder.run_once() is not None and ann.size())
    assert payloads(drain(ann)) == [29]


def test_a_gap_that_finds_no_room_is_told_later_and_once_for_each_topic(
    hub: penstock.Hub, feeder: Feeder
) -> None:
    """Of a glob: what another topic loses after the first gap is a loss of its own."""
    hub.mailboxes.subscribe("ann", "t-*")
    ann = hub.mailboxes.open("ann")
    hub.topics.publish_many("t-a", list(range(10)))
    settle(feeder)
    lost = hub.topics.publish_many("t-a", ["lost"] * 5)
    kept = hub.topics.publish_many("t-b", ["b-0", "b-1", "b-2"])
    hub.topics.publish("t-a", "a-last")
    settle(feeder)
    hub.topics.trim("t-a", through=lost[-1].position)
    feeder.run_once()
    assert payloads(drain(ann)) == list(range(10))
    wait_until(lambda: feeder.run_once() is not None and ann.size())
    settle(feeder)
    first = drain(ann)
    assert [mail.kind.value for mail in first] == ["gap"] + ["message"] * 4
    assert payloads(first[1:]) == ["b-0", "b-1", "b-2", "a-last"]
    assert kept[0].id == lost[-1].id + 1

    for number in range(10):
        ann.put(number)
    more = hub.topics.publish_many("t-b", ["gone", "gone"])
    settle(feeder)
    hub.topics.trim("t-b", through=more[-1].position)
    hub.topics.publish("t-b", "b-last")
    drain(ann)
    wait_until(lambda: feeder.run_once() is not None and ann.size() == 2)
    second = drain(ann)
    assert [mail.kind.value for mail in second] == ["gap", "message"]
    assert second[1].payload == "b-last"


# Restarts


def test_another_feeder_goes_on_where_the_first_has_stopped(path: Path) -> None:
    with hub_on(path) as hub:
        hub.mailboxes.subscribe("ann", "orders")
        with hub.start_feeding():
            hub.topics.publish_many("orders", [1, 2, 3])
            wait_until(lambda: hub.mailboxes.open("ann").size() == 3)
        hub.topics.publish("orders", 4)
    with hub_on(path) as hub:
        hub.topics.publish("orders", 5)
        hub.start_feeding()
        ann = hub.mailboxes.open("ann")
        wait_until(lambda: ann.size() == 5)
        assert payloads(drain(ann)) == [1, 2, 3, 4, 5]
        wait_until(lambda: hub.mailboxes.subscriptions("ann")[0].position.offset == 5)


def test_what_was_put_and_not_noted_is_dropped_by_the_box(
    hub: penstock.Hub, feeder: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was acknowledged meanwhile."""
    for name in ("ann", "bob"):
        hub.mailboxes.subscribe(name, "orders")
    hub.topics.publish_many("orders", list(range(8)))

    def fail(*_: object) -> None:
        raise StoreBusy

    with monkeypatch.context() as patched:
        patched.setattr(feeder, "_note", fail)
        with pytest.raises(StoreBusy):
            settle(feeder)
    ann, bob = hub.mailboxes.open("ann"), hub.mailboxes.open("bob")
    assert payloads(drain(ann)) == list(range(8))
    hub.topics.publish("orders", 8)
    settle(feeder)

    assert payloads(drain(ann)) == [8]
    assert payloads(drain(bob)) == list(range(9))


def test_an_idle_subscription_is_noted_at_the_end(hub: penstock.Hub, feeder: Feeder) -> None:
    hub.mailboxes.subscribe("ann", "quiet")
    settle(feeder)
    hub.topics.publish_many("busy", list(range(50)))
    settle(feeder)
    before = hub.mailboxes.subscriptions("ann")[0].position.offset
    feeder._on_stop()
    assert (before, hub.mailboxes.subscriptions("ann")[0].position.offset) == (0, 50)


def test_a_restore_repeats_and_never_loses(hub: penstock.Hub, tmp_path: Path) -> None:
    feeder = feed(hub)
    hub.mailboxes.subscribe("ann", "orders")
    hub.topics.publish_many("orders", [1, 2])
    hub.backup(tmp_path / "copy.db")
    settle(feeder)
    ann = hub.mailboxes.open("ann")
    assert payloads(drain(ann)) == [1, 2]
    hub.restore(tmp_path / "copy.db")
    hub.topics.publish("orders", 3)
    settle(feeder)

    assert payloads(drain(ann)) == [1, 2, 3]
    feeder._on_stop()


def test_a_new_generation_loses_and_repeats_nothing(hub: penstock.Hub, feeder: Feeder) -> None:
    hub.mailboxes.subscribe("ann", "orders")
    hub.topics.publish("orders", 1)
    settle(feeder)
    epoch = hub.new_generation()
    hub.topics.publish("orders", 2)
    settle(feeder)

    first, second = drain(hub.mailboxes.open("ann"))
    assert (first.payload, second.payload) == (1, 2)
    assert second.position is not None
    assert second.position.epoch == epoch


# Who feeds


def test_of_several_processes_one_feeds_and_the_next_takes_over(path: Path) -> None:
    with hub_on(path, name="first") as first, hub_on(path, name="second") as second:
        first.mailboxes.subscribe("ann", "orders")
        one = first.start_feeding()
        wait_until(lambda: one.is_feeding)
        other = second.start_feeding()
        assert first.start_feeding() is one
        first.topics.publish("orders", 1)
        ann = first.mailboxes.open("ann")
        wait_until(lambda: ann.size() == 1)
        assert not other.is_feeding
        one.stop()
        wait_until(lambda: other.is_feeding)
        first.topics.publish("orders", 2)
        wait_until(lambda: ann.size() == 2)
        again = first.start_feeding()
        assert again is not one
        assert payloads(drain(ann)) == [1, 2]


def test_nobody_is_asked_to_feed_where_nobody_subscribes(hub: penstock.Hub) -> None:
    feeder = feed(hub)
    feeder.run_once()
    assert not feeder.is_feeding
    hub.mailboxes.subscribe("ann", "orders")
    feeder.run_once()
    assert feeder.is_feeding
    hub.mailboxes.unsubscribe("ann")
    feeder.run_once()
    assert not feeder.is_feeding


def test_one_that_has_lost_its_lease_puts_nothing_more(hub: penstock.Hub, feeder: Feeder) -> None:
    hub.mailboxes.subscribe("ann", "orders")
    settle(feeder)
    kept = feeder._kept
    assert kept is not None
    kept.is_lost = True
    hub.topics.publish("orders", 1)
    with pytest.raises(penstock.errors.LeaseLost):
        feeder._feed()
    assert hub.mailboxes.open("ann").size() == 0


def test_a_damaged_box_holds_up_itself_only(hub: penstock.Hub, feeder: Feeder) -> None:
    for name in ("ann", "bob"):
        hub.mailboxes.subscribe(name, "orders")
        hub.mailboxes.open(name).put("x")
        hub.mailboxes.open(name).put("y")
    folder = hub._open().mail.folder
    with folder.locked("ann") as box:
        path = box.path(box.write_file)
        content = bytearray(Path(path).read_bytes())
        content[box.pending[0].offset + box.pending[0].size - 6] ^= 0xFF
        Path(path).write_bytes(content)
        box.forget()
    hub.topics.publish("orders", 1)
    settle(feeder)

    assert payloads(drain(hub.mailboxes.open("bob"))) == ["x", "y", 1]
    status = feeder.status()
    assert list(status.failing) == ["ann"]
    assert "damaged" in status.failing["ann"]


@pytest.mark.parametrize("durability", ["durable", "interval", "os"])
def test_it_feeds_whatever_the_durability(path: Path, durability: str) -> None:
    with hub_on(path, mailbox_durability=durability) as hub:
        hub.mailboxes.subscribe("ann", "orders")
        hub.start_feeding()
        hub.topics.publish_many("orders", list(range(100)))
        ann = hub.mailboxes.open("ann")
        wait_until(lambda: ann.size() == 100)
        assert payloads(ann.peek_many(100)) == list(range(100))


def test_what_this_process_takes_for_too_large_is_told(path: Path) -> None:
    with hub_on(path) as writer:
        writer.mailboxes.subscribe("ann", "orders")
        writer.topics.publish("orders", os.urandom(5_000))
        writer.topics.publish("orders", "small")
    with hub_on(path, payload_bytes_max=1_000) as hub:
        feeder = feed(hub)
        settle(feeder)
        gap, small = drain(hub.mailboxes.open("ann"))
        feeder._on_stop()

    assert (gap.kind, gap.payload["reason"]) == (MailKind.GAP, "too_large")
    assert small.payload == "small"


def test_headers_of_any_size_do_not_stop_a_feed(path: Path) -> None:
    with hub_on(path, headers_bytes_max=200_000) as hub:
        feeder = feed(hub)
        hub.mailboxes.subscribe("ann", "orders")
        big = {f"h{n}": "x" * 100 for n in range(900)}
        hub.topics.publish_many("orders", [Publication(1, headers=big), Publication(2)])
        settle(feeder)
        first, second = drain(hub.mailboxes.open("ann"))
        feeder._on_stop()

    assert (first.payload, second.payload) == (1, 2)
    assert list(first.headers) == ["penstock-headers"]


def test_the_default_quota_is_larger_than_a_batch() -> None:
    """A box that was full and is half empty takes a whole batch, so that catching up is quick."""
    from penstock.mailboxes.news import BATCH_MAX

    assert Settings().mailbox_messages_max >= 2 * BATCH_MAX
