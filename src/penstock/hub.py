"""The hub: the composition root, the only place that wires a store to the services."""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from penstock.aio import AsyncHub
from penstock.clock import Clock, SystemClock
from penstock.committer import Committer, inside_transaction
from penstock.copies import backup, new_generation, restore
from penstock.doorbell import Doorbell
from penstock.errors import HubClosed, InsideTransaction
from penstock.health import Health, Metrics, diagnose, measure, report
from penstock.job import OnConflict
from penstock.jobs.crew import Crew
from penstock.jobs.producer import Jobs
from penstock.jobs.prune import Pruner as JobPruner
from penstock.jobs.registry import (
    DEFAULT_QUEUE,
    Isolation,
    JobFunction,
    Registry,
    make_handler,
)
from penstock.jobs.retry import RetryPolicy
from penstock.jobs.roster import Roster
from penstock.jobs.schedule import Schedules
from penstock.jobs.waiting import WaitingRoom
from penstock.jobs.worker import OnOutcome
from penstock.leases import LeaseKeeper
from penstock.ledger.fallback import Fallback
from penstock.ledger.keeper import ClaimKeeper
from penstock.ledger.ledger import Ledger
from penstock.ledger.prune import Pruner
from penstock.ledger.tracker import Tracker
from penstock.locks import LEASE_SECONDS, Leader, Lock
from penstock.mailboxes.feeder import Feeder
from penstock.mailboxes.mailboxes import Mailboxes
from penstock.mailboxes.mailroom import MailRoom
from penstock.model import Check, Instance
from penstock.ports import Store, Transaction
from penstock.service import Service
from penstock.settings import Settings
from penstock.settings import load as load_settings
from penstock.stores import load_driver, open_store
from penstock.telemetry import Telemetry
from penstock.topics.bus import Topics
from penstock.topics.conflate import Conflator
from penstock.topics.consumers import Consumers
from penstock.topics.retention import Sweeper
from penstock.topics.sieve import Tracker as MessageTracker
from penstock.topics.tail import Tail
from penstock.transaction import AsyncHubTransaction, Desk, HubTransaction

if TYPE_CHECKING:
    from penstock.delivery.access import Authenticator
    from penstock.delivery.switchboard import Switchboard

UPKEEP_SECONDS = 1.0
RESCUE_MAX = 500
READER_THREADS = 4
STOP_SECONDS = 10.0


