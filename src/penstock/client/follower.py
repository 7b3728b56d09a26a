"""Following a server's topics as a named consumer: `Follower` and `AsyncFollower` over a socket.

As with a local hub, a batch is committed when the next one is asked for: a crash repeats at most
one batch and skips none. The consumer is held by the server for as long as this client is there;
a lost connection is made again, and what was handed out is not handed out twice.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Callable, Iterator

from penstock.client.exchange import Exchange
from penstock.client.feed import Feed
from penstock.client.portal import Portal
from penstock.errors import HubClosed, PenstockError
from penstock.model import Message, Position
from penstock.topics.subscription import AsyncLive, Live

RELEASE_SECONDS = 5.0


class RemoteFollower(Iterator[Message]):
    """`for message in follower`, or `for batch in follower.batches()`.

    Leaving the loop early commits nothing of the current batch; it is delivered again.
    """

    def __init__(self, portal: Portal, exchange: Exchange, feed: Feed) -> None:
        self._portal = portal
        self._exchange = exchange
        self._feed = feed
        self._pending: concurrent.futures.Future[None] | None = None
        self._pending_offset = 0
        self._batch: list[Message] = []
        self._fetched: list[Message] = []
        self._next = 0
        self._live = Live(feed, exchange.settings.follow_batch_max)
        self._is_closed = False
        self._handed_out = self._committed = feed.position

    @property
    def position(self) -> Position:
        """That of the last message handed out."""
        return Position(self._feed.epoch, self._handed_out)

    def __iter__(self) -> RemoteFollower:
        return self

    def __next__(self) -> Message:
        try:
            message = self.get()
        except HubClosed:
            raise StopIteration from None
        assert message is not None
        return message

    def get(self, timeout: float | None = None) -> Message | None:
        """The next message, or None after `timeout` seconds."""
        if self._next == len(self._batch):
            self._fill(None, timeout)
            if not self._batch:
                return None
        message = self._batch[self._next]
        self._next += 1
        self._handed_out = message.id
        return message

    def take(self, limit: int | None = None, *, timeout: float | None = None) -> list[Message]:
        """The next batch, after committing the one before; empty after `timeout` seconds."""
        if self._next == len(self._batch):
            self._fill(limit, timeout)
        taken = self._batch[self._next :]
        self._next = len(self._batch)
        if taken:
            self._handed_out = taken[-1].id
        return taken

    def batches(self, limit: int | None = None) -> Iterator[list[Message]]:
        """Whole batches; asking for the next commits the one before."""
        while True:
            yield self.take(limit)

    def commit(self) -> None:
        """Commit what was handed out, without asking for more."""
        self._begin_commit(is_patient=False)
        self._finish_commit()

    def close(self) -> None:
        """Let another follower take over. What was not committed is delivered again."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._portal.loop.is_closed():
            self._portal.run(self._exchange.unsubscribe(self._feed))
        self._live.close()

    def __enter__(self) -> RemoteFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            self._feed.close()

    def _fill(self, limit: int | None, timeout: float | None) -> None:
        # Who waits for messages without a limit waits for a server, too.
        self._begin_commit(is_patient=timeout is None)
        self._batch, self._next = [], 0
        if not self._fetched:
            self._fetched = self._live.take(limit, timeout=timeout)
        # If this fails, what was fetched waits for the next call.
        self._finish_commit()
        self._batch, self._fetched = self._fetched, []

    def _begin_commit(self, *, is_patient: bool) -> None:
        self._finish_commit()
        if self._handed_out > self._committed:
            self._pending_offset = self._handed_out
            self._pending = self._portal.start(
                self._exchange.ack(self._feed, self.position, is_patient=is_patient)
            )

    def _finish_commit(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
            self._committed = self._pending_offset


class AsyncRemoteFollower(AsyncIterator[Message]):
    """As `RemoteFollower`, for an event loop. Takes the consumer when it is first asked."""

    def __init__(self, open_exchange: Callable[[], Exchange], feed: Feed) -> None:
        self._open_exchange = open_exchange
        self._feed = feed
        self._exchange: Exchange | None = None
        self._live: AsyncLive | None = None
        self._pending: asyncio.Task[None] | None = None
        self._pending_offset = 0
        self._batch: list[Message] = []
        self._fetched: list[Message] = []
        self._next = 0
        self._is_closed = False
        self._handed_out = self._committed = 0

    @property
    def position(self) -> Position | None:
        """That of the last message handed out; None before the first was asked for."""
        return None if self._live is None else Position(self._feed.epoch, self._handed_out)

    def __aiter__(self) -> AsyncRemoteFollower:
        return self

    async def __anext__(self) -> Message:
        try:
            message = await self.get()
        except HubClosed:
            raise StopAsyncIteration from None
        assert message is not None
        return message

    async def get(self, timeout: float | None = None) -> Message | None:
        """The next message, or None after `timeout` seconds."""
        if self._next == len(self._batch):
            await self._fill(None, timeout)
            if not self._batch:
                return None
        message = self._batch[self._next]
        self._next += 1
        self._handed_out = message.id
        return message

    async def take(
        self, limit: int | None = None, *, timeout: float | None = None
    ) -> list[Message]:
        """The next batch, after committing the one before; empty after `timeout` seconds."""
        if self._next == len(self._batch):
            await self._fill(limit, timeout)
        taken = self._batch[self._next :]
        self._next = len(self._batch)
        if taken:
            self._handed_out = taken[-1].id
        return taken

    async def batches(self, limit: int | None = None) -> AsyncIterator[list[Message]]:
        """Whole batches; asking for the next commits the one before."""
        while True:
            yield await self.take(limit)

    async def commit(self) -> None:
        """Commit what was handed out, without asking for more."""
        await self._begin_commit(is_patient=False)
        await self._finish_commit()

    async def close(self) -> None:
        """Let another follower take over. What was not committed is delivered again."""
        if self._is_closed:
            return
        self._is_closed = True
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()
        if self._exchange is not None:
            await self._exchange.unsubscribe(self._feed)
        if self._live is not None:
            await self._live.close()

    async def __aenter__(self) -> AsyncRemoteFollower:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True) and self._exchange is not None:
            self._feed.close()

    async def _open(self) -> AsyncLive:
        if self._live is None:
            if self._exchange is None:
                self._exchange = self._open_exchange()
                self._exchange.subscribe(self._feed)
            try:
                await self._exchange.opened(self._feed)
            except PenstockError:
                await self._exchange.unsubscribe(self._feed)
                raise
            self._handed_out = self._committed = self._feed.position
            self._live = AsyncLive(self._feed, self._exchange.settings.follow_batch_max)
        return self._live

    async def _fill(self, limit: int | None, timeout: float | None) -> None:
        live = await self._open()
        await self._begin_commit(is_patient=timeout is None)
        self._batch, self._next = [], 0
        if not self._fetched:
            self._fetched = await live.take(limit, timeout=timeout)
        # If this fails or is cancelled, what was fetched waits for the next call.
        await self._finish_commit()
        self._batch, self._fetched = self._fetched, []

    async def _begin_commit(self, *, is_patient: bool) -> None:
        await self._finish_commit()
        if self._handed_out > self._committed:
            assert self._exchange is not None
            self._pending_offset = self._handed_out
            position = Position(self._feed.epoch, self._handed_out)
            self._pending = asyncio.ensure_future(
                self._exchange.ack(self._feed, position, is_patient=is_patient)
            )

    async def _finish_commit(self) -> None:
        pending = self._pending
        if pending is not None:
            try:
                # Whoever is cancelled here leaves it to the next call.
                await asyncio.shield(pending)
            finally:
                if pending.done():
                    self._pending = None
            self._committed = self._pending_offset
