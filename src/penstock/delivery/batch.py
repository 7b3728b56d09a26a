"""Messages on their way to sockets: each is encoded once per format, whoever gets it."""

from __future__ import annotations

from bisect import bisect_right

import msgspec
from msgspec import Raw

from penstock.clock import Micros
from penstock.model import Message
from penstock.protocol import JSON_WIRE, MessagesPush, Wire


# Not for the garbage collector: it has no cycles, and channels keep thousands of them alive, which
# would set off collections of everything there is, each of them a pause for everybody.
class Item(msgspec.Struct, gc=False, weakref=False, eq=False):
    """A message, and its encoded forms as far as anybody has asked for them."""

    message: Message
    with_topic: bool
    _json: Raw | None = None
    _msgpack: Raw | None = None

    @property
    def id(self) -> int:
        return self.message.id

    def has_expired(self, now: Micros) -> bool:
        expires_at = self.message.expires_at
        return expires_at is not None and expires_at <= now

    def encoded(self, wire: Wire) -> Raw:
        if wire is JSON_WIRE:
            if self._json is None:
                self._json = wire.entry(self.message, with_topic=self.with_topic)
            return self._json
        if self._msgpack is None:
            self._msgpack = wire.entry(self.message, with_topic=self.with_topic)
        return self._msgpack


def frame(subscription: str, items: list[Item], wire: Wire) -> bytes:
    """One push with all of them: the same bytes for every socket of this format."""
    return wire.encode(MessagesPush(subscription, [item.encoded(wire) for item in items]))


def split(items: list[Item], count_max: int, bytes_max: int) -> int:
    """How many of them make one frame; at least one."""
    size = 0
    for index, item in enumerate(items[:count_max]):
        size += len(item.message.body)
        if size > bytes_max and index:
            return index
    return min(len(items), count_max)


class Recent:
    """The messages a channel has sent last, for those who come back after a short absence."""

    def __init__(self, start: int, count_max: int, bytes_max: int) -> None:
        self.start = start
        """Everything the channel has sent after this id is here."""
        self._items: list[Item] = []
        self.size = 0
        self._count_max = count_max
        self._bytes_max = bytes_max

    def covers(self, position: int) -> bool:
        return position >= self.start

    def after(self, position: int) -> list[Item]:
        """What came after a position that is covered."""
        return self._items[bisect_right(self._items, position, key=_id) :]

    def extend(self, items: list[Item]) -> None:
        self._items += items
        self.size += sum(len(item.message.body) for item in items)
        # In big steps, because removing from the front moves all the others.
        if len(self._items) > 2 * self._count_max or self.size > 2 * self._bytes_max:
            self._cut()

    def forget(self, through: int) -> None:
        """Messages up to this id were trimmed: they are not for those who come back either."""
        if through > self.start:
            self._items = self.after(through)
            self.start = through
            self.size = sum(len(item.message.body) for item in self._items)

    def restart(self, start: int) -> None:
        """Nothing before `start` can be given any more."""
        self.start = start
        self._items = []
        self.size = 0

    def _cut(self) -> None:
        keep = 0
        size = 0
        for item in reversed(self._items[-self._count_max :]):
            size += len(item.message.body)
            if size > self._bytes_max:
                break
            keep += 1
        removed = len(self._items) - keep
        self.start = self._items[removed - 1].id
        self._items = self._items[removed:]
        self.size = sum(len(item.message.body) for item in self._items)


def _id(item: Item) -> int:
    return item.message.id
