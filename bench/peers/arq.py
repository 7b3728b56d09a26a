"""arq on Redis: one worker with the concurrency that penstock's has.

It needs an older redis-py than the rest, so it lives in a folder of its own: `install()` makes it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.peers.counting import Countdown
from bench.process import Link, Meter
from bench.workload import PAYLOAD

LOCK = Path(__file__).with_name("arq.lock")
CONCURRENCY = 100
IN_FLIGHT = 100
CONNECTIONS_MAX = 1_000
FILL_TASKS = 50


def install(folder: Path) -> Path:
    """Where arq is, below this folder; installed there when it is first asked for."""
    found = folder / "arq"
    if not (found / "arq").is_dir():
        quiet = ["-qq", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        command = [sys.executable, "-m", "pip", "install", *quiet]
        subprocess.run([*command, "--target", str(found), "-r", str(LOCK)], check=True)
    return found


def drain(link: Link, *, jobs: int, address: str = "", home: str) -> dict[str, Any]:
    sys.path.insert(0, home)
    from arq import worker

    done = Countdown(jobs)

    async def nothing(context: dict[str, Any], payload: dict[str, Any]) -> None:
        done.count()

    async def run() -> dict[str, Any]:
        pool = await connect(address)

        async def add(count: int) -> None:
            for _ in range(count):
                await pool.enqueue_job("nothing", PAYLOAD)

        shares = [len(range(n, jobs, FILL_TASKS)) for n in range(FILL_TASKS)]
        await asyncio.gather(*(add(share) for share in shares))
        link.ready()
        link.wait_go()
        crew = worker.Worker(
            functions=[worker.func(nothing, name="nothing")],
            redis_pool=pool,
            max_jobs=CONCURRENCY,
            burst=True,
            handle_signals=False,
        )
        await crew.async_run()
        await crew.close()
        return done.result()

    return asyncio.run(run())


def enqueue(link: Link, *, seconds: float, address: str = "", home: str) -> dict[str, Any]:
    sys.path.insert(0, home)

    async def run() -> dict[str, Any]:
        pool = await connect(address)
        await pool.enqueue_job("nothing", PAYLOAD)
        link.ready()
        link.wait_go()
        until = time.perf_counter() + seconds

        async def add() -> int:
            added = 0
            while not added or time.perf_counter() < until:
                await pool.enqueue_job("nothing", PAYLOAD)
                added += 1
            return added

        with Meter() as meter:
            added = sum(await asyncio.gather(*(add() for _ in range(IN_FLIGHT))))
        await pool.aclose()
        return {"per_second": added / meter.seconds, "cores": meter.cores}

    return asyncio.run(run())


async def connect(address: str) -> Any:
    from arq import connections

    settings = connections.RedisSettings(
        unix_socket_path=address, max_connections=CONNECTIONS_MAX, retry_on_timeout=True
    )
    return await connections.create_pool(settings)


def locked_version() -> str:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return next(line.split()[0].partition("==")[2] for line in lines if line.startswith("arq=="))
