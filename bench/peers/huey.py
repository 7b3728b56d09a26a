"""huey on SQLite, as its guide has it: `SqliteHuey`, and a consumer with threads."""

from __future__ import annotations

from typing import Any

from huey import SqliteHuey

from bench.peers.counting import Countdown, for_seconds
from bench.process import Link, Meter
from bench.workload import PAYLOAD

THREADS = 1
"""The consumer's default. More make it slower: they wait for each other's exclusive lock."""


def drain(link: Link, *, jobs: int, address: str = "") -> dict[str, Any]:
    huey = SqliteHuey(filename="huey.db")
    done = Countdown(jobs)

    @huey.task()  # type: ignore[untyped-decorator]
    def nothing(payload: dict[str, Any]) -> None:
        done.count()

    for _ in range(jobs):
        nothing(PAYLOAD)
    consumer = huey.create_consumer(workers=THREADS, periodic=False)
    link.ready()
    link.wait_go()
    consumer.start()
    found = done.wait()
    consumer.stop(graceful=True)
    return found


def enqueue(link: Link, *, seconds: float, address: str = "") -> dict[str, Any]:
    huey = SqliteHuey(filename="huey.db")

    @huey.task()  # type: ignore[untyped-decorator]
    def nothing(payload: dict[str, Any]) -> None:
        pass

    nothing(PAYLOAD)
    link.ready()
    link.wait_go()
    with Meter() as meter:
        added = for_seconds(seconds, lambda: nothing(PAYLOAD))
    return {"per_second": added / meter.seconds, "cores": meter.cores}
