"""What jobs need from the hub that is open."""

from __future__ import annotations

from typing import Protocol

from penstock.clock import Clock
from penstock.committer import Committer
from penstock.doorbell import Doorbell
from penstock.model import Instance
from penstock.ports import Store
from penstock.settings import Settings
from penstock.telemetry import Telemetry


class Runtime(Protocol):
    store: Store
    settings: Settings
    clock: Clock
    telemetry: Telemetry
    name: str
    committer: Committer
    doorbell: Doorbell
    instance: Instance | None

    def start_reading(self) -> None:
        """Be known to the other processes, and listen for their commits, from now on."""
