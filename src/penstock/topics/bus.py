"""`hub.topics`: publish, read, follow, subscribe, and what topics there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from penstock.clock import micros, seconds
from penstock.errors import InvalidInput, LogTrimmed, TopicNotFound
from penstock.model import (
    Delivery,
    Format,
    Message,
    OnTrimmed,
    Pattern,
    Position,
    Receipt,
    Retention,
    Start,
    Topic,
    TopicStats,
    as_micros,
    check_count,
    check_topic,
)
from penstock.operation import Operation
from penstock.ports.topics import NOTHING_TOLD
from penstock.topics.followers import Follower, prepare_follow
from penstock.topics.listener import Listener
from penstock.topics.positions import check_on_trimmed, check_position, open_live_subscription
from penstock.topics.publishing import (
    PIPELINED,
    check_publishable,
    encode_message,
    prepare_many,
    refuse_with_conflate,
)
from penstock.topics.retention import Sweeper, default_retention
from penstock.topics.runtime import Runtime
from penstock.topics.sieve import KeyOf, OnError
from penstock.topics.subscription import Live

READ_LIMIT = 1_000
RATE_SECONDS = 60

Topics_ = list[Topic]


class Topics:
    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        self._open = open_runtime

    # Publishing

    def publish(
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
        """Append one message; returns when it is on disk.

        `ttl` seconds after publishing the message is hidden. The same `idempotency_key` within
        five minutes returns the first receipt. With `conflate`, only the latest message per
        (topic, key) is written, once per interval, and the receipt is not durable. `timeout`
        seconds bound the wait, not the write.
        """
        runtime = self._open()
        if conflate:
            check_publishable(topic)
            refuse_with_conflate(headers, ttl, idempotency_key, format)
            return runtime.conflator.put(topic, key, payload, type)
        message = encode_message(
            runtime.settings, topic, payload, type, key, headers, ttl, idempotency_key, format
        )
        if topic not in runtime.conflator.waiting:
            return runtime.committer.append_one_now(message, timeout)
        with runtime.conflator.ahead_of(topic) as batch:
            return runtime.committer.append_now([*batch, message], timeout)[-1]

    def publish_many(
        self,
        topic: str,
        payloads: Iterable[Any],
        *,
        type: str | None = None,
        format: Format | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """Append many messages; returns when all are on disk.

        Items are payloads, or `penstock.Publication` to say more about one. A list is checked
        as a whole before anything is written; any other iterable is written as it is read, in
        transactions of `commit_group_max` messages.
        """
        runtime = self._open()
        check_publishable(topic)
        group_max = runtime.settings.commit_group_max
        is_one_group = isinstance(payloads, (list, tuple)) and len(payloads) <= group_max
        receipts: list[Receipt] = []
        waiting: list[Operation[list[Receipt]]] = []
        for group in prepare_many(runtime, topic, payloads, type, format):
            if topic in runtime.conflator.waiting:
                with runtime.conflator.ahead_of(topic) as batch:
                    if batch:
                        runtime.committer.append_now(batch, timeout)
            if is_one_group:
                return runtime.committer.append_now(group, timeout)
            waiting.append(runtime.committer.append(group))
            if len(waiting) >= PIPELINED:
                receipts += waiting.pop(0).wait(timeout)
        for operation in waiting:
            receipts += operation.wait(timeout)
        return receipts

    # Reading

    def read(
        self,
        topic: str,
        *,
        after: Position | None = None,
        last: int | None = None,
        since: datetime | float | None = None,
        limit: int = READ_LIMIT,
        on_trimmed: OnTrimmed = "raise",
    ) -> list[Message]:
        """Up to `limit` messages of a topic or glob, oldest first.

        From the beginning; `after` a position; the `last` so many; or `since` a time. Raises
        `LogTrimmed` if messages after the position are gone, unless told to "skip" them.
        """
        check_on_trimmed(on_trimmed)
        runtime = self._open()
        pattern = Pattern.parse(topic)
        check_count(limit, "limit")
        if sum(option is not None for option in (after, last, since)) > 1:
            raise InvalidInput("Pass one of after=, last= and since=.")
        store, now = runtime.store, runtime.clock.now()
        if last is not None:
            count = min(check_count(last, "last"), limit)
            return store.topics.read_last(pattern, count=count, now=now)
        told: Mapping[str, int] = NOTHING_TOLD
        if after is not None:
            check_position(runtime, after)
        if after is None or on_trimmed == "skip":
            told = store.topics.trims(pattern, after=0)
        if after is not None:
            offset = after.offset
        else:
            offset = 0 if since is None else store.topics.offset_at(as_micros(since))
        messages: list[Message] = []
        while len(messages) < limit:
            try:
                chunk = store.topics.read(
                    pattern, after=offset, floor=0, limit=limit - len(messages), now=now, told=told
                )
            except LogTrimmed as error:
                if on_trimmed == "raise":
                    raise
                told = {**told, **error.trims}
                continue
            messages.extend(chunk.messages)
            if chunk.through <= offset:
                break
            offset = chunk.through
        return messages

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
    ) -> Follower:
        """Messages of a topic or glob for a named consumer, which resumes where it was.

        At least once, in order. One follower at a time holds the name; `standby` waits for it.
        A name used first begins with the `latest` messages, the `earliest`, or after a position.

        With `idempotent`, messages that the ledger knows as had by this consumer are kept back:
        by the key they were published with, or their place in the log, or by what a function
        says of each. They are marked with the commit of their batch. If the ledger cannot be
        asked, `on_error="process"` hands them out all the same; `"raise"` does not.
        """
        runtime, holding = prepare_follow(
            self._open, topic, consumer, start, on_trimmed, idempotent, on_error
        )
        return Follower(runtime, holding, on_trimmed=on_trimmed, standby=standby)

    def subscribe(
        self,
        topic: str,
        *,
        after: Position | None = None,
        last: int | None = None,
        on_trimmed: OnTrimmed = "raise",
    ) -> Live:
        """Messages of a topic or glob as they come, from now on.

        Or first those `after` a position, or the `last` so many. Nothing is remembered about
        the subscriber; to resume, subscribe after its last `position`.
        """
        runtime = self._open()
        subscription = open_live_subscription(
            runtime, Pattern.parse(topic), after=after, last=last, on_trimmed=on_trimmed
        )
        return Live(subscription, runtime.settings.follow_batch_max)

    def listen(
        self,
        topic: str,
        callback: Callable[[Message], object],
        *,
        after: Position | None = None,
        last: int | None = None,
        on_trimmed: OnTrimmed = "raise",
    ) -> Listener:
        """As `subscribe`, calling back for each message: the shortest way to live messages.

        The callback runs on penstock's thread, one message at a time, and must be quick.
        """
        runtime = self._open()
        subscription = open_live_subscription(
            runtime, Pattern.parse(topic), after=after, last=last, on_trimmed=on_trimmed
        )
        batch_max = runtime.settings.follow_batch_max
        return Listener(subscription, callback, batch_max, runtime.executor, runtime.telemetry)

    def position(self) -> Position:
        """The end of the log now."""
        log = self._open().store.log()
        return Position(log.epoch, log.last_id)

    # What topics there are

    def create(
        self,
        name: str,
        retention: Retention | None = None,
        *,
        delivery: Delivery | None = None,
    ) -> Topic:
        """Make a topic. Publishing makes one, too, with the hub's settings."""
        runtime = self._open()
        check_publishable(name)
        keep, now = retention or Retention(), runtime.clock.now()
        return runtime.committer.run_now(
            lambda tx: tx.topics.create(name, keep, delivery=delivery, now=now)
        )

    def configure(
        self,
        name: str,
        retention: Retention | None = None,
        *,
        delivery: Delivery | None = None,
    ) -> Topic:
        """Change how long the topic keeps its messages, and how they are sent to clients.

        What is not given stays as it is.
        """
        check_topic(name)
        if retention is None and delivery is None:
            raise InvalidInput("Pass a retention or delivery=.")
        return self._open().committer.run_now(
            lambda tx: tx.topics.configure(name, retention, delivery)
        )

    def get(self, name: str) -> Topic:
        found = self._open().store.topics.get(check_topic(name))
        if found is None:
            raise TopicNotFound(f"There is no topic {name!r}.")
        return found

    def list(self, pattern: str | None = None) -> Topics_:
        """All topics, or those a glob stands for, by name. Without penstock's own."""
        return self._open().store.topics.find(Pattern.parse("*" if pattern is None else pattern))

    def delete(self, name: str, progress: Callable[[int], None] | None = None) -> int:
        """Delete a topic and its messages. Returns how many messages that were."""
        runtime = self._open()
        check_topic(name)
        now = runtime.clock.now()
        runtime.committer.run_now(lambda tx: tx.topics.delete(name, now=now))
        return self._sweep(runtime, name, Retention(), progress)

    def trim(
        self,
        name: str,
        *,
        through: Position | None = None,
        keep: int | None = None,
        older_than_seconds: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove old messages by hand, whatever retention and holds say.

        Up to and including a position, all but the last `keep`, or those `older_than_seconds`.
        Returns how many were removed.
        """
        runtime = self._open()
        if sum(option is not None for option in (through, keep, older_than_seconds)) != 1:
            raise InvalidInput("Pass one of through=, keep= and older_than_seconds=.")
        topic = self.get(name)
        topics, now = runtime.store.topics, runtime.clock.now()
        if through is not None:
            check_position(runtime, through)
            bound = through.offset
        elif keep is not None:
            if keep < 0:
                raise InvalidInput(f"keep is a number from 0 up, not {keep}.")
            kept = topics.read_last(Pattern(name), count=keep, now=now) if keep else []
            bound = kept[0].id - 1 if kept else topic.last_id
        else:
            if older_than_seconds is None or older_than_seconds < 0:
                raise InvalidInput("older_than_seconds is a number from 0 up.")
            bound = topics.offset_at(now - micros(older_than_seconds))
        runtime.committer.run_now(lambda tx: tx.topics.trim(name, bound))
        return self._sweep(runtime, name, topic.retention, progress)

    def stats(self, name: str) -> TopicStats:
        """Size, age and rate of a topic."""
        runtime = self._open()
        topic = self.get(name)
        pattern = Pattern(name)
        store, now = runtime.store, runtime.clock.now()
        first = store.topics.first_after(pattern, topic.deleted_through, now=now)
        epoch = store.log().epoch
        recently = store.topics.offset_at(now - micros(RATE_SECONDS))
        return TopicStats(
            name,
            topic.messages,
            topic.bytes,
            topic.published,
            None if first is None else first.position,
            Position(epoch, topic.last_id) if topic.last_id else None,
            None if first is None else seconds(max(0, now - first.created_at)),
            store.topics.count_after(pattern, recently, now=now) / RATE_SECONDS,
            sum(Pattern(c.subscription).matches(name) for c in store.consumers.find()),
        )

    def _sweep(
        self,
        runtime: Runtime,
        name: str,
        retention: Retention,
        progress: Callable[[int], None] | None,
    ) -> int:
        sweeper = Sweeper(
            runtime.store,
            runtime.committer,
            runtime.settings,
            runtime.clock,
            runtime.name,
            runtime.telemetry,
        )
        rules = retention.with_defaults(default_retention(runtime.settings))
        writer = runtime.store.open_writer()
        try:
            return sweeper.sweep_topic(writer, name, rules, progress)
        finally:
            writer.close()
