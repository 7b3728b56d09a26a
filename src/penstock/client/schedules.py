"""`hub.schedules` and `hub.aio.schedules` of a remote hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.client.exchange import Exchange
from penstock.client.job_values import (
    RemoteEnqueued,
    RemoteSchedule,
    RemoteScheduleList,
    given,
    load_of,
)
from penstock.client.portal import Portal
from penstock.client.rest import path
from penstock.job import Enqueued, Missed, Schedule
from penstock.model import check_name


class AsyncRemoteSchedules:
    def __init__(self, open_exchange: Callable[[], Exchange]) -> None:
        self._open = open_exchange

    async def put(
        self,
        name: str,
        cron: str,
        queue: str,
        type: str,
        payload: Any = None,
        *,
        timezone: str = "UTC",
        missed: Missed = "latest",
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: float | None = None,
    ) -> Schedule:
        """Make a schedule, or change it."""
        exchange = self._open()
        body = given(
            cron=cron,
            queue=queue,
            type=type,
            timezone=timezone,
            missed=missed,
            priority=priority,
            max_attempts=max_attempts,
            timeout=timeout,
        )
        load = load_of(payload, exchange.settings)
        where = path("schedules", check_name(name, "schedule name"))
        answer = await exchange.rest.call("PUT", where, body=body | load)
        return msgspec.json.decode(answer, type=RemoteSchedule).as_schedule()

    async def get(self, name: str) -> Schedule:
        answer = await self._open().rest.call("GET", self._path(name))
        return msgspec.json.decode(answer, type=RemoteSchedule).as_schedule()

    async def list(self) -> list[Schedule]:
        answer = await self._open().rest.call("GET", path("schedules"))
        found = msgspec.json.decode(answer, type=RemoteScheduleList).schedules
        return [one.as_schedule() for one in found]

    async def pause(self, name: str) -> None:
        """No ticks until `resume`; those in between are not made up for."""
        await self._open().rest.call("POST", self._path(name, "pause"))

    async def resume(self, name: str) -> None:
        await self._open().rest.call("POST", self._path(name, "resume"))

    async def remove(self, name: str) -> None:
        await self._open().rest.call("DELETE", self._path(name))

    async def run_now(self, name: str) -> Enqueued:
        """Enqueue its job once, beside its ticks; also while it is paused."""
        answer = await self._open().rest.call("POST", self._path(name, "run"))
        return msgspec.json.decode(answer, type=RemoteEnqueued).as_enqueued()

    def _path(self, name: str, *more: str) -> str:
        return path("schedules", check_name(name, "schedule name"), *more)


class RemoteSchedules:
    """The same, for threads."""

    def __init__(
        self, bridge: Callable[[], tuple[Portal, Any]], coroutines: AsyncRemoteSchedules
    ) -> None:
        self._bridge = bridge
        self._aio = coroutines

    def put(
        self,
        name: str,
        cron: str,
        queue: str,
        type: str,
        payload: Any = None,
        *,
        timezone: str = "UTC",
        missed: Missed = "latest",
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: float | None = None,
    ) -> Schedule:
        """Make a schedule, or change it."""
        portal, _ = self._bridge()
        return portal.run(
            self._aio.put(
                name,
                cron,
                queue,
                type,
                payload,
                timezone=timezone,
                missed=missed,
                priority=priority,
                max_attempts=max_attempts,
                timeout=timeout,
            )
        )

    def get(self, name: str) -> Schedule:
        portal, _ = self._bridge()
        return portal.run(self._aio.get(name))

    def list(self) -> list[Schedule]:
        portal, _ = self._bridge()
        return portal.run(self._aio.list())

    def pause(self, name: str) -> None:
        """No ticks until `resume`; those in between are not made up for."""
        portal, _ = self._bridge()
        portal.run(self._aio.pause(name))

    def resume(self, name: str) -> None:
        portal, _ = self._bridge()
        portal.run(self._aio.resume(name))

    def remove(self, name: str) -> None:
        portal, _ = self._bridge()
        portal.run(self._aio.remove(name))

    def run_now(self, name: str) -> Enqueued:
        """Enqueue its job once, beside its ticks; also while it is paused."""
        portal, _ = self._bridge()
        return portal.run(self._aio.run_now(name))
