"""`python -m penstock.demo.story`: a publisher, a live follower and a named consumer over one file.

The consumer is killed with SIGKILL once, and started again: it resumes without a gap. Exit code 0
means that every follower got every message.
"""

from __future__ import annotations

import argparse
import math
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

import penstock
from penstock.demo.actors import CONSUMER, Event, consumer_name
from penstock.demo.stage import Stage
from penstock.demo.tally import Tally
from penstock.errors import InvalidURL, PenstockError

FOLLOWERS = ("follower", "consumer")
KILL_AFTER = 12
"""Messages until the consumer is killed, if the demo is long enough."""
DEAD_FOR = 6
"""Messages it misses."""
READY_SECONDS = 20.0
DRAIN_SECONDS = 10.0
STOP_SECONDS = 5.0


class Actor:
    """A process of the demo, and a thread that hears what it says."""

    def __init__(self, role: str, heard: queue.Queue[Heard], *arguments: object) -> None:
        self.role = role
        self.is_expected_to_end = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.demo.actors", role, *map(str, arguments)],
            # What it says; and it ends when this process does, which closes its input.
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            # The terminal's Ctrl-C and a closing terminal are the conductor's to handle.
            start_new_session=True,
        )
        self._ear = threading.Thread(target=self._hear, args=(heard,), daemon=True)
        self._ear.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self.is_expected_to_end = True
        self._process.kill()
        self._close()

    def end(self) -> None:
        """Let it finish what it is doing; if it does not, kill it."""
        self.is_expected_to_end = True
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._close()

    def _close(self) -> None:
        self._process.wait()
        self._ear.join()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _hear(self, heard: queue.Queue[Heard]) -> None:
        out = self._process.stdout
        assert out is not None
        decode = msgspec.json.Decoder(Event).decode
        with out:
            for line in out:
                try:
                    heard.put((self, decode(line)))
                except msgspec.DecodeError:
                    break  # Half a line: it was killed while it spoke.
        heard.put((self, None))


Heard = tuple[Actor, Event | None]
"""Who, and what; None when its process has ended."""


