"""A thread that writes is struck anywhere: by a signal, or at the end of a job's time (T4, M6)."""

from __future__ import annotations

import itertools
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
ROOMY = {"mailbox_messages_max": 100_000, "mailbox_file_messages_max": 200_000}

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


def under_strikes(work: Callable[[int], None], strike: Strike, strikes: int) -> None:
    """Work, over and over, until the thread that does it was struck so often."""
    chance = random.Random(strikes)
    numbers = itertools.count()
    survived = 0
    is_inside = False
    is_over = threading.Event()

    def work_on() -> None:
        nonlocal survived, is_inside
        while survived < strikes:
            try:
                is_inside = True
                work(next(numbers))
            except Struck:
                is_inside = False
                survived += 1
        is_over.set()
        striking.join()
        time.sleep(0)  # Whatever is on its way arrives.

    def work_to_the_end() -> None:
        while True:
            try:
                work_on()
                return
            except Struck:
                continue

    def strike_on(ident: int) -> None:
        while not is_over.wait(chance.uniform(0, 0.002)):
            if is_inside:
                strike(ident)

    worker = threading.Thread(target=work_to_the_end) if strike is strike_thread else None
    if worker is not None:
        worker.start()
    ident = threading.get_ident() if worker is None else worker.ident
    striking = threading.Thread(target=strike_on, args=(ident,))
    striking.start()
    if worker is None:
        work_to_the_end()
    else:
        worker.join(6 * SOON)
        assert not worker.is_alive(), "it waits for a lock that nobody gives back"


def test_whoever_is_struck_loses_nothing_and_stands_in_nobodys_way(
    tmp_path: Path, strike: Strike
) -> None:
    url = f"sqlite:///{tmp_path / 'hub.db'}"
    with penstock.connect(url) as hub, penstock.connect(url) as other:
        hub.topics.publish("first", 0)
        acknowledged: dict[int, int] = {}
        seen: list[int] = []

        def publish(number: int) -> None:
            receipt = hub.topics.publish("t", number)
            acknowledged[receipt.id] = number

        with hub.topics.subscribe("t") as live:
            under_strikes(publish, strike, STRIKES)
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


@pytest.mark.parametrize("durability", ["durable", "os"])
def test_a_mailbox_whose_users_are_struck_is_whole(tmp_path: Path, durability: str) -> None:
    """M6: what was acknowledged is there, in order, also for another process."""
    url = f"sqlite:///{tmp_path / 'hub.db'}"
    with (
        penstock.connect(url, mailbox_durability=durability, **ROOMY) as hub,
        penstock.connect(url, **ROOMY) as other,
    ):
        box, theirs = hub.mailboxes.open("box"), other.mailboxes.open("box")
        box.put("first")
        theirs.peek()
        accepted: list[str] = []
        taken: list[str] = []
        sizes = random.Random(durability)

        def use(number: int) -> None:
            if number % 3:
                accepted.append(box.put(bytes(sizes.randrange(300))).id)
            elif (mail := theirs.peek() if number % 2 else box.peek()) is not None:
                taken.append(mail.id)
                box.ack(mail.id)

        under_strikes(use, strike_thread, STRIKES)
        assert hub.mailboxes.verify().findings == []
        while mail := theirs.peek():
            taken.append(mail.id)
            theirs.ack(mail.id)
    seen = list(dict.fromkeys(taken))
    known = set(accepted)
    assert [id for id in seen if id in known] == accepted
