"""What wakes a thread that sleeps, and is safe in the hands of threads that are struck.

A `threading.Event` is Python code around a lock: a thread that is struck in the middle of its
`set()` or `wait()`, by Ctrl-C or the end of a job's time, may keep that lock for good, and all who
come next wait for it. Here each step is one of the interpreter's own, whole or not done.
"""

from __future__ import annotations

import threading


class Alarm:
    """For one sleeper. Rung before it lies down, it does not sleep; rung twice, it wakes once."""

    __slots__ = ("bed",)

    def __init__(self) -> None:
        self.bed = threading.Lock()
        """Locked while there is no reason to wake up. To release it is to ring, in one step."""
        self.bed.acquire()

    def ring(self) -> None:
        if self.bed.locked():
            try:
                self.bed.release()
            except RuntimeError:
                return  # Somebody else was quicker.

    def sleep(self, seconds: float | None = None) -> bool:
        """Until it rings, or so long at most. Whether it rang."""
        return self.bed.acquire(timeout=-1 if seconds is None else max(0.0, seconds))

    def clear(self) -> None:
        """What rang until now does not count."""
        self.bed.acquire(blocking=False)
