"""Following as a named consumer: resumed where it was, by one holder at a time.

A batch is committed when the next one is asked for, so a crash repeats at most one batch and
skips none. The watermark is written while the follower already waits for new messages, and is on
disk before they are handed out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator

from penstock.errors import ConsumerBusy, HubClosed, InvalidInput, LeaseLost
from penstock.model import (
    Consumer,
    Lease,
    Message,
    OnTrimmed,
    Pattern,
    Position,
    Start,
    check_name,
    consumer_lease,
)
from penstock.operation import Operation
from penstock.ports import Transaction
from penstock.topics.positions import check_on_trimmed, check_position, open_subscription
from penstock.topics.runtime import Runtime
from penstock.topics.sieve import KeyOf, OnError, Sieve, make_sieve
from penstock.topics.subscription import AsyncLive, Live, Subscription

STANDBY_SECONDS = 0.25
RELEASE_SECONDS = 2.0


class Holding:
    """The right to be a consumer on a subscription, and how its watermark is written."""

    def __init__(
        self,
        runtime: Runtime,
        consumer: str,
        pattern: Pattern,
        start: Start | Position,
        sieve: Sieve | None = None,
    ) -> None:
        self.pattern = pattern
        self.sieve = sieve
        self._consumer = check_name(consumer, "consumer name")
        self._start = start
        self._runtime = runtime
        self._lease: Lease | None = None
        self._floor = 0
        self._is_lost = False
        self._on_lost: Callable[[], None] | None = None

    def acquire(self, transaction: Transaction) -> Consumer:
        """As an operation: take the lease and find, or make, the watermark."""
        runtime = self._runtime
        lease = transaction.leases.acquire(
            consumer_lease(self._consumer, self.pattern.text),
            owner=runtime.name,
            seconds=runtime.settings.consumer_lease_seconds,
        )
        if lease is None:
            raise ConsumerBusy(
                f"Another follower is the consumer {self._consumer!r} on {self.pattern.text!r}."
            )
        # Trims before a consumer's first day are no loss to it; those after it are.
        start = self._start
        if isinstance(start, Position):
            position = floor = start.offset
        else:
            position = runtime.store.log().last_id if start == "latest" else 0
            floor = runtime.store.topics.trimmed_through(self.pattern)
        state = transaction.consumers.ensure(
            self._consumer,
            self.pattern.text,
            position=position,
            floor=floor,
            now=runtime.clock.now(),
        )
        self._lease = lease
        return state

    def keep(self, state: Consumer, on_lost: Callable[[], None] | None = None) -> None:
        """Renew the lease from now on. `on_lost` is called, on some thread, if that fails."""
        assert self._lease is not None
        self._floor = state.floor
        self._on_lost = on_lost
        self._runtime.keeper.keep(self._lease, self._lose)

    def subscribe(self, state: Consumer, on_trimmed: OnTrimmed) -> Subscription:
        """Keep the lease and read on after the watermark."""
        self.keep(state)
        return open_subscription(
            self._runtime, self.pattern, state.position, floor=state.floor, on_trimmed=on_trimmed
        )

    def advance(self, position: int, floor: int) -> Callable[[Transaction], None]:
        """As an operation: move the watermark, and note trims that were skipped."""
        self.check()
        lease = self._lease
        assert lease is not None
        # Noted each time: whether an earlier write of it was rolled back is not known here.
        has_skipped = floor > self._floor
        mark = None if self.sieve is None or not self.sieve.count else self.sieve.marking()

        def write(transaction: Transaction) -> None:
            if mark is not None:
                mark(transaction)
            consumers, now = transaction.consumers, self._runtime.clock.now()
            name, subscription = self._consumer, self.pattern.text
            consumers.advance(name, subscription, position=position, lease=lease, now=now)
            if has_skipped:
                consumers.accept_loss(name, subscription, floor=floor, lease=lease)

        return write

    def check(self) -> None:
        if self._is_lost:
            raise LeaseLost(f"Another follower has become the consumer {self._consumer!r}.")

    def give_up(self) -> Callable[[Transaction], bool] | None:
        """Stop renewing; the release as an operation, if there is one to make."""
        lease, self._lease = self._lease, None
        if lease is None:
            return None
        self._runtime.keeper.drop(lease)
        return lambda transaction: transaction.leases.release(lease)

    def _lose(self) -> None:
        self._is_lost = True
        if self._on_lost is not None:
            self._on_lost()


class Progress:
    """How far a follower has come; shared by both kinds."""

    _runtime: Runtime
    _holding: Holding
    _handed_out: int
    _committed: int
    _next: int
    _batch: list[Message]
    _pending_marks = 0
    _batch_end = 0
    """The last message of the batch, also if it was kept back: the consumer has had it."""

    def belongs_to(self, runtime: Runtime) -> bool:
        return self._runtime is runtime

    def ack_in(self, transaction: Transaction) -> int:
        """Commit what was handed out in somebody's transaction. Returns how far that is."""
        if self._handed_out > self._committed:
            self._holding.advance(self._handed_out, self._skipped_through())(transaction)
        return self._handed_out

    def _skipped_through(self) -> int:
        raise NotImplementedError

    def acked(self, position: int, marked: int = 0) -> None:
        """That transaction is on disk."""
        self._committed = max(self._committed, position)
        if self._holding.sieve is not None:
            self._holding.sieve.marked(marked)

    @property
    def to_mark(self) -> int:
        """How many messages are marked with the next commit."""
        return 0 if self._holding.sieve is None else self._holding.sieve.count

    def _hand_out(self, messages: list[Message]) -> None:
        if messages:
            self._handed_out = messages[-1].id
            if self._holding.sieve is not None:
                self._holding.sieve.hand_out(messages)
        self._pass_kept_back()

    def _pass_kept_back(self) -> None:
        """With the last of a batch handed out, those kept back behind it are done, too."""
        if self._next == len(self._batch):
            self._handed_out = max(self._handed_out, self._batch_end)


