"""Topics: append-only logs in one total order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.clock import Micros
    from penstock.model import (
        Chunk,
        Delivery,
        Message,
        NewMessage,
        Pattern,
        Position,
        Receipt,
        Retention,
        Swept,
        Topic,
    )


NOTHING_TOLD: Mapping[str, int] = MappingProxyType({})


class TopicWriter(Protocol):
    def append(
        self, messages: Sequence[NewMessage], *, producer: str, now: Micros
    ) -> list[Receipt]:
        """Add messages to the end of the log, in order, creating topics as needed.

        Ids rise by one, without gaps but between generations, over all topics and processes:
        whoever has read up to an id has seen everything below it that will ever exist.
        `created_at` does not fall from one id to the next, unless the clock was set back by more
        than a minute.

        A message whose idempotency key was used in its topic and has not expired is not added;
        its receipt is the first one's. A different message under the key raises
        `IdempotencyConflict`.
        """

    def appended(self) -> list[Message]:
        """The messages this transaction has added so far, in id order."""

    @property
    def appended_count(self) -> int:
        """How many they are."""

    def create(
        self, name: str, retention: Retention, *, delivery: Delivery | None = None, now: Micros
    ) -> Topic:
        """Without `delivery`, the hub's settings decide. Raises `TopicExists`."""

    def configure(
        self, name: str, retention: Retention | None, delivery: Delivery | None = None
    ) -> Topic:
        """Replace what is given; what is None stays as it is. Raises `TopicNotFound`."""

    def delete(self, name: str, *, now: Micros) -> None:
        """Hide the topic and all its messages at once. `sweep` removes them.

        A reader that had not seen them all gets `LogTrimmed`. Publishing under the name
        starts it again, with higher ids and the hub's settings. Raises `TopicNotFound`.
        """

    def trim(self, name: str, through: int) -> None:
        """Hide the topic's messages up to this id at once. `sweep` removes them."""

    def sweep(self, name: str, retention: Retention, *, now: Micros, limit: int) -> Swept:
        """Remove up to `limit` of the topic's oldest messages, as far as `retention` wants.

        Removal goes by prefix: a message is removed only with all before it. Messages that the
        consumers in `hold_for` have not passed, or that are to be archived and are not yet, are
        kept within the hold's limits. What is removed before its own time to live is recorded in
        `deleted_through` in the same transaction.
        """

    def forget_keys(self, *, now: Micros, limit: int) -> int:
        """Remove up to `limit` expired idempotency keys. Returns how many."""


class TopicReader(Protocol):
    def get(self, name: str) -> Topic | None: ...

    def find(self, pattern: Pattern | None = None) -> list[Topic]:
        """By name; without deleted ones."""

    def read(
        self,
        pattern: Pattern,
        *,
        after: int,
        floor: int,
        limit: int,
        now: Micros,
        told: Mapping[str, int] = NOTHING_TOLD,
    ) -> Chunk:
        """The next messages after an id, in id order, from one consistent view.

        Messages past their time to live are left out. The scan is bounded: `Chunk.through` says
        how far it came, also when nothing matched. Raises `LogTrimmed` if messages of these
        topics above both `after` and `floor` were removed before their time to live, and more of
        their topic than `told` says that the reader knows of.
        """

    def read_tail(
        self, *, after: Position, patterns: Sequence[Pattern] | None, limit: int
    ) -> Chunk:
        """For one that is never far behind: new messages of these topics, or of all.

        For one caller at a time. Times to live are not looked at. `Chunk.trimmed` names topics of
        which messages after the position are gone. Fewer messages than `limit` mean that there
        are no more. Raises `EpochChanged` if the log is not the position's any more, before any
        message of the other one.
        """

    def read_last(self, pattern: Pattern, *, count: int, now: Micros) -> list[Message]:
        """The last `count` messages, oldest first."""

    def oldest_at(self) -> Micros | None:
        """When the oldest message there is was published."""

    def offset_at(self, at: Micros) -> int:
        """The highest id whose message is older than this time."""

    def trims(self, pattern: Pattern, *, after: int) -> dict[str, int]:
        """Of these topics, those that lost messages above an id before their time to live, and
        up to which id."""

    def trimmed_through(self, pattern: Pattern) -> int:
        """The highest id of these topics that was removed before its time to live."""

    def first_after(self, pattern: Pattern, after: int, *, now: Micros) -> Message | None:
        """The first message of these topics above this id that has not expired."""

    def count_after(self, pattern: Pattern, after: int, *, now: Micros) -> int:
        """How many messages of these topics are above this id and have not expired.

        Where there are very many, expired ones may be counted too.
        """

    def needs_sweep(self, default: Retention, *, now: Micros) -> Sequence[str]:
        """Names of topics whose retention asks for removal now, deleted ones included."""