class Hub:
    """Topics and consumers behind one URL. Thread-safe; opens at the first use."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        load_driver(settings.url)
        self.settings = settings
        self.telemetry = Telemetry()
        self._clock = clock or SystemClock()
        self._runtime: Runtime | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self.topics = Topics(self._open)
        """Publish, read, follow, subscribe; create, configure, list, delete, trim."""
        self.consumers = Consumers(self._open)
        """Named consumers and their watermarks."""
        self.jobs = Jobs(self._open)
        """Enqueue jobs, look at them, cancel, retry, pause, limit."""
        self.schedules = Schedules(self._open)
        """Jobs that are enqueued by the clock."""
        self.handlers = Registry()
        """What `@hub.job` has registered."""
        self._fallback = Fallback(settings.ledger_memory_max, self.telemetry)
        self.ledger = Ledger(
            self._open, self._fallback, lambda limit: self.transaction(limit_seconds=limit)
        )
        """What has been processed: marks, claims, idempotent functions."""
        self.mailboxes = Mailboxes(self._open)
        """A durable queue for each recipient."""
        self.aio = AsyncHub(self._open, self.close, self.handlers, self._fallback)
        """The same names as coroutines."""
        _hubs.add(self)

    @property
    def url(self) -> str:
        return self.settings.url

    def transaction(self, *, limit_seconds: float | None = None) -> HubTransaction:
        """One transaction across topics and your own tables."""
        runtime = self._open()
        limit = limit_seconds or self.settings.transaction_limit_seconds
        return HubTransaction(runtime, runtime.desk, limit)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Read your own tables beside penstock's: `connection.execute(sql, parameters)`."""
        yield Connection(self._open().store)

    def health(self) -> Health:
        """How consumers are doing, judged by the thresholds in the settings."""
        return report(self._open())

    def metrics(self) -> Metrics:
        """The queue in figures."""
        return measure(self._open())

    def diagnose(self) -> list[Check]:
        """What `penstock doctor` shows."""
        return diagnose(self._open())

    def backup(
        self,
        target: str | os.PathLike[str],
        progress: Callable[[int, int], None] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        """Write a consistent copy while everybody goes on working."""
        backup(self._open(), target, progress, overwrite=overwrite)

    def restore(
        self, source: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Replace the content by a backup's. Positions taken before raise `EpochChanged`."""
        restore(self._open(), source, progress)

    def new_generation(self) -> str:
        """Declare this file another one, after it was copied by hand. Returns the new epoch."""
        return new_generation(self._open())

    def job(
        self,
        function: Callable[..., Any] | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        name: str | None = None,
        max_attempts: int | None = None,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        priority: int = 0,
        isolation: Isolation | None = None,
        result_seconds: float | None = None,
        unique: Callable[[Any], str] | bool | None = None,
        on_conflict: OnConflict = "reject",
    ) -> Any:
        """Decorator: this function does the jobs of its name. `function.enqueue(payload)`.

        It is called with the payload, decoded to its annotation, and with the job if it takes a
        second argument. A coroutine function runs on the worker's event loop, a plain one on a
        thread, or in a process of its own with `isolation="process"`.
        """

        def decorate(function: Callable[..., Any]) -> JobFunction[Any]:
            handler = make_handler(
                function,
                queue=queue,
                name=name,
                max_attempts=max_attempts or self.settings.job_attempts_max,
                timeout=timeout,
                retry=retry,
                priority=priority,
                isolation=isolation,
                result_seconds=result_seconds,
                unique=unique,
                on_conflict=on_conflict,
            )
            self.handlers.add(handler)
            return JobFunction(self.jobs, handler)

        return decorate if function is None else decorate(function)

    def start_workers(
        self, queues: Mapping[str, int] | None = None, *, on_outcome: OnOutcome | None = None
    ) -> Crew:
        """Do jobs in this process, on threads of its own, until `stop()` or the hub is closed.

        `queues` says how many jobs of each queue at once; by default 10 of each queue that has
        a handler here. `on_outcome` is called on the workers' thread with each run that has ended
        and, unless it completed, its setback.
        """
        return Crew(self._open(), self.handlers, queues, on_outcome)

    def start_feeding(self) -> Feeder:
        """Put what is published into the mailboxes that subscribe to it, on a thread of its own,
        until `stop()` or the hub is closed. Of all processes that ask, one does at a time.
        """
        return self._open().start_feeding()

    def lock(
        self, name: str, lease_seconds: float = LEASE_SECONDS, *, timeout: float | None = None
    ) -> Lock:
        """`with hub.lock("name") as lock:` one holder at a time, over all processes.

        Waits for it, at most `timeout` seconds (`LockTimeout`). It is renewed by itself; a holder
        that dies loses it at once, one that hangs after `lease_seconds`.
        """
        return Lock(self._open, name, lease_seconds, timeout)

    def leader(self, name: str, lease_seconds: float = LEASE_SECONDS) -> Leader:
        """Stand for election, on a thread of its own, until `stop()`: `leader.is_leader`."""
        return Leader(self._open(), name, lease_seconds)

    def open_delivery(self, authenticator: Authenticator | None = None) -> Switchboard:
        """Live delivery to sockets, on the running event loop. For servers."""
        # Imported here: programs that do not serve need not load it.
        from penstock.delivery.switchboard import Switchboard

        return Switchboard(self._open(), version("penstock"), authenticator)

    def close(self) -> None:
        """Write what waits, stop the threads, close the store."""
        with self._lock:
            self._is_closed = True
            runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.Hub {self.settings.url}>"

    def _open(self) -> Runtime:
        runtime = self._runtime
        if runtime is not None:
            return runtime
        with self._lock:
            if self._is_closed:
                raise HubClosed
            if self._runtime is None:
                self._runtime = Runtime(self.settings, self._clock, self.telemetry, self._fallback)
            return self._runtime

    def _abandon(self) -> None:
        """In a forked child: the parent goes on with what is open; the child opens its own."""
        inherited, self._runtime = self._runtime, None
        self._lock = threading.Lock()
        self.telemetry.renew()
        self._fallback.renew()
        if inherited is not None:
            inherited.mail.abandon()
            inherited.store.abandon()
            _abandoned.append(inherited)


class Connection:
    """Reads only; writing is for `hub.transaction()`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        return self._store.query(sql, parameters)


class Runtime:
    """An open store and the services around it."""

    def __init__(
        self, settings: Settings, clock: Clock, telemetry: Telemetry, fallback: Fallback
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.telemetry = telemetry
        self.name = settings.name or f"{socket.gethostname()}:{os.getpid()}"
        self.store = open_store(settings, clock)
        self.committer = Committer(self.store, settings, clock, self.name, telemetry)
        self.keeper = LeaseKeeper(self._write, settings.consumer_lease_seconds, telemetry)
        self.claims = ClaimKeeper(self._write, telemetry)
        self.fallback = fallback
        self.tracker: MessageTracker = Tracker(self.store, clock, fallback)
        self.tail = Tail(self.store, settings, telemetry)
        self.doorbell = Doorbell(self.store.open_wake, settings, telemetry)
        self.conflator = Conflator(self.committer, settings, clock, telemetry)
        self.sweeper = Sweeper(self.store, self.committer, settings, clock, self.name, telemetry)
        self.sweeper.chores.append(Pruner(self.store, settings, clock, telemetry).prune)
        self.sweeper.chores.append(
            JobPruner(self.store, self.committer, settings, clock, telemetry).prune
        )
        self.upkeep = Upkeep(self)
        self.roster = Roster(self)
        self.mail = MailRoom(self._mailboxes_root, settings, clock, telemetry)
        self.feeder: Feeder | None = None
        self.waiting_room = WaitingRoom(self.store, self.doorbell)
        self.desk = Desk(self.store, telemetry)
        self.executor = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="penstock-reader")
        self.instance: Instance | None = None
        self._starting = threading.Lock()
        self.committer.on_start = self._start_upkeep
        self.committer.on_commit = self._committed
        self.store.on_growth = self._grown
        if settings.local_delivery:
            self.tail.on_audience = self._has_audience

    def start_reading(self) -> None:
        if self.instance is None and inside_transaction.get():
            raise InsideTransaction  # Registering would wait for it.
        with self._starting:
            if self.instance is None:
                instance = self.store.register(self.name)
                self.upkeep.report(instance)
                self.doorbell.listen(self.tail.look)
                self._start_upkeep()
                self.instance = instance

    def start_feeding(self) -> Feeder:
        with self._starting:
            if self.feeder is None or self.feeder.is_stopped:
                self.feeder = Feeder(self)
                self.feeder.start()
            return self.feeder

    def open_transaction(
        self,
        limit_seconds: float | None,
        *,
        is_async: bool,
        before_commit: Callable[[Transaction], None],
        after_commit: Callable[[], None],
    ) -> HubTransaction | AsyncHubTransaction:
        transaction = HubTransaction(
            self,
            self.desk,
            limit_seconds or self.settings.transaction_limit_seconds,
            before_commit=before_commit,
            after_commit=after_commit,
        )
        return AsyncHubTransaction(transaction, self.executor) if is_async else transaction

    def close(self) -> None:
        if self.feeder is not None:
            self.feeder.stop(STOP_SECONDS)
        self.roster.close()
        self.tail.close()
        try:
            self.conflator.stop(STOP_SECONDS)
            self.conflator.flush()
        finally:
            for service in (
                *(self.sweeper, self.upkeep, self.doorbell, self.keeper, self.claims, self.desk),
            ):
                service.stop(STOP_SECONDS)
            try:
                self.mail.close()
            finally:
                self.committer.stop()
                self.executor.shutdown()
                self.store.close()

    def _mailboxes_root(self) -> str:
        return self.settings.mailboxes or str(self.store.beside(".mailboxes"))

    def _write(self, write: Callable[[Transaction], Any]) -> Any:
        return self.committer.run_now(write)

    def _committed(self, count: int) -> None:
        self.sweeper.published(count)

    def keep_up(self) -> None:
        """See to it that what is old is removed, also where nothing is published or read."""
        if not self.upkeep.is_running:
            self._start_upkeep()

    def _grown(self) -> None:
        self.keep_up()
        self.upkeep.nudge()

    def _start_upkeep(self) -> None:
        self.upkeep.start()
        self.sweeper.start()

    def _has_audience(self, is_there: bool) -> None:
        self.committer.on_appended = self.tail.offer if is_there else None


class Upkeep(Service):
    """Keeps the store in shape, and this process known to the others."""

    name = "upkeep"

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.telemetry)
        self._runtime = runtime
        self._reported_at = time.monotonic()

    def run_once(self) -> float:
        self._runtime.store.maintain()
        self._runtime.fallback.flush_soon(self._runtime)
        self._rescue()
        instance = self._runtime.instance
        is_due = time.monotonic() - self._reported_at >= self._runtime.settings.instance_seconds
        if instance is not None and is_due:
            self.report(instance)
        return UPKEEP_SECONDS

    def _rescue(self) -> None:
        """Jobs whose worker is gone: any process takes them out of its hands."""
        runtime = self._runtime
        while runtime.store.jobs.has_lost():
            rescued = runtime.committer.run_now(
                lambda tx: tx.jobs.rescue(now=runtime.clock.now(), limit=RESCUE_MAX)
            )
            runtime.telemetry.emit("rescued", jobs=len(rescued))

    def report(self, instance: Instance) -> None:
        """Say how far this process has read."""
        tail, now = self._runtime.tail, self._runtime.clock.now()
        self._runtime.committer.run_now(
            lambda tx: tx.instances.report(
                instance, position=tail.cursor, poll_latency_ms=tail.poll_latency_ms, now=now
            )
        )
        self._reported_at = time.monotonic()


_hubs: weakref.WeakSet[Hub] = weakref.WeakSet()
_abandoned: list[Runtime] = []


@atexit.register
def _close_all() -> None:
    """Conflated messages are written, and nothing private is left behind."""
    for hub in list(_hubs):
        hub.close()


def _after_fork_in_child() -> None:
    for hub in list(_hubs):
        hub._abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def connect(
    url: str | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    clock: Clock | None = None,
    **arguments: Any,
) -> Hub:
    """A hub. Checks the URL and the settings, and opens nothing before the first use.

    `url` defaults to `$PENSTOCK_URL`, then `sqlite:///penstock.db`. Any setting can be passed by
    name; `config` is a TOML file (default: penstock.toml here, if there is one).
    """
    return Hub(load_settings(url, file=config, **arguments), clock)
