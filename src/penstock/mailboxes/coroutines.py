"""`hub.aio.mailboxes`: the same names as coroutines, over the same code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from penstock.errors import PenstockError, WriteTimeout
from penstock.mail import (
    Mail,
    MailboxStats,
    MailboxSubscription,
    NewMail,
    Posted,
    check_mailbox,
)
from penstock.mailboxes import mailboxes
from penstock.mailboxes.inspection import Inspection
from penstock.mailboxes.mailboxes import (
    LIST_LIMIT,
    Subscriptions_,
    checked,
    mail_of,
    make_mail,
    number_of_id,
    put_now,
)
from penstock.mailboxes.repair import Repaired
from penstock.mailboxes.subscriptions import (
    find,
    refuse_inside_transaction,
    subscribing,
    unsubscribing,
)
from penstock.mailboxes.window import Mark, mark_of
from penstock.model import Format, Start

T = TypeVar("T")


class Runtime(mailboxes.Runtime, Protocol):
    @property
    def executor(self) -> Executor: ...


class AsyncMailboxes:
    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        self._open = open_runtime
        self._mailboxes = mailboxes.Mailboxes(open_runtime)

    def open(self, id: str) -> AsyncMailbox:
        """The mailbox of a recipient. It comes to be with its first message."""
        return AsyncMailbox(self._open, check_mailbox(id))

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
        return await _in_thread(self._open, partial(self._mailboxes.list, after=after, limit=limit))

    async def subscribe(self, id: str, topic: str, start: Start = "latest") -> MailboxSubscription:
        """Put into a mailbox what is published under a topic or a glob, from now on."""
        runtime = self._open()
        refuse_inside_transaction()
        write = await _in_thread(self._open, partial(subscribing, runtime, id, topic, start))
        found = await runtime.committer.run_async(write)
        runtime.store.ring()
        return found

    async def unsubscribe(self, id: str, topic: str | None = None) -> int:
        """End a subscription, or all of the mailbox. Returns how many that were."""
        return await self._open().committer.run_async(unsubscribing(id, topic))

    async def subscriptions(
        self, id: str | None = None, *, after: int = 0, limit: int = LIST_LIMIT
    ) -> Subscriptions_:
        """Of one mailbox, or of all; `after` the id of one, to read on."""
        return await _in_thread(self._open, partial(find, self._open(), id, after, limit))

    async def expire(
        self,
        older_than_seconds: float | None = None,
        progress: mailboxes.Progress | None = None,
    ) -> int:
        """Remove messages that waited longer than this, from every mailbox. Returns how many."""
        return await _in_thread(
            self._open, partial(self._mailboxes.expire, older_than_seconds, progress)
        )

    async def verify(
        self, id: str | None = None, progress: mailboxes.Progress | None = None
    ) -> Inspection:
        """Look for damage in one mailbox, or in all of them and their logs. Changes nothing."""
        return await _in_thread(self._open, partial(self._mailboxes.verify, id, progress))

    async def repair(self, id: str) -> Repaired:
        """Keep what can be read of a damaged mailbox."""
        return await _in_thread(self._open, partial(self._mailboxes.repair, id))


class AsyncMailbox:
    """One recipient's queue. As `Mailbox`."""

    def __init__(self, open_runtime: Callable[[], Runtime], id: str) -> None:
        self._open = open_runtime
        self._box = mailboxes.Mailbox(open_runtime, id)
        # What the box gives is what it was given: the same runtime.
        self._ready = cast("Callable[[], Runtime]", self._box._ready)
        self.id = id

    def __repr__(self) -> str:
        return f"<penstock.AsyncMailbox {self.id!r}>"

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
        runtime = self._ready()
        mail = mail_of(runtime.settings, payload, id, type, format)
        lane = runtime.mail.lane
        if timeout is None and lane is not None:
            answer = await lane.put_one_async(self.id, mail)
        else:
            answer = (await self._put(runtime, [mail], timeout))[0]
        if answer.__class__ is Posted:
            return answer
        assert isinstance(answer, PenstockError)
        raise answer

    async def put_many(
        self, payloads: Iterable[Any], *, timeout: float | None = None
    ) -> list[Posted]:
        """Put many messages, in order; returns when all are on disk."""
        runtime = self._ready()
        mails = [make_mail(runtime.settings, item) for item in payloads]
        return checked(await self._put(runtime, mails, timeout)) if mails else []

    async def peek(self) -> Mail | None:
        """The first message, which stays where it is; None if there is none."""
        return await self._run(self._box.peek)

    async def peek_many(self, limit: int) -> list[Mail]:
        """The first so many."""
        return await self._run(partial(self._box.peek_many, limit))

    async def ack(self, id: str, *, through: bool = False) -> bool:
        """The first message is done with; it must be the one with this id."""
        return await self._run(partial(self._box.ack, id, through=through))

    async def ack_and_peek(self, id: str) -> Mail | None:
        """Acknowledge the first message, and get the next."""
        return await self._run(partial(self._box.ack_and_peek, id))

    async def wait(self, timeout: float | None = None) -> Mail | None:
        """The first message, once there is one; None when the time is over."""
        mail = await self.peek()
        if mail is not None:
            return mail
        folder = self._ready().mail.folder
        arrivals = folder.arrivals
        loop, rung = asyncio.get_running_loop(), asyncio.Event()
        number, key = number_of_id(self.id), object()
        ends_at = None if timeout is None else loop.time() + timeout

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(rung.set)
            except RuntimeError:
                return  # The loop has ended.

        arrivals.wait_for(number, key, wake)
        mark: Mark | None = None
        try:
            while True:
                rung.clear()
                left = None if ends_at is None else ends_at - loop.time()
                is_over = left is not None and left <= 0
                found = mark_of(folder, self.id)
                if found != mark or is_over:
                    # Not each time it is woken: it takes a thread, and many may wait.
                    mark = found
                    mail = await self.peek()
                    if mail is not None or is_over:
                        return mail
                try:
                    async with asyncio.timeout(left):
                        await rung.wait()
                except TimeoutError:
                    continue
        finally:
            arrivals.forget(number, key)

    async def __aiter__(self) -> AsyncIterator[Mail]:
        """All messages as they come; asking for the next one acknowledges the one before."""
        while True:
            mail = await self.wait()
            assert mail is not None
            yield mail
            await self.ack(mail.id)

    async def size(self) -> int:
        """How many messages wait, markers included."""
        return await self._run(self._box.size)

    async def stats(self) -> MailboxStats:
        return await self._run(self._box.stats)

    async def expire(self, older_than_seconds: float | None = None) -> int:
        """Remove messages from the beginning that are older than this. Returns how many."""
        return await self._run(partial(self._box.expire, older_than_seconds))

    async def delete(self) -> bool:
        """Remove the mailbox and all that is in it. False if there is none."""
        return await self._run(self._box.delete)

    async def _put(
        self, runtime: Runtime, mails: list[NewMail], timeout: float | None
    ) -> list[Posted | PenstockError]:
        if runtime.settings.mailbox_durability == "os":
            return await self._run(partial(put_now, runtime.mail.folder, self.id, mails))
        if not runtime.mail.is_open:
            # What a killed process has left is put in order first, which may take a while.
            await self._run(lambda: runtime.mail.postman)
        writing = runtime.mail.postman.put_async(self.id, mails)
        if timeout is None:
            return await writing
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(writing)
        except TimeoutError:
            raise WriteTimeout(f"The put was not acknowledged within {timeout} seconds.") from None

    async def _run(self, call: Callable[[], T]) -> T:
        return await _in_thread(self._open, call)


async def _in_thread(open_runtime: Callable[[], Runtime], call: Callable[[], T]) -> T:
    runtime = open_runtime()
    return await asyncio.get_running_loop().run_in_executor(runtime.executor, call)
