"""Ranges of ids: how what is read is divided among tasks, and how a task reads its part.

A task reads in chunks, each in a short read of its own that also tells what was removed: a row
that retention took away between planning and reading is noticed in the same view.
"""

from __future__ import annotations

import gc
import itertools
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.clock import Micros, SystemClock
from penstock.errors import DataLost, EpochChanged
from penstock.ports.scan import Condition, Query, Scanner
from penstock.settings import Settings
from penstock.spark.entities import ENTITIES, Columns, Entity, Field
from penstock.spark.options import SourceOptions
from penstock.stores import open_scanner

logger = logging.getLogger("penstock.spark")

CHUNK_ROWS = 10_000
# A task of fewer rows costs more to start than to run.
TASK_ROWS_MIN = 10_000
TASK_ROWS_MAX = 500_000
TASKS_MAX = 10_000


@dataclass(frozen=True)
class Range(InputPartition):
    """Ids above `after` up to `through`, of a database in one epoch."""

    after: int
    through: int
    epoch: str
    alive_at: Micros
    told: Mapping[str, int] = field(default_factory=dict)
    """Removals that were known at planning."""
    active: frozenset[str] | None = None
    """For a batch: the topics that had something to read. What another one has lost since was
    published after planning."""

    def lost(self, trims: Mapping[str, int]) -> dict[str, int]:
        """Of these removals, those that took something away from what was planned."""
        return {
            name: through
            for name, through in trims.items()
            if through > self.told.get(name, 0) and (self.active is None or name in self.active)
        }


def divide(whole: Range, *, first_id: int | None, partitions_min: int | None) -> list[Range]:
    """Parts of about the same number of ids."""
    after, through = whole.after, whole.through
    if first_id is None or through <= after:
        return []
    after = max(after, first_id - 1)
    count = through - after
    if count <= 0:
        return []
    parts = partitions_min or min(2, math.ceil(count / TASK_ROWS_MIN))
    parts = min(max(parts, math.ceil(count / TASK_ROWS_MAX)), count, TASKS_MAX)
    borders = [after + count * number // parts for number in range(parts + 1)]
    return [
        Range(low, high, whole.epoch, whole.alive_at, whole.told, whole.active)
        for low, high in itertools.pairwise(borders)
    ]


def open_scan(settings: Settings) -> Scanner:
    return open_scanner(settings, SystemClock())


class RangeReader:
    """Reads a range as Arrow batches of the wanted columns. Picklable; opens where it runs."""

    def __init__(
        self, options: SourceOptions, schema: StructType, conditions: tuple[Condition, ...] = ()
    ) -> None:
        self._options = options
        self._schema = schema
        self._conditions = conditions
        self._entity.choose(schema)

    @property
    def _entity(self) -> Entity:
        return ENTITIES[self._options.entity]

    def read(self, part: Range) -> Iterator[pa.RecordBatch]:
        entity, options = self._entity, self._options
        fields = entity.choose(self._schema)
        stored = tuple(dict.fromkeys(name for field in fields for name in field.stored))
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        alive_at = None if options.include_expired else part.alive_at
        query = Query(entity.source, stored, options.topics, self._conditions, alive_at)
        scanner = open_scan(options.settings)
        try:
            after = part.after
            while after < part.through:
                with _no_search_for_cycles():
                    found = scanner.read(query, after=after, through=part.through, limit=CHUNK_ROWS)
                if found.epoch != part.epoch:
                    raise EpochChanged(
                        f"The database was {part.epoch} when the read was planned, and is now "
                        f"{found.epoch}."
                    )
                lost = part.lost(found.trims)
                if lost:
                    report_loss(options, after, lost)
                if found.count:
                    columns = dict(zip(stored, found.columns, strict=True))
                    yield make_batch(columns, fields, arrow, as_json=options.as_json)
                after = found.through
        finally:
            scanner.close()


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Rows are thousands of small objects, none of them in a cycle: to look for one again and
    again would take a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def report_loss(options: SourceOptions, after: int, lost: dict[str, int]) -> None:
    """Raises `DataLost`, or says so and goes on, as the options want it."""
    through = max(lost.values())
    names = ", ".join(repr(name) for name in sorted(lost)[:5] if name)
    more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
    of = f" of {names}{more}" if names else ""
    text = (
        f"{options.entity}{of} above {after}, up to {through}, were removed before they were read."
    )
    if options.fail_on_loss:
        raise DataLost(text)
    # How many they were cannot be told of messages that are gone: their ids can.
    logger.warning(
        "%s At most %s. failOnDataLoss is false: reading on with what is left.",
        text,
        f"{through - after:,}",
    )


def make_batch(
    columns: Columns,
    fields: tuple[Field, ...],
    schema: pa.Schema,
    *,
    as_json: bool,
) -> pa.RecordBatch:
    arrays = [
        field.make(columns, as_json, wanted.type)
        for field, wanted in zip(fields, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
