"""A stand-in for the remote API: as slow, as flaky and as strict as a real one, and offline.

    python -m examples.killmails.remote --port 8460

It has kills and prices. Now and then a request fails or takes its time; who asks more often than
`--rate` times a second is turned away. What it answers depends on the number that is asked for,
so every run finds the same kills.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SHIPS = ("Rifter", "Drake", "Raven", "Thanatos")
ITEMS = ("Afterburner", "Shield Booster", "Railgun", "Armor Plate", "Drone")


def kill_of(number: int) -> dict[str, Any]:
    fate = random.Random(number)
    items = [
        {"item": fate.choice(ITEMS), "quantity": fate.randint(1, 5)}
        for _ in range(fate.randint(1, 4))
    ]
    return {"id": number, "ship": fate.choice(SHIPS), "items": items}


def price_of(name: str) -> int:
    return random.Random(name).randint(1, 500) * 10_000


class Remote(ThreadingHTTPServer):
    """Threads, so that one slow answer does not hold up the others."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(
        self,
        port: int = 0,
        *,
        fails: float = 0.2,
        is_slow: float = 0.1,
        slow_seconds: float = 0.5,
        rate: int = 60,
        seed: int = 7,
    ) -> None:
        super().__init__(("127.0.0.1", port), Answerer)
        self._fails = fails
        self._is_slow = is_slow
        self._slow_seconds = slow_seconds
        self._rate = rate
        self._fate = random.Random(seed)
        self._asked: deque[float] = deque()
        self._lock = threading.Lock()
        self.refused = 0
        """How often somebody asked too fast."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def start(self) -> Remote:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def mood(self) -> tuple[int, float]:
        """The status this request gets, and how long that takes."""
        with self._lock:
            now = time.monotonic()
            while self._asked and self._asked[0] < now - 1:
                self._asked.popleft()
            self._asked.append(now)
            if len(self._asked) > self._rate:
                self.refused += 1
                return 429, 0.0
            status = 502 if self._fate.random() < self._fails else 200
            return status, self._slow_seconds if self._fate.random() < self._is_slow else 0.0


class Answerer(BaseHTTPRequestHandler):
    server: Remote

    def do_GET(self) -> None:
        status, seconds = self.server.mood()
        time.sleep(seconds)
        kind, _, name = self.path.strip("/").partition("/")
        answer: Any = {"error": "not now"}
        if status == 200 and kind == "kills" and name.isdecimal() and not name.endswith("13"):
            answer = kill_of(int(name))
        elif status == 200 and kind == "prices":
            answer = {"price": price_of(name)}
        elif status == 200:
            status, answer = 404, {"error": "never heard of it"}
        body = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # Whoever asked has been killed, or had no more patience.

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8460)
    parser.add_argument("--fails", type=float, default=0.2, help="share of requests that fail")
    parser.add_argument("--slow", type=float, default=0.1, help="share of requests that are slow")
    options = parser.parse_args()
    remote = Remote(options.port, fails=options.fails, is_slow=options.slow)
    print(f"listening on {remote.url}", flush=True)
    try:
        remote.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
