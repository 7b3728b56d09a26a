"""The folder of mailboxes and those who work on it: opened at the first use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from penstock.clock import Clock
from penstock.errors import HubClosed, StoreError
from penstock.mailboxes.disk import Disk, translated
from penstock.mailboxes.expiry import Expirer
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.postman import Janitor, Postman
from penstock.settings import Settings
from penstock.telemetry import Telemetry

STOP_SECONDS = 10.0


class MailRoom:
    def __init__(
        self,
        find_root: Callable[[], str],
        settings: Settings,
        clock: Clock,
        telemetry: Telemetry,
        disk: Disk | None = None,
    ) -> None:
        self._find_root = find_root
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self._disk = disk
        self._lock = threading.Lock()
        self._folder: Folder | None = None
        self._postman: Postman | None = None
        self.lane: Postman | None = None
        """Who takes a message at once: nobody until all is open, or where nothing is logged."""
        self._janitor: Janitor | None = None
        self._expirer: Expirer | None = None
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return self._folder is not None

    @property
    def root(self) -> str:
        return os.path.abspath(self._find_root())

    @property
    def has_boxes(self) -> bool:
        """Whether anybody has ever used a mailbox here."""
        return self.is_open or os.path.exists(f"{self.root}/store.json")

    @property
    def folder(self) -> Folder:
        if self._folder is None:
            self._open()
        assert self._folder is not None
        return self._folder

    @property
    def postman(self) -> Postman:
        if self._postman is None:
            self._open()
        assert self._postman is not None
        return self._postman

    def _open(self) -> None:
        with self._lock:
            if self._is_closed:
                raise HubClosed
            if self._folder is not None:
                return
            try:
                folder = Folder(self.root, self._settings, self._clock, self._telemetry, self._disk)
            except OSError as error:
                if error.filename:
                    raise StoreError(
                        f"The mailboxes cannot be opened: {error.strerror} ({error.filename})."
                    ) from error
                raise translated(error) from error
            self._postman = Postman(folder, self._settings, self._telemetry)
            self._janitor = Janitor(folder, self._postman, self._settings, self._telemetry)
            self._expirer = Expirer(folder, self._settings, self._telemetry)
            self._folder = folder
            if self._settings.mailbox_durability != "os":
                self.lane = self._postman
            self._janitor.start()
            self._expirer.start()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._folder is None:
                return
            assert self._postman is not None
            assert self._janitor is not None
            assert self._expirer is not None
            self._expirer.stop(STOP_SECONDS)
            self._postman.stop()
            self._janitor.stop(STOP_SECONDS)
            self._folder.close()

    def abandon(self) -> None:
        """In a forked child."""
        if self._folder is not None:
            assert self._postman is not None
            self._postman.abandon()
            self._folder.abandon()
