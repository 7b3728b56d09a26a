"""A thousand subscribers and a publisher in one process, on a core of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import psutil
import uvloop
from picows import WSListener, WSTransport, ws_connect

from bench.dialects import Dialect, Ear, Penstock, Series
from bench.figures import Figure, show
from bench.peers.asgi import Asgi
from bench.peers.nats import CONNECT, Nats
from bench.process import Link, Meter, Worker
from bench.servers import PenstockServer, on_core, processor_seconds

if TYPE_CHECKING:
    from bench.arena import Arena
    from bench.fanout import Sizes

DIALECTS: dict[str, Dialect] = {"penstock": Penstock(), "nats": Nats(), "asgi": Asgi()}
CONNECTING_AT_ONCE = 50
TICK_SECONDS = 0.001
SETTLE_SECONDS = 2.0
SILENCE_SECONDS = 5.0
"""A message that has not come when nothing came for so long is lost."""

Send = Callable[[list[bytes]], None]


def idle_connections(
    arena: Arena, sizes: Sizes, begin: Callable[[str], object]
) -> Iterator[Figure]:
    runs: list[float] = []
    before = gone = 0
    for _ in range(sizes.runs):
        begin(f"{show(sizes.connections)} idle connections")
        with arena.fresh() as folder, PenstockServer(folder) as server:
            process = psutil.Process(server.pid)
            before = process.memory_info().rss
            with Worker(
                "bench.audience:sit", folder, port=server.port, subscribers=sizes.connections
            ) as crowd:
                crowd.wait_ready()
                time.sleep(SETTLE_SECONDS if sizes.runs > 1 else 0.0)
                after = process.memory_info().rss
                crowd.go()
                crowd.stop()
                gone += crowd.result()["gone"]
        runs.append((after - before) / sizes.connections / 1024)
    yield Figure.of(
        "rss_kb_per_idle_connection",
        runs,
        f"{show(sizes.connections)} connections, above {show(before / 1024**2)} MB of the server "
        "without any; memory of the kernel's sockets not included",
        is_valid=not gone,
    )


def fan_out(
    link: Link,
    *,
    dialect: str,
    port: int,
    tcp_port: int | None,
    pid: int,
    core: int | None,
    subscribers: int,
    warm_up: int,
    messages: int,
    rate: float | None,
    window: int,
) -> dict[str, Any]:
    """Publish the series, never more than `window` messages ahead of the slowest subscriber; or
    at `rate` a second, whoever keeps up. What the server used is taken when all have all."""

    async def run() -> dict[str, Any]:
        series = Series(warm_up + messages)
        speech = DIALECTS[dialect]
        ears = await _gather(speech, port, subscribers, series)
        send = await _publisher(speech, dialect, port, tcp_port)
        encoded = [speech.publication(n, body) for n, body in enumerate(series.bodies)]
        stage = _Stage(ears, encoded, send)
        await stage.play(0, warm_up, rate, window)
        link.ready()
        link.wait_go()
        frames = sum(ear.frames for ear in ears)
        used = processor_seconds(pid)
        with Meter() as meter:
            await stage.play(warm_up, warm_up + messages, rate, window)
        used = processor_seconds(pid) - used
        count = warm_up + messages
        return {
            "deliveries": sum(ear.heard for ear in ears) - warm_up * subscribers,
            "server_seconds": used,
            "server_cores": used / meter.seconds,
            "generator_cores": meter.cores,
            "generator_seconds": meter.cores * meter.seconds,
            "seconds": meter.seconds,
            "messages_per_second": messages / meter.seconds,
            "messages_per_frame": messages
            * subscribers
            / max(1, sum(ear.frames for ear in ears) - frames),
            "lost": sum(ear.lost + count - ear.heard for ear in ears),
            "duplicated": sum(ear.duplicated for ear in ears),
            "changed": sum(ear.changed for ear in ears),
            "gone": sum(ear.is_gone for ear in ears),
        }

    with on_core(core):
        return with_loop(run())


def sit(link: Link, *, port: int, subscribers: int) -> dict[str, Any]:
    """So many clients that are subscribed, and nothing else, until told to stop."""

    async def run() -> dict[str, Any]:
        ears = await _gather(DIALECTS["penstock"], port, subscribers, Series(0))
        link.ready()
        link.wait_go()
        link.watch()
        await asyncio.to_thread(link.stopping.wait)
        return {"gone": sum(ear.is_gone for ear in ears)}

    return with_loop(run())


def with_loop(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


class _Stage:
    def __init__(self, ears: list[Ear], encoded: list[bytes], send: Send) -> None:
        self._ears = ears
        self._encoded = encoded
        self._send = send

    async def play(self, first: int, end: int, rate: float | None, window: int) -> None:
        """Publish these messages and wait until all have them."""
        loop = asyncio.get_running_loop()
        sent, slowest = first, first
        started = heard_at = loop.time()
        while slowest < end:
            if rate is None:
                due = min(end, slowest + window)
            else:
                due = min(end, first + int((loop.time() - started) * rate) + 1)
            if due > sent:
                self._send(self._encoded[sent:due])
                sent = due
            await asyncio.sleep(TICK_SECONDS)
            before, slowest = slowest, min(ear.heard for ear in self._ears)
            if slowest > before:
                heard_at = loop.time()
            elif loop.time() - heard_at > SILENCE_SECONDS:
                break


async def _gather(speech: Dialect, port: int, count: int, series: Series) -> list[Ear]:
    """So many clients, each subscribed."""
    gate = asyncio.Semaphore(CONNECTING_AT_ONCE)

    async def one() -> Ear:
        ready = asyncio.Event()
        ear = speech.ear(series, ready.set)
        async with gate:
            transport = await connect(port, speech.path, ear, speech.subprotocol)
            for frame in speech.hello:
                transport.send(speech.kind, frame)
        await ready.wait()
        return ear

    return await asyncio.gather(*(one() for _ in range(count)))


async def connect(
    port: int, path: str, listener: WSListener, subprotocol: str | None
) -> WSTransport:
    headers = {"Sec-WebSocket-Protocol": subprotocol} if subprotocol else None
    transport, _ = await ws_connect(
        lambda: listener, f"ws://127.0.0.1:{port}{path}", extra_headers=headers
    )
    return transport


async def _publisher(speech: Dialect, dialect: str, port: int, tcp_port: int | None) -> Send:
    if tcp_port is not None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", tcp_port)
        transport.write(CONNECT)
        return lambda parts: transport.write(b"".join(parts))
    path = "/publish" if dialect == "asgi" else speech.path
    socket = await connect(port, path, WSListener(), speech.subprotocol)
    if dialect == "penstock":
        socket.send(speech.kind, Penstock.hello[0])

    def send(parts: list[bytes]) -> None:
        for part in parts:
            socket.send(speech.kind, part)

    return send
