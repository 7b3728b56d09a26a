"""`hub.mailboxes` of a remote hub, for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from penstock.client.mailboxes import AsyncRemoteMailbox, AsyncRemoteMailboxes, only_local
from penstock.client.portal import Portal
from penstock.mail import Mail, MailboxStats, MailboxSubscription, Posted
from penstock.mailboxes.mailboxes import LIST_LIMIT, Progress, Subscriptions_
from penstock.model import Format, Start

Bridge = Callable[[], tuple[Portal, Any]]


class RemoteMailboxes:
    """The same as `hub.aio.mailboxes`, for callers without an event loop."""

    def __init__(self, bridge: Bridge, coroutines: AsyncRemoteMailboxes) -> None:
        self._bridge = bridge
        self._aio = coroutines

    def open(self, id: str) -> RemoteMailbox:
        """The mailbox of a recipient. It comes to be with its first message."""
        return RemoteMailbox(self._bridge, self._aio.open(id))

    def put(
        self,
        id: str,
        payload: Any,
        *,
        message_id: str | None = None,
        type: str | None = None,
        format: Format | None = None,
        timeout: float | None = None,
    ) -> Posted:
        """Put a message into a mailbox; returns when it is on disk."""
        box = self.open(id)
        return box.put(payload, id=message_id, type=type, format=format, timeout=timeout)

    def list(self, *, after: str = "", limit: int = LIST_LIMIT) -> Sequence[str]:
        """Names of mailboxes that were put into, in the order of their names."""
        portal, _ = self._bridge()
        return portal.run(self._aio.list(after=after, limit=limit))

    def expire(
        self, older_than_seconds: float | None = None, progress: Progress | None = None
    ) -> int:
        """Remove messages that waited longer than this, from every mailbox. Returns how many."""
        portal, _ = self._bridge()
        return portal.run(self._aio.expire(older_than_seconds, progress))

    export_lines = only_local("export")
    import_lines = only_local("import")
    verify = only_local("verification")
    repair = only_local("repair")

    def subscribe(self, id: str, topic: str, start: Start = "latest") -> MailboxSubscription:
        """Put into a mailbox what is published under a topic or a glob, from now on."""
        portal, _ = self._bridge()
        return portal.run(self._aio.subscribe(id, topic, start))

    def unsubscribe(self, id: str, topic: str | None = None) -> int:
        """End a subscription, or all of the mailbox. Returns how many that were."""
        portal, _ = self._bridge()
        return portal.run(self._aio.unsubscribe(id, topic))

    def subscriptions(
        self, id: str | None = None, *, after: int = 0, limit: int = LIST_LIMIT
    ) -> Subscriptions_:
        """Of one mailbox, or of all; `after` the id of one, to read on."""
        portal, _ = self._bridge()
        return portal.run(self._aio.subscriptions(id, after=after, limit=limit))


class RemoteMailbox:
    """One recipient's queue, on a server."""

    def __init__(self, bridge: Bridge, box: AsyncRemoteMailbox) -> None:
        self._bridge = bridge
        self._box = box
        self.id = box.id

    def __repr__(self) -> str:
        return f"<penstock.client.RemoteMailbox {self.id!r}>"

    def put(
        self,
        payload: Any,
        *,
        id: str | None = None,
        type: str | None = None,
        format: Format | None = None,
        timeout: float | None = None,
    ) -> Posted:
        """Put a message; returns when it is on disk.

        Put again under the same `id` it is stored once. Raises `QuotaExceeded` if the box is full.
        """
        portal, _ = self._bridge()
        return portal.run(self._box.put(payload, id=id, type=type, format=format, timeout=timeout))

    def put_many(self, payloads: Iterable[Any], *, timeout: float | None = None) -> list[Posted]:
        """Put many messages, in order; returns when all are on disk."""
        portal, _ = self._bridge()
        return portal.run(self._box.put_many(payloads, timeout=timeout))

    def peek(self) -> Mail | None:
        """The first message, which stays where it is; None if there is none."""
        portal, _ = self._bridge()
        return portal.run(self._box.peek())

    def peek_many(self, limit: int) -> list[Mail]:
        """The first so many."""
        portal, _ = self._bridge()
        return portal.run(self._box.peek_many(limit))

    def ack(self, id: str, *, through: bool = False) -> bool:
        """The first message is done with; it must be the one with this id."""
        portal, _ = self._bridge()
        return portal.run(self._box.ack(id, through=through))

    def ack_and_peek(self, id: str) -> Mail | None:
        """Acknowledge the first message, and get the next."""
        portal, _ = self._bridge()
        return portal.run(self._box.ack_and_peek(id))

    def wait(self, timeout: float | None = None) -> Mail | None:
        """The first message, once there is one; None when the time is over."""
        portal, _ = self._bridge()
        return portal.run(self._box.wait(timeout))

    def __iter__(self) -> Iterator[Mail]:
        """All messages as they come; asking for the next one acknowledges the one before."""
        while True:
            mail = self.wait()
            assert mail is not None
            yield mail
            self.ack(mail.id)

    def size(self) -> int:
        """How many messages wait, markers included."""
        portal, _ = self._bridge()
        return portal.run(self._box.size())

    def stats(self) -> MailboxStats:
        portal, _ = self._bridge()
        return portal.run(self._box.stats())

    def expire(self, older_than_seconds: float | None = None) -> int:
        """Remove messages from the beginning that are older than this. Returns how many."""
        portal, _ = self._bridge()
        return portal.run(self._box.expire(older_than_seconds))

    def delete(self) -> bool:
        """Remove the mailbox and all that is in it. False if there is none."""
        portal, _ = self._bridge()
        return portal.run(self._box.delete())
