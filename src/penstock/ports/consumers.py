"""Named consumers: a watermark per (consumer, subscription)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.clock import Micros
    from penstock.model import Consumer, Lease


class ConsumerWriter(Protocol):
    def ensure(
        self, name: str, subscription: str, *, position: int, floor: int, now: Micros
    ) -> Consumer:
        """The consumer as it is, or new at this position."""

    def advance(
        self, name: str, subscription: str, *, position: int, lease: Lease, now: Micros
    ) -> None:
        """Move the watermark up; a lower position leaves it where it is.

        Raises `LeaseLost` unless the lease is still held under its token.
        """

    def note(self, name: str, subscription: str, *, position: int, now: Micros) -> None:
        """Move the watermark up, without a lease: for a reader whose own record decides, and who
        only tells how far it has come. It is made if need be; a lower position changes nothing.

        Raises `ConsumerBusy` while a follower holds it.
        """

    def accept_loss(self, name: str, subscription: str, *, floor: int, lease: Lease) -> None:
        """Note that trims up to `floor` are known to the consumer."""

    def seek(self, name: str, subscription: str, *, position: int, floor: int, now: Micros) -> None:
        """Set the watermark by hand, also back. Raises `ConsumerBusy` while somebody holds it."""

    def delete(self, name: str, subscription: str | None) -> int:
        """Forget the consumer, on one subscription or all. Raises `ConsumerBusy` while held."""


class ConsumerReader(Protocol):
    def get(self, name: str, subscription: str) -> Consumer | None: ...

    def find(self, name: str | None = None) -> list[Consumer]: ...
