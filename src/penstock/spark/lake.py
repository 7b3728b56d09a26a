"""The lake's messages as a DataFrame, with those of the log that are not in it yet.

Which files there are, how far they go and where the log ends is taken from one view, so that
each message comes from exactly one of the two, also while messages are being archived.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Literal, get_args

import msgspec
from pyspark.sql import functions as fn

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import InvalidOption
from penstock.model import RESERVED_PREFIX, Pattern, as_micros
from penstock.ports.lake import LakeView
from penstock.ports.scan import Scanner
from penstock.settings import Settings
from penstock.spark.archiving import archived_through
from penstock.spark.entities import MESSAGES
from penstock.spark.lake_files import CONSTANTS, SCHEMA, folders_of
from penstock.spark.lake_folder import LakeFolder
from penstock.spark.lake_rest import FORMAT, Rest, RestSource
from penstock.spark.options import settings_of
from penstock.spark.payloads import parse_payloads, unpack_values
from penstock.spark.runner import lake_of
from penstock.stores import open_scanner

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

Part = Literal["both", "lake", "log"]
ACTIVE_MAX = 1_000


def read_topic(
    topic: str | Sequence[str],
    *,
    url: str | None = None,
    spark: SparkSession | None = None,
    schema: str | StructType | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    source: Part = "both",
    value_format: Literal["raw", "json"] = "raw",
    lake: str | None = None,
) -> DataFrame:
    """All messages of a topic that are known: those in the lake, and those only in the log.

    As of this call: evaluated twice, it gives the same. `topic` is a name, a glob such as
    'orders-*', or several. The columns are those of `format("penstock")`, with headers.

    With a `schema` of the payloads there are two more: `payload`, parsed from JSON, with null for
    what a message does not have; and `_error`, which is null unless a payload could not be
    parsed. Such rows are kept. MessagePack becomes JSON, as with `value_format='json'`.

    `since` and `until` are about the time of publication; `source` is 'lake' or 'log' for one of
    the two alone.
    """
    from penstock.spark.sessions import session

    if source not in get_args(Part):
        raise InvalidOption(
            f"source is not {source!r}.", hint=f"It is one of {', '.join(get_args(Part))}."
        )
    settings = settings_of(url)
    if lake is not None:
        settings = msgspec.structs.replace(settings, lake=lake)
    names = (topic,) if isinstance(topic, str) else tuple(topic)
    wanted = Wanted(
        tuple(sorted({Pattern.parse(name).text for name in names})),
        None if since is None else as_micros(since),
        None if until is None else as_micros(until),
        as_json=schema is not None or value_format == "json",
    )
    rows = Reader(spark or session(), settings).read(wanted, source)
    return rows if schema is None else parse_payloads(rows, schema)


class Wanted(msgspec.Struct, frozen=True):
    """Which messages, and whether MessagePack becomes JSON."""

    topics: tuple[str, ...]
    since: Micros | None = None
    until: Micros | None = None
    as_json: bool = False

    @property
    def folders(self) -> list[str] | None:
        """Of the lake; None for all of them."""
        if any(Pattern(text).is_glob for text in self.topics):
            return None
        return sorted({folder for topic in self.topics for folder in folders_of(topic)})


class Reader:
    """Makes DataFrames of the lake and the log of one database."""

    def __init__(self, spark: SparkSession, settings: Settings, clock: Clock | None = None) -> None:
        self._spark = spark
        self._settings = settings
        self._clock = clock or SystemClock()

    @property
    def _folder(self) -> LakeFolder:
        return LakeFolder(lake_of(self._settings))

    def read(self, wanted: Wanted, source: Part = "both") -> DataFrame:
        scanner = open_scanner(self._settings, self._clock)
        try:
            view, rest = self.look(scanner, wanted, source)
            if view.files and source != "log":
                self._folder.check(scanner.lake.id())
        finally:
            scanner.close()
        if source == "log":
            return self._from_log(rest)
        if source == "lake":
            return self._from_lake(view, wanted)
        return self._from_lake(view, wanted).unionByName(self._from_log(rest))

    def look(self, scanner: Scanner, wanted: Wanted, source: Part) -> tuple[LakeView, Rest]:
        """What is in the lake now, and what of the log is to be read beside it.

        What was removed from the log before is no loss. It is asked for first: what is removed
        after the view was taken may have been archived after it, too, and would be missing.
        """
        gone = scanner.trims("messages", wanted.topics, after=0)
        view = scanner.lake.view(folders=wanted.folders, since=wanted.since, until=wanted.until)
        # In the log alone: also what is in the lake by now.
        coverage = [] if source == "log" else view.coverage
        covered = [(found.subscription, found.through) for found in coverage]
        after = min(archived_at_least(text, covered) for text in wanted.topics)
        active = scanner.active(wanted.topics, after=after, limit=ACTIVE_MAX)
        told = {
            topic: max(gone.get(topic, 0), archived_through(topic, covered))
            for topic in (gone if active is None else {*gone, *active})
        }
        return view, Rest(
            wanted.topics,
            view.epoch,
            after,
            view.last_id,
            self._clock.now(),
            wanted.since,
            wanted.until,
            tuple(covered),
            {topic: through for topic, through in told.items() if through > after},
            None if active is None else tuple(sorted(active)),
            wanted.as_json,
        )

    def _from_lake(self, view: LakeView, wanted: Wanted) -> DataFrame:
        if not view.files:
            return self._spark.createDataFrame([], MESSAGES.schema(include=MESSAGES.optional))
        self._folder.check_present(view.files)
        paths = [escape(f"{self._folder.path}/{file.path}") for file in view.files]
        # With a schema no file is opened to find it, and one of an older release has nulls where
        # a column is new.
        rows = self._spark.read.schema(SCHEMA).parquet(*paths)
        rows = rows.where(matches(fn.col("topic"), wanted.topics))
        if wanted.since is not None:
            rows = rows.where(fn.col("timestamp") >= fn.timestamp_micros(fn.lit(wanted.since)))
        if wanted.until is not None:
            rows = rows.where(fn.col("timestamp") < fn.timestamp_micros(fn.lit(wanted.until)))
        rows = rows.withColumns({name: fn.lit(value) for name, value in CONSTANTS.items()})
        rows = rows.select(MESSAGES.schema(include=MESSAGES.optional).fieldNames())
        formats = {format for file in view.files for format in file.formats}
        return unpack_values(rows, formats) if wanted.as_json else rows

    def _from_log(self, rest: Rest) -> DataFrame:
        self._spark.dataSource.register(RestSource)
        reader = self._spark.read.format(FORMAT).option("url", self._settings.url)
        return reader.option("rest", msgspec.json.encode(rest).decode()).load()


def archived_at_least(text: str, covered: Sequence[tuple[str, int]]) -> int:
    """Up to which id all messages of a topic, or of all topics of a glob, are in the lake."""
    pattern = Pattern(text)
    if not pattern.is_glob:
        return max((id for name, id in covered if Pattern(name).matches(text)), default=0)
    # Of globs, only that one is the other, or takes in everything, is easily told. Rows that are
    # in the lake are left out in any case.
    is_own = text.startswith(RESERVED_PREFIX)
    return max(
        (id for name, id in covered if name == text or (name == "*" and not is_own)), default=0
    )


def matches(column: Column, topics: Sequence[str]) -> Column:
    """Whether a column has one of these topics: names and globs, as `Pattern` has it."""
    names = [text for text in topics if not Pattern(text).is_glob]
    conditions = [column.isin(names)] if names else []
    for text in topics:
        if Pattern(text).is_glob:
            found = column.rlike(_expression(text))
            if not text.startswith(RESERVED_PREFIX):
                found = found & ~column.startswith(RESERVED_PREFIX)
            conditions.append(found)
    return reduce(lambda one, other: one | other, conditions, fn.lit(False))


def escape(path: str) -> str:
    """A path as Spark takes it, which would otherwise look for patterns in it."""
    return "".join(f"\\{character}" if character in "{}[]*?\\" else character for character in path)


def _expression(glob: str) -> str:
    """For Java: quoted but for what stands for any text or any character."""
    pieces = []
    for character in glob:
        if character == "*":
            pieces.append(".*")
        elif character == "?":
            pieces.append(".")
        else:
            pieces.append(character if character.isalnum() else f"\\x{{{ord(character):x}}}")
    return f"(?s)^{''.join(pieces)}$"
