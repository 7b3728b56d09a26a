"""The store as a whole: readers, writers, transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.model import Check, Instance, LogState
    from penstock.ports.consumers import ConsumerReader, ConsumerWriter
    from penstock.ports.feeds import FeedReader, FeedWriter
    from penstock.ports.jobs import JobReader, JobWriter
    from penstock.ports.lake import LakeReader, LakeWriter
    from penstock.ports.leases import InstanceReader, InstanceWriter, LeaseReader, LeaseWriter
    from penstock.ports.ledger import LedgerReader, LedgerWriter
    from penstock.ports.pipelines import PipelineReader, PipelineWriter
    from penstock.ports.presence import PresenceReader, PresenceWriter
    from penstock.ports.scan import Scanner
    from penstock.ports.schedules import ScheduleReader, ScheduleWriter
    from penstock.ports.sinks import SinkReader, SinkWriter
    from penstock.ports.topics import TopicReader, TopicWriter
    from penstock.ports.wake import Wake


class Capabilities(msgspec.Struct, frozen=True):
    """What a store can do beyond the common guarantees. Callers ask here, never for a class."""

    durable: bool
    """An acknowledged write survives a power loss."""
    shared: bool
    """Several processes can use the store at once."""
    sql: bool
    """Transactions can run the user's own statements."""
    backup: bool
    """The store can be copied while in use."""


class Transaction(Protocol):
    """Writes that happen together or not at all, in the order they were made."""

    @property
    def topics(self) -> TopicWriter: ...
    @property
    def consumers(self) -> ConsumerWriter: ...
    @property
    def leases(self) -> LeaseWriter: ...
    @property
    def instances(self) -> InstanceWriter: ...
    @property
    def presence(self) -> PresenceWriter: ...
    @property
    def jobs(self) -> JobWriter: ...
    @property
    def schedules(self) -> ScheduleWriter: ...
    @property
    def ledger(self) -> LedgerWriter: ...
    @property
    def sinks(self) -> SinkWriter: ...
    @property
    def feeds(self) -> FeedWriter: ...
    @property
    def pipelines(self) -> PipelineWriter: ...
    @property
    def lake(self) -> LakeWriter: ...

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Run the user's own statement and return its rows. Needs `Capabilities.sql`.

        Statements that end the transaction, reach outside the store or change penstock's own
        tables raise `StatementRefused` and change nothing.
        """

    def savepoint(self) -> AbstractContextManager[None]:
        """What is written inside is undone if it raises; the rest of the transaction stands."""


class Writer(Protocol):
    """One seat at the store's single writing desk. One transaction at a time."""

    def begin(self, *, timeout_seconds: float | None = None) -> Transaction:
        """Wait for the turn and open a transaction.

        Raises `StoreBusy` if the turn did not come in time.
        """

    def commit(self) -> None:
        """When this returns, everything is on disk as far as `Capabilities.durable` promises.

        If messages were appended, the listeners of all processes have been woken.

        `StoreFull`: nothing was written. `OutcomeUnknown`: the commit itself failed, and only a
        look at the store can tell. Either way the transaction is over.
        """

    def rollback(self) -> None:
        """Undo the transaction, if there is one."""

    def interrupt(self) -> None:
        """From another thread: make the statement under way fail with `TransactionTimeout`."""

    def transaction(
        self, *, timeout_seconds: float | None = None, is_synced: bool = True
    ) -> AbstractContextManager[Transaction]:
        """Begin; commit on leaving, or roll back if the body raises.

        One that is not synced is on disk with the next that is: until then, it is lost with the
        power, and with nothing less.
        """

    def close(self) -> None: ...


class Store(Protocol):
    """A place that holds topics, consumers and leases. All methods are thread-safe."""

    capabilities: Capabilities
    location: str

    def beside(self, suffix: str) -> Path:
        """A file or folder that belongs to the store, for what is not in it."""

    """Where the data is, for people."""
    on_growth: Callable[[], None] | None
    """Called, on a writer's thread, when `maintain` is due."""

    @property
    def topics(self) -> TopicReader: ...
    @property
    def consumers(self) -> ConsumerReader: ...
    @property
    def leases(self) -> LeaseReader: ...
    @property
    def instances(self) -> InstanceReader: ...
    @property
    def presence(self) -> PresenceReader: ...
    @property
    def jobs(self) -> JobReader: ...
    @property
    def schedules(self) -> ScheduleReader: ...
    @property
    def ledger(self) -> LedgerReader: ...
    @property
    def sinks(self) -> SinkReader: ...
    @property
    def feeds(self) -> FeedReader: ...
    @property
    def pipelines(self) -> PipelineReader: ...
    @property
    def lake(self) -> LakeReader: ...

    def open_writer(self) -> Writer:
        """A further writer: one for each thread that writes."""

    def open_wake(self) -> Wake:
        """A further listener: one for each thread that waits."""

    def scan(self) -> Scanner:
        """A further scanner: one for each thread that reads in bulk."""

    def ring(self) -> None:
        """Wake the listeners of all processes, as a commit with new messages does."""

    def log(self) -> LogState:
        """The epoch and the end of the log as of now."""

    def query(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Run the user's own reading statement. Needs `Capabilities.sql`."""

    def register(self, name: str) -> Instance:
        """Give this process a number under which it can hold leases and enter who is present.

        It counts as alive until it ends, however it ends. `instances` lists it from its first
        report on.
        """

    def maintain(self, *, force: bool = False) -> None:
        """Do the housekeeping that is due (checkpoints, returning free space), in short steps."""

    def backup(self, target: Path, progress: Callable[[int, int], None] | None = None) -> None:
        """Write a consistent copy to `target` while others read and write."""

    def restore(self, source: Path, progress: Callable[[int, int], None] | None = None) -> None:
        """Replace the content by a backup's, in one step, under a new epoch.

        Ids go on above those of both, and one is left out.
        """

    def new_generation(self) -> str:
        """Start a new epoch, so that positions taken before it are refused. Returns it.

        Ids go on rising, and one is left out.
        """

    def checks(self) -> Sequence[Check]:
        """What can be said about the store itself, for `doctor`."""

    def abandon(self) -> None:
        """In a forked child: let go of inherited handles without touching the store."""

    def close(self) -> None: ...
