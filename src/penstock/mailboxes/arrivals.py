"""Who waits for which box, and the file that tells all processes where something came.

After a group is on disk, the numbers of its boxes are appended to one file, which all processes
watch. The file begins anew when it is large; whoever was so late that it misses some looks
everywhere, as all do once a second in any case.
"""

from __future__ import annotations

import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable

from penstock.mailboxes.changes import Changes
from penstock.mailboxes.disk import Disk
from penstock.service import Service
from penstock.telemetry import Telemetry

if sys.platform == "linux":
    from inotify_simple import INotify, flags

NUMBER = struct.Struct("<Q")
FILE_BYTES_MAX = 1024 * 1024
LOOK_SECONDS = 1.0
POLL_SECONDS = 0.02
"""Where there is no inotify."""

Wake = Callable[[], None]


class Arrivals(Service):
    name = "arrivals"

    def __init__(self, disk: Disk, path: str, changes: Changes, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._disk = disk
        self._changes = changes
        self._path = path
        self._looked_at = time.monotonic()
        self._file = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._waiting: dict[int, dict[object, Wake]] = {}
        self._lock = threading.Lock()
        self._seen = os.fstat(self._file).st_size
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._read_end, select.POLLIN)
        self._inotify: INotify | None = None

    def wait_for(self, number: int, key: object, wake: Wake) -> None:
        """Call `wake` whenever something may have come for this box, on any thread."""
        with self._lock:
            if not self._waiting:
                self._watch()
                self._changes.say_waiting(True)
            self._waiting.setdefault(number, {})[key] = wake
        self.start()

    def _watch(self) -> None:
        """From the first who waits on: most never do, and to stop watching takes long."""
        if self._inotify is None and sys.platform == "linux":
            self._inotify = INotify()
            self._inotify.add_watch(self._path, flags.MODIFY)
            self._poll.register(self._inotify.fileno(), select.POLLIN)

    def forget(self, number: int, key: object) -> None:
        with self._lock:
            known = self._waiting.get(number)
            if known is not None:
                known.pop(key, None)
                if not known:
                    del self._waiting[number]
                    if not self._waiting:
                        self._changes.say_waiting(False)

    def tell(self, numbers: Iterable[int]) -> None:
        """Something is in these boxes: for those who wait here, and elsewhere."""
        if not self._changes.is_awaited:
            return
        numbers = list(numbers)
        self._call(numbers)
        try:
            os.write(self._file, b"".join([NUMBER.pack(number) for number in numbers]))
            if os.fstat(self._file).st_size > FILE_BYTES_MAX:
                os.ftruncate(self._file, 0)
        except OSError as error:
            # They are on disk; those who wait look by themselves before long.
            self._telemetry.emit("service_failed", service=self.name, error=repr(error))

    def run_once(self) -> float:
        seconds = LOOK_SECONDS if self._inotify is not None else POLL_SECONDS
        ready = self._poll.poll(seconds * 1000)
        for descriptor, _ in ready:
            if descriptor == self._read_end:
                os.read(self._read_end, 4096)
            elif self._inotify is not None:
                self._inotify.read(timeout=0)
        news = self._news()
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            # Something may have been missed, also where something always comes.
            self._looked_at = time.monotonic()
            news = None
        self._call(news)
        return 0.0

    def stop(self, timeout_seconds: float | None = None) -> None:
        self._stopping.set()
        try:
            os.write(self._write_end, b"\0")
        except BlockingIOError:
            pass
        super().stop(timeout_seconds)
        self._close()

    def abandon(self) -> None:
        """In a forked child, where there is no thread to stop."""
        self._close()

    def _close(self) -> None:
        self._close_pipe()
        if self._inotify is not None:
            self._inotify.close()
        self._disk.close(self._file)

    def _close_pipe(self) -> None:
        for descriptor in (self._read_end, self._write_end):
            if descriptor >= 0:
                os.close(descriptor)
        self._read_end = self._write_end = -1

    def _news(self) -> list[int] | None:
        """The boxes that were told since the last time; None if that is not known."""
        size = os.fstat(self._file).st_size
        if size < self._seen:
            self._seen = size
            return None
        data = os.pread(self._file, size - self._seen, self._seen)
        data = data[: len(data) - len(data) % NUMBER.size]
        self._seen += len(data)
        return [number for (number,) in NUMBER.iter_unpack(data)]

    def _call(self, numbers: list[int] | None) -> None:
        waiting = self._waiting
        if not waiting:
            return
        with self._lock:
            chosen = list(waiting) if numbers is None else [n for n in numbers if n in waiting]
            wakes = [wake for number in chosen for wake in waiting[number].values()]
        for wake in wakes:
            wake()
