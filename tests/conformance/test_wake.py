"""Being woken: by the bell at once, without it by the safety net (T5)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.ports import Store, Wake
from tests.conformance.places import Place, Scribe

LONG = 20.0
NOW = 0.0


@pytest.fixture
def wake(store: Store) -> Iterator[Wake]:
    wake = store.open_wake()
    settle(wake)
    yield wake
    wake.close()


def settle(wake: Wake) -> None:
    """Past the first looks, which find what was there before."""
    while wake.wait(NOW):
        pass


def test_nobody_is_woken_without_a_reason(wake: Wake) -> None:
    assert wake.wait(NOW) is False


def test_a_ring_wakes(store: Store, wake: Wake) -> None:
    store.ring()

    assert wake.wait(LONG) is True


def test_a_ring_wakes_one_that_waits(store: Store, wake: Wake) -> None:
    woken: list[bool] = []
    waiter = threading.Thread(target=lambda: woken.append(wake.wait(LONG)))
    waiter.start()
    store.ring()
    waiter.join()

    assert woken == [True]


def test_a_ring_wakes_every_listener(store: Store, wake: Wake) -> None:
    other = store.open_wake()
    settle(other)
    store.ring()

    assert (wake.wait(LONG), other.wait(LONG)) == (True, True)
    other.close()


def test_many_rings_are_one_reason_to_look(store: Store, wake: Wake) -> None:
    for _ in range(100):
        store.ring()

    assert wake.wait(LONG) is True
    settle(wake)
    assert wake.wait(NOW) is False


def test_a_ring_through_another_store_wakes(place: Place, wake: Wake) -> None:
    place.open().ring()

    assert wake.wait(LONG) is True


def test_a_commit_without_a_ring_is_noticed_by_the_safety_net(scribe: Scribe, wake: Wake) -> None:
    scribe.publish("a")

    assert wake.wait(NOW) is True
    settle(wake)
    assert wake.wait(NOW) is False


def test_a_commit_of_another_store_without_a_ring_is_noticed(place: Place, wake: Wake) -> None:
    other = place.open()
    Scribe(other, place.writer(other), place.clock).publish("a")

    assert wake.wait(NOW) is True


def test_an_interrupt_wakes_only_its_waiter(store: Store, wake: Wake) -> None:
    other = store.open_wake()
    settle(other)
    wake.interrupt()

    assert wake.wait(LONG) is True
    assert other.wait(NOW) is False
    other.close()


def test_many_interrupts_do_not_block(wake: Wake) -> None:
    for _ in range(100_000):
        wake.interrupt()

    assert wake.wait(LONG) is True
