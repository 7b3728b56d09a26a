"""litequeue: its README's loop of `pop` and `done`."""

from __future__ import annotations

import json
from typing import Any

from litequeue import LiteQueue

from bench.peers.counting import Countdown, for_seconds
from bench.process import Link, Meter
from bench.workload import PAYLOAD


def drain(link: Link, *, jobs: int, address: str = "") -> dict[str, Any]:
    queue = LiteQueue("litequeue.db")
    with queue.transaction():
        for _ in range(jobs):
            queue.put(json.dumps(PAYLOAD))
    done = Countdown(jobs)
    link.ready()
    link.wait_go()
    while (message := queue.pop()) is not None:
        json.loads(message.data)
        claim = getattr(message, "claim_id", None)  # Since 0.13, for Python 3.12 and newer.
        queue.done(message.message_id, **({} if claim is None else {"claim_id": claim}))
        done.count()
    return done.result()


def enqueue(link: Link, *, seconds: float, address: str = "") -> dict[str, Any]:
    queue = LiteQueue("litequeue.db")
    link.ready()
    link.wait_go()
    with Meter() as meter:
        added = for_seconds(seconds, lambda: queue.put(json.dumps(PAYLOAD)))
    return {"per_second": added / meter.seconds, "cores": meter.cores}
