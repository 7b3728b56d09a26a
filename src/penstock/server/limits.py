"""What one client may take: connections, and messages a second.

Clients are told apart by their address and by their token's subject. An address behind a proxy
comes from X-Forwarded-For, which anybody can send: it is believed only from `trusted_proxies`.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from penstock.clock import Clock
from penstock.delivery.access import ALL_ACCESS, Access
from penstock.delivery.limits import Bucket
from penstock.errors import InvalidSettings, LimitReached, RateLimited
from penstock.settings import Settings

IPV6_CLIENT_BITS = 64
"""What a provider hands out to one customer: counting single addresses would count nothing."""
BUCKETS_MAX = 10_000

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Connections:
    """Counts what is open: in all, by address, by subject. On the event loop's thread.

    A socket enters with its address when it is accepted, and with its subject when it has shown
    its token; each part is counted when it is given, and left in the same way.
    """

    def __init__(self, settings: Settings) -> None:
        self._max = settings.connections_max
        self._per_client_max = settings.connections_per_client_max
        self._open = 0
        self._by_client: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return self._open

    def enter(self, address: str | None, subject: str | None = None) -> None:
        """Count one more, or raise `LimitReached` and count nothing."""
        clients = _clients(address, subject)
        if address is not None and self._open >= self._max:
            raise LimitReached("The server has as many connections as it may.")
        if any(self._by_client[client] >= self._per_client_max for client in clients):
            raise LimitReached("This client has as many connections as it may.")
        self._open += address is not None
        for client in clients:
            self._by_client[client] += 1

    def leave(self, address: str | None, subject: str | None = None) -> None:
        """What entered with the same arguments is gone."""
        self._open -= address is not None
        for client in _clients(address, subject):
            self._by_client[client] -= 1
            if self._by_client[client] <= 0:
                # Not kept: who only looks in once must not grow this for ever.
                del self._by_client[client]
        assert self._open >= 0


class PublishRates:
    """A bucket for each client that publishes over HTTP, where there is no session to hold it."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._rate = settings.publish_rate_max
        self._clock = clock
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def check(self, address: str | None, access: Access, messages: int) -> None:
        """Raises `RateLimited`, which says when to come again."""
        now = self._clock.monotonic()
        client = (_clients(None, access.subject) or _clients(address or "", None))[0]
        bucket = self._buckets.get(client)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._forget(now)
            bucket = self._buckets[client] = Bucket(self._rate)
        if not bucket.take(messages, now):
            wait = max(1, math.ceil(bucket.wait_seconds(messages, now)))
            raise RateLimited(
                f"More than {self._rate:,} messages a second.", hint=f"Try again in {wait} s."
            )

    def _forget(self, now: int) -> None:
        """A full bucket says no more than none; if all are in use, the oldest half goes."""
        kept = {c: b for c, b in self._buckets.items() if not b.is_full(now)}
        if len(kept) >= BUCKETS_MAX:
            kept = dict(list(kept.items())[BUCKETS_MAX // 2 :])
        self._buckets = kept


class Proxies:
    """The proxies whose word about addresses is taken."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._networks: list[Network] = []
        for text in trusted:
            try:
                self._networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError:
                raise InvalidSettings(
                    f"{text!r} in trusted_proxies is neither an address nor a network.",
                    hint="Such as 127.0.0.1 or 10.0.0.0/8.",
                ) from None

    def client_address(self, peer: str | None, forwarded_for: Sequence[str]) -> str:
        """Where a request comes from: the last hop that is no trusted proxy.

        `forwarded_for` are the X-Forwarded-For headers in order. Each proxy appends whom it
        heard from, so only what trusted ones appended can be believed: read from the end.
        """
        client = peer or ""
        hops = [hop.strip() for header in forwarded_for for hop in header.split(",")]
        while hops and self.is_trusted(client):
            hop = _without_port(hops.pop())
            if hop is None:
                break  # Not an address: the proxy itself is as much as is known.
            client = hop
        return client

    def is_trusted(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
            found = found.ipv4_mapped
        return any(found in network for network in self._networks)


def _clients(address: str | None, subject: str | None) -> list[tuple[str, str]]:
    """What is counted. Without tokens everybody has one subject, which tells nobody apart."""
    found: list[tuple[str, str]] = []
    if address is not None:
        found.append(("address", _client_network(address)))
    if subject and subject != ALL_ACCESS.subject:
        found.append(("subject", subject))
    return found


@lru_cache(maxsize=16_384)
def _client_network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_CLIENT_BITS), strict=False))


def _without_port(hop: str) -> str | None:
    """`10.0.0.1`, `10.0.0.1:4711`, `::1` or `[::1]:4711` as an address, else None."""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    try:
        return str(ipaddress.ip_address(hop))
    except ValueError:
        return None
