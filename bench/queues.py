"""Job queues against each other: draining and enqueueing, each as its own docs advise.

Every queue gets the same payload and a process of its own. Others are timed from their first job
to their last; penstock from the start of its workers until the last answer is on disk.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench import machine
from bench.figures import Figure, show
from bench.peers import arq, postgres
from bench.peers.postgres import PostgresServer
from bench.peers.redis import RedisServer
from bench.process import call

if TYPE_CHECKING:
    from bench.arena import Arena
    from bench.jobs import Sizes


@dataclass(frozen=True)
class Peer:
    """A queue that others have, and how it is used here."""

    name: str
    package: str
    server: Literal["redis", "postgres"] | None
    how: str

    @property
    def module(self) -> str:
        return f"bench.peers.{self.name}"

    def key(self, what: str) -> str:
        return f"{self.name}_{what}_per_s"

    def version(self) -> str:
        if self.name == "arq":
            return arq.locked_version()
        return metadata.version(self.package)

    def described(self) -> str:
        servers = {
            "redis": lambda: f" on Redis {machine.redis_server_version()}",
            "postgres": lambda: f" on PostgreSQL {postgres.version()}",
        }
        found = "" if self.server is None else servers[self.server]()
        return f"{self.package} {self.version()}{found}"


PEERS = (
    Peer(
        "huey",
        "huey",
        None,
        "`SqliteHuey` with its defaults; one consumer process with one thread, which is its "
        "default and its fastest on SQLite; no results are kept, as for any task that returns None",
    ),
    Peer(
        "litequeue",
        "litequeue",
        None,
        "`LiteQueue` with its defaults (`synchronous=NORMAL`); one thread pops and marks done; it "
        "gets slower with the length of the queue",
    ),
    Peer(
        "persist_queue",
        "persist-queue",
        None,
        "`SQLiteAckQueue` with `auto_commit=True`; one thread gets and acknowledges",
    ),
    Peer(
        "dramatiq",
        "dramatiq",
        "redis",
        "`RedisBroker`, default middleware, one worker process with its 8 threads; Redis as "
        "shipped, which is without an append-only file, over a Unix socket",
    ),
    Peer(
        "arq",
        "arq",
        "redis",
        "one worker with `max_jobs=100` in burst mode, else defaults; Redis as for dramatiq",
    ),
    Peer(
        "procrastinate",
        "procrastinate",
        "postgres",
        "one worker with `concurrency=100`, a pool of 20 connections; PostgreSQL with its "
        "defaults, so fsynced, over a Unix socket",
    ),
)

TUNED = {
    "dramatiq": "`dramatiq_queue_prefetch=1000` instead of 16",
}
"""Settings that their docs name and do not advise, and that make them faster here. (Looking more
often does not make arq faster.)"""


def draining(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    ours: list[dict[str, Any]] = []
    relaxed: list[dict[str, Any]] = []
    theirs: dict[str, list[float]] = {peer.name: [] for peer in PEERS}
    tuned: dict[str, list[float]] = {peer.name: [] for peer in PEERS if peer.name in TUNED}
    for _ in range(sizes.runs):
        for runs, durability in ((ours, "full"), (relaxed, "os")):
            with arena.fresh() as folder:
                runs.append(_drain(folder, sizes, durability))
        for peer in PEERS:
            theirs[peer.name].append(_measure(arena, peer, "drain", jobs=sizes.peer_jobs))
            if peer.name in tuned:
                found = _measure(arena, peer, "drain", jobs=sizes.peer_jobs, is_tuned=True)
                tuned[peer.name].append(found)
    for key, runs in (("drain_per_s", ours), ("drain_os_per_s", relaxed)):
        cpu = statistics.median(run["cpu_us"] for run in runs)
        group = statistics.median(run["jobs_per_commit"] for run in runs)
        yield Figure.of(
            key,
            [run["per_second"] for run in runs],
            f"{show(sizes.drain_jobs)} jobs; {show(cpu)} µs of processor time and "
            f"{1 / group:.3f} commits a job; until the last answer is written",
        )
    yield from _against("drain", [run["per_second"] for run in ours], theirs)
    for name, rates in tuned.items():
        mine = statistics.median(run["per_second"] for run in ours)
        ratio = mine / statistics.median(rates)
        yield Figure.of(
            f"{name}_tuned_drain_per_s", rates, f"penstock drains {ratio:.1f} times as fast"
        )


def enqueueing(arena: Arena, sizes: Sizes, wanted: set[str]) -> Iterator[Figure]:
    ours: list[dict[str, Any]] = []
    theirs: dict[str, list[float]] = {peer.name: [] for peer in PEERS}
    for _ in range(sizes.runs):
        with arena.fresh() as folder:
            ours.append(
                call(
                    "bench.drain:in_flight",
                    folder,
                    tasks=100,
                    seconds=sizes.seconds,
                    warm_up_seconds=sizes.warm_up_seconds,
                )
            )
        for peer in PEERS:
            theirs[peer.name].append(_measure(arena, peer, "enqueue", seconds=sizes.seconds))
    cpu = statistics.median(run["cpu_us"] for run in ours)
    group = statistics.median(run["jobs_per_commit"] for run in ours)
    yield Figure.of(
        "enqueue_inflight100_per_s",
        [run["per_second"] for run in ours],
        f"{show(group)} jobs per commit; {show(cpu)} µs of processor time a job, tasks included",
    )
    yield from _against("enqueue", [run["per_second"] for run in ours], theirs)


def _drain(folder: Path, sizes: Sizes, durability: str) -> dict[str, Any]:
    call("bench.drain:fill", folder, jobs=sizes.drain_jobs)
    return call("bench.drain:drain", folder, jobs=sizes.drain_jobs, durability=durability)


def _measure(arena: Arena, peer: Peer, what: str, **arguments: Any) -> float:
    with arena.fresh() as folder, ExitStack() as stack:
        if peer.server == "redis":
            server = stack.enter_context(RedisServer(folder, fsync=None))
            arguments["address"] = str(server.socket)
        elif peer.server == "postgres":
            arguments["address"] = stack.enter_context(PostgresServer(folder)).address
        if peer.name == "arq":
            arguments["home"] = str(arq.install(arena.root))
        found: float = call(f"{peer.module}:{what}", folder, **arguments)["per_second"]
        return found


def _against(what: str, ours: list[float], theirs: dict[str, list[float]]) -> Iterator[Figure]:
    for peer in PEERS:
        yield Figure.of(peer.key(what), theirs[peer.name], peer.described())
    best = max(theirs, key=lambda name: statistics.median(theirs[name]))
    yield Figure.of(
        f"ratio_{what}_vs_best_peer",
        [mine / other for mine, other in zip(ours, theirs[best], strict=True)],
        f"the best is {best}; run by run, in turns",
    )


def as_object(figures: dict[str, Figure]) -> dict[str, Any]:
    """`peers` of the JSON: each with its version and its figures."""
    found: dict[str, Any] = {}
    for peer in PEERS:
        keys = [key for key in (peer.key("drain"), peer.key("enqueue")) if key in figures]
        if keys:
            found[peer.name] = {
                "version": peer.described(),
                **{key.removeprefix(f"{peer.name}_"): round(figures[key].value) for key in keys},
            }
    return found
