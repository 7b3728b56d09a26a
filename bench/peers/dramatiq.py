"""dramatiq on Redis: one worker process with its eight threads."""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.counting import Countdown, for_seconds
from bench.process import Link, Meter
from bench.workload import PAYLOAD

THREADS = 8
"""The default of its command line."""
PREFETCH_TUNED = 1_000
"""Instead of two for each thread, as `dramatiq_queue_prefetch` in the environment would have it."""


def drain(link: Link, *, jobs: int, address: str = "", is_tuned: bool = False) -> dict[str, Any]:
    broker, nothing, done = make(address, jobs)
    for _ in range(jobs):
        nothing.send(PAYLOAD)
    worker = dramatiq.Worker(broker, worker_threads=THREADS)
    if is_tuned:
        worker.queue_prefetch = PREFETCH_TUNED
    link.ready()
    link.wait_go()
    worker.start()
    found = done.wait()
    worker.stop()
    broker.close()
    return found


def enqueue(link: Link, *, seconds: float, address: str = "") -> dict[str, Any]:
    broker, nothing, _ = make(address, 1)
    nothing.send(PAYLOAD)
    link.ready()
    link.wait_go()
    with Meter() as meter:
        added = for_seconds(seconds, lambda: nothing.send(PAYLOAD))
    broker.close()
    return {"per_second": added / meter.seconds, "cores": meter.cores}


def make(address: str, jobs: int) -> tuple[RedisBroker, Any, Countdown]:
    broker = RedisBroker(url=f"unix://{address}")
    dramatiq.set_broker(broker)
    done = Countdown(jobs)

    @dramatiq.actor
    def nothing(payload: dict[str, Any]) -> None:
        done.count()

    return broker, nothing, done
