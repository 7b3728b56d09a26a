"""Keeps the stdlib's SQLite away from files that are open here.

Two SQLite libraries in one process do not know of each other's POSIX locks; when one closes the
file, the other's locks are gone, and committed rows with them.

Python tells of every `sqlite3.connect`, but who listens is told of everything else, too, and slows
it down. So we listen from the moment on in which somebody imports `sqlite3`: most never do.
"""

from __future__ import annotations

import os
import sys
import threading
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import ForeignConnection

LIBRARY = "_sqlite3"


class Guard:
    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()
        self._is_listening = False

    def add(self, path: Path) -> None:
        """From now on the file is ours. Raises if another library has it open here already."""
        with self._lock:
            self._check_open(path)
            if self not in sys.meta_path:
                sys.meta_path.insert(0, self)
            if LIBRARY in sys.modules:
                self._listen()
            name = os.path.realpath(path)
            self._open[name] = self._open.get(name, 0) + 1

    def remove(self, path: Path) -> None:
        with self._lock:
            name = os.path.realpath(path)
            count = self._open.pop(name, 0)
            if count > 1:
                self._open[name] = count - 1

    def renew(self) -> None:
        """In a forked child, where nothing is open any more."""
        self._lock = threading.Lock()
        self._open.clear()

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        """As one of those who find modules: finds none, but hears which one is looked for."""
        if name == LIBRARY:
            self._listen()

    def _listen(self) -> None:
        if not self._is_listening:
            self._is_listening = True
            sys.addaudithook(self._audit)

    def _check_open(self, path: Path) -> None:
        name = os.path.realpath(path)
        if name in self._open or LIBRARY not in sys.modules:
            return
        try:
            descriptors = os.listdir("/proc/self/fd")
        except OSError:
            return
        for descriptor in descriptors:
            try:
                target = os.readlink(f"/proc/self/fd/{descriptor}")
            except OSError:
                continue
            if target == name:
                raise ForeignConnection(f"{path} is open in this process through another library.")

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "sqlite3.connect" or not self._open or not arguments:
            return
        name = arguments[0]
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        if not isinstance(name, (str, os.PathLike)):
            return
        text = os.fspath(name)
        if isinstance(text, str) and text.startswith("file:"):
            text = urllib.parse.unquote(urllib.parse.urlsplit(text).path)
        if text and os.path.realpath(text) in self._open:
            raise ForeignConnection(f"sqlite3.connect({str(name)!r}) would lose data.")


guard = Guard()
if hasattr(os, "register_at_fork"):
    # Also if the hub was only just being opened, by another thread.
    os.register_at_fork(after_in_child=guard.renew)
