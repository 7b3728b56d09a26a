"""Ring, don't poll: after a commit the writer touches a bell file, and inotify wakes the others.

Safety net for a writer that dies between commit and ring, and for writers that know no bell:
`PRAGMA data_version`, which tells that another connection has committed.
"""

from __future__ import annotations

import logging
import os
import select
import struct
import sys
import threading
import time
from pathlib import Path

import apsw

from penstock.errors import StoreError
from penstock.stores.sqlite.connection import (
    Database,
    close_as_it_is,
    close_connection,
    fetch_value,
    translated,
)
from penstock.stores.sqlite.forks import add_holder, gate

if sys.platform == "linux":
    from inotify_simple import INotify, flags

logger = logging.getLogger("penstock")

# Without inotify the safety net is all there is.
POLL_SECONDS_WITHOUT_BELL = 0.005
# Whether the bell still hangs is looked at this often while it is rung without pause.
LOOK_SECONDS = 0.005
# Events read at once; more than nearly always wait, and what is left is read next.
EVENTS_BYTES_MAX = 4096


class Bell:
    """The ringing side: cheap, and it never fails a commit that has happened."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + "-bell")
        self._descriptor = -1
        self._looked_at = 0.0
        self._open()

    def ring(self) -> None:
        try:
            os.pwrite(self._descriptor, b"\0", 0)
            now = time.monotonic()
            if now - self._looked_at < LOOK_SECONDS:
                return
            self._looked_at = now
            if os.fstat(self._descriptor).st_nlink == 0:
                # Somebody removed the bell, and with it went the ring.
                os.close(self._descriptor)
                self._open()
                os.pwrite(self._descriptor, b"\0", 0)
        except OSError:
            # The message is on disk; listeners find it through the safety net.
            return

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


class SqliteWake:
    """The listening side, for one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._bell = Bell(database.path)
        self._bell_path = database.path.with_name(database.path.name + "-bell")
        self._wakeup_read, self._wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closing = threading.Lock()
        self._is_closed = False
        self._connection: apsw.Connection | None = None
        self._version: object = None
        self._poller = select.poll()
        self._poller.register(self._wakeup_read, select.POLLIN)
        self._inotify: INotify | None = None
        self._ring = b""
        add_holder(self)
        if sys.platform == "linux":
            self._start_inotify()

    def wait(self, timeout_seconds: float) -> bool:
        if self._inotify is None:
            timeout_seconds = min(timeout_seconds, POLL_SECONDS_WITHOUT_BELL)
        ready = self._poller.poll(timeout_seconds * 1000)
        if not ready:
            return self._has_changed()
        for descriptor, _ in ready:
            if descriptor == self._wakeup_read:
                os.read(self._wakeup_read, 4096)
            elif self._inotify is not None:
                self._drain(self._inotify)
        return True

    def interrupt(self) -> None:
        # The waiter may be closing meanwhile; the pipe's number would be another file's then.
        with self._closing:
            if self._is_closed:
                return
            try:
                os.write(self._wakeup_write, b"\0")
            except BlockingIOError:
                return  # The pipe is full of wake-ups already.

    def close(self) -> None:
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            os.close(self._wakeup_read)
            os.close(self._wakeup_write)
        self._bell.close()
        if self._inotify is not None:
            self._inotify.close()
        with gate:
            connection, self._connection = self._connection, None
            if connection is not None:
                close_connection(connection)

    def disconnect(self) -> None:
        """Before a fork."""
        connection, self._connection = self._connection, None
        if connection is not None:
            close_as_it_is(connection)

    def _start_inotify(self) -> None:
        try:
            self._inotify = INotify()
        except OSError as error:
            # The user's limit on inotify instances is reached: the safety net has to do.
            logger.warning("no inotify (%s); looking every few milliseconds instead", error)
            return
        self._watch()
        self._poller.register(self._inotify.fd, select.POLLIN)

    def _watch(self) -> None:
        assert self._inotify is not None
        # ATTRIB: a file that is still open somewhere, as here, is not gone when it is removed; its
        # number of names changes.
        gone = flags.ATTRIB | flags.DELETE_SELF | flags.MOVE_SELF
        self._inotify.add_watch(self._bell_path, flags.MODIFY | gone)

    def _drain(self, inotify: INotify) -> None:
        # A watch on a file has events without names, so all are of one size; nearly always it is
        # a single one, the same as the last.
        events = os.read(inotify.fd, EVENTS_BYTES_MAX)
        if events == self._ring:
            return
        if any(mask & ~flags.MODIFY for _, mask, _, _ in struct.iter_unpack("iIII", events)):
            # Somebody removed the bell; hang up another one.
            self._bell.close()
            self._bell = Bell(self._database.path)
            self._watch()
        else:
            self._ring = events[:16]

    def _has_changed(self) -> bool:
        """Whether another connection has committed since the last time this was asked."""
        with gate:
            return self._compare_versions()

    def _compare_versions(self) -> bool:
        try:
            if self._connection is None:
                self._connection = self._database.connect(read_only=True)
            else:
                self._database.check_present()
            with translated(self._database.path):
                version = fetch_value(self._connection, "PRAGMA data_version")
        except StoreError:
            # Let whoever looks next see the error itself; open anew when the file is back.
            if self._connection is not None:
                close_connection(self._connection)
                self._connection = None
            return True
        changed = version != self._version
        self._version = version
        return bool(changed)