class Follower(Progress, Iterator[Message]):
    """`for message in follower`, or `for batch in follower.batches()`.

    Leaving the loop early commits nothing of the current batch; it is delivered again.
    """

    def __init__(
        self, runtime: Runtime, holding: Holding, *, on_trimmed: OnTrimmed, standby: bool
    ) -> None:
        self._runtime = runtime
        self._holding = holding
        self._pending: Operation[None] | None = None
        self._batch: list[Message] = []
        self._fetched: list[Message] = []
        self._next = 0
        state = self._acquire(standby)
        self._subscription = holding.subscribe(state, on_trimmed)
        self._live = Live(self._subscription, runtime.settings.follow_batch_max)
        self._handed_out = self._committed = state.position.offset

    @property
    def position(self) -> Position:
        """That of the last message handed out."""
        return Position(self._subscription.epoch, self._handed_out)

    def __iter__(self) -> Follower:
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
        self._hand_out([message])
        return message

    def take(self, limit: int | None = None, *, timeout: float | None = None) -> list[Message]:
        """The next batch, after committing the one before; empty after `timeout` seconds."""
        if self._next == len(self._batch):
            self._fill(limit, timeout)
        taken = self._batch[self._next :]
        self._next = len(self._batch)
        self._hand_out(taken)
        return taken

    def batches(self, limit: int | None = None) -> Iterator[list[Message]]:
        """Whole batches; asking for the next commits the one before."""
        while True:
            yield self.take(limit)

    def commit(self) -> None:
        """Commit what was handed out, without asking for more."""
        self._begin_commit()
        self._finish_commit()

    def close(self) -> None:
        """Let another follower take over. What was not committed is delivered again."""
        self._live.close()
        release = self._holding.give_up()
        if release is not None:
            self._runtime.committer.run(release).wait(RELEASE_SECONDS)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_live"):
            _release_later(self._runtime, self._holding)

    def _fill(self, limit: int | None, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._begin_commit()
            self._batch, self._next = [], 0
            if not self._fetched:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                self._fetched = self._live.take(limit, timeout=left)
            # If this fails, what was fetched waits for the next call.
            self._finish_commit()
            self._holding.check()
            sieve = self._holding.sieve
            if sieve is None or not self._fetched:
                break
            fresh = sieve.fresh(self._fetched)
            self._batch_end = self._fetched[-1].id
            self._fetched = fresh
            if fresh:
                break
            self._pass_kept_back()
        self._batch, self._fetched = self._fetched, []

    def _acquire(self, standby: bool) -> Consumer:
        while True:
            try:
                return self._runtime.committer.run_now(self._holding.acquire)
            except ConsumerBusy:
                if not standby:
                    raise
                time.sleep(STANDBY_SECONDS)

    def _skipped_through(self) -> int:
        return self._subscription.skipped_through

    def _begin_commit(self) -> None:
        self._finish_commit()
        if self._handed_out > self._committed:
            write = self._holding.advance(self._handed_out, self._skipped_through())
            self._pending = self._runtime.committer.run(write)
            self._pending_marks = self.to_mark

    def _finish_commit(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.wait()
            self.acked(self._handed_out, self._pending_marks)


class AsyncFollower(Progress, AsyncIterator[Message]):
    """As `Follower`, for an event loop. Takes the consumer when it is first asked."""

    def __init__(
        self, runtime: Runtime, holding: Holding, *, on_trimmed: OnTrimmed, standby: bool
    ) -> None:
        self._runtime = runtime
        self._holding = holding
        self._on_trimmed = on_trimmed
        self._standby = standby
        self._pending: asyncio.Future[None] | None = None
        self._batch: list[Message] = []
        self._fetched: list[Message] = []
        self._next = 0
        self._subscription: Subscription | None = None
        self._live: AsyncLive | None = None
        self._handed_out = self._committed = 0

    @property
    def position(self) -> Position | None:
        """That of the last message handed out; None before the first was asked for."""
        if self._subscription is None:
            return None
        return Position(self._subscription.epoch, self._handed_out)

    def __aiter__(self) -> AsyncFollower:
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
        self._hand_out([message])
        return message

    async def take(
        self, limit: int | None = None, *, timeout: float | None = None
    ) -> list[Message]:
        """The next batch, after committing the one before; empty after `timeout` seconds."""
        if self._next == len(self._batch):
            await self._fill(limit, timeout)
        taken = self._batch[self._next :]
        self._next = len(self._batch)
        self._hand_out(taken)
        return taken

    async def batches(self, limit: int | None = None) -> AsyncIterator[list[Message]]:
        """Whole batches; asking for the next commits the one before."""
        while True:
            yield await self.take(limit)

    async def commit(self) -> None:
        """Commit what was handed out, without asking for more."""
        await self._begin_commit()
        await self._finish_commit()

    async def close(self) -> None:
        """Let another follower take over. What was not committed is delivered again."""
        if self._live is not None:
            await self._live.close()
        release = self._holding.give_up()
        if release is not None:
            await self._runtime.committer.run_async(release)

    async def __aenter__(self) -> AsyncFollower:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_live", None) is not None:
            _release_later(self._runtime, self._holding)

    async def _open(self) -> AsyncLive:
        if self._live is None:
            state = await self._acquire()
            self._subscription = self._holding.subscribe(state, self._on_trimmed)
            self._handed_out = self._committed = state.position.offset
            self._live = AsyncLive(
                self._subscription, self._runtime.settings.follow_batch_max, self._runtime.executor
            )
        return self._live

    async def _fill(self, limit: int | None, timeout: float | None) -> None:
        live = await self._open()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            await self._begin_commit()
            self._batch, self._next = [], 0
            if not self._fetched:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                self._fetched = await live.take(limit, timeout=left)
            # If this fails or is cancelled, what was fetched waits for the next call.
            await self._finish_commit()
            self._holding.check()
            sieve = self._holding.sieve
            if sieve is None or not self._fetched:
                break
            loop = asyncio.get_running_loop()
            asked = self._fetched
            fresh = await loop.run_in_executor(self._runtime.executor, sieve.fresh, asked)
            self._batch_end = asked[-1].id
            self._fetched = fresh
            if fresh:
                break
            self._pass_kept_back()
        self._batch, self._fetched = self._fetched, []

    async def _acquire(self) -> Consumer:
        while True:
            try:
                return await self._runtime.committer.run_async(self._holding.acquire)
            except ConsumerBusy:
                if not self._standby:
                    raise
                await asyncio.sleep(STANDBY_SECONDS)

    def _skipped_through(self) -> int:
        return 0 if self._subscription is None else self._subscription.skipped_through

    async def _begin_commit(self) -> None:
        await self._finish_commit()
        if self._handed_out > self._committed:
            write = self._holding.advance(self._handed_out, self._skipped_through())
            self._pending = self._runtime.committer.run_async(write)
            self._pending_marks = self.to_mark

    async def _finish_commit(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            await pending
            self.acked(self._handed_out, self._pending_marks)


def prepare_follow(
    open_runtime: Callable[[], Runtime],
    topic: str,
    consumer: str,
    start: Start | Position,
    on_trimmed: OnTrimmed,
    idempotent: bool | KeyOf = False,
    on_error: OnError = "process",
) -> tuple[Runtime, Holding]:
    pattern = Pattern.parse(topic)
    check_on_trimmed(on_trimmed)
    if not isinstance(start, Position) and start not in ("latest", "earliest"):
        raise InvalidInput(f"start is 'latest', 'earliest' or a position, not {start!r}.")
    runtime = open_runtime()
    if isinstance(start, Position):
        check_position(runtime, start)
    sieve = make_sieve(runtime.tracker, consumer, idempotent, on_error)
    holding = Holding(runtime, consumer, pattern, start, sieve)
    runtime.start_reading()
    return runtime, holding


def _release_later(runtime: Runtime, holding: Holding) -> None:
    """For a follower that was dropped without close(): nothing may wait or raise here."""
    release = holding.give_up()
    if release is not None and not runtime.committer.is_closed:
        runtime.committer.run_quietly(release)
