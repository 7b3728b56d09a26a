"""`hub.aio.mailboxes` of a remote hub: a local hub's names over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec

from penstock.client.exchange import Exchange
from penstock.client.job_values import given
from penstock.client.mail_values import (
    Outgoing,
    RemoteAcked,
    RemoteDeleted,
    RemoteMails,
    RemoteNames,
    RemotePosted,
    RemotePostedMany,
    RemoteStats,
    RemoteSubscription,
    RemoteSubscriptions,
    groups,
)
from penstock.client.replies import RemovedReply
from penstock.client.rest import Value, path
from penstock.errors import QuotaExceeded, Unsupported, WriteTimeout
from penstock.mail import Mail, MailboxStats, MailboxSubscription, Posted, check_mailbox
from penstock.mailboxes.mailboxes import LIST_LIMIT, Parcel, Progress, Subscriptions_
from penstock.model import Format, Pattern, Start, check_count

T = TypeVar("T")

NEXT_MAX = 100
"""Messages that one request reads."""
PAGE = 1_000
WAIT_SECONDS = 5.0
"""How long one request waits for a message; below the time after which a server seems gone."""


def only_local(what: str) -> Callable[..., NoReturn]:
    """A name of the local hub that makes no sense away from the files."""

    def refuse(self: object, *_: object, **__: object) -> NoReturn:
        raise Unsupported(
            f"A remote hub has no {what} of mailboxes.",
            hint="Open the database where it is, with penstock.connect('sqlite:///…').",
        )

    return refuse


class AsyncRemoteMailboxes:
    def __init__(self, open_exchange: Callable[[], Exchange]) -> None:
        self._open = open_exchange

    def open(self, id: str) -> AsyncRemoteMailbox:
        """The mailbox of a recipient. It comes to be with its first message."""
        return AsyncRemoteMailbox(self._open, check_mailbox(id))

    async def put(
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
        return await box.put(payload, id=message_id, type=type, format=format, timeout=timeout)

    async def list(self, *, after: str = "", limit: int = LIST_LIMIT) -> Sequence[str]:
        """Names of mailboxes that were put into, in the order of their names."""
        check_count(limit, "limit")
        names: list[str] = []
        while len(names) < limit:
            parameters: dict[str, Value] = {
                "after": after,
                "limit": min(PAGE, limit - len(names)),
            }
            answer = await self._open().rest.call("GET", path("mailboxes"), parameters=parameters)
            found = msgspec.json.decode(answer, type=RemoteNames)
            names += found.mailboxes
            if found.is_complete or not found.mailboxes:
                break
            after = found.mailboxes[-1]
        return names

    async def expire(
        self, older_than_seconds: float | None = None, progress: Progress | None = None
    ) -> int:
        """Remove messages that waited longer than this, from every mailbox. Returns how many."""
        names = await self.list(limit=2**31)
        removed = 0
        for number, name in enumerate(names, 1):
            removed += await self.open(name).expire(older_than_seconds)
            if progress is not None:
                progress(number, len(names))
        return removed

    verify = only_local("verification")
    repair = only_local("repair")

    async def subscribe(self, id: str, topic: str, start: Start = "latest") -> MailboxSubscription:
        """Put into a mailbox what is published under a topic or a glob, from now on."""
        where = path("mailboxes", check_mailbox(id), "subscriptions", Pattern.parse(topic).text)
        answer = await self._open().rest.call("PUT", where, body={"start": start})
        return msgspec.json.decode(answer, type=RemoteSubscription).as_subscription()

    async def unsubscribe(self, id: str, topic: str | None = None) -> int:
        """End a subscription, or all of the mailbox. Returns how many that were."""
        pieces = () if topic is None else (Pattern.parse(topic).text,)
        where = path("mailboxes", check_mailbox(id), "subscriptions", *pieces)
        answer = await self._open().rest.call("DELETE", where)
        return msgspec.json.decode(answer, type=RemovedReply).removed

    async def subscriptions(
        self, id: str | None = None, *, after: int = 0, limit: int = LIST_LIMIT
    ) -> Subscriptions_:
        """Of one mailbox, or of all; `after` the id of one, to read on."""
        check_count(limit, "limit")
        where = path("mailbox-subscriptions")
        if id is not None:
            where = path("mailboxes", check_mailbox(id), "subscriptions")
        found: Subscriptions_ = []
        place: int | None = after
        while place is not None and len(found) < limit:
            parameters = {"after": place, "limit": min(PAGE, limit - len(found))}
            answer = await self._open().rest.call("GET", where, parameters=parameters)
            part = msgspec.json.decode(answer, type=RemoteSubscriptions)
            found += [one.as_subscription() for one in part.subscriptions]
            place = part.after
        return found


class AsyncRemoteMailbox:
    """One recipient's queue. As `Mailbox`."""

    def __init__(self, open_exchange: Callable[[], Exchange], id: str) -> None:
        self._open = open_exchange
        self.id = id

    def __repr__(self) -> str:
        return f"<penstock.client.AsyncRemoteMailbox {self.id!r}>"

    async def put(
        self,
        payload: Any,
        *,
        id: str | None = None,
        type: str | None = None,
        format: Format | None = None,
        timeout: float | None = None,
    ) -> Posted:
        """Put a message; returns when it is on disk."""
        message = Outgoing.of(Parcel(payload, id, type, format), self._open().settings)
        answer = await _within(timeout, self._put(message.body))
        return msgspec.json.decode(answer, type=RemotePosted).as_posted(message)

    async def put_many(
        self, payloads: Iterable[Any], *, timeout: float | None = None
    ) -> list[Posted]:
        """Put many messages, in order; returns when all are on disk."""
        settings = self._open().settings
        messages = [Outgoing.of(item, settings) for item in payloads]
        return await _within(timeout, self._put_groups(messages))

    async def peek(self) -> Mail | None:
        """The first message, which stays where it is; None if there is none."""
        found = await self.peek_many(1)
        return found[0] if found else None

    async def peek_many(self, limit: int) -> list[Mail]:
        """The first so many."""
        check_count(limit, "limit")
        return await self._next(limit, 0.0)

    async def ack(self, id: str, *, through: bool = False) -> bool:
        """The first message is done with; it must be the one with this id."""
        answer = await self._post("ack", {"id": id, "through": through})
        return msgspec.json.decode(answer, type=RemoteAcked).acked

    async def ack_and_peek(self, id: str) -> Mail | None:
        """Acknowledge the first message, and get the next."""
        answer = await self._post("ack-and-next", {"id": id})
        found = msgspec.json.decode(answer, type=RemoteMails).messages
        return found[0].as_mail() if found else None

    async def wait(self, timeout: float | None = None) -> Mail | None:
        """The first message, once there is one; None when the time is over."""
        loop = asyncio.get_running_loop()
        ends_at = None if timeout is None else loop.time() + timeout
        while True:
            left = WAIT_SECONDS if ends_at is None else ends_at - loop.time()
            found = await self._next(1, max(0.0, min(left, WAIT_SECONDS)))
            if found:
                return found[0]
            if ends_at is not None and loop.time() >= ends_at:
                return None

    async def __aiter__(self) -> AsyncIterator[Mail]:
        """All messages as they come; asking for the next one acknowledges the one before."""
        while True:
            mail = await self.wait()
            assert mail is not None
            yield mail
            await self.ack(mail.id)

    async def size(self) -> int:
        """How many messages wait, markers included."""
        return (await self.stats()).messages

    async def stats(self) -> MailboxStats:
        answer = await self._open().rest.call("GET", self._path())
        return msgspec.json.decode(answer, type=RemoteStats).as_stats()

    async def expire(self, older_than_seconds: float | None = None) -> int:
        """Remove messages from the beginning that are older than this. Returns how many."""
        answer = await self._post("expire", given(older_than_seconds=older_than_seconds))
        return msgspec.json.decode(answer, type=RemovedReply).removed

    async def delete(self) -> bool:
        """Remove the mailbox and all that is in it. False if there is none."""
        answer = await self._open().rest.call("DELETE", self._path())
        return msgspec.json.decode(answer, type=RemoteDeleted).deleted

    # Inside

    async def _put_groups(self, messages: list[Outgoing]) -> list[Posted]:
        posted: list[Posted] = []
        for group in groups(messages):
            answer = await self._put({"messages": [message.body for message in group]})
            found = msgspec.json.decode(answer, type=RemotePostedMany).messages
            posted += [one.as_posted(message) for one, message in zip(found, group, strict=True)]
        return posted

    async def _put(self, body: dict[str, Any]) -> bytes:
        try:
            return await self._post("messages", body)
        except QuotaExceeded as error:
            error.mailbox = self.id
            raise

    async def _next(self, limit: int, wait: float) -> list[Mail]:
        """A reply has a limit of bytes, too: what a box has beyond that is not shown."""
        parameters = {"limit": min(limit, NEXT_MAX), "wait": wait}
        answer = await self._open().rest.call("GET", self._path("next"), parameters=parameters)
        found = msgspec.json.decode(answer, type=RemoteMails).messages
        return [mail.as_mail() for mail in found]

    async def _post(self, what: str, body: dict[str, Any]) -> bytes:
        """All of it may be said twice: messages have ids, and what is acknowledged stays so."""
        return await self._open().rest.call("POST", self._path(what), body=body, is_repeatable=True)

    def _path(self, *more: str) -> str:
        return path("mailboxes", self.id, *more)


async def _within(timeout: float | None, putting: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(timeout):
            return await putting
    except TimeoutError:
        raise WriteTimeout(f"The put was not acknowledged within {timeout} seconds.") from None
