"""Mailboxes that are fed from topics: which ones, and how far each has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from penstock.clock import Micros
    from penstock.mail import MailboxSubscription
    from penstock.model import Lease, Pattern, Start


class Step(msgspec.Struct, frozen=True):
    """How far these subscriptions have come: all of them equally far."""

    ids: Sequence[int]
    position: int
    floor: int
    told: dict[str, int] = {}


class FeedWriter(Protocol):
    def subscribe(
        self, mailbox: str, pattern: Pattern, *, start: Start, floor: int, now: Micros
    ) -> MailboxSubscription:
        """The subscription as it is, or new: at the end of the log, or at its beginning.

        What is committed after this transaction comes after its position.
        """

    def unsubscribe(self, mailbox: str, topic: str | None) -> int:
        """End the mailbox's subscription to a topic or glob, or all it has. Returns how many."""

    def advance(self, steps: Sequence[Step], *, lease: Lease, now: Micros) -> None:
        """Move positions up; a lower one, and a subscription that has ended, changes nothing.

        Raises `LeaseLost` unless the lease is still held under its token.
        """


class FeedReader(Protocol):
    def find(
        self, mailbox: str | None = None, *, after: int = 0, limit: int | None = None
    ) -> list[MailboxSubscription]:
        """All subscriptions with a higher id than `after`, or those of one mailbox, by id."""

    def count(self) -> int: ...

    def ids(self) -> list[int]:
        """Of all subscriptions there are."""

    def ended(self) -> int:
        """How many subscriptions have ever ended: as long as it stays, none has."""
