"""Subscriptions of mailboxes: made once, moved on by one feeder, ended for good (D12)."""

from __future__ import annotations

import pytest

from penstock.errors import LeaseLost
from penstock.mail import MailboxSubscription
from penstock.model import Lease, Pattern, Position, Start
from penstock.ports.feeds import Step
from tests.conformance.places import Scribe


def subscribe(
    scribe: Scribe,
    mailbox: str = "ann",
    topic: str = "orders",
    start: Start = "latest",
    floor: int = 0,
) -> MailboxSubscription:
    now = scribe.clock.now()
    return scribe.write(
        lambda tx: tx.feeds.subscribe(mailbox, Pattern(topic), start=start, floor=floor, now=now)
    )


def unsubscribe(scribe: Scribe, mailbox: str, topic: str | None = None) -> int:
    return scribe.write(lambda tx: tx.feeds.unsubscribe(mailbox, topic))


def advance(scribe: Scribe, lease: Lease, *steps: Step) -> None:
    now = scribe.clock.now()
    scribe.write(lambda tx: tx.feeds.advance(steps, lease=lease, now=now))


@pytest.fixture
def lease(scribe: Scribe) -> Lease:
    scribe.store.register("feeder")
    found = scribe.write(lambda tx: tx.leases.acquire("feeder", owner="me", seconds=30))
    assert found is not None
    return found


def test_a_subscription_begins_at_the_end_of_the_log_or_at_its_beginning(scribe: Scribe) -> None:
    scribe.publish(count=3)
    late = subscribe(scribe, "ann")
    early = subscribe(scribe, "bob", start="earliest", floor=2)

    epoch = scribe.store.log().epoch
    assert (late.position, late.floor) == (Position(epoch, 3), 0)
    assert (early.position, early.floor) == (Position(epoch, 0), 2)
    assert late.id < early.id
    assert scribe.store.feeds.find() == [late, early]


def test_the_same_subscription_again_is_the_first_one(scribe: Scribe) -> None:
    first = subscribe(scribe)
    scribe.publish(count=2)

    assert subscribe(scribe, start="earliest") == first
    assert subscribe(scribe, topic="ord*") != first
    assert len(scribe.store.feeds.find("ann")) == 2


def test_subscriptions_are_found_by_mailbox_and_from_an_id_on(scribe: Scribe) -> None:
    made = [subscribe(scribe, name) for name in ("ann", "bob", "cid")]

    assert scribe.store.feeds.find("bob") == [made[1]]
    assert scribe.store.feeds.find(after=made[0].id) == made[1:]
    assert scribe.store.feeds.find(after=made[0].id, limit=1) == made[1:2]
    assert scribe.store.feeds.find("nobody") == []
    assert scribe.store.feeds.ids() == [one.id for one in made]
    assert scribe.store.feeds.count() == 3


def test_many_move_on_in_one_step_and_never_back(scribe: Scribe, lease: Lease) -> None:
    made = [subscribe(scribe, name, start="earliest") for name in ("ann", "bob", "cid")]
    scribe.clock.advance(1)
    scribe.publish(count=9)
    two = [made[0].id, made[1].id]
    advance(scribe, lease, Step(two, 7, 5, {"orders": 6}), Step([made[2].id], 1, 0))
    advance(scribe, lease, Step(two, 4, 0))

    found = scribe.store.feeds.find()
    assert [one.position.offset for one in found] == [7, 7, 1]
    assert [one.floor for one in found] == [5, 5, 0]
    assert [one.told for one in found] == [{"orders": 6}, {"orders": 6}, {}]
    assert [one.updated_at for one in found] == [scribe.clock.now()] * 3
    assert [one.created_at for one in found] == [one.created_at for one in made]


def test_only_the_holder_of_the_lease_moves_them(scribe: Scribe, lease: Lease) -> None:
    made = subscribe(scribe, start="earliest")
    scribe.write(lambda tx: tx.leases.release(lease))
    other = scribe.write(lambda tx: tx.leases.acquire("feeder", owner="other", seconds=30))
    assert other is not None
    with pytest.raises(LeaseLost):
        advance(scribe, lease, Step([made.id], 5, 0))
    assert scribe.store.feeds.find() == [made]
    advance(scribe, other, Step([made.id], 5, 0))
    assert scribe.store.feeds.find()[0].position.offset == 5


def test_one_that_was_ended_and_made_anew_is_not_moved_by_the_old_id(
    scribe: Scribe, lease: Lease
) -> None:
    first = subscribe(scribe)
    before = scribe.store.feeds.ended()
    assert unsubscribe(scribe, "ann", "orders") == 1
    second = subscribe(scribe)
    advance(scribe, lease, Step([first.id], 99, 0))

    assert second.id > first.id
    assert scribe.store.feeds.find() == [second]
    assert scribe.store.feeds.ended() == before + 1


def test_all_subscriptions_of_a_mailbox_end_at_once(scribe: Scribe) -> None:
    for topic in ("orders", "news", "ord*"):
        subscribe(scribe, "ann", topic)
    other = subscribe(scribe, "bob")
    before = scribe.store.feeds.ended()

    assert unsubscribe(scribe, "ann", "nothing") == 0
    assert scribe.store.feeds.ended() == before
    assert unsubscribe(scribe, "ann") == 3
    assert scribe.store.feeds.find() == [other]
    assert scribe.store.feeds.ended() == before + 3
