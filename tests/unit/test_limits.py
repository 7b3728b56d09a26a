"""What one client may take: rates, connections, and which address it has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import SECOND
from penstock.delivery.access import ALL_ACCESS, Access
from penstock.delivery.limits import Bucket
from penstock.errors import InvalidSettings, LimitReached, RateLimited
from penstock.server import limits
from penstock.server.limits import Connections, Proxies, PublishRates
from penstock.testing import FakeClock
from tests.factories import settings_for


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    bucket = Bucket(10, burst_seconds=2)
    assert bucket.take(20, 0)
    assert not bucket.take(1, 0)
    assert bucket.wait_seconds(1, 0) == pytest.approx(0.1)
    assert bucket.take(1, SECOND // 10)
    assert not bucket.take(1, SECOND // 10)
    assert bucket.take(20, 10 * SECOND)
    assert not bucket.take(1, 10 * SECOND)


def test_more_than_a_bucketful_is_given_once_and_paid_back() -> None:
    bucket = Bucket(10, burst_seconds=1)
    assert bucket.take(50, 0)
    assert not bucket.take(1, 4 * SECOND)
    assert bucket.take(1, 5 * SECOND)


def test_a_clock_that_goes_back_fills_nothing() -> None:
    bucket = Bucket(1, burst_seconds=1)
    assert bucket.take(1, 100 * SECOND)
    assert not bucket.take(1, 0)
    assert bucket.take(1, SECOND)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3 * SECOND)), min_size=1, max_size=60))
def test_over_any_time_a_bucket_gives_no_more_than_it_may(steps: list[tuple[int, int]]) -> None:
    rate, burst = 10, 2
    bucket, now, taken = Bucket(rate, burst_seconds=burst), 0, 0
    for wanted, wait in steps:
        now += wait
        if bucket.take(wanted, now):
            taken += wanted
        # One request larger than the bucket may go beyond it, and is paid back.
        assert taken <= rate * burst + rate * now / SECOND + 50


def test_connections_are_counted_in_all_by_address_and_by_subject() -> None:
    settings = settings_for("memory:", connections_max=3, connections_per_client_max=2)
    connections = Connections(settings)
    connections.enter("10.0.0.1", "ann")
    connections.enter("10.0.0.2", "ann")
    with pytest.raises(LimitReached, match="This client"):
        connections.enter("10.0.0.3", "ann")
    connections.enter("10.0.0.1", "bob")
    with pytest.raises(LimitReached, match="The server"):
        connections.enter("10.0.0.4", "cyd")
    assert len(connections) == 3
    connections.leave("10.0.0.1", "ann")
    connections.enter("10.0.0.3", "ann")


def test_what_was_refused_is_not_counted() -> None:
    settings = settings_for("memory:", connections_per_client_max=1)
    connections = Connections(settings)
    connections.enter("10.0.0.1")
    for _ in range(3):
        with pytest.raises(LimitReached):
            connections.enter("10.0.0.1")
    connections.leave("10.0.0.1")
    connections.enter("10.0.0.1")


def test_address_and_subject_can_come_one_after_the_other() -> None:
    settings = settings_for("memory:", connections_per_client_max=1)
    connections = Connections(settings)
    connections.enter("10.0.0.1")
    connections.enter(None, "ann")
    assert len(connections) == 1
    with pytest.raises(LimitReached):
        connections.enter(None, "ann")
    connections.leave(None, "ann")
    connections.leave("10.0.0.1")
    assert len(connections) == 0


def test_those_who_left_are_forgotten() -> None:
    connections = Connections(settings_for("memory:"))
    for number in range(1000):
        connections.enter(f"10.0.{number // 256}.{number % 256}", f"s{number}")
        connections.leave(f"10.0.{number // 256}.{number % 256}", f"s{number}")
    assert not connections._by_client


def test_without_tokens_clients_are_told_apart_by_address_only() -> None:
    settings = settings_for("memory:", connections_per_client_max=1)
    connections = Connections(settings)
    connections.enter("10.0.0.1", ALL_ACCESS.subject)
    connections.enter("10.0.0.2", ALL_ACCESS.subject)


def test_a_customer_with_a_whole_ipv6_network_is_one_client() -> None:
    settings = settings_for("memory:", connections_per_client_max=1)
    connections = Connections(settings)
    connections.enter("2001:db8::1")
    with pytest.raises(LimitReached):
        connections.enter("2001:db8::ffff:2")
    connections.enter("2001:db8:0:1::1")
    connections.enter("::ffff:10.0.0.1")
    with pytest.raises(LimitReached):
        connections.enter("10.0.0.1")


def test_the_publish_rate_is_each_clients_own(clock: FakeClock) -> None:
    rates = PublishRates(settings_for("memory:", publish_rate_max=10), clock)
    ann, bob = Access("ann"), Access("bob")
    rates.check("10.0.0.1", ann, 30)
    with pytest.raises(RateLimited) as caught:
        rates.check("10.0.0.2", ann, 10)
    assert caught.value.hint == "Try again in 1 s."
    rates.check("10.0.0.1", bob, 30)
    clock.advance(1)
    rates.check("10.0.0.1", ann, 10)


def test_idle_clients_buckets_are_forgotten(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BUCKETS_MAX", 10)
    rates = PublishRates(settings_for("memory:", publish_rate_max=10), clock)
    for number in range(100):
        rates.check(None, Access(f"s{number}"), 1)
        assert len(rates._buckets) <= 11
    clock.advance(60)
    rates.check(None, Access("busy"), 30)
    for number in range(100):
        clock.advance(0.2)
        rates.check(None, Access(f"t{number}"), 1)
    assert len(rates._buckets) <= 11


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.9", [], "10.0.0.9"),
        ("8.8.8.8", ["1.1.1.1"], "8.8.8.8"),
        ("10.0.0.9", ["1.1.1.1"], "1.1.1.1"),
        ("10.0.0.9", ["6.6.6.6, 1.1.1.1"], "1.1.1.1"),
        ("10.0.0.9", ["6.6.6.6", "1.1.1.1, 10.0.0.7"], "1.1.1.1"),
        ("10.0.0.9", ["1.1.1.1:4711"], "1.1.1.1"),
        ("10.0.0.9", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.9", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.9", ["unknown"], "10.0.0.9"),
        ("10.0.0.9", ["1.1.1.1, nonsense"], "10.0.0.9"),
        ("::ffff:10.0.0.9", ["1.1.1.1"], "1.1.1.1"),
        ("10.0.0.9", ["10.0.0.1, 10.0.0.2"], "10.0.0.1"),
        (None, ["1.1.1.1"], ""),
    ],
)
def test_forwarded_addresses_are_believed_from_trusted_proxies_only(
    peer: str | None, forwarded: list[str], client: str
) -> None:
    assert Proxies(["10.0.0.0/8"]).client_address(peer, forwarded) == client


def test_a_proxy_that_is_no_address_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="trusted_proxies"):
        Proxies(["nginx"])
