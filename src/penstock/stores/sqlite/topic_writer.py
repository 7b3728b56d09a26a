"""Topics in SQLite, the writing side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw
import msgspec

from penstock import codec
from penstock.clock import SECOND, Micros, micros
from penstock.errors import (
    IdempotencyConflict,
    TopicExists,
    TopicNotFound,
    TransactionError,
)
from penstock.model import (
    Alike,
    Delivery,
    LogState,
    Message,
    NewMessage,
    Pattern,
    Position,
    Receipt,
    Retention,
    Swept,
    Topic,
)
from penstock.stores.sqlite.connection import (
    as_json,
    fetch_one,
)
from penstock.stores.sqlite.lake import SQL as LAKE
from penstock.stores.sqlite.topic_rows import SQL, NameBook, log_state, to_topic

# A clock set back by less than this is waited out: created_at stays where it was.
CLOCK_PATIENCE: Micros = 60 * SECOND

ROWS_MAX = 128
RUN_MIN = 8
"""So many messages that differ in their bodies alone are handed over as one array."""


class Insert:
    """Many rows per statement, in sizes 1, 2, 4, … ROWS_MAX, so that few stay prepared.

    The interpreter's lock is given back once per statement. One row at a time, a busy event loop
    would be waited for once per row: 237 ms instead of 16 for a hundred.
    """

    def __init__(self, head: str, row: str) -> None:
        self._width = row.count("?") - 2
        sizes = [2**power for power in range(ROWS_MAX.bit_length())]
        self._statements = {size: f"{head} {', '.join([row] * size)}" for size in sizes}

    def run(
        self, connection: apsw.Connection, shared: tuple[Micros, str], values: list[Any]
    ) -> None:
        """Insert rows given one after the other in `values`; `shared` goes into each."""
        start, size = 0, ROWS_MAX
        while start < len(values):
            while size * self._width > len(values) - start:
                size //= 2
            end = start + size * self._width
            connection.execute(self._statements[size], [*shared, *values[start:end]])
            start = end


PLAIN = Insert(SQL["insert_plain"], SQL["plain_row"])
FULL = Insert(SQL["insert_full"], SQL["full_row"])


class SqliteTopicWriter:
    """Appends, collected per transaction: the log row and the counters are written at its end."""

    def __init__(
        self, connection: apsw.Connection, names: NameBook, idempotency_seconds: float
    ) -> None:
        self._connection = connection
        self._book = names
        self._idempotency = micros(idempotency_seconds)
        self.begin()

    # The transaction's own life, called by its owner

    def begin(self) -> None:
        self._log: LogState | None = None
        self._at = 0
        self._last_id = 0
        self._touched: dict[int, tuple[int, int, int]] = {}
        self._pending: dict[str, int] = {}
        self._appended: list[tuple[Sequence[NewMessage], list[Receipt], str]] = []

    def flush(self) -> None:
        """Write what the appends add up to. Before COMMIT."""
        touched = self._touched
        if not touched:
            return
        self._connection.execute(SQL["move_log"], (self._last_id, self._at))
        if len(touched) == 1:
            [(number, count)] = touched.items()
            self._connection.execute(SQL["count_appended_to_one"], (self._at, number, *count))
        else:
            counts = as_json([(number, *count) for number, count in touched.items()])
            self._connection.execute(SQL["count_appended"], (counts, self._at))

    def committed(self) -> None:
        if self._pending and self._log is not None:
            self._book.of(self._log.epoch).add(self._pending)

    def mark(self) -> tuple[Any, ...]:
        counted = self._touched.copy(), self._pending.copy(), len(self._appended)
        return self._log, self._at, self._last_id, *counted

    def return_to(self, mark: tuple[Any, ...]) -> None:
        self._log, self._at, self._last_id, self._touched, self._pending, appended = mark
        del self._appended[appended:]

    # The port

    def append(
        self, messages: Sequence[NewMessage], *, producer: str, now: Micros
    ) -> list[Receipt]:
        check_open(self._connection)
        log = self._log or self._open_log(now)
        epoch, at, last_id = log.epoch, self._at, self._last_id
        ids, touched = self._book.of(epoch).ids, self._touched
        shared = (at, producer)
        plain: list[Any] = []
        full: list[Any] = []
        receipts: list[Receipt] = []
        for head, bodies in _runs(messages):
            topic = head.topic
            topic_id = ids.get(topic) or self._topic_id(topic)
            key = head.idempotency_key
            if key is not None:
                first = self._first_under_key(topic_id, head, epoch, last_id + 1)
                if first is not None:
                    receipts.append(first)
                    continue
            before, last_id = last_id, last_id + len(bodies)
            new = range(before + 1, last_id + 1)
            if not _is_plain(head):
                expires_at = None if head.ttl is None else at + head.ttl
                full += (last_id, topic_id, head.type, head.encoding, head.body)
                full += (expires_at, head.key, head.headers, key)
            elif len(bodies) < RUN_MIN:
                for number, body in zip(new, bodies, strict=True):
                    plain += (number, topic_id, head.type, head.encoding, body)
            else:
                values = (*shared, before, topic_id, head.type, head.encoding)
                array = apsw.carray(tuple(bodies), flags=apsw.SQLITE_CARRAY_BLOB)
                self._connection.execute(SQL["insert_run"], (*values, array))
            _add(touched, topic_id, len(bodies), sum(map(len, bodies)), last_id)
            receipts += [Receipt(topic, Position(epoch, number), at) for number in new]
        PLAIN.run(self._connection, shared, plain)
        FULL.run(self._connection, shared, full)
        self._appended.append((messages, receipts, producer))
        self._last_id = last_id
        return receipts

    def appended(self) -> list[Message]:
        return [
            _as_read(message, receipt, producer)
            for messages, receipts, producer in self._appended
            for message, receipt in zip(messages, receipts, strict=True)
            if not receipt.duplicate
        ]

    @property
    def appended_count(self) -> int:
        return 0 if self._log is None else self._last_id - self._log.last_id

    def create(
        self, name: str, retention: Retention, *, delivery: Delivery | None = None, now: Micros
    ) -> Topic:
        values = (name, now, msgspec.json.encode(retention), _encoded(delivery))
        row = fetch_one(self._connection, SQL["create_topic"], values)
        if row is None:
            raise TopicExists(f"The topic {name!r} exists.")
        self._pending[name] = row[0]
        return self._get(name)

    def configure(
        self, name: str, retention: Retention | None, delivery: Delivery | None = None
    ) -> Topic:
        values = (name, _encoded(retention), _encoded(delivery))
        row = fetch_one(self._connection, SQL["configure_topic"], values)
        if row is None:
            raise TopicNotFound(f"There is no topic {name!r}.")
        return self._get(name)

    def delete(self, name: str, *, now: Micros) -> None:
        self._settle()
        if fetch_one(self._connection, SQL["delete_topic"], (name, now)) is None:
            raise TopicNotFound(f"There is no topic {name!r}.")

    def trim(self, name: str, through: int) -> None:
        self._settle()
        if fetch_one(self._connection, SQL["trim_topic"], (name, through)) is None:
            raise TopicNotFound(f"There is no topic {name!r}.")

    def sweep(self, name: str, retention: Retention, *, now: Micros, limit: int) -> Swept:
        self._settle()
        state = fetch_one(self._connection, SQL["sweep_state"], (name,))
        if state is None:
            return Swept(0, 0)
        topic_id, messages, size, deleted_through, deleted_at = state
        hold = self._hold(name, retention) if deleted_at is None else None
        through = lost_through = removed = removed_bytes = broken = 0
        for message_id, created_at, expires_at, length in self._connection.execute(
            SQL["oldest_messages"], (topic_id, limit)
        ):
            is_expired = expires_at is not None and expires_at <= now
            if message_id > deleted_through and not is_expired:
                age = now - created_at
                if not retention.wants_removal(age=age, messages=messages, size=size):
                    break
                if hold is not None and message_id > hold:
                    if retention.may_hold(age=age, size=size):
                        break
                    broken += 1
            through = message_id
            if not is_expired:
                lost_through = message_id
            removed += 1
            removed_bytes += length
            messages -= 1
            size -= length
        if removed:
            self._connection.execute(SQL["remove_messages"], (topic_id, through))
            self._connection.execute(
                SQL["count_removed"], (topic_id, removed, removed_bytes, lost_through)
            )
        return Swept(removed, broken)

    def forget_keys(self, *, now: Micros, limit: int) -> int:
        self._connection.execute(SQL["forget_keys"], (now, limit))
        return self._connection.changes()

    # Inside

    def _open_log(self, now: Micros) -> LogState:
        log = log_state(self._connection)
        self._log = log
        self._last_id = log.last_id
        is_ahead = 0 < log.last_at - now <= CLOCK_PATIENCE
        self._at = log.last_at if is_ahead else now
        return log

    def _topic_id(self, name: str) -> int:
        known = self._pending.get(name)
        if known is not None:
            return known
        row = fetch_one(self._connection, SQL["topic_id"], (name,))
        if row is None:
            row = fetch_one(self._connection, SQL["insert_topic"], (name, self._at))
        number: int = row[0]
        self._pending[name] = number
        return number

    def _first_under_key(
        self, topic_id: int, message: NewMessage, epoch: str, next_id: int
    ) -> Receipt | None:
        """The receipt of an earlier message under the key; else the key is taken for this one."""
        key = message.idempotency_key
        # Of the payload as it was published: whether it was compressed is no difference.
        digest = codec.digest(
            message.type,
            message.key,
            message.headers,
            codec.content_type(message.encoding),
            codec.decompress(message.body, message.encoding),
        )
        row = fetch_one(self._connection, SQL["find_key"], (topic_id, key, self._at))
        if row is None:
            self._connection.execute(
                SQL["remember_key"],
                (topic_id, key, next_id, self._at, digest, self._at + self._idempotency),
            )
            return None
        if row[2] != digest:
            raise IdempotencyConflict(
                f"The idempotency key {key!r} was used for another message of {message.topic!r}."
            )
        return Receipt(message.topic, Position(epoch, row[0]), row[1], duplicate=True)

    def _settle(self) -> None:
        """Make the counters right for statements that read them in this transaction."""
        self.flush()
        self._touched = {}

    def _get(self, name: str) -> Topic:
        return to_topic(fetch_one(self._connection, SQL["get_topic"], (name,)))

    def _hold(self, topic: str, retention: Retention) -> int | None:
        """How far the slowest with a hold on the topic has come; 0 if one is unknown."""
        archived = [
            through
            for subscription, through in self._connection.execute(LAKE["held_coverage"])
            if Pattern(subscription).matches(topic)
        ]
        # One that is archived under two subscriptions is in the lake as far as the further one.
        holds = [max(archived)] if archived else []
        if retention.hold_for:
            holds.append(self._consumed(topic, retention))
        return min(holds, default=None)

    def _consumed(self, topic: str, retention: Retention) -> int:
        positions: dict[str, int] = {}
        for name, subscription, position in self._connection.execute(SQL["held_positions"]):
            if name in retention.hold_for and Pattern(subscription).matches(topic):
                positions[name] = min(position, positions.get(name, position))
        return min(positions.get(name, 0) for name in retention.hold_for)


def _encoded(value: Retention | Delivery | None) -> bytes | None:
    return None if value is None else msgspec.json.encode(value)


def check_open(connection: apsw.Connection) -> None:
    """After a statement that rolled everything back, the next would be committed by itself."""
    if not connection.in_transaction:
        raise TransactionError(
            "The database has rolled the transaction back.",
            hint="A statement such as INSERT OR ROLLBACK ended it, or the disk is full.",
        )


def _is_plain(message: NewMessage) -> bool:
    return (
        message.key is None
        and message.ttl is None
        and message.headers is None
        and message.idempotency_key is None
    )


def _runs(messages: Sequence[NewMessage]) -> Iterator[tuple[NewMessage, list[bytes]]]:
    """The messages in order, plain ones together as long as they differ in their bodies alone.

    Most groups are one such run, and what is the same for all of it is done once.
    """
    if isinstance(messages, Alike):
        yield messages[0], messages.bodies
        return
    rest = iter(messages)
    head = next(rest, None)
    while head is not None:
        following = None
        bodies = [head.body]
        if _is_plain(head):
            topic, type, encoding = head.topic, head.type, head.encoding
            for message in rest:
                if (
                    message.topic != topic
                    or message.type != type
                    or message.encoding != encoding
                    or message.key is not None
                    or message.ttl is not None
                    or message.headers is not None
                    or message.idempotency_key is not None
                ):
                    following = message
                    break
                bodies.append(message.body)
        else:
            following = next(rest, None)
        yield head, bodies
        head = following


def _as_read(message: NewMessage, receipt: Receipt, producer: str) -> Message:
    """A message as somebody who reads the log gets it."""
    assert receipt.position is not None
    at = receipt.created_at
    return Message(
        receipt.position.offset,
        message.topic,
        at,
        message.body,
        message.encoding,
        receipt.position.epoch,
        message.type,
        message.key,
        None if message.ttl is None else at + message.ttl,
        message.headers,
        message.idempotency_key,
        producer,
    )


def _add(
    touched: dict[int, tuple[int, int, int]], topic_id: int, count: int, size: int, last_id: int
) -> None:
    before = touched.get(topic_id)
    if before is not None:
        count += before[0]
        size += before[1]
    touched[topic_id] = (count, size, last_id)
