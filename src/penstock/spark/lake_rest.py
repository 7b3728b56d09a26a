"""What is in the log and not in the lake, as a batch with a beginning and an end that stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.clock import Micros
from penstock.errors import DataLost, EpochChanged
from penstock.ports.scan import Condition, Scanner
from penstock.spark.batch import BatchReader
from penstock.spark.entities import ENTITIES, MESSAGES
from penstock.spark.options import SourceOptions, parse_source
from penstock.spark.ranges import Range

FORMAT = "penstock_rest"


class Rest(msgspec.Struct, frozen=True):
    """Messages above an id up to another, without those that are in the lake."""

    topics: tuple[str, ...]
    epoch: str
    after: int
    through: int
    alive_at: Micros
    since: Micros | None = None
    until: Micros | None = None
    covered: tuple[tuple[str, int], ...] = ()
    """Subscriptions, and up to where each is in the lake."""
    told: Mapping[str, int] = {}
    """What was removed from the log by the time the view was taken."""
    active: tuple[str, ...] | None = None
    as_json: bool = False


class RestSource(DataSource):
    """`read.format("penstock_rest")`, for `read_topic` alone."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return MESSAGES.schema(include=MESSAGES.optional)

    def reader(self, schema: StructType) -> DataSourceReader:
        rest = msgspec.json.decode(self.options["rest"], type=Rest)
        options = parse_source({"url": self.options["url"], "includeHeaders": "true"}, ENTITIES)
        options = msgspec.structs.replace(options, topics=rest.topics, as_json=rest.as_json)
        return RestReader(options, schema, rest)


class RestReader(BatchReader):
    def __init__(self, options: SourceOptions, schema: StructType, rest: Rest) -> None:
        super().__init__(options, schema)
        self._rest = rest
        times = (("created_at", ">=", rest.since), ("created_at", "<", rest.until))
        self._conditions = tuple(
            Condition(column, operator, value)  # type: ignore[arg-type]
            for column, operator, value in times
            if value is not None
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark.archiving import left_out

        try:
            for rows in super().read(partition):
                rest = left_out(rows, self._rest.covered)
                if rest.num_rows:
                    yield rest
        except DataLost as error:
            raise _moved(error) from error

    def _plan(self, scanner: Scanner) -> Range:
        rest = self._rest
        end = scanner.end("messages")
        if end.epoch != rest.epoch:
            raise EpochChanged(
                f"The database was {rest.epoch} when the topic was looked at, and is now "
                f"{end.epoch}."
            )
        active = None if rest.active is None else frozenset(rest.active)
        whole = Range(rest.after, rest.through, rest.epoch, rest.alive_at, rest.told, active)
        if whole.lost(scanner.trims("messages", rest.topics, after=rest.after)):
            raise _moved(None)
        return whole


def _moved(error: DataLost | None) -> DataLost:
    text = "Messages were archived and removed from the log since the topic was looked at."
    return DataLost(text, hint="Call read_topic again: what is in the lake is found there.")
