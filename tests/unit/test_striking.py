"""A thread is struck, and never the one that it is starting (J11)."""

from __future__ import annotations

import random
import sys
import threading
from typing import Any

import pytest

from penstock.jobs.striking import strike, undo_strike
from tests.waiting import wait_until

PATIENCE_SECONDS = 60.0


class Struck(BaseException):
    pass


class Beginner(threading.Thread):
    """Starts thread after thread until it is struck."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.was_struck = False
        self.begun: list[None] = []
        """By those it has started."""

    def run(self) -> None:
        try:
            while True:
                threading.Thread(target=self.begun.append, args=(None,)).start()
        except Struck:
            self.was_struck = True

    @property
    def number(self) -> int:
        assert self.ident is not None
        return self.ident


def test_a_thread_is_not_struck_while_it_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = threading._start_new_thread  # type: ignore[attr-defined]
    is_starting, goes_on = threading.Event(), threading.Event()

    def start_slowly(*arguments: Any) -> Any:
        if threading.current_thread() is beginner:
            is_starting.set()
            goes_on.wait(PATIENCE_SECONDS)
        return real(*arguments)

    beginner = Beginner()
    beginner.start()
    wait_until(lambda: beginner.begun, "it is at it")
    monkeypatch.setattr(threading, "_start_new_thread", start_slowly)
    assert is_starting.wait(PATIENCE_SECONDS)
    before = len(beginner.begun)
    assert not strike(beginner.number, Struck)
    goes_on.set()
    wait_until(lambda: strike(beginner.number, Struck), "it can be struck")
    beginner.join(PATIENCE_SECONDS)
    assert beginner.was_struck
    wait_until(lambda: len(beginner.begun) > before, "what it was starting was started")


def test_whoever_starts_threads_can_be_struck_at_any_time() -> None:
    chance = random.Random(1)
    for _ in range(100):
        beginner = Beginner()
        beginner.start()
        threading.Event().wait(chance.uniform(0, 0.002))
        wait_until(lambda beginner=beginner: strike(beginner.number, Struck), "it can be struck")
        beginner.join(PATIENCE_SECONDS)
        assert beginner.was_struck


def test_whoever_was_struck_and_goes_on_is_struck_no_more() -> None:
    """Whenever the strike comes: where it waits for it, or where it undoes it."""
    chance = random.Random(2)
    for _ in range(200):
        is_over = threading.Event()
        ended: list[str] = []

        def work(ended: list[str] = ended, is_over: threading.Event = is_over) -> None:
            while True:
                try:
                    while not is_over.is_set():
                        pass
                    undo_strike()
                    break
                except Struck:
                    continue
            ended.append("unharmed")

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        threading.Event().wait(chance.uniform(0, 0.0002))
        assert worker.ident is not None
        strike(worker.ident, Struck)
        is_over.set()
        worker.join(PATIENCE_SECONDS)
        assert ended == ["unharmed"]


def test_a_strike_that_was_undone_leaves_nothing_to_look_for() -> None:
    """A thread that is traced would look for it for ever, before its first step."""
    ended: list[str] = []

    def step() -> None:
        ended.append("through")

    def work() -> None:
        sys.settrace(lambda frame, event, argument: None)
        step()

    for target in (undo_strike, work):
        worker = threading.Thread(target=target, daemon=True)
        worker.start()
        worker.join(PATIENCE_SECONDS)
        assert not worker.is_alive()
    assert ended == ["through"]


def test_a_thread_that_is_gone_is_struck_in_vain() -> None:
    worker = threading.Thread(target=int)
    worker.start()
    worker.join()
    assert worker.ident is not None
    assert strike(worker.ident, Struck)
