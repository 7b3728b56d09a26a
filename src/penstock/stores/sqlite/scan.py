"""Reading in bulk from SQLite: history by ranges of ids, tables as they stand.

Every call is a read transaction of its own, so that the write-ahead log can be written back
between two of them, however long the whole takes.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw

from penstock.clock import Clock, Micros
from penstock.model import Pattern
from penstock.ports.scan import (
    TABLES,
    Log,
    LogEnd,
    Query,
    Slice,
    Table,
    check_columns,
)
from penstock.settings import Settings
from penstock.stores import queries
from penstock.stores.sqlite import migrate
from penstock.stores.sqlite.connection import (
    Database,
    ReaderPool,
    as_json,
    fetch_all,
    fetch_one,
    fetch_value,
)
from penstock.stores.sqlite.forks import gate
from penstock.stores.sqlite.lake import SqliteLakeReader
from penstock.stores.sqlite.topic_rows import SQL as TOPICS
from penstock.stores.sqlite.topic_rows import NameBook, TopicNames, log_state

SQL = queries.load("penstock.stores.sqlite", "scan.sql")

# More topics than this are picked from all messages, not sought one by one.
FEW_TOPICS = 64
# Topics that have more than one of so many messages are picked from all messages, too: walking
# along the table is that much faster than seeking in it.
SPARSE = 8
# Rows that are turned into columns at a time.
FIRST_PIECE = 100
PIECE = 1_000
SMALL_BYTES = 16 * 1024
# Bytes of payload in one read: beyond them it ends, however few rows it has.
BYTES_MAX = 64 * 1024 * 1024
# Ids passed in one read, for each row that is asked for.
SPAN = 5

_STATE = """CASE WHEN f.state IS NOT NULL THEN f.state WHEN c.job_id IS NOT NULL THEN 4
WHEN r.job_id IS NOT NULL THEN 1 WHEN s.job_id IS NOT NULL THEN 2 ELSE 3 END"""
_ATTEMPTS = """max(j.attempts, coalesce(f.attempt, 0),
CASE WHEN c.started_at IS NULL THEN 0 ELSE c.attempt END)"""

_EXPRESSIONS: Mapping[str, Mapping[str, str]] = {
    # A body's length stands before it: its overflow pages are not read.
    "messages": {"topic": "m.topic_id", "size": "length(m.body)"},
    "job_events": {"queue": "j.queue", "type": "j.type"},
    "ledger_events": {},
    "jobs": {
        "state": _STATE,
        "attempts": _ATTEMPTS,
        "claimed_at": "c.claimed_at",
        "started_at": "coalesce(c.started_at, f.started_at)",
        "finished_at": "f.at",
        "worker": "k.name",
        "progress": "c.progress",
        # A result that has expired is none, whether or not it was removed yet.
        "result_encoding": "CASE WHEN f.result_until > :now THEN f.result_encoding END",
        "result": "CASE WHEN f.result_until > :now THEN f.result END",
    },
    "topics": {
        "messages": "t.appended - t.removed",
        "bytes": "t.appended_bytes - t.removed_bytes",
        "published": "t.appended",
    },
}
# By the table of those that finished, and in its order.
_DEAD = {"id": "f.job_id", "state": "f.state", "attempts": "max(j.attempts, f.attempt)"}
_ALIASES = {"messages": "m", "job_events": "e", "ledger_events": "e", "jobs": "j", "topics": "t"}
_FIRST = {"messages": "first_message", "job_events": "first_job_event", "jobs": "first_job"}
_LAST = {"job_events": "last_job_event", "ledger_events": "last_ledger_event"}
_TIMES = {
    "messages": "time_of_message",
    "job_events": "time_of_job_event",
    "ledger_events": "time_of_ledger_event",
}


class SqliteScanner:
    """`on_close` is called when it is closed: whoever opened the file for it closes it, too."""

    def __init__(
        self, pool: ReaderPool, clock: Clock, on_close: Callable[[], None] | None = None
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._on_close = on_close
        self._book = NameBook()
        self.lake = SqliteLakeReader(pool)

    def end(self, source: Log | Table) -> LogEnd:
        with self._pool.read() as connection:
            log = log_state(connection)
            if source == "messages":
                return LogEnd(log.epoch, log.last_id)
            name = "last_topic" if source == "topics" else _LAST.get(source, "last_job")
            return LogEnd(log.epoch, int(fetch_value(connection, SQL[name])))

    def first_id(self, source: Log | Table) -> int | None:
        if source == "topics":
            return 1
        name = {"ledger_events": "first_ledger_event", "dead_letters": "first_job"}.get(source)
        with self._pool.read() as connection:
            found: int | None = fetch_value(connection, SQL[name or _FIRST[source]])
            return found

    def newest(self, source: Log, topics: tuple[str, ...] | None) -> int:
        if source != "messages":
            return self.end(source).last_id
        with self._pool.read() as connection:
            numbers = self._numbers(self._names(connection), topics)
            if numbers is None:
                return log_state(connection).last_id
            values = (apsw.carray(array("q", numbers)),) if numbers else ()
            return int(fetch_value(connection, SQL["newest"], values)) if values else 0

    def active(
        self, topics: tuple[str, ...] | None, *, after: int, limit: int
    ) -> frozenset[str] | None:
        with self._pool.read() as connection:
            names = self._names(connection)
            numbers = self._numbers(names, topics)
            found = {number for (number,) in connection.execute(SQL["active"], (after,))}
            if numbers is not None:
                found.intersection_update(numbers)
            if len(found) > limit:
                return None
            return frozenset(names.names[number] for number in found)

    def id_at(self, source: Log, at: Micros) -> int:
        """By bisection over ids: times do not fall, so no index is needed."""
        low, high = 0, self.end(source).last_id
        with self._pool.read() as connection:
            while low < high:
                middle = (low + high) // 2 + 1
                row = fetch_one(connection, SQL[_TIMES[source]], (middle,))
                if row is None or row[1] >= at:
                    high = middle - 1
                else:
                    low = row[0]
        return low

    def trims(self, source: Log, topics: tuple[str, ...] | None, *, after: int) -> dict[str, int]:
        with self._pool.read() as connection:
            return self._trims(connection, source, topics, after)

    def step(
        self,
        source: Log,
        topics: tuple[str, ...] | None,
        *,
        after: int,
        through: int,
        rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> int:
        if rows_max is None and bytes_max is None:
            return through
        with self._pool.read() as connection:
            numbers = self._few(connection, source, topics)
            if numbers is None:
                first = fetch_one(connection, SQL[_TIMES[source]], (after + 1,))
                after = through if first is None else max(after, first[0] - 1)
            if rows_max is not None:
                if numbers is None:
                    through = min(through, after + rows_max)
                else:
                    ids = _next_ids(connection, numbers, after, through, rows_max + 1)
                    through = ids[rows_max] - 1 if len(ids) > rows_max else through
            if bytes_max is not None and source == "messages":
                through = self._step_bytes(connection, topics, numbers, after, through, bytes_max)
        return through

    def count(
        self,
        source: Log,
        topics: tuple[str, ...] | None,
        *,
        after: int,
        through: int,
        limit: int,
    ) -> int:
        with self._pool.read() as connection:
            numbers = self._few(connection, source, topics)
            if numbers is None:
                return min(limit, max(0, through - after))
            count = 0
            for number in numbers:
                values = (number, after, through, limit - count)
                count += fetch_value(connection, SQL["count_of_topic"], values)
                if count >= limit:
                    break
            return count

    def read(self, query: Query, *, after: int, through: int, limit: int) -> Slice:
        check_columns(query.source, query.columns)
        with self._pool.read() as connection:
            epoch = log_state(connection).epoch
            if query.source == "messages":
                trims = self._trims(connection, "messages", query.topics, after)
                count, columns, reached = self._messages(
                    connection, query, after, through, limit, trims
                )
            else:
                trims = self._trims(connection, query.source, None, after)
                count, columns, reached = self._others(connection, query, after, through, limit)
        return Slice(count, columns, reached, epoch, trims)

    def close(self) -> None:
        if self._on_close is not None:
            self._on_close()

    # Inside

    def _messages(
        self,
        connection: apsw.Connection,
        query: Query,
        after: int,
        through: int,
        limit: int,
        trims: Mapping[str, int],
    ) -> tuple[int, list[Sequence[Any]], int]:
        names = self._names(connection)
        numbers = self._numbers(names, query.topics)
        if numbers is not None and not numbers:
            return 0, [[] for _ in query.columns], through
        chosen: list[int] | None = None
        if numbers is not None and self._is_sparse(connection, numbers):
            chosen = _next_ids(connection, numbers, after, through, limit)
            if not chosen:
                return 0, [[] for _ in query.columns], through
            reached = chosen[-1] if len(chosen) == limit else through
        else:
            first = fetch_one(connection, SQL["time_of_message"], (after + 1,))
            if first is None or first[0] > through:
                return 0, [[] for _ in query.columns], through
            # Few ids for each row that is wanted, so that no read is long.
            reached = min(through, first[0] - 1 + limit * (1 if numbers is None else SPAN))
        where, values = _conditions(query)
        values |= {"after": after, "through": reached, "now": query.alive_at or 0}
        if chosen is not None:
            source, order = "from_chosen_messages", ""
            values["ids"] = apsw.carray(array("q", chosen))
        else:
            source = "from_messages_trimmed" if trims else "from_messages"
            order = f"ORDER BY m.id LIMIT {limit}"
            if numbers is not None:
                where = f"{where} AND +m.topic_id IN carray(:topics)"
                values["topics"] = apsw.carray(array("q", numbers))
        sql = f"{_select(query)} {SQL[source]} {where} {order}"
        (*columns, ids), is_cut = _columns(connection, sql, values, query)
        if is_cut or (chosen is None and len(ids) == limit):
            reached = ids[-1]
        if "topic" in query.columns:
            place = query.columns.index("topic")
            known = names.names
            columns[place] = [known[number] for number in columns[place]]
        return len(ids), [*columns], reached

    def _others(
        self, connection: apsw.Connection, query: Query, after: int, through: int, limit: int
    ) -> tuple[int, list[Sequence[Any]], int]:
        where, values = _conditions(query)
        values |= {"after": after, "through": through, "now": self._clock.now()}
        name = f"from_{query.source}"
        asked = {*query.columns, *(condition.column for condition in query.conditions)}
        if query.source == "job_events" and asked & {"queue", "type"}:
            name = "from_job_events_and_jobs"
        order = f"ORDER BY {_expression(query, 'id')} LIMIT {limit}"
        sql = f"{_select(query)} {SQL[name]} {where} {order}"
        (*columns, ids), is_cut = _columns(connection, sql, values, query)
        return len(ids), [*columns], ids[-1] if is_cut or len(ids) == limit else through

    def _step_bytes(
        self,
        connection: apsw.Connection,
        topics: tuple[str, ...] | None,
        numbers: list[int] | None,
        after: int,
        through: int,
        bytes_max: int,
    ) -> int:
        total, previous = 0, 0
        wanted: set[int] | None = None
        if numbers is None and topics is not None:
            wanted = set(self._numbers(self._names(connection), topics) or ())
        for id, topic_id, size in _sizes(connection, numbers, after, through):
            if wanted is not None and topic_id not in wanted:
                continue
            total += size
            if total > bytes_max and previous:
                return id - 1
            previous = id
        return through

    def _trims(
        self,
        connection: apsw.Connection,
        source: Log | Table,
        topics: tuple[str, ...] | None,
        after: int,
    ) -> dict[str, int]:
        if source in TABLES:
            return {}
        if source != "messages":
            through = fetch_value(connection, SQL["pruned"], (source, after))
            return {} if through is None else {"": through}
        found = dict(connection.execute(TOPICS["trims"], (after,)))
        if not found:
            return {}
        names = self._names(connection)
        numbers = self._numbers(names, topics)
        wanted = found if numbers is None else [number for number in numbers if number in found]
        return {names.names[number]: found[number] for number in wanted}

    def _names(self, connection: apsw.Connection) -> TopicNames:
        names = self._book.of(log_state(connection).epoch)
        names.refresh(connection)
        return names

    def _numbers(self, names: TopicNames, topics: tuple[str, ...] | None) -> list[int] | None:
        """Of the topics that are meant; None if that is all there are."""
        patterns = ("*",) if topics is None else topics
        found = {number for text in patterns for number in names.matching(Pattern(text))}
        return None if len(found) == len(names.names) else sorted(found)

    def _few(
        self, connection: apsw.Connection, source: Log, topics: tuple[str, ...] | None
    ) -> list[int] | None:
        """Of the topics that are meant, if they are not all, and not very many."""
        if source != "messages":
            return None
        numbers = self._numbers(self._names(connection), topics)
        return None if numbers is None or len(numbers) > FEW_TOPICS else numbers

    def _is_sparse(self, connection: apsw.Connection, numbers: list[int]) -> bool:
        if len(numbers) > FEW_TOPICS:
            return False
        messages = dict(connection.execute(SQL["densities"]))
        wanted = sum(messages.get(number, 0) for number in numbers)
        return bool(wanted * SPARSE < sum(messages.values()))


def open_file(path: Path, settings: Settings, clock: Clock) -> SqliteScanner:
    """A scanner that is all there is open of a file. The file must be there."""
    database = Database(
        path, synchronous="FULL", lock_timeout_seconds=settings.lock_timeout_seconds
    )
    database.attach()
    pool = ReaderPool(database)

    def close() -> None:
        pool.close()
        database.forget()

    try:
        with gate:
            connection = database.connect()
            try:
                is_auto = settings.migrate == "auto"
                migrate.prepare(connection, path, auto=is_auto, now=clock.now())
            finally:
                connection.close()
    except BaseException:
        close()
        raise
    return SqliteScanner(pool, clock, close)


def _select(query: Query) -> str:
    """SELECT, with the id as the last column."""
    columns = [_expression(query, name) for name in (*query.columns, "id")]
    return f"SELECT {', '.join(columns)}"


def _expression(query: Query, column: str) -> str:
    if query.source == "dead_letters":
        return _DEAD.get(column) or _EXPRESSIONS["jobs"].get(column) or f"j.{column}"
    return _EXPRESSIONS[query.source].get(column) or f"{_ALIASES[query.source]}.{column}"


def _conditions(query: Query) -> tuple[str, dict[str, Any]]:
    """What stands after WHERE, and its parameters."""
    texts: list[str] = []
    values: dict[str, Any] = {}
    for number, condition in enumerate(query.conditions):
        name = f"value{number}"
        column = _expression(query, condition.column)
        if condition.operator == "in":
            texts.append(f"AND {column} IN (SELECT value FROM json_each(:{name}))")
            values[name] = as_json(condition.value)
        else:
            texts.append(f"AND {column} {condition.operator} :{name}")
            values[name] = condition.value
    return " ".join(texts), values


def _columns(
    connection: apsw.Connection, sql: str, values: dict[str, Any], query: Query
) -> tuple[list[list[Any]], bool]:
    """The columns of a statement's rows, the id as the last, and whether there were too many
    bytes to go on.

    Turned piece by piece, while a piece's rows are still in the processor's cache: that is
    half the work of turning them all at once.
    """
    columns: list[list[Any]] = [[] for _ in (*query.columns, "id")]
    bodies = columns[query.columns.index("body")] if "body" in query.columns else []
    rows = connection.execute(sql, values)
    count, size = FIRST_PIECE, 0
    while piece := list(itertools.islice(rows, count)):
        for column, part in zip(columns, zip(*piece, strict=True), strict=True):
            column.extend(part)
        size += sum(map(len, bodies[-len(piece) :]))
        if size > BYTES_MAX:
            return columns, True
        # Large ones are taken a few at a time: what is too much is noticed in time.
        count = PIECE if size < SMALL_BYTES * len(columns[-1]) else FIRST_PIECE
    return columns, False


def _next_ids(
    connection: apsw.Connection, numbers: list[int], after: int, through: int, limit: int
) -> list[int]:
    """The next ids of these topics, in order."""
    ids: list[int] = []
    for number in numbers:
        rows = connection.execute(SQL["ids_of_topic"], (number, after, through, limit))
        ids += itertools.chain.from_iterable(rows)
    ids.sort()
    return ids[:limit]


def _sizes(
    connection: apsw.Connection, numbers: list[int] | None, after: int, through: int
) -> Iterator[tuple[int, int, int]]:
    while True:
        if numbers is None:
            rows = fetch_all(connection, SQL["sizes"], (after, through, 10_000))
        else:
            ids = _next_ids(connection, numbers, after, through, 10_000)
            if not ids:
                return
            rows = fetch_all(connection, SQL["sizes_of"], (apsw.carray(array("q", ids)),))
        if not rows:
            return
        yield from rows
        after = rows[-1][0]