class Conductor:
    """Starts the processes, hears them, kills one, and ends them in their order."""

    def __init__(self, url: str, location: str, *, rate: float, count: int, seconds: float) -> None:
        self._url = url
        self._location = location
        self._rate = rate
        self._count = count
        self._seconds = seconds
        self._run = uuid.uuid4().hex[:8]
        self._heard: queue.Queue[Heard] = queue.Queue()
        self._stage = Stage()
        self._tally = Tally(FOLLOWERS)
        self._actors: dict[str, Actor] = {}
        expected = count or (seconds * rate) or (3 * KILL_AFTER)
        self._kill_after = max(1, min(KILL_AFTER, int(expected / 3)))
        self._revive_after = self._kill_after + max(1, min(DEAD_FOR, int(expected / 4)))
        self._has_died = False
        self._is_dead = False
        """Killed, and not started again yet."""
        self._is_away = False
        """Killed, and not back at work yet."""
        self._last_seen = 0
        self._held: dict[int, list[tuple[str, Event]]] = {}

    def run(self) -> int:
        try:
            self._open()
            try:
                self._play()
            except KeyboardInterrupt:
                self._stage.tell("")
            self._finish()
        finally:
            for actor in self._actors.values():
                actor.end()
            self._forget_consumer()
        self._stage.close(self._tally)
        return 0 if self._tally.is_complete else 1

    def _open(self) -> None:
        # Followers first: who subscribes "from now on" must be there before the first message.
        for role in FOLLOWERS:
            self._start(role, self._url, self._run)
        waiting = set(FOLLOWERS)
        deadline = time.monotonic() + READY_SECONDS
        while waiting:
            actor, event = self._next(deadline)
            if event is not None and event.what == "ready":
                waiting.discard(actor.role)
        self._start("publisher", self._url, self._run, self._rate, self._count)
        pids = {role: actor.pid for role, actor in self._actors.items()}
        self._stage.open(self._location, pids)

    def _play(self) -> None:
        """Until enough was published, or the time is over."""
        ends_at = time.monotonic() + self._seconds if self._seconds else math.inf
        kill_at = math.inf
        while not self._actors["publisher"].is_expected_to_end:
            try:
                actor, event = self._next(min(ends_at, kill_at))
            except queue.Empty:
                if time.monotonic() >= ends_at:
                    return
                self._kill_consumer()
                kill_at = math.inf
                continue
            if event is None:
                continue
            self._take(actor, event)
            published = len(self._tally.published)
            if published >= self._kill_after and not self._has_died:
                # Between two messages. In the middle of one, it would come once more: also right,
                # and less clear to see.
                self._kill_after = sys.maxsize
                kill_at = time.monotonic() + min(0.5, 0.5 / self._rate)
            elif published >= self._revive_after and self._is_dead:
                self._revive_consumer()

    def _finish(self) -> None:
        """Stop publishing, and wait until everybody has everything."""
        self._actors["publisher"].end()
        if self._is_dead:
            self._revive_consumer()
        deadline = time.monotonic() + DRAIN_SECONDS
        try:
            while not self._tally.is_complete or not self._heard.empty():
                actor, event = self._next(deadline)
                if event is not None:
                    self._take(actor, event)
        except (queue.Empty, KeyboardInterrupt):
            return

    def _take(self, actor: Actor, event: Event) -> None:
        self._tally.add(actor.role, event)
        if event.what == "ended":
            actor.is_expected_to_end = True
        elif event.what == "published":
            if self._is_away:
                self._tally.backlog.add(event.id)
            self._stage.show(actor.role, event)
            for role, received in self._held.pop(event.id, []):
                self._show_received(role, received)
        elif event.what == "received":
            if actor.role == "consumer":
                self._last_seen = event.id
            if event.id in self._tally.published:
                self._show_received(actor.role, event)
            else:
                # Followers have a message before publish() has returned, which reads badly.
                self._held.setdefault(event.id, []).append((actor.role, event))
        elif event.what == "ready" and self._is_away and actor.role == "consumer":
            self._is_away = False
            self._stage.announce(
                f"{CONSUMER} is back (pid {actor.pid}) and resumes after #{event.id}", "bold green"
            )

    def _show_received(self, role: str, event: Event) -> None:
        self._stage.show(role, event, self._tally.note(role, event.id))

    def _kill_consumer(self) -> None:
        consumer = self._actors["consumer"]
        consumer.kill()
        # All that it said is in the queue by now, and belongs before its death.
        while not self._heard.empty():
            actor, event = self._heard.get()
            if event is not None:
                self._take(actor, event)
        self._has_died = self._is_dead = self._is_away = True
        self._stage.announce(
            f"kill -9 {consumer.pid}: {CONSUMER} is dead; its last message was #{self._last_seen}",
            "bold red",
        )

    def _revive_consumer(self) -> None:
        self._is_dead = False
        self._start("consumer", self._url, self._run)

    def _forget_consumer(self) -> None:
        """It would fall behind for ever, in a file that lives on."""
        with penstock.connect(self._url) as hub:
            hub.consumers.delete(consumer_name(self._run))

    def _start(self, role: str, *arguments: object) -> None:
        self._actors[role] = Actor(role, self._heard, *arguments)

    def _next(self, deadline: float) -> Heard:
        seconds = max(0.0, deadline - time.monotonic())
        actor, event = self._heard.get(timeout=None if seconds == math.inf else seconds)
        if event is None and not actor.is_expected_to_end:
            raise PenstockError(f"The demo's {actor.role} has ended by itself.")
        return actor, event


def main() -> int:
    options = _parser().parse_args()
    # Ended by a supervisor or by Ctrl-C, it is the same: everybody ends, and the summary is shown.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with _place(options.url) as (url, location):
            conductor = Conductor(
                url,
                location,
                rate=options.rate,
                count=options.messages,
                seconds=options.seconds,
            )
            return conductor.run()
    except PenstockError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1
    except queue.Empty:
        print("error: The demo's processes did not start in time.", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stdout = sys.stderr
        return 1
    except KeyboardInterrupt:
        return 130


@contextmanager
def _place(url: str | None) -> Iterator[tuple[str, str]]:
    """The URL that was asked for, or a file of its own that goes with the demo."""
    if url is not None:
        with penstock.connect(url) as hub:
            # Better one error here than one from each process.
            hub.topics.position()
            if url == "memory:":
                raise InvalidURL(f"The demo's processes cannot share {url!r}.", hint="Name a file.")
        yield url, url
        return
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        file = f"{folder}/demo.db"
        yield f"sqlite:///{file}", file


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.demo.story",
        description="Topics at work: three processes, one file.",
    )
    parser.add_argument(
        "--url", help="the hub to use, such as sqlite:///penstock.db; default: a temporary file"
    )
    parser.add_argument(
        "--rate", type=_positive, default=2.0, metavar="R", help="messages a second; default: 2"
    )
    parser.add_argument(
        "--messages", type=_count, default=0, metavar="N", help="end after so many messages"
    )
    parser.add_argument(
        "--seconds", type=_positive, default=0.0, metavar="S", help="end after so many seconds"
    )
    return parser


def _positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 up")
    return number


if __name__ == "__main__":
    sys.exit(main())
