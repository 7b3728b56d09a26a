"""procrastinate on PostgreSQL, through psycopg's pool."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import procrastinate

from bench.peers.counting import Countdown
from bench.process import Link, Meter
from bench.workload import PAYLOAD

CONCURRENCY = 100
CONNECTIONS = 20
"""Of its pool. More than a machine of two cores has use for make it slower."""
IN_FLIGHT = 100
FILL_BATCH = 500


def drain(link: Link, *, jobs: int, address: str = "") -> dict[str, Any]:
    done = Countdown(jobs)

    async def run() -> dict[str, Any]:
        app = make(address)

        @app.task(name="nothing")
        async def nothing(payload: dict[str, Any]) -> None:
            done.count()

        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            for start in range(0, jobs, FILL_BATCH):
                count = min(FILL_BATCH, jobs - start)
                await nothing.batch_defer_async(*([{"payload": PAYLOAD}] * count))
            link.ready()
            link.wait_go()
            await app.run_worker_async(
                concurrency=CONCURRENCY, wait=False, install_signal_handlers=False
            )
        return done.result()

    return asyncio.run(run())


def enqueue(link: Link, *, seconds: float, address: str = "") -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        app = make(address)

        @app.task(name="nothing")
        async def nothing(payload: dict[str, Any]) -> None:
            pass

        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            link.ready()
            link.wait_go()
            until = time.perf_counter() + seconds

            async def add() -> int:
                added = 0
                while not added or time.perf_counter() < until:
                    await nothing.defer_async(payload=PAYLOAD)
                    added += 1
                return added

            with Meter() as meter:
                added = sum(await asyncio.gather(*(add() for _ in range(IN_FLIGHT))))
        return {"per_second": added / meter.seconds, "cores": meter.cores}

    return asyncio.run(run())


def make(address: str) -> procrastinate.App:
    connector = procrastinate.PsycopgConnector(
        conninfo=address, min_size=CONNECTIONS, max_size=CONNECTIONS
    )
    return procrastinate.App(connector=connector)
