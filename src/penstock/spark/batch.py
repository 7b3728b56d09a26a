"""Reading as a batch: the ids there are when it is planned, divided among tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from penstock.clock import SystemClock
from penstock.model import Pattern, as_micros
from penstock.ports.scan import Condition, Operator, Scanner
from penstock.spark.entities import ENTITIES
from penstock.spark.options import EARLIEST, LATEST, SourceOptions
from penstock.spark.places import find_place
from penstock.spark.ranges import Range, RangeReader, divide, open_scan, report_loss

# More topics than this are not named in each partition: a loss of any then counts.
ACTIVE_MAX = 1_000


class BatchReader(DataSourceReader):
    """Picklable; the store is opened where it is needed."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions: tuple[Condition, ...] = ()
        # Refuses wrong columns where the user sees it.
        ENTITIES[options.entity].choose(schema)

    def partitions(self) -> Sequence[InputPartition]:
        scanner = open_scan(self._options.settings)
        try:
            whole = self._plan(scanner)
            first = scanner.first_id(ENTITIES[self._options.entity].source)
        finally:
            scanner.close()
        return divide(whole, first_id=first, partitions_min=self._options.partitions_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Range):
            return iter(())  # Spark's stand-in for no partitions at all.
        return RangeReader(self._options, self._schema, self._conditions).read(partition)

    def _plan(self, scanner: Scanner) -> Range:
        options, entity = self._options, ENTITIES[self._options.entity]
        now = SystemClock().now()
        end = scanner.end(entity.source)
        if not entity.is_log:
            return Range(0, end.last_id, end.epoch, now)
        start = find_place(scanner, options, options.starting or EARLIEST, end)
        last = find_place(scanner, options, options.ending or LATEST, end)
        news = start.news(scanner.trims(entity.source, options.topics, after=start.id))  # type: ignore[arg-type]
        if news:
            report_loss(options, start.id, news)
        active = None
        if entity.source == "messages":
            active = scanner.active(options.topics, after=start.id, limit=ACTIVE_MAX)
        return Range(start.id, last.id, end.epoch, now, {**start.told, **news}, active)


class FilteringBatchReader(BatchReader):
    """One that takes filters. Needs `spark.sql.python.filterPushdown.enabled`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for filter in filters:
            condition = self._condition(filter)
            if condition is None:
                yield filter
            elif condition.column == "topic":
                self._narrow(condition)
            else:
                self._conditions = (*self._conditions, condition)

    def _condition(self, filter: Filter) -> Condition | None:
        """The same as a comparison that the store makes; None if it cannot."""
        operator = _OPERATORS.get(type(filter))
        if operator is None:
            return None
        attribute, value = filter.attribute, filter.value  # type: ignore[attr-defined]
        fields = {field.name: field for field in ENTITIES[self._options.entity].fields}
        field = fields.get(attribute[0]) if len(attribute) == 1 else None
        if field is None or field.filter is None:
            return None
        if field.filter == "topic" and operator not in ("=", "in"):
            return None
        stored = [_stored(v) for v in value] if operator == "in" else _stored(value)
        if stored is None or (operator == "in" and None in stored):
            return None
        return Condition(field.filter, operator, stored)

    def _narrow(self, condition: Condition) -> None:
        """Among the topics that are meant, only these."""
        names = [condition.value] if condition.operator == "=" else condition.value
        meant = ("*",) if self._options.topics is None else self._options.topics
        patterns = [Pattern(text) for text in meant]
        topics = tuple(name for name in names if any(p.matches(name) for p in patterns))
        self._options = msgspec.structs.replace(self._options, topics=topics)

    def _plan(self, scanner: Scanner) -> Range:
        """Without what no offset that is asked for lies in."""
        whole = super()._plan(scanner)
        after, through = whole.after, whole.through
        for condition in self._conditions:
            if condition.column == "id" and condition.operator in (">", ">=", "="):
                after = max(after, condition.value - (condition.operator != ">"))
            if condition.column == "id" and condition.operator in ("<", "<=", "="):
                through = min(through, condition.value - (condition.operator == "<"))
        return dataclasses.replace(whole, after=after, through=through)


_OPERATORS: dict[type, Operator] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
}


def _stored(value: Any) -> Any:
    """As the store keeps it; None if it has no such values."""
    if isinstance(value, datetime):
        return as_micros(value) if value.tzinfo else None
    return value if isinstance(value, (str, int)) and not isinstance(value, bool) else None
