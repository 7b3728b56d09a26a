"""`python -m penstock.demo`, or `make run`: two servers on one file, and somebody who publishes.

Open the page of one instance, publish, and watch it arrive on the other. An instance that is
killed is started again after a while; until then its page goes on with the other.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from urllib.parse import quote

import msgspec

import penstock
from penstock.errors import PenstockError

PORTS = (8400, 8401)
TOPIC = "demo"
READY_SECONDS = 30.0
STOP_SECONDS = 15.0
DOWN_SECONDS = 5.0
"""How long a killed instance stays away, so that one can see its page move over."""
PUBLISH_SECONDS = 2.0


class Ready(msgspec.Struct):
    """What `penstock serve --json` prints when it serves."""

    address: str


class Instance:
    """A server process."""

    def __init__(self, name: str, url: str, port: int, origins: list[str]) -> None:
        self.name = name
        self.address = f"http://127.0.0.1:{port}"
        self.died_at: float | None = None
        allowed = itertools.chain.from_iterable(("--origin", origin) for origin in origins)
        self._command = [
            *(sys.executable, "-m", "penstock", "serve", "--json", "--url", url),
            *("--port", str(port), "--name", name, *allowed),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it serves."""
        self.died_at = None
        # In a group of its own: the terminal's Ctrl-C is for the demo, which stops both in order.
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(self._process.wait() or 1)
        assert msgspec.json.decode(line, type=Ready).address == self.address

    def has_died(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def main() -> None:
    arguments = _parse()
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        with penstock.connect(arguments.url) as hub:
            _run(hub, arguments, stopping)
    except PenstockError as error:
        raise SystemExit(f"error: {error}") from error


def _run(hub: penstock.Hub, arguments: argparse.Namespace, stopping: threading.Event) -> None:
    hub.topics.position()  # Opens, and so makes, the file before two processes do.
    ports = list(_free_ports())
    origins = [f"http://127.0.0.1:{port}" for port in ports]
    instances = [
        Instance(f"instance-{number}", hub.url, port, origins)
        for number, port in enumerate(ports, start=1)
    ]
    try:
        for instance in instances:
            instance.start()
        print(f"\nTwo instances share {hub.url}. Open both, publish in one, watch the other:\n")
        for instance, other in zip(instances, reversed(instances), strict=True):
            print(f"  {instance.name}  {_link(instance, other)}")
        print(f"\nTo see a page move over to the other one:  kill -9 {instances[0].pid}")
        print("Ctrl-C stops everything.\n", flush=True)
        ended_at = time.monotonic() + arguments.seconds if arguments.seconds else None
        numbers = itertools.count(1)
        while not stopping.wait(PUBLISH_SECONDS):
            hub.topics.publish(TOPIC, {"n": next(numbers), "from": "make run"}, type="tick")
            _revive(instances)
            if ended_at is not None and time.monotonic() >= ended_at:
                break
    finally:
        print("Stopping ...", flush=True)
        for instance in instances:
            instance.stop()


def _revive(instances: list[Instance]) -> None:
    for instance in instances:
        if not instance.has_died():
            continue
        if instance.died_at is None:
            instance.died_at = time.monotonic()
            print(f"{instance.name} was killed; it comes back in {DOWN_SECONDS:.0f} s.", flush=True)
        elif time.monotonic() - instance.died_at >= DOWN_SECONDS:
            instance.start()
            print(f"{instance.name} is back (pid {instance.pid}).", flush=True)


def _link(instance: Instance, other: Instance) -> str:
    return f"{instance.address}/#topic={TOPIC}&also={quote(other.address, safe='')}"


def _free_ports() -> Iterator[int]:
    """The usual ones, if nobody has them."""
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                probe.bind(("127.0.0.1", 0))
            yield probe.getsockname()[1]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m penstock.demo", description=__doc__)
    parser.add_argument("--url", help="the hub; default: $PENSTOCK_URL, then sqlite:///penstock.db")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long; default: for ever")
    return parser.parse_args()


if __name__ == "__main__":
    main()
