"""The source: what Spark's planner asks for when a DataFrame is read from penstock."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.errors import InvalidOption
from penstock.spark.batch import BatchReader, FilteringBatchReader
from penstock.spark.entities import ENTITIES, MAILBOXES
from penstock.spark.mailbox_rows import MailboxReader
from penstock.spark.options import check_batch, check_stream, parse_source
from penstock.spark.stream import StreamReader


def schema(options: Mapping[str, str]) -> StructType:
    """All columns of the entity. A schema that the user gives instead chooses among them."""
    parsed = parse_source(options, ENTITIES)
    included = frozenset({"headers"}) if parsed.include_headers else frozenset[str]()
    return ENTITIES[parsed.entity].schema(include=included)


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    parsed = parse_source(options, ENTITIES)
    check_batch(parsed)
    if parsed.entity == MAILBOXES.name:
        return MailboxReader(parsed, schema)
    # Spark refuses a reader that takes filters while its own switch for that is off, and does not
    # say here whether it is: the user does.
    return (FilteringBatchReader if parsed.pushdown else BatchReader)(parsed, schema)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    parsed = parse_source(options, ENTITIES)
    check_stream(parsed)
    if not ENTITIES[parsed.entity].is_log:
        raise InvalidOption(
            f"{parsed.entity} can only be read as a batch.",
            hint="Use spark.read; streams are made of messages, job_events and ledger_events.",
        )
    return StreamReader(parsed, schema)
