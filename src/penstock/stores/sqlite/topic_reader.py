"""Topics in SQLite, the reading side."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from penstock.clock import Micros
from penstock.errors import (
    EpochChanged,
    LogTrimmed,
)
from penstock.model import (
    Chunk,
    LogState,
    Message,
    Pattern,
    Position,
    Retention,
    Topic,
)
from penstock.ports.topics import NOTHING_TOLD
from penstock.stores.sqlite.connection import (
    ReaderPool,
    as_json,
    fetch_all,
    fetch_one,
    fetch_value,
)
from penstock.stores.sqlite.topic_rows import (
    SQL,
    NameBook,
    TopicNames,
    decode_retention,
    log_state,
    to_message,
    to_topic,
)

# Ids passed in one read of a glob, so that no read transaction is long.
SCAN_MAX = 50_000
# More topics than this are not named in a query but picked from all messages.
FEW_TOPICS = 64
# Up to so many messages of a topic are looked at one by one when they are counted.
COUNTED_MAX = 50_000


class SqliteTopicReader:
    def __init__(self, pool: ReaderPool, names: NameBook) -> None:
        self._pool = pool
        self._book = names

    def get(self, name: str) -> Topic | None:
        with self._pool.read() as connection:
            row = fetch_one(connection, SQL["get_topic"], (name,))
        return None if row is None or row[8] is not None else to_topic(row)

    def find(self, pattern: Pattern | None = None) -> list[Topic]:
        with self._pool.read() as connection:
            topics = [to_topic(row) for row in connection.execute(SQL["list_topics"])]
        return topics if pattern is None else [t for t in topics if pattern.matches(t.name)]

    def read(
        self,
        pattern: Pattern,
        *,
        after: int,
        floor: int,
        limit: int,
        now: Micros,
        told: Mapping[str, int] = NOTHING_TOLD,
    ) -> Chunk:
        with self._pool.read() as connection:
            log, known, numbers = self._enter(connection, pattern)
            lost = {
                topic: through
                for topic, through in self._trims(
                    connection, known, numbers, max(after, floor), log
                ).items()
                if through > told.get(topic, 0)
            }
            if lost:
                first = self._first_after(connection, numbers, after, now)
                raise LogTrimmed(
                    f"Messages after {after} were trimmed, up to {max(lost.values())}, "
                    "before they were read.",
                    first=None if first is None else Position(log.epoch, first),
                    resume=Position(log.epoch, log.last_id if first is None else first - 1),
                    trims=lost,
                )
            if after > log.last_id:
                raise EpochChanged(f"The position {after} is ahead of the log ({log.last_id}).")
            if not numbers or after == log.last_id:
                return Chunk([], log.last_id, log.epoch)
            if pattern.is_glob:
                upper, messages = self._read_glob(
                    connection, known, numbers, after, limit, now, log
                )
            else:
                upper = log.last_id
                rows = connection.execute(SQL["read_topic"], (pattern.text, after, now, limit))
                messages = [to_message(row, log.epoch) for row in rows]
        return Chunk(messages, messages[-1].id if len(messages) == limit else upper, log.epoch)

    def read_tail(
        self, *, after: Position, patterns: Sequence[Pattern] | None, limit: int
    ) -> Chunk:
        if patterns is None:
            chunk = self._read_next(after, limit)
            if chunk is not None:
                return chunk
        # In one view with the names and the trims: a topic made in between must not be missed, and
        # what was removed after this view is no loss to it.
        with self._pool.read() as connection:
            rows = self._read_tail(connection, after.offset, limit, patterns)
            trims = fetch_all(connection, SQL["trimmed_topics"], (after.offset,))
        trimmed = tuple(row[0] for row in trims)
        code, generation, last_id, first, *_ = rows[0]
        epoch = f"{code}-{generation}"
        if epoch != after.epoch or last_id < after.offset:
            raise EpochChanged("The database was restored or replaced.")
        if first is None:
            return Chunk([], last_id, epoch, trimmed)
        messages = [to_message(row[3:], epoch) for row in rows]
        through = messages[-1].id if len(rows) == limit else last_id
        return Chunk(messages, through, epoch, trimmed)

    def _read_next(self, after: Position, limit: int) -> Chunk | None:
        """The short way, taken nearly always: messages without a gap, of topics known by name.

        A new generation always leaves out an id, so there is none where there is no gap.
        """
        rows = self._pool.fetch_next(SQL["read_next"], (after.offset, limit))
        if not rows or rows[-1][0] != after.offset + len(rows):
            return None
        epoch = after.epoch
        try:
            messages = _named(rows, self._book.of(epoch), epoch)
        except KeyError:
            with self._pool.read() as connection:
                if log_state(connection).epoch != epoch:
                    return None
                self._book.of(epoch).refresh(connection)
            try:
                messages = _named(rows, self._book.of(epoch), epoch)
            except KeyError:
                return None
        return Chunk(messages, rows[-1][0], epoch)

    def read_last(self, pattern: Pattern, *, count: int, now: Micros) -> list[Message]:
        with self._pool.read() as connection:
            log, _, numbers = self._enter(connection, pattern)
            messages = [
                to_message(row, log.epoch)
                for number in numbers
                for row in connection.execute(SQL["read_last_topic"], (number, now, count))
            ]
        messages.sort(key=lambda message: message.id)
        return messages[-count:]

    def oldest_at(self) -> Micros | None:
        with self._pool.read() as connection:
            row = fetch_one(connection, SQL["probe_at"], (0,))
        return None if row is None else int(row[1])

    def offset_at(self, at: Micros) -> int:
        """By bisection over ids: created_at does not fall, so no index is needed."""
        with self._pool.read() as connection:
            low, high = 0, log_state(connection).last_id
            while low < high:
                middle = (low + high) // 2 + 1
                row = fetch_one(connection, SQL["probe_at"], (middle,))
                if row is None or row[1] >= at:
                    high = middle - 1
                else:
                    low = row[0]
            return low

    def trims(self, pattern: Pattern, *, after: int) -> dict[str, int]:
        with self._pool.read() as connection:
            log, known, numbers = self._enter(connection, pattern)
            return self._trims(connection, known, numbers, after, log)

    def trimmed_through(self, pattern: Pattern) -> int:
        return max(self.trims(pattern, after=0).values(), default=0)

    def first_after(self, pattern: Pattern, after: int, *, now: Micros) -> Message | None:
        with self._pool.read() as connection:
            log, _, numbers = self._enter(connection, pattern)
            first = self._first_after(connection, numbers, after, now)
            if first is None:
                return None
            return to_message(fetch_one(connection, SQL["message_by_id"], (first,)), log.epoch)

    def count_after(self, pattern: Pattern, after: int, *, now: Micros) -> int:
        with self._pool.read() as connection:
            _, _, numbers = self._enter(connection, pattern)
            count = 0
            for number in numbers:
                found = fetch_value(connection, SQL["count_all_after"], (number, after))
                if 0 < found <= COUNTED_MAX:
                    found = fetch_value(connection, SQL["count_after"], (number, after, now))
                count += found
            return count

    def needs_sweep(self, default: Retention, *, now: Micros) -> list[str]:
        with self._pool.read() as connection:
            rows = fetch_all(connection, SQL["needs_sweep"])
        due = []
        for row in rows:
            name, retention, messages, size, deleted_at, deleted_through, oldest, at, expires = row
            rules = decode_retention(retention).with_defaults(default)
            if (
                deleted_at is not None
                or oldest <= deleted_through
                or (expires is not None and expires <= now)
                or rules.wants_removal(age=now - at, messages=messages, size=size)
            ):
                due.append(name)
        return due

    # Inside

    def _read_tail(
        self,
        connection: apsw.Connection,
        after: int,
        limit: int,
        patterns: Sequence[Pattern] | None,
    ) -> list[Any]:
        if patterns is not None:
            known = self._book.of(log_state(connection).epoch)
            known.refresh(connection)
            lists = [known.matching(pattern) for pattern in patterns]
            if sum(map(len, lists)) <= FEW_TOPICS:
                numbers = as_json([number for numbers in lists for number in numbers])
                return fetch_all(connection, SQL["read_tail_some"], (after, limit, numbers))
        return fetch_all(connection, SQL["read_tail"], (after, limit))

    def _read_glob(
        self,
        connection: apsw.Connection,
        known: TopicNames,
        numbers: list[int],
        after: int,
        limit: int,
        now: Micros,
        log: LogState,
    ) -> tuple[int, list[Message]]:
        """Messages of these topics by id, and how far the scan came."""
        first = fetch_one(connection, SQL["probe_at"], (after + 1,))
        if first is None:
            return log.last_id, []
        upper = min(log.last_id, first[0] + SCAN_MAX)
        if len(numbers) <= FEW_TOPICS:
            rows = connection.execute(
                SQL["read_glob"], (after, upper, as_json(numbers), now, limit)
            )
            return upper, [to_message(row, log.epoch) for row in rows]
        wanted = {known.names[number] for number in numbers}
        rows = connection.execute(SQL["read_range"], (after, upper, now))
        found = (to_message(row, log.epoch) for row in rows if row[1] in wanted)
        return upper, list(itertools.islice(found, limit))

    def _enter(
        self, connection: apsw.Connection, pattern: Pattern
    ) -> tuple[LogState, TopicNames, list[int]]:
        log = log_state(connection)
        known = self._book.of(log.epoch)
        known.refresh(connection)
        return log, known, known.matching(pattern)

    def _trims(
        self,
        connection: apsw.Connection,
        known: TopicNames,
        numbers: list[int],
        after: int,
        log: LogState,
    ) -> dict[str, int]:
        """By name, of these topics: up to which id above `after` each was trimmed."""
        if after >= log.last_id:
            return {}
        trims = dict(connection.execute(SQL["trims"], (after,)))
        return {known.names[number]: trims[number] for number in numbers if number in trims}

    def _first_after(
        self, connection: apsw.Connection, numbers: list[int], after: int, now: Micros
    ) -> int | None:
        firsts = (fetch_value(connection, SQL["first_after"], (n, after, now)) for n in numbers)
        return min((first for first in firsts if first is not None), default=None)


def _named(rows: list[Any], known: TopicNames, epoch: str) -> list[Message]:
    """The rows of `read_next` as messages. KeyError if a topic is not known by name yet."""
    names = known.names
    return [
        Message(number, names[topic_id], at, body, encoding, epoch, *rest)
        for number, topic_id, at, body, encoding, *rest in rows
    ]
