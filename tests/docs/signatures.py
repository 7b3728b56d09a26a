"""Signatures as the reference shows them: names and defaults, without types."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from penstock import client
from penstock.hub import Hub, connect
from penstock.jobs.context import JobContext
from penstock.jobs.producer import Jobs
from penstock.jobs.registry import JobFunction
from penstock.jobs.schedule import Schedules
from penstock.ledger.ledger import Ledger
from penstock.mailboxes.mailboxes import Mailbox, Mailboxes
from penstock.topics.bus import Topics
from penstock.topics.consumers import Consumers
from penstock.topics.followers import Follower
from penstock.topics.subscription import Live
from penstock.transaction import HubTransaction

PAGES: dict[str, tuple[Any, ...]] = {
    "hub.md": (connect, Hub),
    "topics.md": (Topics, Live),
    "consumers.md": (Follower, Consumers),
    "transactions.md": (HubTransaction,),
    "jobs.md": (JobFunction, JobContext, Jobs, Schedules),
    "ledger.md": (Ledger,),
    "mailboxes.md": (Mailboxes, Mailbox),
    "client.md": (client.connect, client.is_remote, client.RemoteHub),
}
# Not called by users: the block's own end.
INTERNAL = {"HubTransaction.commit", "HubTransaction.rollback", "HubTransaction.expire"}
# The worker's own, and the handler's.
INTERNAL |= {"JobFunction.runtime", "JobContext.stop"}
# What a remote hub refuses; the page lists it in one sentence.
INTERNAL |= {
    f"RemoteHub.{name}"
    for name in (
        *("transaction", "connection", "diagnose", "backup", "restore", "new_generation"),
        *("job", "start_workers", "start_feeding", "lock", "leader", "handlers"),
    )
}


def of_page(page: str) -> list[str]:
    """Every public function of what the page is about, as it must be written there."""
    found = []
    for thing in PAGES[page]:
        if inspect.isfunction(thing):
            found.append(render(thing))
            continue
        for name, member in vars(thing).items():
            if name.startswith("_") or f"{thing.__name__}.{name}" in INTERNAL:
                continue
            if inspect.isfunction(member):
                found.append(render(member))
            elif isinstance(member, property):
                found.append(name)
    return found


def render(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.name != "self"]
    shown = signature.replace(
        parameters=[p.replace(annotation=inspect.Parameter.empty) for p in kept],
        return_annotation=inspect.Signature.empty,
    )
    return f"{function.__name__}{shown}"
