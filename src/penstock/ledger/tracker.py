"""The ledger as followers use it: which messages a consumer has had, asked and told in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.clock import Clock
from penstock.entry import NewMark
from penstock.ledger.fallback import Fallback
from penstock.ledger.terms import UNREACHABLE, OnError
from penstock.ports import Store, Transaction


class Tracker:
    """A consumer's name is the scope."""

    def __init__(self, store: Store, clock: Clock, fallback: Fallback) -> None:
        self._store = store
        self._clock = clock
        self._fallback = fallback

    def seen(self, consumer: str, keys: Sequence[str], on_error: OnError) -> set[str]:
        """Which of these the consumer has had."""
        try:
            found = self._store.ledger.processed(consumer, keys, now=self._clock.now())
        except UNREACHABLE as error:
            if on_error == "raise":
                raise
            self._fallback.unreachable(consumer, error, len(keys))
            return self._fallback.among(consumer, keys)
        self._fallback.reached()
        return found | self._fallback.among(consumer, keys)

    def marking(
        self, consumer: str, keys: Sequence[str], on_error: OnError
    ) -> Callable[[Transaction], None]:
        """As an operation: the consumer has had these."""
        marks = [NewMark(consumer, key) for key in keys]

        def write(transaction: Transaction) -> None:
            try:
                with transaction.savepoint():
                    transaction.ledger.mark(marks, now=self._clock.now())
            except UNREACHABLE as error:
                if on_error == "raise":
                    raise
                # The rest of the transaction stands: what was processed stays committed.
                self._fallback.unreachable(consumer, error, len(keys))
                self._fallback.remember(consumer, keys)

        return write
