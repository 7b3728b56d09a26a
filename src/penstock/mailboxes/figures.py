"""Mailboxes in figures, as one process sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.mailboxes.feeder import Feeder
    from penstock.mailboxes.mailroom import MailRoom
    from penstock.ports import Store

NAMED_MAX = 10
"""Damaged mailboxes that are named."""


class Tally:
    """Counted as it happens. Each number is written by one thread at a time, under the mutex."""

    def __init__(self) -> None:
        self.puts = 0
        self.acks = 0
        self.refused = 0


class MailboxFigures(msgspec.Struct, frozen=True):
    """What this process has done with mailboxes since it started, and how they are."""

    known: int = 0
    """Mailboxes that it has in memory: those that it used lately."""
    puts: int = 0
    """Messages that were put."""
    acks: int = 0
    """Messages that were acknowledged."""
    quota_refusals: int = 0
    """Messages that were refused because their mailbox was full."""
    waiting_puts: int = 0
    """Puts that wait for the disk."""
    log_bytes: int = 0
    """In the commit log, since the mailboxes' own files were synced last."""
    damaged: int = 0
    """Mailboxes that cannot be used before they are repaired, of those that are known."""
    is_failed: bool = False
    """Writing to disk has failed: nothing is put by this process any more."""
    subscriptions: int = 0
    """Mailboxes that are fed from a topic, over all processes."""
    is_feeding: bool = False
    """Whether this process is the one that feeds them."""
    fed: int = 0
    """Messages of topics that it has put."""
    behind: int = 0
    """Subscriptions that are not at the end of the log yet."""
    full: int = 0
    """Subscriptions that wait for their mailbox to be read."""


def measure_mailboxes(store: Store, mail: MailRoom, feeder: Feeder | None) -> MailboxFigures:
    subscriptions = store.feeds.count()
    status = None if feeder is None else feeder.status()
    figures = MailboxFigures(
        subscriptions=subscriptions,
        is_feeding=status is not None and status.is_feeding,
        fed=0 if feeder is None else feeder.fed,
        behind=0 if status is None else status.behind,
        full=0 if status is None else status.full,
    )
    if not mail.is_open:
        return figures
    folder = mail.folder
    return msgspec.structs.replace(
        figures,
        known=folder.known,
        puts=folder.tally.puts,
        acks=folder.tally.acks,
        quota_refusals=folder.tally.refused,
        waiting_puts=mail.postman.waiting,
        log_bytes=folder.log_bytes,
        damaged=len(folder.damaged()),
        is_failed=folder.failure is not None,
    )
