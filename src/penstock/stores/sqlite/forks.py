"""Before a fork, every connection is closed; afterwards both sides open their own.

SQLite keeps account of its POSIX locks in memory. A child inherits the account but not the locks:
even a connection that it opens anew believes to hold what it does not, and the parent may delete
the write-ahead log under it. A child forked while some thread is inside SQLite also inherits a
mutex that nobody will ever give back. So a fork first waits until no thread uses SQLite here,
and closes what is open; threads that come meanwhile wait at the gate.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from typing import Protocol

WAIT_SECONDS_MAX = 10.0


class Holder(Protocol):
    """Has connections that it can open again."""

    def disconnect(self) -> None: ...


class Gate:
    """Everybody passes, until a fork shuts it. A thread that is inside can enter once more."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As new: in a child, where nobody else is."""
        # Held by itself, not through the condition: a thread that is struck on its way through
        # `Condition.__enter__` would keep it. A signal's handler may come here in the middle of it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inside: dict[int, int] = {}
        self._is_shut = False

    def enter(self) -> int:
        """Returns the seat to give to `leave`, from whatever thread."""
        seat = threading.get_ident()
        with self._lock:
            while self._is_shut and seat not in self._inside:
                self._changed.wait()
            self._inside[seat] = self._inside.get(seat, 0) + 1
        return seat

    def leave(self, seat: int) -> None:
        with self._lock:
            left = self._inside.pop(seat, 0) - 1
            if left > 0:
                self._inside[seat] = left
            elif self._is_shut:
                self._changed.notify_all()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave(threading.get_ident())

    def shut(self) -> bool:
        """Wait until nobody else is inside. False if somebody stays, or this thread itself is."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        me = threading.get_ident()
        with self._lock:
            self._is_shut = True
            # A thread that was struck on its way out and has ended is inside no more.
            living = sys._current_frames()
            self._inside = {seat: n for seat, n in self._inside.items() if seat in living}
            while any(seat != me for seat in self._inside):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(remaining)
            return not self._inside

    def open(self) -> None:
        with self._lock:
            self._is_shut = False
            self._changed.notify_all()


gate = Gate()
"""One for all databases of the process: forks are rare, and do not ask which one is in use."""

_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
_forking = threading.Lock()
_is_tainted = False
_was_clean = True


def add_holder(holder: Holder) -> None:
    _holders.add(holder)


def is_tainted() -> bool:
    """Whether this process was forked while its parent could not let go of SQLite."""
    return _is_tainted


def _before() -> None:
    global _was_clean
    # One fork at a time: the end of one would open the gate under another.
    _forking.acquire()
    _was_clean = gate.shut()
    if _was_clean:
        for holder in list(_holders):
            holder.disconnect()


def _after_in_parent() -> None:
    gate.open()
    _forking.release()


def _after_in_child() -> None:
    global _forking, _is_tainted
    _forking = threading.Lock()
    gate.reset()
    _holders.clear()
    _is_tainted = _is_tainted or not _was_clean


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
