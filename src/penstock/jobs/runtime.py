"""What jobs need from the hub that is open."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Protocol

from penstock.clock import Clock
from penstock.committer import Committer
from penstock.doorbell import Doorbell
from penstock.model import Instance
from penstock.ports import Store, Transaction
from penstock.settings import Settings
from penstock.telemetry import Telemetry

if TYPE_CHECKING:
    from penstock.jobs.roster import Roster
    from penstock.jobs.waiting import WaitingRoom


class Runtime(Protocol):
    store: Store
    settings: Settings
    clock: Clock
    telemetry: Telemetry
    name: str
    committer: Committer
    doorbell: Doorbell
    instance: Instance | None
    roster: Roster
    waiting_room: WaitingRoom

    @property
    def executor(self) -> Executor:
        """A few threads for reads."""

    def start_reading(self) -> None:
        """Be known to the other processes, and listen for their commits, from now on."""

    def open_transaction(
        self,
        limit_seconds: float | None,
        *,
        is_async: bool,
        before_commit: Callable[[Transaction], None],
        after_commit: Callable[[], None],
    ) -> Any:
        """One transaction across everything, with this in it at its end."""
