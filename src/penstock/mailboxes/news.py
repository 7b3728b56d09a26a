"""What was published since, for all mailboxes that have everything before it: read once.

A batch has no more messages than a box remembers the ids of, so that what is put again after a
crash is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.clock import Clock
from penstock.errors import EpochChanged
from penstock.mailboxes.box import ACKED_MAX
from penstock.model import RESERVED_PREFIX, Message, Pattern
from penstock.ports import Store

BATCH_MAX = ACKED_MAX
FEW = 8
"""Topics and globs up to which each is read on its own, instead of everything once."""


class News:
    def __init__(self, store: Store, clock: Clock, bytes_max: int) -> None:
        self._store = store
        self._clock = clock
        self._bytes_max = bytes_max

    def read(self, names: list[str], after: int, epoch: str) -> tuple[list[Message], int]:
        """The next messages of these topics and globs, and how far they reach.

        Raises `LogTrimmed` if messages after this id are gone, `EpochChanged` if the log is
        another one. With many names, either may be about a topic that none of them means.
        """
        if len(names) > FEW:
            names = ["*", *(name for name in names if name.startswith(RESERVED_PREFIX))]
        now = self._clock.now()
        found: dict[int, Message] = {}
        through: int | None = None
        for name in names:
            chunk = self._store.topics.read(
                Pattern(name), after=after, floor=after, limit=BATCH_MAX, now=now
            )
            if chunk.epoch != epoch:
                raise EpochChanged
            found |= {message.id: message for message in chunk.messages}
            through = chunk.through if through is None else min(through, chunk.through)
        assert through is not None, "nobody reads"
        return self.cut([found[id] for id in sorted(found) if id <= through], through)

    def cut(self, messages: list[Message], through: int) -> tuple[list[Message], int]:
        """No more than one batch, in number and in bytes, and how far it reaches."""
        bytes_left = self._bytes_max
        for number, message in enumerate(messages):
            bytes_left -= len(message.body)
            if number and (bytes_left < 0 or number == BATCH_MAX):
                return messages[:number], messages[number - 1].id
        return messages, through


def shares_of(messages: Iterable[Message], names: Mapping[str, object]) -> dict[str, list[Message]]:
    """Which of the messages each topic or glob gets."""
    globs = [pattern for pattern in map(Pattern, names) if pattern.is_glob]
    shares: dict[str, list[Message]] = {}
    routes: dict[str, list[str]] = {}
    for message in messages:
        topic = message.topic
        if topic not in routes:
            routes[topic] = [glob.text for glob in globs if glob.matches(topic)]
            routes[topic] += [topic] if topic in names else []
        for name in routes[topic]:
            shares.setdefault(name, []).append(message)
    return shares
