"""Threads that are struck, over and over, between any two of their steps."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable

from penstock.jobs.striking import strike

PAUSES = 2.0
"""Between two strikes it could be done so often, on the average."""
TRIALS = 20
"""How long it takes on this machine, before anything strikes."""
PATIENCE_SECONDS = 120.0


class Struck(BaseException):
    """As in a job that ran out of time."""


def strike_thread(ident: int) -> None:
    strike(ident, Struck)


def press_ctrl_c(_: int) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def on_a_thread(work: Callable[[int], None], strikes: int) -> None:
    """Work on a thread of its own until it was struck so often."""
    worker = threading.Thread(target=here, args=(work, strikes, strike_thread))
    worker.start()
    worker.join(PATIENCE_SECONDS)
    assert not worker.is_alive(), "it waits for a lock that nobody gives back"


def here(
    work: Callable[[int], None], strikes: int, strike: Callable[[int], None] = press_ctrl_c
) -> None:
    """The same on this thread; by default the main one, where somebody presses Ctrl-C."""
    chance = random.Random(strikes)
    numbers = itertools.count()
    started = time.perf_counter()
    for _ in range(TRIALS):
        work(next(numbers))
    pause_max = 2 * PAUSES * (time.perf_counter() - started) / TRIALS
    survived = 0
    is_inside = False
    is_over = threading.Event()
    me = threading.get_ident()

    def strike_on() -> None:
        while not is_over.wait(chance.uniform(0, pause_max)):
            if is_inside:
                strike(me)

    striking = threading.Thread(target=strike_on, daemon=True)
    striking.start()
    while not is_over.is_set() or striking.is_alive():
        try:
            while survived < strikes:
                try:
                    is_inside = True
                    work(next(numbers))
                except (Struck, KeyboardInterrupt):
                    is_inside = False
                    survived += 1
            is_over.set()
            striking.join()
            time.sleep(0)  # Whatever is on its way arrives.
        except (Struck, KeyboardInterrupt):
            continue
