"""What consumers remember in memory while the ledger cannot be asked (L4).

Missing a message is worse than doing it twice: a consumer goes on, this process alone still does
each key once, health is a warning, and what was done is entered when the ledger is back.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from penstock.entry import Entry, Outcome
from penstock.errors import AlreadyProcessed, InProgress
from penstock.ledger.runtime import Runtime
from penstock.ledger.terms import LEASE_SECONDS, UNREACHABLE
from penstock.model import Check, Instance
from penstock.ports import Transaction
from penstock.telemetry import Telemetry

FLUSH_MAX = 1_000
"""Keys that are entered in one transaction when the ledger is back."""

Place = tuple[str, str]


class Done(msgspec.Struct, frozen=True):
    """Work that was done without the ledger, or whose end it could not be told."""

    outcome: Outcome
    claim: Entry | None = None

    def enter(self, transaction: Transaction, place: Place, instance: Instance, now: int) -> None:
        """Into the ledger, unless somebody else has been there since."""
        claim, is_mine = self.claim, True
        if claim is None or not transaction.ledger.complete(claim, self.outcome, now=now):
            claim, is_mine = transaction.ledger.claim(
                *place, instance=instance, lease_seconds=LEASE_SECONDS, hash=None, now=now
            )
            if is_mine:
                transaction.ledger.complete(claim, self.outcome, now=now)


class Fallback:
    """Bounded: the keys done longest ago are forgotten first. Thread-safe."""

    def __init__(self, keys_max: int, telemetry: Telemetry) -> None:
        self._keys_max = keys_max
        self._telemetry = telemetry
        self._known: OrderedDict[Place, Done | None] = OrderedDict()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._unasked = 0

    def renew(self) -> None:
        """In a forked child: whoever held the lock is not here."""
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        return not self._known

    @property
    def size(self) -> int:
        return len(self._known)

    def unreachable(self, scope: str, error: BaseException, keys: int = 1) -> None:
        """The ledger could not be asked about so many keys."""
        with self._lock:
            self._error = error
            self._unasked += keys
        self._telemetry.emit("ledger_unavailable", scope=scope, keys=keys, error=repr(error))

    def reached(self) -> None:
        """It has answered again."""
        self._error = None

    def check(self) -> Check | None:
        """For health: a warning while the ledger cannot be asked."""
        error = self._error
        if error is None and self.is_empty:
            return None
        if error is None:
            return Check("ledger", "ok", f"answers again; {self.size:,} keys are to be entered")
        return Check(
            "ledger",
            "warning",
            f"cannot be asked ({error}); {self._unasked:,} keys were processed without it",
            "Consumers go on and remember in memory; other processes may do the same work again.",
        )

    # One key after the other, for the decorator

    def begin(self, scope: str, key: str) -> Done | None:
        """What was done under the key; None: it is the caller's now, to finish or to drop."""
        with self._lock:
            if (scope, key) not in self._known:
                self._put((scope, key), None)
                return None
            done = self._known[scope, key]
        if done is None:
            raise InProgress(f"Another thread or task is at {key!r} in {scope!r}.")
        return done

    def find(self, scope: str, key: str) -> Done | None:
        """The same, without beginning."""
        if not self._known:
            return None
        with self._lock:
            return self._known.get((scope, key))

    def finish(self, scope: str, key: str, done: Done) -> None:
        with self._lock:
            self._put((scope, key), done)

    def drop(self, scope: str, key: str) -> None:
        with self._lock:
            self._known.pop((scope, key), None)

    # Many at once, for followers

    def among(self, scope: str, keys: Iterable[str]) -> set[str]:
        if not self._known:
            return set()
        with self._lock:
            return {key for key in keys if self._known.get((scope, key)) is not None}

    def remember(self, scope: str, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._put((scope, key), Done(Outcome()))

    # Back into the ledger

    def pending(self) -> list[tuple[Place, Done]]:
        with self._lock:
            found = [(place, done) for place, done in self._known.items() if done is not None]
        return found[:FLUSH_MAX]

    def entering(
        self, runtime: Runtime, pending: list[tuple[Place, Done]]
    ) -> Callable[[Transaction], None]:
        """As an operation: enter them."""
        instance, now = runtime.store.register(runtime.name), runtime.clock.now()

        def write(transaction: Transaction) -> None:
            for place, done in pending:
                done.enter(transaction, place, instance, now)

        return write

    def entered(self, pending: list[tuple[Place, Done]]) -> None:
        with self._lock:
            for place, done in pending:
                if self._known.get(place) is done:
                    del self._known[place]

    def flush(self, runtime: Runtime) -> None:
        """Enter all that was done meanwhile. Raises if the ledger cannot be asked still."""
        while pending := self.pending():
            for _, done in pending:
                # Renewed up to now, so that nobody did the same work again.
                if done.claim is not None:
                    runtime.claims.drop(done.claim)
            runtime.committer.run_now(self.entering(runtime, pending))
            self.entered(pending)

    def flush_soon(self, runtime: Runtime) -> None:
        """From time to time: enter what waits, if the ledger has answered since."""
        if self._error is not None or self.is_empty:
            return
        try:
            self.flush(runtime)
        except UNREACHABLE as error:
            self._error = error

    def _put(self, place: Place, done: Done | None) -> None:
        self._known[place] = done
        self._known.move_to_end(place)
        while len(self._known) > self._keys_max:
            self._known.popitem(last=False)


def check_raises(scope: str, key: str, on_done: str) -> None:
    if on_done == "raise":
        raise AlreadyProcessed(f"{key!r} in {scope!r} was processed before.")
