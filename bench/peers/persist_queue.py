"""persist-queue: `SQLiteAckQueue`, its queue for work that must not be lost."""

from __future__ import annotations

from typing import Any

import persistqueue

from bench.peers.counting import Countdown, for_seconds
from bench.process import Link, Meter
from bench.workload import PAYLOAD


def open_queue() -> Any:
    return persistqueue.SQLiteAckQueue("persist-queue", auto_commit=True)


def drain(link: Link, *, jobs: int, address: str = "") -> dict[str, Any]:
    queue = open_queue()
    for _ in range(jobs):
        queue.put(PAYLOAD)
    done = Countdown(jobs)
    link.ready()
    link.wait_go()
    for _ in range(jobs):
        queue.ack(queue.get())
        done.count()
    queue.close()
    return done.result()


def enqueue(link: Link, *, seconds: float, address: str = "") -> dict[str, Any]:
    queue = open_queue()
    link.ready()
    link.wait_go()
    with Meter() as meter:
        added = for_seconds(seconds, lambda: queue.put(PAYLOAD))
    queue.close()
    return {"per_second": added / meter.seconds, "cores": meter.cores}
