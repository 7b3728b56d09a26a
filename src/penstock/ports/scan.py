"""Reading in bulk, for analytics: history by ranges of ids, and tables as they stand.

A scanner reads only. Each call is a short read of its own, so that it holds nothing up however
much there is to read; what lies between two calls is told by ids, epochs and trims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from penstock.clock import Micros
    from penstock.ports.lake import LakeReader

Log = Literal["messages", "job_events", "ledger_events"]
"""History: appended only, in the order of its ids."""
Table = Literal["jobs", "dead_letters", "topics"]
"""What changes: read as it stands."""

Operator = Literal["=", "<", "<=", ">", ">=", "in"]

TABLES: tuple[Table, ...] = ("jobs", "dead_letters", "topics")

MESSAGE_COLUMNS = (
    *("id", "topic", "created_at", "expires_at", "type", "key", "encoding", "headers"),
    *("message_id", "producer", "body", "size"),
)
JOB_EVENT_COLUMNS = ("id", "job_id", "kind", "at", "attempt", "data", "queue", "type")
LEDGER_EVENT_COLUMNS = ("id", "scope", "key", "kind", "at", "attempt")
JOB_COLUMNS = (
    *("id", "queue", "type", "state", "priority", "attempts", "max_attempts", "crashes"),
    *("created_at", "run_at", "deadline", "claimed_at", "started_at", "finished_at", "timeout"),
    *("unique_key", "schedule", "worker", "failure", "progress", "encoding", "body"),
    *("result_encoding", "result"),
)
TOPIC_COLUMNS = (
    *("id", "name", "created_at", "messages", "bytes", "published", "last_id"),
    *("deleted_through", "retention"),
)
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "messages": MESSAGE_COLUMNS,
    "job_events": JOB_EVENT_COLUMNS,
    "ledger_events": LEDGER_EVENT_COLUMNS,
    "jobs": JOB_COLUMNS,
    "dead_letters": JOB_COLUMNS,
    "topics": TOPIC_COLUMNS,
}
"""The columns of each, with their values as the store keeps them: times in microseconds, payloads
as encoded, headers, failures and retention as JSON. A message's `size` is that of its body, which
need not be read for it."""


class LogEnd(msgspec.Struct, frozen=True):
    """Where history ends."""

    epoch: str
    last_id: int


class Condition(msgspec.Struct, frozen=True):
    """A comparison that rows must meet: a column with a value, never true of NULL."""

    column: str
    operator: Operator
    value: Any


class Query(msgspec.Struct, frozen=True):
    """What is read: which columns of what, of which topics, and what rows must meet.

    `topics` are names and globs; None: all but penstock's own. Messages that had expired at
    `alive_at` are left out.
    """

    source: Log | Table
    columns: tuple[str, ...]
    topics: tuple[str, ...] | None = None
    conditions: tuple[Condition, ...] = ()
    alive_at: Micros | None = None


class Slice(msgspec.Struct, frozen=True):
    """Rows among all ids up to `through`, column by column, from one view."""

    count: int
    columns: Sequence[Sequence[Any]]
    """In the order of the query's columns."""
    through: int
    epoch: str
    trims: Mapping[str, int] = {}
    """What was removed before its time above the id the slice begins after, as of this view:
    topics, and up to which id each. For other history the name is empty."""


class Scanner(Protocol):
    """One thread at a time."""

    @property
    def lake(self) -> LakeReader: ...

    def end(self, source: Log | Table) -> LogEnd:
        """The epoch, and the highest id there has ever been."""

    def first_id(self, source: Log | Table) -> int | None:
        """The lowest id that is there."""

    def newest(self, source: Log, topics: tuple[str, ...] | None) -> int:
        """The highest id of what is meant that there has ever been. Above it is nothing to read."""

    def active(
        self, topics: tuple[str, ...] | None, *, after: int, limit: int
    ) -> frozenset[str] | None:
        """The topics that have had messages above an id; None if they are more than `limit`."""

    def id_at(self, source: Log, at: Micros) -> int:
        """The highest id that is older than this time."""

    def trims(self, source: Log, topics: tuple[str, ...] | None, *, after: int) -> dict[str, int]:
        """As `Slice.trims`."""

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
        """The highest id up to `through` to which at most `rows_max` rows and `bytes_max` bytes
        of payload lie, and at least one row.

        Of very many topics each id of the log counts as a row.
        """

    def count(
        self,
        source: Log,
        topics: tuple[str, ...] | None,
        *,
        after: int,
        through: int,
        limit: int,
    ) -> int:
        """How many rows there are between two ids, counted up to a limit."""

    def read(self, query: Query, *, after: int, through: int, limit: int) -> Slice:
        """The next rows after an id, up to another. The read is bounded, in rows by `limit` and in
        bytes of payload by the store: `Slice.through` says how far it came, also when nothing
        matched."""

    def close(self) -> None: ...


def check_columns(source: str, columns: Sequence[str]) -> None:
    assert source in COLUMNS, f"there is no {source} to read"
    unknown = set(columns) - set(COLUMNS[source])
    assert not unknown, f"{source} has no columns {sorted(unknown)}"
