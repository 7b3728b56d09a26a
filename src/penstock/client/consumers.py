"""`hub.consumers` and `hub.aio.consumers` of a remote hub."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.client.exchange import Exchange
from penstock.client.portal import Portal
from penstock.client.replies import ConsumerReply, ConsumersReply, RemovedReply
from penstock.client.rest import path
from penstock.errors import ConsumerNotFound, InvalidInput
from penstock.model import Consumer, Lag, Pattern, Position, Start, check_name


class AsyncRemoteConsumers:
    def __init__(self, open_exchange: Callable[[], Exchange]) -> None:
        self._open = open_exchange

    async def list(self, name: str | None = None) -> list[Consumer]:
        return [consumer.as_consumer() for consumer in await self._find(name)]

    async def get(self, name: str, subscription: str) -> Consumer:
        return (await self._one(name, subscription)).as_consumer()

    async def lag(self, name: str, subscription: str) -> Lag:
        return (await self._one(name, subscription)).as_lag()

    async def seek(self, name: str, subscription: str, to: Position | Start) -> Consumer:
        """Set the watermark by hand, also back. Nobody may be following under the name."""
        Pattern.parse(subscription)
        if not isinstance(to, Position) and to not in ("latest", "earliest"):
            raise InvalidInput(
                f"A consumer is moved to a position, 'latest' or 'earliest', not to {to!r}."
            )
        body = await self._open().rest.call(
            "POST",
            path("consumers", check_name(name, "consumer name"), "reset"),
            body={"topic": subscription, "to": str(to)},
        )
        return msgspec.json.decode(body, type=ConsumerReply).as_consumer()

    async def delete(self, name: str, subscription: str | None = None) -> int:
        """Forget the consumer, on one subscription or on all. Returns how many watermarks."""
        body = await self._open().rest.call(
            "DELETE",
            path("consumers", check_name(name, "consumer name")),
            parameters={"topic": subscription},
        )
        return msgspec.json.decode(body, type=RemovedReply).removed

    async def _find(self, name: str | None) -> builtins.list[ConsumerReply]:
        body = await self._open().rest.call("GET", path("consumers"))
        found = msgspec.json.decode(body, type=ConsumersReply).consumers
        return [consumer for consumer in found if name in (None, consumer.name)]

    async def _one(self, name: str, subscription: str) -> ConsumerReply:
        for consumer in await self._find(name):
            if consumer.subscription == subscription:
                return consumer
        raise ConsumerNotFound(f"There is no consumer {name!r} on {subscription!r}.")


class RemoteConsumers:
    """The same, for threads."""

    def __init__(
        self, bridge: Callable[[], tuple[Portal, Any]], coroutines: AsyncRemoteConsumers
    ) -> None:
        self._bridge = bridge
        self._aio = coroutines

    def list(self, name: str | None = None) -> list[Consumer]:
        portal, _ = self._bridge()
        return portal.run(self._aio.list(name))

    def get(self, name: str, subscription: str) -> Consumer:
        portal, _ = self._bridge()
        return portal.run(self._aio.get(name, subscription))

    def lag(self, name: str, subscription: str) -> Lag:
        portal, _ = self._bridge()
        return portal.run(self._aio.lag(name, subscription))

    def seek(self, name: str, subscription: str, to: Position | Start) -> Consumer:
        """Set the watermark by hand, also back. Nobody may be following under the name."""
        portal, _ = self._bridge()
        return portal.run(self._aio.seek(name, subscription, to))

    def delete(self, name: str, subscription: str | None = None) -> int:
        """Forget the consumer, on one subscription or on all. Returns how many watermarks."""
        portal, _ = self._bridge()
        return portal.run(self._aio.delete(name, subscription))
