"""Who waits for what: one thread per process that is woken by commits and looks for the others."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.ports import Wake
from penstock.service import Service
from penstock.settings import Settings
from penstock.telemetry import Telemetry

ACTIVE_SECONDS = 2.0
"""How long after the last find the shorter interval of the safety net holds."""


class Doorbell(Service):
    """Calls its listeners after each commit in any process. A listener says if it found anything.

    A listener that fails is called again after a pause, not only at the next commit.
    """

    name = "doorbell"

    def __init__(
        self, open_wake: Callable[[], Wake], settings: Settings, telemetry: Telemetry
    ) -> None:
        super().__init__(telemetry)
        self._open_wake = open_wake
        self._wake: Wake | None = None
        self._active = settings.poll_active_ms / 1000
        self._idle = settings.poll_idle_ms / 1000
        self._listeners: tuple[Callable[[], bool], ...] = ()
        self._hurries: dict[Callable[[], bool], float] = {}
        self._last_find = time.monotonic()
        self._owes_a_look = False

    def listen(self, listener: Callable[[], bool], *, within_seconds: float | None = None) -> None:
        """`within_seconds`: how soon it is to hear of commits that rang no bell."""
        self._listeners = (*self._listeners, listener)
        if within_seconds is not None:
            self._hurries = {**self._hurries, listener: within_seconds}
        self.start()
        if within_seconds is not None:
            self.look()  # It may be in the middle of a longer wait.

    def forget(self, listener: Callable[[], bool]) -> None:
        self._listeners = tuple(known for known in self._listeners if known != listener)
        self._hurries = {k: v for k, v in self._hurries.items() if k != listener}

    def look(self) -> None:
        """Call the listeners soon, without a commit."""
        self._owes_a_look = True
        if self._wake is not None:
            self._wake.interrupt()

    def run_once(self) -> float:
        if self._wake is None:
            self._wake = self._open_wake()
            self._owes_a_look = True
        is_active = time.monotonic() - self._last_find < ACTIVE_SECONDS
        interval = 0.0 if self._owes_a_look else self._active if is_active else self._idle
        interval = min(interval, *self._hurries.values()) if self._hurries else interval
        if self._wake.wait(interval) or self._owes_a_look:
            self._owes_a_look = True
            found = [listener() for listener in self._listeners]
            self._owes_a_look = False
            if any(found):
                self._last_find = time.monotonic()
        return 0.0

    def stop(self, timeout_seconds: float | None = None) -> None:
        self._stopping.set()
        if self._wake is not None:
            self._wake.interrupt()
        super().stop(timeout_seconds)

    def _on_stop(self) -> None:
        if self._wake is not None:
            self._wake.close()
