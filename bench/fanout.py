"""`python -m bench.fanout`: what live delivery costs, held against its budgets.

The server is a process of its own on one core. The generator, which is all subscribers and the
publisher, is another process on another core. Every server is loaded in the same way: messages
are published over the network one by one, as fast as all subscribers keep up, which means never
more than `WINDOW` messages ahead of the slowest. So each finds its own rate, and nobody's batches
grow because of a backlog that the others were spared. Figures are deliveries, counted and compared
at the subscribers, over user and system time of the server between two moments at which every
subscriber has everything. Servers that are compared run in turns.

That the generator is not the bottleneck shows in `generator_busy_max`: while a server is measured
the generator waits for it.

The window decides how large batches can grow, and with them every figure here but the naive one.
Two more figures therefore have a fixed, moderate rate instead: batches are small then, and the
distance to NATS is much smaller than at full load.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from bench import report
from bench.arena import Arena
from bench.audience import idle_connections
from bench.broadcast import STEADY_PER_SECOND, UNBATCHED, WINDOW, fan_out
from bench.figures import Budget, Figure, Key
from bench.relay import LOADED_PER_SECOND, LOADED_PUBLISHERS, LOADED_SUBSCRIBERS, two_instances
from bench.topics import add_arguments, context
from bench.workload import SIZES

BUSY_MAX = 0.95


@dataclass(frozen=True)
class Sizes:
    """How much each measurement does."""

    runs: int
    subscribers: int
    messages: int
    """Through penstock; the others get a share of it, so that a run takes a few seconds."""
    steady_seconds: float
    relay_messages: int
    loaded_seconds: float
    connections: int

    @property
    def nats_messages(self) -> int:
        return max(1, self.messages * 3 // 8)

    @property
    def unbatched_messages(self) -> int:
        return max(1, self.messages // 20)

    @property
    def asgi_messages(self) -> int:
        return max(1, self.messages // 40)


FAN_SIZES = {
    "full": Sizes(3, 1_000, 12_000, 5.0, 300, 10.0, 2_000),
    "quick": Sizes(1, 1_000, 4_000, 2.0, 60, 3.0, 1_000),
    "tiny": Sizes(1, 10, 80, 0.1, 3, 0.1, 20),
}

KEYS = (
    Key(
        "deliveries_per_cpu_s",
        None,
        "1,000 WebSocket subscribers of one topic, 250 bytes of JSON a message, published one by "
        f"one over WebSocket, at most {WINDOW} ahead of the slowest subscriber; each is on disk "
        "before it is delivered. Deliveries over user and system time of the server process.",
    ),
    Key(
        "naive_asgi_deliveries_per_cpu_s",
        None,
        "The same crowd and messages; FastAPI on uvicorn with its own choice of WebSocket library, "
        "one `send_text` for each message and subscriber; nothing is stored.",
    ),
    Key(
        "ratio_vs_naive_asgi",
        Budget(at_least=20),
        "The first over the second, run by run.",
    ),
    Key(
        "nats_ws_deliveries_per_cpu_s",
        None,
        "The same crowd and messages; nats-server's WebSocket listener without compression, core "
        "NATS, published through its TCP port; nothing is stored.",
    ),
    Key("ratio_vs_nats", Budget(at_least=2), "The first over that, run by run."),
    Key(
        "unbatched_deliveries_per_cpu_s",
        None,
        "As the first with one message in each frame: "
        + ", ".join(f"`{name}={value}`" for name, value in UNBATCHED.items())
        + ".",
    ),
    Key(
        "steady_deliveries_per_cpu_s",
        None,
        f"As the first, at {STEADY_PER_SECOND} messages a second.",
    ),
    Key(
        "steady_nats_ws_deliveries_per_cpu_s",
        None,
        f"NATS as above, at {STEADY_PER_SECOND} messages a second.",
    ),
    Key(
        "generator_busy_max",
        Budget(at_most=BUSY_MAX),
        "The largest share of its core that the generator used in any of these runs: below 1, it "
        "waited for the server and not the server for it.",
    ),
    Key(
        "lost",
        Budget(at_most=0),
        "Messages that a penstock subscriber did not get, over all runs and subscribers. Every "
        "frame is compared with the one the first subscriber got, and that one with what was "
        "published.",
    ),
    Key("duplicated", Budget(at_most=0), "Messages that one got twice or out of order."),
    Key(
        "idle_two_instances_p50_ms",
        Budget(at_most=2),
        "Two server processes on one file; from sending a publish command on a socket of one to "
        "its message on a socket of the other, fsync included; one at a time, with pauses of 25 "
        "to 40 ms.",
    ),
    Key(
        "loaded_two_instances_p99_ms",
        Budget(at_most=25),
        f"{LOADED_PER_SECOND:,} messages a second, published one by one over {LOADED_PUBLISHERS} "
        f"sockets of each of two instances; from the instant a message was due to each of "
        f"{LOADED_SUBSCRIBERS} subscribers of the other instance.",
    ),
    Key(
        "rss_kb_per_idle_connection",
        Budget(at_most=20),
        "Resident memory of the server with 2,000 sockets connected and subscribed, less what it "
        "was before the first, over their number.",
    ),
)


def run(arena: Arena, sizes: Sizes, begin: Callable[[str], object]) -> dict[str, Figure]:
    figures = [
        *fan_out(arena, sizes, begin),
        *two_instances(arena, sizes, begin),
        *idle_connections(arena, sizes, begin),
    ]
    found = {figure.key: figure for figure in figures}
    return {key.name: found[key.name] for key in KEYS}


def settings(size: str) -> dict[str, Any]:
    """What the figures were made with."""
    return {"fanout": asdict(FAN_SIZES[size]) | {"window": WINDOW}}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fanout", description=(__doc__ or "").partition("\n")[0]
    )
    add_arguments(parser)
    options = parser.parse_args(arguments)
    size = "quick" if options.quick else options.size
    arena = Arena(options.dir, needs_disk=size != "tiny")
    about = context(arena, size, SIZES[size])
    about["settings"] |= settings(size)
    with Console(stderr=True).status("Measuring …") as status:
        figures = run(arena, FAN_SIZES[size], lambda what: status.update(f"Measuring {what} …"))
    if options.json:
        print(report.as_json(KEYS, figures, about))
    else:
        report.print_table(Console(), KEYS, figures)
    return 1 if options.check and report.missed(KEYS, figures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
