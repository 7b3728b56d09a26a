"""What an open hub adds to a process."""

from __future__ import annotations

import asyncio
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import penstock
from bench.figures import Figure, show
from bench.process import Link, call
from bench.publish import IN_FLIGHT, publish_so_many
from bench.workload import PAYLOAD, url

if TYPE_CHECKING:
    from bench.arena import Arena
    from bench.workload import Sizes

FOLLOW_SECONDS = 60.0


def of_a_hub(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    runs = []
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            runs.append(
                call("bench.memory:publish_and_follow", folder, messages=sizes.memory_messages)
            )
    before = statistics.median(run["before_mb"] for run in runs)
    private = statistics.median(run["private_mb"] for run in runs)
    peak = statistics.median(run["peak_mb"] for run in runs)
    yield Figure.of(
        "rss_overhead_mb",
        [run["overhead_mb"] for run in runs],
        f"above {show(before)} MB of Python with penstock imported; {show(private)} MB of it "
        f"private, the rest mapped files; {show(peak)} MB at the peak; "
        f"{show(sizes.memory_messages)} messages published and followed",
    )


def publish_and_follow(link: Link, *, messages: int) -> dict[str, Any]:
    """Resident memory before the hub opens, and after so many messages went through it."""
    msgspec.json.decode(msgspec.json.encode(PAYLOAD))
    link.ready()
    link.wait_go()
    before = status()
    with penstock.connect(url(Path.cwd())) as hub:
        follower = hub.topics.follow("bench", consumer="bench", start="earliest")
        followed = 0

        def follow() -> None:
            nonlocal followed
            while followed < messages:
                batch = follower.take(timeout=FOLLOW_SECONDS)
                assert batch, f"{followed} of {messages} messages came"
                followed += len(batch)
            follower.commit()

        following = threading.Thread(target=follow)
        following.start()
        asyncio.run(publish_so_many(hub, IN_FLIGHT, messages))
        following.join()
        assert followed == messages
        after = status()
        follower.close()
    return {
        "before_mb": before["VmRSS"],
        "overhead_mb": after["VmRSS"] - before["VmRSS"],
        "private_mb": after["RssAnon"] - before["RssAnon"],
        "peak_mb": after["VmHWM"] - before["VmRSS"],
    }


def status() -> dict[str, float]:
    """Megabytes, by the names of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(kilobytes) / 1024 for name, kilobytes, _ in fields}
