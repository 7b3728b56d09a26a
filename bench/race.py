"""Durable publishing against Redis Streams, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from bench.arena import Arena
from bench.figures import Figure, show
from bench.peers.redis import RedisServer
from bench.process import call
from bench.publish import IN_FLIGHT
from bench.workload import Sizes

REDIS_IN_FLIGHT = 50
FLOORS = {
    "bare_group_commit_per_s": ("bare", "no topics, no receipts, no index, no retention, no wake"),
    "bare_publish_per_s": ("topic", "no checks, no options, no errors, no threads, no figures"),
}


def against_redis(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    needs_ratio = "ratio_publish_vs_redis_always" in wanted
    needs_ours = needs_ratio or "publish_inflight100_per_s" in wanted
    needs_theirs = needs_ratio or "redis_always_per_s" in wanted
    floors: dict[str, list[dict[str, Any]]] = {key: [] for key in FLOORS if key in wanted}
    timing = {"seconds": sizes.seconds, "warm_up_seconds": sizes.warm_up_seconds}
    for _ in range(sizes.runs):
        if needs_ours:
            with arena.fresh() as folder:
                ours.append(call("bench.publish:in_flight", folder, tasks=IN_FLIGHT, **timing))
        for key, runs in floors.items():
            with arena.fresh() as folder:
                log, _ = FLOORS[key]
                peer = "bench.peers.group_commit:in_flight"
                runs.append(call(peer, folder, log=log, tasks=IN_FLIGHT, **timing))
        if needs_theirs:
            with arena.fresh() as folder, RedisServer(folder, fsync="always") as server:
                found = call(
                    "bench.peers.redis:in_flight",
                    folder,
                    socket=str(server.socket),
                    tasks=REDIS_IN_FLIGHT,
                    **timing,
                )
                theirs.append(found | {"server_cores": server.cores_used(found["seconds"])})
    if ours:
        group = statistics.median(run["messages_per_commit"] for run in ours)
        cores = statistics.median(run["cores"] for run in ours)
        yield Figure.of(
            "publish_inflight100_per_s",
            [run["per_second"] for run in ours],
            f"{show(group)} messages per commit; tasks and committer share one process, "
            f"{cores:.2f} cores busy, so the tasks' own cost is in the figure",
        )
    if theirs:
        client = statistics.median(run["cores"] for run in theirs)
        server_cores = statistics.median(run["server_cores"] for run in theirs)
        yield Figure.of(
            "redis_always_per_s",
            [run["per_second"] for run in theirs],
            f"Unix socket, {REDIS_IN_FLIGHT} connections; client {client:.2f} cores, server "
            f"{server_cores:.2f}: the client is part of the comparison, as its users have it",
        )
    for key, runs in floors.items():
        _, note = FLOORS[key]
        if theirs:
            ratios = [f["per_second"] / t["per_second"] for f, t in zip(runs, theirs, strict=True)]
            note += f"; {statistics.median(ratios):.1f} times Redis in the same runs"
        yield Figure.of(key, [run["per_second"] for run in runs], note)
    if ours and theirs:
        pairs = zip(ours, theirs, strict=True)
        yield Figure.of(
            "ratio_publish_vs_redis_always",
            [mine["per_second"] / other["per_second"] for mine, other in pairs],
            "run by run, in turns",
        )
