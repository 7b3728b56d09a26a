"""Leases that run out, tokens that rise, processes that are alive until they end."""

from __future__ import annotations

import pytest

from penstock.model import Lease
from penstock.ports import Store
from penstock.testing import FakeClock
from tests.conformance.places import Place, Scribe


@pytest.fixture
def registered(scribe: Scribe) -> Scribe:
    scribe.store.register("first")
    return scribe


def acquire(
    scribe: Scribe, name: str = "l", owner: str = "me", seconds: float = 30
) -> Lease | None:
    return scribe.write(lambda tx: tx.leases.acquire(name, owner=owner, seconds=seconds))


def test_a_free_lease_is_given(registered: Scribe) -> None:
    lease = acquire(registered)

    assert lease is not None
    assert (lease.name, lease.owner) == ("l", "me")
    assert registered.store.leases.holder("l") == "me"


def test_a_held_lease_is_given_to_nobody_else(registered: Scribe) -> None:
    acquire(registered)

    assert acquire(registered, owner="other") is None
    assert acquire(registered, owner="me") is None


def test_leases_of_different_names_do_not_meet(registered: Scribe) -> None:
    assert acquire(registered, "l") is not None
    assert acquire(registered, "m") is not None


def test_a_lease_runs_out(registered: Scribe, clock: FakeClock) -> None:
    acquire(registered, seconds=10)
    clock.advance(9.999)
    assert registered.store.leases.holder("l") == "me"
    clock.advance(0.001)

    assert registered.store.leases.holder("l") is None
    assert acquire(registered, owner="other") is not None


def test_tokens_rise(registered: Scribe, clock: FakeClock) -> None:
    tokens = []
    for _ in range(3):
        lease = acquire(registered, seconds=10)
        assert lease is not None
        tokens.append(lease.token)
        clock.advance(10)

    assert tokens == sorted(set(tokens))


def test_a_wall_clock_set_back_neither_ends_a_lease_nor_prolongs_it(
    registered: Scribe, clock: FakeClock
) -> None:
    acquire(registered, seconds=10)
    clock.set_back(3600)
    clock.advance(9)
    assert registered.store.leases.holder("l") == "me"
    clock.advance(1)

    assert registered.store.leases.holder("l") is None


def test_a_renewed_lease_lasts_longer(registered: Scribe, clock: FakeClock) -> None:
    lease = acquire(registered, seconds=10)
    assert lease is not None
    clock.advance(9)

    assert registered.write(lambda tx: tx.leases.renew([lease], seconds=10)) == [lease]
    clock.advance(9)
    assert registered.store.leases.holder("l") == "me"


def test_only_leases_still_held_are_renewed(registered: Scribe, clock: FakeClock) -> None:
    kept, lost = acquire(registered, "kept", seconds=100), acquire(registered, "lost", seconds=10)
    assert kept is not None
    assert lost is not None
    clock.advance(10)
    acquire(registered, "lost", owner="other")
    gone = Lease("gone", 1, "me")

    assert registered.write(lambda tx: tx.leases.renew([kept, lost, gone], seconds=9)) == [kept]
    assert registered.store.leases.holder("lost") == "other"


def test_a_lease_that_ran_out_but_was_not_taken_is_renewed(
    registered: Scribe, clock: FakeClock
) -> None:
    lease = acquire(registered, seconds=10)
    assert lease is not None
    clock.advance(20)

    assert registered.write(lambda tx: tx.leases.renew([lease], seconds=10)) == [lease]
    assert registered.store.leases.holder("l") == "me"


def test_a_released_lease_is_free(registered: Scribe) -> None:
    lease = acquire(registered)
    assert lease is not None

    assert registered.write(lambda tx: tx.leases.release(lease)) is True
    assert registered.store.leases.holder("l") is None
    assert registered.write(lambda tx: tx.leases.release(lease)) is False


def test_one_that_was_replaced_cannot_release_the_others_lease(
    registered: Scribe, clock: FakeClock
) -> None:
    old = acquire(registered, seconds=10)
    assert old is not None
    clock.advance(10)
    acquire(registered, owner="other")

    assert registered.write(lambda tx: tx.leases.release(old)) is False
    assert registered.store.leases.holder("l") == "other"


# Processes


def test_a_registered_process_is_listed_from_its_first_report_on(
    registered: Scribe, clock: FakeClock
) -> None:
    store = registered.store
    instance, started_at = store.register("first"), clock.now()
    assert store.register("first") == instance
    assert store.instances.alive() == []

    registered.report(instance)

    assert [(i.id, i.name, i.started_at) for i in store.instances.alive()] == [
        (instance.id, "first", started_at)
    ]


def test_a_process_reports_how_far_it_has_read(registered: Scribe, clock: FakeClock) -> None:
    registered.publish("a", 5)
    instance = registered.store.register("first")
    clock.advance(3)
    now = clock.now()
    registered.write(
        lambda tx: tx.instances.report(instance, position=4, poll_latency_ms=1.5, now=now)
    )

    (found,) = registered.store.instances.alive()
    assert (found.position, found.poll_latency_ms, found.seen_at) == (4, 1.5, now)
    assert registered.store.instances.lowest_position() == 4


def test_a_process_that_was_dropped_is_known_again_when_it_reports(
    registered: Scribe, clock: FakeClock
) -> None:
    instance = registered.store.register("first")
    registered.report(instance)
    clock.advance(301)
    now = clock.now()
    assert registered.write(lambda tx: tx.instances.forget(now=now, after_seconds=300)) == 1
    registered.write(
        lambda tx: tx.instances.report(instance, position=0, poll_latency_ms=0, now=now)
    )

    assert [i.id for i in registered.store.instances.alive()] == [instance.id]


def test_a_process_that_reports_is_not_dropped(registered: Scribe, clock: FakeClock) -> None:
    registered.report(registered.store.register("first"))
    clock.advance(299)
    now = clock.now()

    assert registered.write(lambda tx: tx.instances.forget(now=now, after_seconds=300)) == 0


def test_without_processes_there_is_no_lowest_position(store: Store) -> None:
    assert store.instances.lowest_position() is None


def test_the_slowest_live_process_decides(
    place: Place, registered: Scribe, clock: FakeClock
) -> None:
    other = place.open()
    slow, fast = other.register("slow"), registered.store.register("first")
    for instance, position in ((slow, 2), (fast, 5)):
        registered.write(
            lambda tx, i=instance, p=position: tx.instances.report(
                i, position=p, poll_latency_ms=0, now=clock.now()
            )
        )

    assert registered.store.instances.lowest_position() == 2
    place.end(other)
    assert registered.store.instances.lowest_position() == 5


def test_the_lease_of_a_process_that_ended_is_free_at_once(
    place: Place, registered: Scribe
) -> None:
    other_store = place.open()
    other_store.register("other")
    other = Scribe(other_store, place.writer(other_store), place.clock)
    assert acquire(other, owner="other") is not None
    assert acquire(registered) is None
    place.end(other_store)

    assert registered.store.leases.holder("l") is None
    assert acquire(registered) is not None


def test_a_process_that_ended_is_forgotten(
    place: Place, registered: Scribe, clock: FakeClock
) -> None:
    other = place.open()
    for process in (other.register("other"), registered.store.register("first")):
        registered.report(process)
    place.end(other)

    assert [i.name for i in registered.store.instances.alive()] == ["first"]
    now = clock.now()
    assert registered.write(lambda tx: tx.instances.forget(now=now, after_seconds=300)) == 1
