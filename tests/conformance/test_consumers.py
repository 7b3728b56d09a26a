"""Watermarks: moved up by the holder, by hand by anybody while nobody holds them (T3)."""

from __future__ import annotations

import pytest

from penstock.errors import ConsumerBusy, ConsumerNotFound, LeaseLost
from penstock.model import Consumer, Lease, consumer_lease
from penstock.ports import Transaction
from penstock.testing import FakeClock
from tests.conformance.places import Scribe


@pytest.fixture
def registered(scribe: Scribe) -> Scribe:
    """A store whose process is known to be alive, as any that holds leases is."""
    scribe.store.register("test")
    return scribe


def ensure(scribe: Scribe, name: str = "c", subscription: str = "a", position: int = 0) -> Consumer:
    now = scribe.clock.now()
    return scribe.write(
        lambda tx: tx.consumers.ensure(name, subscription, position=position, floor=7, now=now)
    )


def hold(scribe: Scribe, name: str = "c", subscription: str = "a", seconds: float = 30) -> Lease:
    lease = scribe.write(
        lambda tx: tx.leases.acquire(
            consumer_lease(name, subscription), owner="me", seconds=seconds
        )
    )
    assert lease is not None
    return lease


def advance(scribe: Scribe, position: int, lease: Lease) -> None:
    now = scribe.clock.now()
    scribe.write(lambda tx: tx.consumers.advance("c", "a", position=position, lease=lease, now=now))


def watermark(scribe: Scribe, name: str = "c", subscription: str = "a") -> int:
    found = scribe.store.consumers.get(name, subscription)
    assert found is not None
    return found.position.offset


def test_a_new_consumer_stands_where_it_was_put(registered: Scribe, clock: FakeClock) -> None:
    made = ensure(registered, position=5)

    assert made == registered.store.consumers.get("c", "a")
    assert (made.name, made.subscription, made.floor, made.holder) == ("c", "a", 7, None)
    assert made.position.offset == 5
    assert made.position.epoch == registered.store.log().epoch
    assert made.created_at == made.updated_at == clock.now()


def test_an_existing_consumer_stays_where_it_is(registered: Scribe) -> None:
    ensure(registered, position=5)

    assert ensure(registered, position=9).position.offset == 5


def test_a_consumer_has_a_watermark_for_each_subscription(registered: Scribe) -> None:
    ensure(registered, "c", "a", 1)
    ensure(registered, "c", "b.*", 2)
    ensure(registered, "d", "a", 3)
    consumers = registered.store.consumers

    assert [(c.name, c.subscription, c.position.offset) for c in consumers.find()] == [
        ("c", "a", 1),
        ("c", "b.*", 2),
        ("d", "a", 3),
    ]
    assert [c.subscription for c in consumers.find("c")] == ["a", "b.*"]
    assert consumers.find("none") == []
    assert consumers.get("d", "b.*") is None


def test_the_holder_moves_the_watermark_up(registered: Scribe, clock: FakeClock) -> None:
    ensure(registered)
    lease = hold(registered)
    clock.advance(5)
    advance(registered, 3, lease)

    found = registered.store.consumers.get("c", "a")
    assert found is not None
    assert (found.position.offset, found.updated_at, found.holder) == (3, clock.now(), "me")


def test_a_watermark_is_never_moved_back(registered: Scribe) -> None:
    ensure(registered)
    lease = hold(registered)
    advance(registered, 5, lease)
    advance(registered, 3, lease)

    assert watermark(registered) == 5


def test_one_that_is_late_but_not_replaced_still_moves_it(
    registered: Scribe, clock: FakeClock
) -> None:
    ensure(registered)
    lease = hold(registered, seconds=10)
    clock.advance(11)
    advance(registered, 3, lease)

    assert watermark(registered) == 3


def test_a_holder_that_was_replaced_is_refused(registered: Scribe, clock: FakeClock) -> None:
    ensure(registered)
    old = hold(registered, seconds=10)
    clock.advance(10)
    new = hold(registered)

    with pytest.raises(LeaseLost):
        advance(registered, 9, old)
    assert watermark(registered) == 0
    advance(registered, 2, new)
    assert watermark(registered) == 2


def test_a_lease_that_was_given_back_moves_nothing(registered: Scribe) -> None:
    ensure(registered)
    lease = hold(registered)
    registered.write(lambda tx: tx.leases.release(lease))

    with pytest.raises(LeaseLost):
        advance(registered, 9, lease)


def test_an_accepted_loss_raises_the_floor_and_never_lowers_it(registered: Scribe) -> None:
    ensure(registered)
    lease = hold(registered)
    for floor in (20, 10):
        registered.write(
            lambda tx, floor=floor: tx.consumers.accept_loss("c", "a", floor=floor, lease=lease)
        )

    found = registered.store.consumers.get("c", "a")
    assert found is not None
    assert found.floor == 20


