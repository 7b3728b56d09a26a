"""Fairness between processes that write to one file.

SQLite's busy handler sleeps and retries, so a writer that comes often starves one that comes
rarely. Here every writer takes `-next`, then `-turn`, then gives `-next` back: whoever waits for
the turn has nobody in front of him but its present holder. This is fairness only. SQLite's own
lock still decides, and a writer that gives up waiting, or never heard of the turnstile, stays
correct.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from pathlib import Path

# A holder that is stopped (SIGSTOP, a debugger) must not stop the others: they go past it.
PATIENCE_SECONDS = 1.0
PAUSE_SECONDS = 0.00005
PAUSE_SECONDS_MAX = 0.001


class Turnstile:
    """One per writer: the locks belong to the open file, so two writers never share one."""

    def __init__(self, path: Path) -> None:
        self._next = _open(path.with_name(path.name + "-next"))
        self._turn = _open(path.with_name(path.name + "-turn"))
        self._has_turn = False
        self._impatient_until = 0.0
        _open_turnstiles.add(self)

    def enter(self, timeout_seconds: float) -> None:
        """Wait for the turn, at most as long as it makes sense to."""
        started = time.monotonic()
        patience = 0.0 if started < self._impatient_until else PATIENCE_SECONDS
        deadline = started + min(timeout_seconds, patience)
        if not _lock(self._next, deadline):
            self._impatient_until = time.monotonic() + PATIENCE_SECONDS
            return
        try:
            self._has_turn = _lock(self._turn, deadline)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)
        if not self._has_turn:
            self._impatient_until = time.monotonic() + PATIENCE_SECONDS

    def leave(self) -> None:
        if self._has_turn:
            self._has_turn = False
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        _open_turnstiles.discard(self)
        for name in ("_next", "_turn"):
            descriptor = getattr(self, name)
            # First: whoever is struck here and closes again must not close another's file.
            setattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)


_open_turnstiles: weakref.WeakSet[Turnstile] = weakref.WeakSet()


def close_inherited() -> None:
    """In a forked child: a lock that the parent holds must not outlive it here."""
    for turnstile in list(_open_turnstiles):
        turnstile.close()


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _lock(descriptor: int, deadline: float) -> bool:
    pause = PAUSE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, PAUSE_SECONDS_MAX)
        else:
            return True
