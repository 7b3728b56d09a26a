"""Fan-out of one topic to a crowd, against what others do with the same crowd, in turns."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench.figures import Figure, show
from bench.peers.asgi import AsgiServer
from bench.peers.nats import NatsServer
from bench.process import call
from bench.servers import PenstockServer, Server

if TYPE_CHECKING:
    from bench.arena import Arena
    from bench.fanout import Sizes

WINDOW = 100
STEADY_PER_SECOND = 500
UNBATCHED = {"batch_max": 1, "batch_ms": 0, "frame_messages_max": 1}


def fan_out(arena: Arena, sizes: Sizes, begin: Callable[[str], object]) -> Iterator[Figure]:
    asgi: list[dict[str, Any]] = []
    nats: list[dict[str, Any]] = []
    ours: list[dict[str, Any]] = []
    unbatched: list[dict[str, Any]] = []
    steady: list[dict[str, Any]] = []
    steady_nats: list[dict[str, Any]] = []
    even = {
        "rate": STEADY_PER_SECOND,
        "messages": max(1, round(STEADY_PER_SECOND * sizes.steady_seconds)),
    }
    for number in range(sizes.runs):
        for what, runs, kind, options in (
            ("penstock", ours, "penstock", {"messages": sizes.messages}),
            ("NATS", nats, "nats", {"messages": sizes.nats_messages}),
            ("FastAPI", asgi, "asgi", {"messages": sizes.asgi_messages}),
            (
                "penstock, unbatched",
                unbatched,
                "penstock",
                {"messages": sizes.unbatched_messages, "settings": UNBATCHED},
            ),
            ("penstock at a steady rate", steady, "penstock", even),
            ("NATS at a steady rate", steady_nats, "nats", even),
        ):
            begin(f"fan-out, run {number + 1} of {sizes.runs}: {what}")
            runs.append(fan_out_once(arena, kind, sizes.subscribers, **options))
    yield _per_cpu("deliveries_per_cpu_s", ours)
    yield _per_cpu("naive_asgi_deliveries_per_cpu_s", asgi)
    yield _ratio("ratio_vs_naive_asgi", ours, asgi)
    yield _per_cpu("nats_ws_deliveries_per_cpu_s", nats)
    yield _ratio("ratio_vs_nats", ours, nats)
    yield _per_cpu("unbatched_deliveries_per_cpu_s", unbatched)
    yield _beside("steady_deliveries_per_cpu_s", steady, "NATS", steady_nats)
    yield _per_cpu("steady_nats_ws_deliveries_per_cpu_s", steady_nats)
    yield _busiest([*ours, *nats, *asgi, *unbatched, *steady, *steady_nats])
    yield from _complete([*ours, *unbatched, *steady])


def fan_out_once(
    arena: Arena,
    kind: str,
    subscribers: int,
    *,
    messages: int,
    rate: float | None = None,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One server from start to end."""
    first, second = cores()
    with arena.fresh() as folder, ExitStack() as stack:
        server: Server
        if kind == "penstock":
            server = PenstockServer(folder, core=first, **(settings or {}))
        elif kind == "nats":
            server = NatsServer(folder, core=first)
        else:
            server = AsgiServer(folder, core=first)
        stack.enter_context(server)
        return call(
            "bench.audience:fan_out",
            folder,
            dialect=kind,
            port=server.port,
            tcp_port=server.tcp_port if isinstance(server, NatsServer) else None,
            pid=server.pid,
            core=second,
            subscribers=subscribers,
            warm_up=max(1, messages // 4),
            messages=messages,
            rate=rate,
            window=WINDOW,
        )


def cores() -> tuple[int | None, int | None]:
    """For the server and for the generator, where there is a choice."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    found = sorted(os.sched_getaffinity(0))
    return (found[0], found[1]) if len(found) > 1 else (None, None)


def per_cpu(run: dict[str, Any]) -> float:
    # The kernel counts processor time in hundredths of a second.
    return float(run["deliveries"] / max(run["server_seconds"], 0.01))


def faults(run: dict[str, Any]) -> int:
    return int(run["lost"] + run["duplicated"] + run["changed"] + run["gone"])


def _per_cpu(key: str, runs: Sequence[dict[str, Any]]) -> Figure:
    def middle(name: str) -> float:
        return statistics.median(run[name] for run in runs)

    note = (
        f"{show(middle('messages_per_second'))} messages/s, {middle('messages_per_frame'):.1f} in "
        f"a frame; the server keeps {middle('server_cores'):.2f} cores busy, the generator "
        f"{middle('generator_cores'):.2f}"
    )
    wrong = sum(map(faults, runs))
    if wrong:
        note += f"; void: {wrong} messages or clients went missing or wrong"
    return Figure.of(key, [per_cpu(run) for run in runs], note, is_valid=not wrong)


def _beside(
    key: str, ours: Sequence[dict[str, Any]], other: str, theirs: Sequence[dict[str, Any]]
) -> Figure:
    figure = _per_cpu(key, ours)
    ratio = _ratio(key, ours, theirs).value
    return replace(figure, note=f"{figure.note}; {ratio:.2f} times {other} at the same rate")


def _ratio(key: str, ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> Figure:
    wrong = sum(map(faults, [*ours, *theirs]))
    return Figure.of(
        key,
        [per_cpu(mine) / per_cpu(other) for mine, other in zip(ours, theirs, strict=True)],
        "run by run, in turns",
        is_valid=not wrong,
    )


def _busiest(runs: Sequence[dict[str, Any]]) -> Figure:
    cheapest = min(run["deliveries"] / max(run["generator_seconds"], 0.01) for run in runs)
    return Figure.of(
        "generator_busy_max",
        [max(run["generator_cores"] for run in runs)],
        f"{len(runs)} runs; a processor second of the generator took at least {show(cheapest)} "
        "deliveries",
    )


def _complete(runs: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    deliveries = sum(run["deliveries"] for run in runs)
    for key in ("lost", "duplicated"):
        wrong = sum(run["changed"] + run["gone"] for run in runs)
        yield Figure.of(
            key,
            [sum(run[key] for run in runs)],
            f"of {show(deliveries)} deliveries; {wrong} were changed or to clients cut off",
            is_valid=not wrong,
        )
