"""Writers, pollers, listeners and a reader: the processes of the load tests."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import penstock
from bench.process import Link, Meter
from bench.workload import PAYLOAD, TYPE, url
from penstock.topics.subscription import Live

PROCESSES = 2
THREADS = 5
PER_SECOND = 100
TOPICS = 50
POLL_MS = 50.0
POLL_LIMIT = 100
# Everybody starts the clock so long after being told to, so that nobody is late at once.
LEAD_SECONDS = 0.1
# A subscriber has all there is when nothing came for so long after the last writer ended.
SILENCE_SECONDS = 0.5


def writers(link: Link, *, first: int, seconds: float) -> dict[str, Any]:
    """Threads that publish on a schedule, whether or not they are late, over all topics in turn."""
    count = round(seconds * PER_SECOND)
    taken: list[float] = []
    calls: list[float] = []
    with penstock.connect(url(Path.cwd())) as hub:
        hub.topics.list()

        def write(number: int) -> None:
            for turn in range(count):
                due = start + (turn + (number % THREADS) / THREADS) / PER_SECOND
                time.sleep(max(0.0, due - time.monotonic()))
                topic = f"topic-{(turn * PROCESSES * THREADS + number) % TOPICS}"
                called = time.monotonic()
                hub.topics.publish(topic, {**PAYLOAD, "due": due}, type=TYPE)
                done = time.monotonic()
                taken.append((done - due) * 1000)
                calls.append((done - called) * 1000)

        link.ready()
        link.wait_go()
        start = time.monotonic() + LEAD_SECONDS
        threads = [threading.Thread(target=write, args=(first + n,)) for n in range(THREADS)]
        with Meter() as meter:
            _run_all(threads)
    return {
        "taken_ms": taken,
        "calls_ms": calls,
        "seconds": meter.seconds - LEAD_SECONDS,
        "cores": meter.cores,
    }


def pollers(link: Link, *, topics: list[str], seconds: float) -> dict[str, Any]:
    """A thread for each topic that reads what is new on a schedule."""
    rounds = round(seconds * 1000 / POLL_MS)
    taken: list[float] = []
    found: list[int] = []
    with penstock.connect(url(Path.cwd())) as hub:
        origin = hub.topics.position()

        def poll(number: int, topic: str) -> None:
            position = origin
            for turn in range(rounds):
                due = start + (turn + number / len(topics)) * POLL_MS / 1000
                time.sleep(max(0.0, due - time.monotonic()))
                called = time.monotonic()
                messages = hub.topics.read(topic, after=position, limit=POLL_LIMIT)
                taken.append((time.monotonic() - called) * 1000)
                found.append(len(messages))
                if messages:
                    position = messages[-1].position

        link.ready()
        link.wait_go()
        start = time.monotonic() + LEAD_SECONDS
        threads = [
            threading.Thread(target=poll, args=(number, topic))
            for number, topic in enumerate(topics)
        ]
        with Meter() as meter:
            _run_all(threads)
    return {
        "taken_ms": taken,
        "messages": sum(found),
        "seconds": meter.seconds - LEAD_SECONDS,
        "cores": meter.cores,
    }


def listener(link: Link, *, patterns: list[str]) -> dict[str, Any]:
    """A thread for each subscription; what comes is stamped. Told to stop, it takes the rest."""
    delays: list[float] = []
    with penstock.connect(url(Path.cwd())) as hub:
        subscriptions = [hub.topics.subscribe(pattern) for pattern in patterns]
        for live in subscriptions:
            live.get(timeout=0)

        def listen(live: Live) -> None:
            while True:
                message = live.get(timeout=SILENCE_SECONDS)
                if message is not None:
                    now = time.monotonic()
                    delays.append((now - message.payload["due"]) * 1000)
                elif is_over.is_set():
                    return

        is_over = threading.Event()
        threads = [threading.Thread(target=listen, args=(live,)) for live in subscriptions]
        for thread in threads:
            thread.start()
        link.ready()
        link.wait_go()
        link.watch()
        link.stopping.wait()
        is_over.set()
        for thread in threads:
            thread.join()
        for live in subscriptions:
            live.close()
    return {"delays_ms": delays}


def reader(link: Link, *, topics: int, log: int, seconds: float) -> dict[str, Any]:
    """Reads one message after the other, then many at once, from a log of so many messages."""
    names = [f"topic-{number}" for number in range(topics)]
    with penstock.connect(url(Path.cwd())) as hub:
        for name in names:
            hub.topics.publish_many(name, [PAYLOAD] * (log // topics), type=TYPE)
        link.ready()
        link.wait_go()
        with Meter() as one:
            reads = _read_for(hub, names, seconds, limit=1)[0]
        with Meter() as many:
            messages = _read_for(hub, names, seconds, limit=500)[1]
    return {
        "reads_per_second": reads / one.seconds,
        "messages_per_second": messages / many.seconds,
        "cores": one.cores,
    }


def _read_for(
    hub: penstock.Hub, names: list[str], seconds: float, *, limit: int
) -> tuple[int, int]:
    origin = penstock.Position(hub.topics.position().epoch, 0)
    deadline = time.monotonic() + seconds
    positions = dict.fromkeys(names, origin)
    reads = count = 0
    while True:
        for name in names:
            if time.monotonic() >= deadline:
                return reads, count
            messages = hub.topics.read(name, after=positions[name], limit=limit)
            reads += 1
            count += len(messages)
            positions[name] = messages[-1].position if messages else origin


def _run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
