"""`hub.consumers`: the named consumers there are, their watermarks and their lag."""

from __future__ import annotations

from collections.abc import Callable

from penstock.clock import seconds
from penstock.errors import ConsumerNotFound, InvalidInput
from penstock.model import (
    Consumer,
    Lag,
    Pattern,
    Position,
    Start,
)
from penstock.topics.positions import check_position
from penstock.topics.runtime import Runtime


class Consumers:
    """`hub.consumers`: the named consumers there are, and their watermarks."""

    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        self._open = open_runtime

    def list(self, name: str | None = None) -> list[Consumer]:
        return self._open().store.consumers.find(name)

    def get(self, name: str, subscription: str) -> Consumer:
        found = self._open().store.consumers.get(name, subscription)
        if found is None:
            raise ConsumerNotFound(f"There is no consumer {name!r} on {subscription!r}.")
        return found

    def lag(self, name: str, subscription: str) -> Lag:
        return measure_lag(self._open(), self.get(name, subscription))

    def seek(self, name: str, subscription: str, to: Position | Start) -> Consumer:
        """Set the watermark by hand, also back. Nobody may be following under the name."""
        runtime = self._open()
        pattern = Pattern.parse(subscription)
        log = runtime.store.log()
        if not isinstance(to, Position) and to not in ("latest", "earliest"):
            raise InvalidInput(
                f"A consumer is moved to a position, 'latest' or 'earliest', not to {to!r}."
            )
        if isinstance(to, Position):
            check_position(runtime, to)
            offset, floor = to.offset, to.offset
        else:
            offset = log.last_id if to == "latest" else 0
            floor = max(offset, runtime.store.topics.trimmed_through(pattern))
        now = runtime.clock.now()
        runtime.committer.run_now(
            lambda tx: tx.consumers.seek(name, pattern.text, position=offset, floor=floor, now=now)
        )
        return self.get(name, subscription)

    def delete(self, name: str, subscription: str | None = None) -> int:
        """Forget the consumer, on one subscription or on all. Returns how many watermarks."""
        return self._open().committer.run_now(lambda tx: tx.consumers.delete(name, subscription))


def measure_lag(runtime: Runtime, consumer: Consumer) -> Lag:
    """How far a consumer is behind: messages it has not committed, and the age of the oldest."""
    topics = runtime.store.topics
    pattern = Pattern(consumer.subscription)
    offset = consumer.position.offset
    now = runtime.clock.now()
    first = topics.first_after(pattern, offset, now=now)
    age = 0 if first is None else max(0, now - first.created_at)
    return Lag(
        consumer.name,
        consumer.subscription,
        0 if first is None else topics.count_after(pattern, offset, now=now),
        seconds(age),
        topics.trimmed_through(pattern) > max(offset, consumer.floor),
    )