def test_a_loss_cannot_be_accepted_by_one_that_was_replaced(
    registered: Scribe, clock: FakeClock
) -> None:
    ensure(registered)
    old = hold(registered, seconds=10)
    clock.advance(10)
    hold(registered)

    with pytest.raises(LeaseLost):
        registered.write(lambda tx: tx.consumers.accept_loss("c", "a", floor=20, lease=old))


# By hand


def seek(scribe: Scribe, position: int) -> None:
    now = scribe.clock.now()
    scribe.write(lambda tx: tx.consumers.seek("c", "a", position=position, floor=position, now=now))


def test_a_watermark_is_set_by_hand_also_back(registered: Scribe) -> None:
    ensure(registered, position=9)
    seek(registered, 2)

    found = registered.store.consumers.get("c", "a")
    assert found is not None
    assert (found.position.offset, found.floor) == (2, 2)


def test_a_held_watermark_cannot_be_set_by_hand(registered: Scribe) -> None:
    ensure(registered, position=9)
    hold(registered)

    with pytest.raises(ConsumerBusy):
        seek(registered, 2)
    assert watermark(registered) == 9


def test_a_watermark_whose_lease_has_run_out_can_be_set_by_hand(
    registered: Scribe, clock: FakeClock
) -> None:
    ensure(registered, position=9)
    late = hold(registered, seconds=10)
    clock.advance(10)
    seek(registered, 2)

    with pytest.raises(LeaseLost):
        advance(registered, 9, late)
    assert watermark(registered) == 2


def test_a_consumer_that_does_not_exist_cannot_be_set(registered: Scribe) -> None:
    with pytest.raises(ConsumerNotFound):
        seek(registered, 2)


def test_a_consumer_is_forgotten_on_one_subscription_or_on_all(registered: Scribe) -> None:
    for subscription in ("a", "b", "c"):
        ensure(registered, "c", subscription)
    ensure(registered, "d", "a")

    assert registered.write(lambda tx: tx.consumers.delete("c", "b")) == 1
    assert registered.write(lambda tx: tx.consumers.delete("c", None)) == 2
    assert [c.name for c in registered.store.consumers.find()] == ["d"]


@pytest.mark.parametrize("subscription", ["a", None])
def test_a_held_consumer_is_not_forgotten(registered: Scribe, subscription: str | None) -> None:
    ensure(registered)
    ensure(registered, "c", "b")
    hold(registered)

    with pytest.raises(ConsumerBusy):
        registered.write(lambda tx: tx.consumers.delete("c", subscription))
    assert len(registered.store.consumers.find()) == 2


def test_a_late_holder_of_a_forgotten_consumer_is_told(
    registered: Scribe, clock: FakeClock
) -> None:
    ensure(registered)
    late = hold(registered, seconds=10)
    clock.advance(10)
    registered.write(lambda tx: tx.consumers.delete("c", "a"))

    with pytest.raises(LeaseLost):
        advance(registered, 9, late)


def test_a_consumer_that_does_not_exist_cannot_be_forgotten(registered: Scribe) -> None:
    ensure(registered)

    with pytest.raises(ConsumerNotFound):
        registered.write(lambda tx: tx.consumers.delete("none", None))
    with pytest.raises(ConsumerNotFound):
        registered.write(lambda tx: tx.consumers.delete("c", "other"))


def test_a_watermark_moves_with_its_transaction_or_not_at_all(registered: Scribe) -> None:
    ensure(registered)
    lease = hold(registered)

    class Undone(Exception):
        pass

    def undone(tx: Transaction) -> None:
        now = registered.clock.now()
        tx.consumers.advance("c", "a", position=5, lease=lease, now=now)
        raise Undone

    with pytest.raises(Undone):
        registered.write(undone)
    assert watermark(registered) == 0


def note(scribe: Scribe, position: int, name: str = "c") -> None:
    now = scribe.clock.now()
    scribe.write(lambda tx: tx.consumers.note(name, "a", position=position, now=now))


def test_one_who_only_tells_how_far_it_is_needs_no_lease_and_never_goes_back(
    registered: Scribe,
) -> None:
    """S1: as Spark does, whose checkpoint decides."""
    note(registered, 5)
    note(registered, 3)
    assert watermark(registered) == 5
    note(registered, 9)

    found = registered.store.consumers.get("c", "a")
    assert found is not None
    assert (found.position.offset, found.floor, found.holder) == (9, 9, None)


def test_nobody_tells_how_far_somebody_else_is(registered: Scribe) -> None:
    ensure(registered, position=5)
    hold(registered)

    with pytest.raises(ConsumerBusy):
        note(registered, 9)
    assert watermark(registered) == 5
