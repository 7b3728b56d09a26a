"""Two instances on one file: from a socket of one to a socket of the other."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport

from bench.audience import TICK_SECONDS, connect, with_loop
from bench.dialects import PREFIX, Penstock, body
from bench.figures import Figure, percentile, show
from bench.process import Link, Meter, call
from bench.servers import PenstockServer

if TYPE_CHECKING:
    from bench.arena import Arena
    from bench.fanout import Sizes

SPEECH = Penstock()
# Longer than the shipped batch_ms: a message that finds a topic idle is sent at once.
PAUSE_SECONDS = (0.025, 0.040)
TIMEOUT_SECONDS = 10.0
SILENCE_SECONDS = 3.0
RELAY_WARM_UP = 20
LOADED_PER_SECOND = 10_000
LOADED_PUBLISHERS = 5
LOADED_SUBSCRIBERS = 5


def two_instances(arena: Arena, sizes: Sizes, begin: Callable[[str], object]) -> Iterator[Figure]:
    idle: list[dict[str, Any]] = []
    loaded: list[dict[str, Any]] = []
    for number in range(sizes.runs):
        begin(f"two instances, run {number + 1} of {sizes.runs}")
        with arena.fresh() as folder, PenstockServer(folder) as one, PenstockServer(folder) as two:
            ports = [one.port, two.port]
            idle.append(
                call(
                    "bench.relay:one_at_a_time", folder, ports=ports, messages=sizes.relay_messages
                )
            )
            loaded.append(
                call(
                    "bench.relay:loaded",
                    folder,
                    ports=ports,
                    rate=LOADED_PER_SECOND,
                    seconds=sizes.loaded_seconds,
                    warm_up_seconds=min(1.0, sizes.loaded_seconds),
                    publishers=LOADED_PUBLISHERS,
                    subscribers=LOADED_SUBSCRIBERS,
                )
            )
    worst = max(run["taken_ms"]["p99"] for run in idle)
    yield Figure.of(
        "idle_two_instances_p50_ms",
        [run["taken_ms"]["p50"] for run in idle],
        f"{show(sizes.relay_messages)} messages a run, p99 up to {show(worst)} ms",
    )
    missing = sum(run["lost"] + run["duplicated"] for run in loaded)
    yield Figure.of(
        "loaded_two_instances_p99_ms",
        [run["taken_ms"]["p99"] for run in loaded],
        f"p50 {show(statistics.median(run['taken_ms']['p50'] for run in loaded))} ms, worst "
        f"{show(max(run['taken_ms']['worst'] for run in loaded))} ms; "
        f"{show(loaded[0]['taken_ms']['count'])} deliveries a run, {missing} lost or repeated; the "
        f"generator kept {statistics.median(run['cores'] for run in loaded):.2f} cores busy",
        is_valid=not missing,
    )


class _Numbered(msgspec.Struct):
    id: str


class _Entry(msgspec.Struct):
    payload: _Numbered


class _Frame(msgspec.Struct):
    id: int | None = None
    error: Any = None
    push: str | None = None
    messages: list[_Entry] = []


_decode = msgspec.json.Decoder(_Frame).decode


class Listener(WSListener):
    """Stamps the first time each message of a series comes, and counts the others."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.arrived_at = [0.0] * count
        self.heard = 0
        self.duplicated = 0
        self.ready = asyncio.Event()
        self.news = asyncio.Event()

    @property
    def lost(self) -> int:
        return len(self.arrived_at) - self.heard

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        now = time.monotonic()
        if frame.msg_type != WSMsgType.TEXT:
            return
        found = _decode(frame.get_payload_as_bytes())
        if found.error is not None:
            raise RuntimeError(f"The server answered {found.error!r}.")
        if found.id == 2:
            self.ready.set()
        for entry in found.messages:
            number = int(entry.payload.id.removeprefix(PREFIX))
            if self.arrived_at[number]:
                self.duplicated += 1
            else:
                self.arrived_at[number] = now
                self.heard += 1
        self.news.set()


