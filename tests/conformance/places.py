"""One suite over every store.

A store joins by a line in `PLACES`: something that makes an empty place for it and gives its URL.
What a store cannot do is asked of its `Capabilities`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.errors import PenstockError
from penstock.model import (
    Chunk,
    Instance,
    Message,
    NewMessage,
    Pattern,
    Position,
    Receipt,
    Retention,
)
from penstock.ports import Store, Transaction, Writer
from penstock.testing import FakeClock
from tests.factories import file_url, new_message, store_at

T = TypeVar("T")
Write = Callable[[Callable[[Transaction], T]], T]


@contextmanager
def _sqlite(folder: Path) -> Iterator[str]:
    yield file_url(folder / "hub.db")


@contextmanager
def _memory(folder: Path) -> Iterator[str]:
    yield "memory:"


PLACES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "sqlite": _sqlite,
    "memory": _memory,
}


class Place:
    """An empty place for one store. What is opened here is closed at the end of the test."""

    def __init__(self, url: str, clock: FakeClock) -> None:
        self.clock = clock
        self.url = url
        self._open: list[Store] = []
        self._writers: list[Writer] = []

    def open(self, **settings: Any) -> Store:
        """The store; a second call opens it as another process would, if it can be shared."""
        if self._open and not self._open[0].capabilities.shared:
            pytest.skip("the store is not shared between processes")
        self._open.append(store_at(self.url, clock=self.clock, **settings))
        return self._open[-1]

    def writer(self, store: Store) -> Writer:
        self._writers.append(store.open_writer())
        return self._writers[-1]

    def end(self, store: Store) -> None:
        """Close one store, as its process would at its end."""
        self._open.remove(store)
        store.close()

    def close(self) -> None:
        for closable in (*self._writers, *self._open):
            with suppress(PenstockError):
                closable.close()


class Scribe:
    """Writes to a store in transactions of its own, and reads it back plainly."""

    def __init__(self, store: Store, writer: Writer, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self._writer = writer

    def write(self, work: Callable[[Transaction], T]) -> T:
        with self._writer.transaction() as transaction:
            return work(transaction)

    def append(self, *messages: NewMessage) -> list[Receipt]:
        now = self.clock.now()
        return self.write(lambda tx: tx.topics.append(messages, producer="test", now=now))

    def publish(self, topic: str = "orders", count: int = 1, **options: Any) -> list[int]:
        """So many messages in one transaction; returns their ids."""
        receipts = self.append(
            *(new_message(topic, b"%d" % number, **options) for number in range(count))
        )
        return [receipt.id for receipt in receipts]

    def read(
        self, pattern: str = "*", after: int = 0, floor: int | None = None, limit: int = 10_000
    ) -> list[Message]:
        """All that is there after an id. Trims are accepted unless a floor is given."""
        messages: list[Message] = []
        if floor is None:
            floor = self.store.log().last_id
        while True:
            chunk = self.store.topics.read(
                Pattern(pattern), after=after, floor=floor, limit=limit, now=self.clock.now()
            )
            messages += chunk.messages
            if chunk.through == after:
                return messages
            after = chunk.through

    def tail(
        self,
        *,
        after: int,
        patterns: list[Pattern] | None,
        limit: int,
        epoch: str | None = None,
    ) -> Chunk:
        position = Position(epoch or self.store.log().epoch, after)
        return self.store.topics.read_tail(after=position, patterns=patterns, limit=limit)

    def sweep(self, topic: str, retention: Retention = Retention()) -> None:  # noqa: B008 - frozen
        now = self.clock.now()
        self.write(lambda tx: tx.topics.sweep(topic, retention, now=now, limit=1000))

    def report(self, instance: Instance, position: int = 0) -> None:
        now = self.clock.now()
        self.write(
            lambda tx: tx.instances.report(instance, position=position, poll_latency_ms=0, now=now)
        )

    def ids(self, pattern: str = "*") -> list[int]:
        return [message.id for message in self.read(pattern)]
