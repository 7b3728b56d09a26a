"""How a command that waits is told to stop, without losing what it is doing.

SIGINT, SIGTERM and a reader who closed the pipe end a wait at once, and never the work between
two waits: a message that was printed is also committed.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from penstock.cli import INTERRUPTED
from penstock.cli.session import BROKEN_PIPE


class Stopped(BaseException):
    """Raised in a wait. Not an `Exception`: nothing on the way may take it for a failure."""


class Interruption:
    """Handles the signals while it is entered."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        """Set once it was told to stop."""
        self._is_waiting = False
        self._is_over = False
        self._lock = threading.Lock()

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Inside, being told to stop raises `Stopped`."""
        self._is_waiting = True
        try:
            if self.exit_code is not None:
                raise Stopped
            yield
        finally:
            self._is_waiting = False

    def __enter__(self) -> Interruption:
        self._before = {
            number: signal.signal(number, self._handle)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        self._watch_pipe()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.exit_code is None:
            # Being ended by its supervisor is how a follower's life ends: no failure.
            self.exit_code = INTERRUPTED if number == signal.SIGINT else 0
        if self._is_waiting:
            self._is_waiting = False
            raise Stopped

    def _watch_pipe(self) -> None:
        """`follow | head -1` must end with head, not with the next message."""
        try:
            mode = os.fstat(sys.stdout.fileno()).st_mode
        except (OSError, ValueError):
            return
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            threading.Thread(target=self._wait_for_hangup, daemon=True).start()

    def _wait_for_hangup(self) -> None:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        poll.poll()
        main = threading.main_thread().ident
        assert main is not None
        with self._lock:
            # A reader may also leave because it has all it wanted: the command is ending anyway.
            if not self._is_over:
                self.exit_code = BROKEN_PIPE
                signal.pthread_kill(main, signal.SIGTERM)