def one_at_a_time(link: Link, *, ports: list[int], messages: int) -> dict[str, Any]:
    """Publish on the first instance, hear it on the second, pause, and again."""

    async def run() -> dict[str, Any]:
        count = RELAY_WARM_UP + messages
        bodies = [body(number) for number in range(count)]
        listener = Listener(count)
        await _subscribe(ports[1], listener)
        publisher = await _publisher(ports[0])
        link.ready()
        link.wait_go()
        taken = []
        for number in range(count):
            await asyncio.sleep(random.uniform(*PAUSE_SECONDS))
            listener.news.clear()
            sent_at = time.monotonic()
            publisher.send(SPEECH.kind, SPEECH.publication(number, bodies[number]))
            await asyncio.wait_for(listener.news.wait(), TIMEOUT_SECONDS)
            taken.append((listener.arrived_at[number] - sent_at) * 1000)
        return {
            "taken_ms": _spread(taken[RELAY_WARM_UP:]),
            "lost": listener.lost,
            "duplicated": listener.duplicated,
        }

    return with_loop(run())


def loaded(
    link: Link,
    *,
    ports: list[int],
    rate: int,
    seconds: float,
    warm_up_seconds: float,
    publishers: int,
    subscribers: int,
) -> dict[str, Any]:
    """So many messages a second, in turn over all publishers of all instances; from the instant a
    message was due to each subscriber of the other instance, so a stall counts for all it delays.
    """

    async def run() -> dict[str, Any]:
        warm_up = round(rate * warm_up_seconds)
        count = warm_up + round(rate * seconds)
        sockets = [await _publisher(port) for _ in range(publishers) for port in ports]
        listeners = [[Listener(count) for _ in range(subscribers)] for _ in ports]
        for port, group in zip(ports, listeners, strict=True):
            for listener in group:
                await _subscribe(port, listener)
        commands = [SPEECH.publication(number, body(number)) for number in range(count)]
        link.ready()
        link.wait_go()
        with Meter() as meter:
            start = await _publish_on_schedule(sockets, commands, rate)
            everybody = [listener for group in listeners for listener in group]
            await _wait_for_all(everybody)
        taken = [
            (listener.arrived_at[number] - start - number / rate) * 1000
            for instance, group in enumerate(listeners)
            for listener in group
            for number in range(warm_up, count)
            if number % len(ports) != instance and listener.arrived_at[number]
        ]
        return {
            "taken_ms": _spread(taken),
            "lost": sum(listener.lost for listener in everybody),
            "duplicated": sum(listener.duplicated for listener in everybody),
            "seconds": meter.seconds,
            "cores": meter.cores,
        }

    return with_loop(run())


async def _publish_on_schedule(
    sockets: list[WSTransport], commands: list[bytes], rate: int
) -> float:
    """Returns when the first was due."""
    start = time.monotonic()
    sent = 0
    while sent < len(commands):
        due = min(len(commands), int((time.monotonic() - start) * rate))
        for number in range(sent, due):
            sockets[number % len(sockets)].send(SPEECH.kind, commands[number])
        sent = due
        await asyncio.sleep(TICK_SECONDS)
    return start


async def _wait_for_all(listeners: list[Listener]) -> None:
    while any(listener.lost for listener in listeners):
        before = sum(listener.heard for listener in listeners)
        deadline = time.monotonic() + SILENCE_SECONDS
        while sum(listener.heard for listener in listeners) == before:
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.01)


async def _subscribe(port: int, listener: Listener) -> None:
    transport = await connect(port, SPEECH.path, listener, SPEECH.subprotocol)
    for command in SPEECH.hello:
        transport.send(SPEECH.kind, command)
    await asyncio.wait_for(listener.ready.wait(), TIMEOUT_SECONDS)


async def _publisher(port: int) -> WSTransport:
    transport = await connect(port, SPEECH.path, WSListener(), SPEECH.subprotocol)
    transport.send(SPEECH.kind, SPEECH.hello[0])
    return transport


def _spread(taken: list[float]) -> dict[str, float]:
    ordered = sorted(taken)
    return {
        "count": len(ordered),
        **{f"p{percent}": percentile(ordered, percent) for percent in (50, 95, 99)},
        "worst": ordered[-1],
    }
