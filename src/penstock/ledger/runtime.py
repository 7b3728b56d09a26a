"""What the ledger needs from the hub that is open."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Protocol

from penstock.clock import Clock
from penstock.committer import Committer
from penstock.ledger.keeper import ClaimKeeper
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
    claims: ClaimKeeper

    @property
    def executor(self) -> Executor:
        """Where event loops have the store read for them."""

    def keep_up(self) -> None:
        """See to it that what is old is removed, from now on."""
