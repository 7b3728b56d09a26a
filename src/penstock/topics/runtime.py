"""What topics need from the hub that is open, whichever way it was put together."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Protocol

from penstock.clock import Clock
from penstock.committer import Committer
from penstock.leases import LeaseKeeper
from penstock.ports import Store
from penstock.settings import Settings
from penstock.telemetry import Telemetry
from penstock.topics.conflate import Conflator
from penstock.topics.sieve import Tracker
from penstock.topics.tail import Tail


class Runtime(Protocol):
    store: Store
    settings: Settings
    clock: Clock
    telemetry: Telemetry
    name: str
    committer: Committer
    keeper: LeaseKeeper
    tail: Tail
    conflator: Conflator
    tracker: Tracker

    @property
    def executor(self) -> Executor:
        """Where event loops have the store read for them."""

    def start_reading(self) -> None:
        """Listen for other processes' commits, from now on."""
