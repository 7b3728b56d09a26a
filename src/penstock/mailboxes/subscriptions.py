"""Mailboxes that are fed from topics: made, ended and listed here; `feeder` does the feeding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.clock import Clock
from penstock.committer import Committer, inside_transaction
from penstock.errors import InsideTransaction, InvalidInput
from penstock.mail import MailboxSubscription, check_mailbox
from penstock.model import Pattern, Start, check_count
from penstock.ports import Store, Transaction

Write = Callable[[Transaction], MailboxSubscription]


class Runtime(Protocol):
    store: Store
    committer: Committer
    clock: Clock


def subscribing(runtime: Runtime, mailbox: str, topic: str, start: Start) -> Write:
    """As an operation. Raises `InvalidInput` before anything is written."""
    check_mailbox(mailbox)
    pattern = Pattern.parse(topic)
    if start not in ("latest", "earliest"):
        raise InvalidInput(f"start is 'latest' or 'earliest', not {start!r}.")
    refuse_inside_transaction()
    # What was removed before its first day is no loss to it; what is removed later is.
    floor = runtime.store.topics.trimmed_through(pattern)
    now = runtime.clock.now()
    return lambda tx: tx.feeds.subscribe(mailbox, pattern, start=start, floor=floor, now=now)


def unsubscribing(mailbox: str, topic: str | None) -> Callable[[Transaction], int]:
    """As an operation."""
    check_mailbox(mailbox)
    if topic is not None:
        Pattern.parse(topic)
    refuse_inside_transaction()
    return lambda tx: tx.feeds.unsubscribe(mailbox, topic)


def find(
    runtime: Runtime, mailbox: str | None, after: int, limit: int
) -> list[MailboxSubscription]:
    check_count(limit, "limit")
    if mailbox is not None:
        check_mailbox(mailbox)
    return runtime.store.feeds.find(mailbox, after=after, limit=limit)


def refuse_inside_transaction() -> None:
    if inside_transaction.get():
        raise InsideTransaction(hint="Subscribe a mailbox before the transaction, or after it.")
