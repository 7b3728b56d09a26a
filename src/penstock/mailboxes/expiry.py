"""Removes what waited too long for its recipient, and what is left of boxes that were deleted."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

from penstock.clock import SECOND, Micros
from penstock.errors import PenstockError
from penstock.mailboxes.contents import expire, look
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.listing import box_folders, name_of
from penstock.mailboxes.recovery import QUARANTINE
from penstock.mailboxes.state_log import read_state
from penstock.service import Service
from penstock.settings import Settings
from penstock.telemetry import Telemetry

PACE = 200
"""Boxes between two short rests: others want the disk, too."""
REST_SECONDS = 0.005
JUMP_SECONDS = 60.0
"""A clock that went on by so much more than time did has been set."""
FORGET_SECONDS = 3_600.0
"""How long the folder of a deleted box stays: longer than any log that may still speak of it."""


class Expirer(Service):
    name = "expirer"

    def __init__(self, folder: Folder, settings: Settings, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._folder = folder
        self._ttl_seconds = settings.mailbox_ttl_seconds
        self._sweep_seconds = settings.mailbox_sweep_seconds
        self._has_waited = False
        self._last: tuple[Micros, float] = (folder.now(), time.monotonic())

    def run_once(self) -> float:
        if not self._has_waited:
            # Not all processes at once, and none that is gone in a moment.
            self._has_waited = True
            return self._sweep_seconds * random.uniform(0.1, 0.5)
        self.sweep()
        return self._sweep_seconds

    def sweep(self, progress: Callable[[int, int], None] | None = None) -> int:
        """One look at every box, by one process at a time. Returns how many messages went."""
        if self._has_clock_jumped():
            return 0
        file = self._folder.disk.open(f"{self._folder.root}/sweep.lock", os.O_RDWR | os.O_CREAT)
        try:
            if not self._folder.disk.try_lock(file, 0):
                return 0
            # A log that nobody has replayed must not bring back what is forgotten below.
            self._folder.recover()
            before = self._folder.now() - round(self._ttl_seconds * SECOND)
            return expire_all(self._folder, before, progress, should_stop=self._stopping.is_set)
        finally:
            self._folder.disk.close(file)

    def _has_clock_jumped(self) -> bool:
        """A clock set forward must not throw away what is young. The next sweep believes it."""
        now, monotonic = self._folder.now(), time.monotonic()
        then, then_monotonic = self._last
        self._last = now, monotonic
        ahead = (now - then) / SECOND - (monotonic - then_monotonic)
        if ahead > JUMP_SECONDS:
            self._telemetry.emit("clock_jumped", seconds=round(ahead))
            return True
        return False


def expire_all(
    folder: Folder,
    before: Micros,
    progress: Callable[[int, int], None] | None = None,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Remove messages older than this from the beginning of every box."""
    removed = 0
    paths = list(box_folders(f"{folder.root}/boxes", folder.depth))
    for number, path in enumerate(paths, 1):
        if should_stop():
            break
        removed += _visit(folder, path, before)
        if progress is not None:
            progress(number, len(paths))
        if number % PACE == 0:
            time.sleep(REST_SECONDS)
    return removed


def _visit(folder: Folder, path: str, before: Micros) -> int:
    name = name_of(folder, path)
    if name is None:
        _remove_deleted(folder, path)
        return 0
    try:
        with folder.locked(name) as box:
            look(box, folder)
            return expire(box, folder, before)
    except PenstockError as error:
        # A damaged box is told of, and does not keep the others.
        folder.report("mailbox_damaged", mailbox=name, file=path, reason=str(error))
        return 0


def _remove_deleted(folder: Folder, path: str) -> None:
    state, _ = read_state(folder.disk, path)
    if state is None or not state.deleted:
        return
    try:
        age = folder.now() / SECOND - folder.disk.stat_path(f"{path}/queue.log").st_mtime
    except FileNotFoundError:
        return
    if age < FORGET_SECONDS:
        return
    digest = bytes.fromhex(path.removeprefix(f"{folder.root}/boxes").replace("/", ""))
    with folder.holding(digest):
        names = folder.disk.list(path)
        if any(name.startswith("messages.") or name == QUARANTINE for name in names):
            return
        folder.changing()
        folder.look_again()
        for name in names:
            folder.disk.unlink(f"{path}/{name}")
        folder.disk.remove_folder(path)
