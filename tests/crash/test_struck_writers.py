"""A thread that writes by itself is struck anywhere, by a signal or the end of its time (T4)."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.jobs.threads import _raise_in
from penstock.stores.sqlite.forks import gate
from tests.waiting import wait_until

STRIKES = 300
SOON = 10.0

Strike = Callable[[int], None]


class Struck(BaseException):
    """As of a job that ran out of time."""


def strike_thread(ident: int) -> None:
    _raise_in(ident, id(Struck))


def strike_process(ident: int) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.fixture(params=["a thread by an exception", "the main thread by a signal"])
def strike(request: pytest.FixtureRequest) -> Iterator[Strike]:
    if request.param.startswith("a thread"):
        yield strike_thread
        return
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are handled by the main thread, and this is another")

    def raise_struck(number: int, frame: object) -> None:
        raise Struck

    before = signal.signal(signal.SIGUSR1, raise_struck)
    yield strike_process
    signal.signal(signal.SIGUSR1, before)


def publish_under_strikes(hub: penstock.Hub, strike: Strike, strikes: int) -> dict[int, int]:
    """What was acknowledged: payloads by id."""
    chance = random.Random(strikes)
    acknowledged: dict[int, int] = {}
    survived = 0
    is_over = threading.Event()
    is_open = False

    def work() -> None:
        nonlocal survived, is_open
        number = 0
        while survived < strikes:
            try:
                is_open = True
                receipt = hub.topics.publish("t", number)
                acknowledged[receipt.id] = number
                number += 1
            except Struck:
                is_open = False
                survived += 1

    def strike_on(ident: int) -> None:
        while not is_over.wait(chance.uniform(0, 0.002)):
            if is_open:
                strike(ident)

    def work_to_the_end() -> None:
        while True:
            try:
                work()
                is_over.set()
                striking.join()
                time.sleep(0)  # Whatever is on its way arrives.
                return
            except Struck:
                continue

    if strike is strike_thread:
        worker = threading.Thread(target=work_to_the_end)
        worker.start()
        assert worker.ident is not None
        striking = threading.Thread(target=strike_on, args=(worker.ident,))
        striking.start()
        worker.join(6 * SOON)
        assert not worker.is_alive(), "it waits for a lock that nobody gives back"
    else:
        striking = threading.Thread(target=strike_on, args=(threading.get_ident(),))
        striking.start()
        work_to_the_end()
    return acknowledged


def test_whoever_is_struck_loses_nothing_and_stands_in_nobodys_way(
    tmp_path: Path, strike: Strike
) -> None:
    url = f"sqlite:///{tmp_path / 'hub.db'}"
    with penstock.connect(url) as hub, penstock.connect(url) as other:
        hub.topics.publish("first", 0)
        seen: list[int] = []
        with hub.topics.subscribe("t") as live:
            acknowledged = publish_under_strikes(hub, strike, STRIKES)
            last = hub.topics.publish("t", -1, timeout=SOON)
            for message in live:
                seen.append(message.id)
                if message.id == last.id:
                    break

        stored = {message.id: message.payload for message in hub.topics.read("t", limit=10**6)}
        assert acknowledged.items() <= stored.items()
        assert seen == sorted(stored), "a live subscriber has all of them, in order"
        assert other.topics.publish("t", "other", timeout=SOON).id == last.id + 1
        assert hub.topics.publish("t", "again", timeout=SOON).id == last.id + 2
        wait_until(lambda: not gate._inside)


def test_a_thread_that_comes_alone_writes_by_itself(tmp_path: Path) -> None:
    with penstock.connect(f"sqlite:///{tmp_path / 'hub.db'}") as hub:
        hub.topics.publish("t", "the first starts the committer")
        wrote: list[str] = []

        def note(event: str, _: object) -> None:
            if event == "commit":
                wrote.append(threading.current_thread().name)

        hub.telemetry.attach(note)
        me = threading.current_thread().name
        committer = hub._open().committer
        wait_until(lambda: committer.is_idle)
        hub.topics.publish("t", 1)
        hub.topics.publish_many("t", [2, 3])
        assert wrote == [me, me]
        hub.topics.publish("t", 4, timeout=SOON)
        assert wrote == [me, me, "penstock-committer"], "who wants to stop waiting lets it write"
