"""The processes of the demo. Each does one thing with a hub and says on its standard output, one
JSON line for each event, what it did.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
from types import FrameType
from typing import Literal

import msgspec

import penstock
from penstock.model import Message

PATTERN = "canvas-*"
TOPICS = ("canvas-harbour", "canvas-garden", "canvas-rooftop")
TYPES = ("create", "move", "colour", "comment")
WHO = ("ada", "grace", "edsger", "barbara", "tony", "leslie")
CONSUMER = "indexer"


def consumer_name(run: str) -> str:
    """Each run has its own, so that none resumes after another's messages."""
    return f"{CONSUMER}-{run}"


class Event(msgspec.Struct, frozen=True):
    """Something an actor did. Times are of the clock that all processes of a machine share."""

    what: Literal["ready", "published", "received", "ended"]
    id: int = 0
    """Of the message; for `ready`, where the actor begins."""
    topic: str = ""
    type: str = ""
    text: str = ""
    millis: float = 0.0
    """publish() for a publisher; from before publish() to here for a follower."""


class Payload(msgspec.Struct, frozen=True):
    """What is published."""

    run: str
    number: int
    who: str
    sent_ns: int

    @property
    def text(self) -> str:
        return f'{{"number": {self.number}, "who": "{self.who}"}}'


class Ended(BaseException):
    """SIGTERM arrived."""


def main(arguments: list[str]) -> None:
    """`actors.py publisher URL RUN RATE COUNT | follower URL RUN | consumer URL RUN`."""
    signal.signal(signal.SIGTERM, _end)
    # Ctrl-C reaches every process of a terminal. The conductor hears it and ends the others in
    # their order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_conductor, daemon=True).start()
    role, url, run, *rest = arguments
    with penstock.connect(url, name=f"demo-{role}") as hub:
        try:
            if role == "publisher":
                publish(hub, run, rate=float(rest[0]), count=int(rest[1]))
            elif role == "follower":
                follow_live(hub, run)
            else:
                follow_as_consumer(hub, run)
        except Ended:
            pass
        except BrokenPipeError:
            # The conductor is gone; there is nobody to tell.
            sys.stdout = sys.stderr
        finally:
            # Closing is not to be interrupted.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def publish(hub: penstock.Hub, run: str, *, rate: float, count: int) -> None:
    """So many messages a second, until there are enough (0: until it is ended)."""
    dice = random.Random(run)
    _say(Event("ready"))
    due = time.monotonic()
    for number in itertools.count(1):
        payload = Payload(run, number, dice.choice(WHO), time.monotonic_ns())
        type = dice.choice(TYPES)
        receipt = hub.topics.publish(dice.choice(TOPICS), payload, type=type)
        took = (time.monotonic_ns() - payload.sent_ns) / 1e6
        _say(Event("published", receipt.id, receipt.topic, type, payload.text, took))
        if number == count:
            break
        due += 1 / rate
        time.sleep(max(0.0, due - time.monotonic()))
    _say(Event("ended"))


def follow_live(hub: penstock.Hub, run: str) -> None:
    """A glob, from now on."""
    with hub.topics.subscribe(PATTERN) as live:
        _say(Event("ready", live.position.offset))
        for message in live:
            _say_received(message, run)


def follow_as_consumer(hub: penstock.Hub, run: str) -> None:
    """The same glob under a name. Each message is committed once it was said."""
    with hub.topics.follow(PATTERN, consumer=consumer_name(run), standby=True) as follower:
        _say(Event("ready", follower.position.offset))
        for message in follower:
            _say_received(message, run)
            follower.commit()


def _say_received(message: Message, run: str) -> None:
    payload = message.decode(Payload)
    if payload.run == run:
        took = (time.monotonic_ns() - payload.sent_ns) / 1e6
        type = message.type or ""
        _say(Event("received", message.id, message.topic, type, payload.text, took))


def _say(event: Event) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_conductor() -> None:
    """However it ends: then nobody holds the other side of standard input any more."""
    while os.read(0, 1):
        pass
    while True:
        # Again, if nothing came of it: what a handler raises while an object is deleted is lost.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.0)


def _end(*_: int | FrameType | None) -> None:
    raise Ended


if __name__ == "__main__":
    main(sys.argv[1:])
