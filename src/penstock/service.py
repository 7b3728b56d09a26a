"""Background work: a thread that calls `run_once()`, is supervised, and stops when told.

The base owns the loop, the jitter and the shutdown. A failure is reported and tried again with
growing pauses; a service never dies of one. Tests call `run_once()` themselves.
"""

from __future__ import annotations

import random
import threading

from penstock.alarm import Alarm
from penstock.telemetry import Telemetry

BACKOFF_SECONDS_MAX = 5.0
JITTER = 0.1


class Service:
    """Subclasses implement `run_once()`, which returns the seconds until it wants to run again."""

    name = "service"

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._alarm = Alarm()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self.last_error: BaseException | None = None

    def run_once(self) -> float:
        raise NotImplementedError

    def start(self) -> None:
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None and not self._stopping.is_set():
                thread = threading.Thread(
                    target=self._loop, name=f"penstock-{self.name}", daemon=True
                )
                thread.start()
                self._thread = thread

    def nudge(self) -> None:
        """Run soon."""
        self._alarm.ring()

    def stop(self, timeout_seconds: float | None = None) -> None:
        with self._starting:
            self._stopping.set()
        self._alarm.ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _pause(self, seconds: float) -> None:
        self._alarm.sleep(seconds * (1 + random.uniform(-JITTER, JITTER)))

    def _on_start(self) -> None:
        """Runs on the service's thread before the first `run_once()`."""

    def _on_stop(self) -> None:
        """Runs on the service's thread after the last one."""

    def _is_the_one(self) -> bool:
        """Whoever started this thread may have been struck before it knew, and have started
        another."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.current_thread()
            return self._thread is threading.current_thread()

    def _loop(self) -> None:
        if not self._is_the_one():
            return
        failures = 0
        try:
            self._on_start()
            while not self._stopping.is_set():
                try:
                    pause = self.run_once()
                    failures = 0
                    self.last_error = None
                except Exception as error:  # noqa: BLE001 - the supervisor: reports, never dies
                    failures += 1
                    self.last_error = error
                    self._telemetry.emit("service_failed", service=self.name, error=repr(error))
                    pause = min(BACKOFF_SECONDS_MAX, 0.05 * 2 ** min(failures, 10))
                if pause > 0 and not self._stopping.is_set():
                    self._pause(pause)
        finally:
            self._on_stop()
