"""`hub.aio`: the hub's names as coroutines, over the same code.

Writes await the committer directly. Reads, which take microseconds to milliseconds, run on the
hub's few reader threads. A test holds the signatures equal to those of the hub.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from penstock.copies import backup, new_generation, restore
from penstock.errors import WriteTimeout
from penstock.health import Health, Metrics, Watched, diagnose, measure, report
from penstock.jobs.coroutines import AsyncJobs, AsyncSchedules
from penstock.jobs.crew import AsyncCrew
from penstock.jobs.registry import Registry
from penstock.jobs.runtime import Runtime as JobsRuntime
from penstock.jobs.worker import OnOutcome
from penstock.ledger.aio import AsyncLedger
from penstock.ledger.fallback import Fallback
from penstock.ledger.runtime import Runtime as LedgerRuntime
from penstock.locks import LEASE_SECONDS, AsyncLock
from penstock.mailboxes.coroutines import AsyncMailboxes
from penstock.mailboxes.coroutines import Runtime as MailboxesRuntime
from penstock.model import (
    Check,
    Consumer,
    Delivery,
    Format,
    Lag,
    Message,
    OnTrimmed,
    Pattern,
    Position,
    Receipt,
    Retention,
    Start,
    Topic,
    TopicStats,
)
from penstock.topics import bus
from penstock.topics.consumers import Consumers
from penstock.topics.followers import AsyncFollower, prepare_follow
from penstock.topics.listener import AsyncCallback, AsyncListener
from penstock.topics.positions import open_live_subscription
from penstock.topics.publishing import (
    PIPELINED,
    check_publishable,
    encode_message,
    prepare_many,
    refuse_with_conflate,
)
from penstock.topics.sieve import KeyOf, OnError
from penstock.topics.subscription import AsyncLive
from penstock.transaction import AsyncHubTransaction, Desk, HubTransaction

T = TypeVar("T")


class FullRuntime(Watched, JobsRuntime, LedgerRuntime, MailboxesRuntime, Protocol):
    desk: Desk


OpenRuntime = Callable[[], FullRuntime]


class AsyncHub:
    def __init__(
        self,
        open_runtime: OpenRuntime,
        close: Callable[[], None],
        handlers: Registry,
        fallback: Fallback,
    ) -> None:
        self._open = open_runtime
        self._close = close
        self._handlers = handlers
        self.topics = AsyncTopics(open_runtime)
        self.consumers = AsyncConsumers(open_runtime)
        self.jobs = AsyncJobs(open_runtime)
        self.schedules = AsyncSchedules(open_runtime)
        self.mailboxes = AsyncMailboxes(open_runtime)
        self.ledger = AsyncLedger(
            open_runtime, fallback, lambda limit: self.transaction(limit_seconds=limit)
        )

    def transaction(self, *, limit_seconds: float | None = None) -> AsyncHubTransaction:
        """One transaction across topics and your own tables."""
        runtime = self._open()
        limit = limit_seconds or runtime.settings.transaction_limit_seconds
        return AsyncHubTransaction(HubTransaction(runtime, runtime.desk, limit), runtime.executor)

    def start_workers(
        self, queues: Mapping[str, int] | None = None, *, on_outcome: OnOutcome | None = None
    ) -> AsyncCrew:
        """Do jobs in this process, on this event loop: `async with hub.aio.start_workers():`.

        `queues` says how many jobs of each queue at once; by default 10 of each queue that has
        a handler here. `on_outcome` is called on the event loop with each run that has ended and,
        unless it completed, its setback.
        """
        return AsyncCrew(self._open(), self._handlers, queues, on_outcome)

    def lock(
        self, name: str, lease_seconds: float = LEASE_SECONDS, *, timeout: float | None = None
    ) -> AsyncLock:
        """`async with hub.aio.lock("name") as lock:` as `Hub.lock`."""
        return AsyncLock(self._open, name, lease_seconds, timeout)

    async def health(self) -> Health:
        """How consumers are doing, judged by the thresholds in the settings."""
        return await _read(self._open, report)

    async def metrics(self) -> Metrics:
        """The queue in figures."""
        return await _read(self._open, measure)

    async def diagnose(self) -> list[Check]:
        """What `penstock doctor` shows."""
        return await _read(self._open, diagnose)

    async def backup(
        self,
        target: str | os.PathLike[str],
        progress: Callable[[int, int], None] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        """Write a consistent copy while everybody goes on working."""
        await _read(self._open, lambda r: backup(r, target, progress, overwrite=overwrite))

    async def restore(
        self, source: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Replace the content by a backup's. Positions taken before raise `EpochChanged`."""
        await _read(self._open, lambda r: restore(r, source, progress))

    async def new_generation(self) -> str:
        """Declare this file another one, after it was copied by hand. Returns the new epoch."""
        return await _read(self._open, new_generation)

    async def close(self) -> None:
        """Write what waits, stop the threads, close the store."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)


class AsyncTopics:
    def __init__(self, open_runtime: OpenRuntime) -> None:
        self._open = open_runtime
        self._topics = bus.Topics(open_runtime)

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        ttl: float | None = None,
        idempotency_key: str | None = None,
        conflate: bool = False,
        format: Format | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Append one message; returns when it is on disk. As `Topics.publish`."""
        runtime = self._open()
        if conflate:
            check_publishable(topic)
            refuse_with_conflate(headers, ttl, idempotency_key, format)
            return runtime.conflator.put(topic, key, payload, type)
        message = encode_message(
            runtime.settings, topic, payload, type, key, headers, ttl, idempotency_key, format
        )
        if timeout is None and topic not in runtime.conflator.waiting:
            return await runtime.committer.append_one_async(message)
        with runtime.conflator.ahead_of(topic) as batch:
            writing = runtime.committer.append_async([*batch, message])
            return (await _bounded(writing, timeout))[-1]

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[Any],
        *,
        type: str | None = None,
        format: Format | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """Append many messages; returns when all are on disk. As `Topics.publish_many`."""
        runtime = self._open()
        check_publishable(topic)
        receipts: list[Receipt] = []
        waiting: list[asyncio.Future[list[Receipt]]] = []
        for group in prepare_many(runtime, topic, payloads, type, format):
            if topic in runtime.conflator.waiting:
                with runtime.conflator.ahead_of(topic) as batch:
                    if batch:
                        await _bounded(runtime.committer.append_async(batch), timeout)
            waiting.append(runtime.committer.append_async(group))
            if len(waiting) >= PIPELINED:
                receipts += await _bounded(waiting.pop(0), timeout)
        for writing in waiting:
            receipts += await _bounded(writing, timeout)
        return receipts

    async def read(
        self,
        topic: str,
        *,
        after: Position | None = None,
        last: int | None = None,
        since: datetime | float | None = None,
        limit: int = bus.READ_LIMIT,
        on_trimmed: OnTrimmed = "raise",
    ) -> list[Message]:
        """Up to `limit` messages of a topic or glob, oldest first. As `Topics.read`."""
        call = partial(
            self._topics.read,
            topic,
            after=after,
            last=last,
            since=since,
            limit=limit,
            on_trimmed=on_trimmed,
        )
        return await _in_thread(self._open, call)

    def follow(
        self,
        topic: str,
        *,
        consumer: str,
        start: Start | Position = "latest",
        on_trimmed: OnTrimmed = "raise",
        standby: bool = False,
        idempotent: bool | KeyOf = False,
        on_error: OnError = "process",
    ) -> AsyncFollower:
        """Messages of a topic or glob for a named consumer, which resumes where it was."""
        runtime, holding = prepare_follow(
            self._open, topic, consumer, start, on_trimmed, idempotent, on_error
        )
        return AsyncFollower(runtime, holding, on_trimmed=on_trimmed, standby=standby)

    def subscribe(
        self,
        topic: str,
        *,
        after: Position | None = None,
        last: int | None = None,
        on_trimmed: OnTrimmed = "raise",
    ) -> AsyncLive:
        """Messages of a topic or glob as they come, from now on."""
        runtime = self._open()
        subscription = open_live_subscription(
            runtime, Pattern.parse(topic), after=after, last=last, on_trimmed=on_trimmed
        )
        return AsyncLive(subscription, runtime.settings.follow_batch_max, runtime.executor)

    def listen(
        self,
        topic: str,
        callback: AsyncCallback,
        *,
        after: Position | None = None,
        last: int | None = None,
        on_trimmed: OnTrimmed = "raise",
    ) -> AsyncListener:
        """As `subscribe`, calling back for each message, on the event loop."""
        live = self.subscribe(topic, after=after, last=last, on_trimmed=on_trimmed)
        return AsyncListener(live, callback, self._open().telemetry)

    async def position(self) -> Position:
        """The end of the log now."""
        return await _in_thread(self._open, self._topics.position)

    async def create(
        self,
        name: str,
        retention: Retention | None = None,
        *,
        delivery: Delivery | None = None,
    ) -> Topic:
        """Make a topic. Publishing makes one, too, with the hub's settings."""
        call = partial(self._topics.create, name, retention, delivery=delivery)
        return await _in_thread(self._open, call)

    async def configure(
        self,
        name: str,
        retention: Retention | None = None,
        *,
        delivery: Delivery | None = None,
    ) -> Topic:
        """Change how long the topic keeps its messages, and how they are sent to clients."""
        call = partial(self._topics.configure, name, retention, delivery=delivery)
        return await _in_thread(self._open, call)

    async def get(self, name: str) -> Topic:
        return await _in_thread(self._open, partial(self._topics.get, name))

    async def list(self, pattern: str | None = None) -> bus.Topics_:
        """All topics, or those a glob stands for, by name."""
        return await _in_thread(self._open, partial(self._topics.list, pattern))

    async def delete(self, name: str, progress: Callable[[int], None] | None = None) -> int:
        """Delete a topic and its messages. Returns how many messages that were."""
        return await _in_thread(self._open, partial(self._topics.delete, name, progress))

    async def trim(
        self,
        name: str,
        *,
        through: Position | None = None,
        keep: int | None = None,
        older_than_seconds: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove old messages by hand, whatever retention and holds say. As `Topics.trim`."""
        call = partial(
            self._topics.trim,
            name,
            through=through,
            keep=keep,
            older_than_seconds=older_than_seconds,
            progress=progress,
        )
        return await _in_thread(self._open, call)

    async def stats(self, name: str) -> TopicStats:
        """Size, age and rate of a topic."""
        return await _in_thread(self._open, partial(self._topics.stats, name))


class AsyncConsumers:
    def __init__(self, open_runtime: OpenRuntime) -> None:
        self._open = open_runtime
        self._consumers = Consumers(open_runtime)

    async def list(self, name: str | None = None) -> list[Consumer]:
        return await _in_thread(self._open, partial(self._consumers.list, name))

    async def get(self, name: str, subscription: str) -> Consumer:
        return await _in_thread(self._open, partial(self._consumers.get, name, subscription))

    async def lag(self, name: str, subscription: str) -> Lag:
        return await _in_thread(self._open, partial(self._consumers.lag, name, subscription))

    async def seek(self, name: str, subscription: str, to: Position | Start) -> Consumer:
        """Set the watermark by hand, also back. Nobody may be following under the name."""
        return await _in_thread(self._open, partial(self._consumers.seek, name, subscription, to))

    async def delete(self, name: str, subscription: str | None = None) -> int:
        """Forget the consumer, on one subscription or on all. Returns how many watermarks."""
        return await _in_thread(self._open, partial(self._consumers.delete, name, subscription))


async def _bounded(writing: asyncio.Future[list[Receipt]], timeout: float | None) -> list[Receipt]:
    try:
        async with asyncio.timeout(timeout):
            return await writing
    except TimeoutError:
        raise WriteTimeout(f"The write was not acknowledged within {timeout} seconds.") from None


async def _in_thread(open_runtime: OpenRuntime, call: Callable[[], T]) -> T:
    """On a reader thread, with the caller's context: inside a transaction stays inside."""
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    return await loop.run_in_executor(open_runtime().executor, partial(context.run, call))


async def _read(open_runtime: OpenRuntime, call: Callable[[FullRuntime], T]) -> T:
    return await _in_thread(open_runtime, lambda: call(open_runtime()))
