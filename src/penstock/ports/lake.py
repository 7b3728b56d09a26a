"""The lake's books: which files it consists of, and how far each subscription is in it.

The files are anywhere; what is written here, in one transaction, decides which of them count. So
a batch is in the lake as a whole or not at all, and readers never see half of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from penstock.clock import Micros


class LakeFile(msgspec.Struct, frozen=True):
    """A file of messages, and what is known of it without opening it."""

    path: str
    """Relative to the lake's folder."""
    folder: str
    """Of its topic, or of several that share one."""
    date: str
    rows: int
    bytes: int
    first_id: int
    last_id: int
    first_at: Micros
    last_at: Micros
    digest: str
    formats: Mapping[str, int] = {}
    """How many messages of each content type it has."""
    unparsable: int = 0
    """Messages that say they are JSON, and are not."""


class LakeBatch(msgspec.Struct, frozen=True):
    """Files that join the lake together: all messages above an id up to another."""

    query: str
    number: int
    after: int
    through: int
    files: tuple[LakeFile, ...]
    digest: str = ""
    at: Micros = 0

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class Addition(msgspec.Struct, frozen=True):
    """A batch as it is remembered."""

    query: str
    number: int
    after: int
    through: int
    files: int
    rows: int
    bytes: int
    digest: str
    at: Micros


class Coverage(msgspec.Struct, frozen=True):
    """All messages of the subscription up to `through` are in the lake.

    Where it is held, retention keeps the others until they are, within its limits for holds.
    """

    subscription: str
    through: int
    floor: int
    """Removals up to this id were made before it was held for the first time: they are no loss."""
    is_held: bool
    updated_at: Micros


class LakeTotals(msgspec.Struct, frozen=True):
    files: int
    rows: int
    bytes: int
    unparsable: int
    formats: Mapping[str, int]
    replaced_files: int
    replaced_bytes: int


class LakeView(msgspec.Struct, frozen=True):
    """The lake and the log at one moment: where the one ends, the other goes on."""

    epoch: str
    last_id: int
    coverage: Sequence[Coverage]
    files: Sequence[LakeFile]


class Replay(msgspec.Struct, frozen=True):
    """A replay as it was planned first."""

    id: str
    plan: str
    """What it was told, as JSON."""
    rows: int
    files: str
    """Where its rows lie until all are written, as JSON."""
    made_at: Micros = 0
    finished_at: Micros | None = None


class LakeWriter(Protocol):
    def adopt(self, lake: str, *, now: Micros) -> str:
        """The id of the lake that belongs to the database: this one, if there was none."""

    def hold(self, subscriptions: Sequence[str], *, now: Micros) -> list[Coverage]:
        """Hold retention back for these subscriptions and no others. Returns them.

        A new one begins with what is in the log; one that was there before goes on where it was.
        """

    def release(self, *, now: Micros) -> int:
        """Hold retention back for none any more. Returns how many there were."""

    def add(self, batch: LakeBatch, *, epoch: str, now: Micros) -> None:
        """Let the batch's files join the lake.

        Raises `EpochChanged` if the database is not in the epoch the messages were read in.
        """

    def advance(
        self, expected: Mapping[str, int], batch: LakeBatch, *, now: Micros
    ) -> list[Coverage]:
        """Note that the held subscriptions are in the lake up to the end of the batch.

        Raises `LakeConflict` unless there are some, they still are where they were `expected` to
        be, and the batch begins no further on: nothing is added twice, and nothing is left out.
        """

    def replace(self, paths: Sequence[str], files: Sequence[LakeFile], *, now: Micros) -> None:
        """Put files in the place of others that have the same messages.

        Raises `LakeConflict` if one of the others is not in the lake any more.
        """

    def forget(self, paths: Sequence[str]) -> None:
        """Forget files that were replaced, once they are removed."""

    def plan_replay(self, replay: Replay, *, now: Micros) -> Replay:
        """The replay of this id as it was planned first; this one if it is new."""

    def finish_replay(self, id: str, *, now: Micros) -> None: ...


class LakeReader(Protocol):
    def id(self) -> str | None:
        """Of the lake that belongs to the database."""

    def coverage(self) -> list[Coverage]: ...

    def view(
        self,
        *,
        folders: Sequence[str] | None = None,
        since: Micros | None = None,
        until: Micros | None = None,
    ) -> LakeView:
        """The files that there are, in the order of their ids, and how far they go.

        Of some folders only, and only those that may have messages from `since` to before
        `until`.
        """

    def totals(self) -> LakeTotals: ...

    def small_files(self, *, bytes_max: int) -> list[LakeFile]:
        """Files below a size, where a folder and date has two of them or more: in the order of
        folders, dates and ids."""

    def newest_date(self) -> str | None:
        """The latest date of which there are files."""

    def additions(self, *, limit: int) -> list[Addition]:
        """The newest first."""

    def replaced(self, *, before: Micros, limit: int) -> list[str]:
        """Paths of files that were replaced before this time."""

    def is_known(self, paths: Sequence[str]) -> set[str]:
        """Of these paths, those that are in the books, replaced or not."""

    def replay(self, id: str) -> Replay | None: ...
