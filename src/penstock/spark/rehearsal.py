"""A pipeline's function, tried on a few rows: without a store, a stream or a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import InvalidInput
from penstock.spark.declared import BATCH_ID, PipelineFunction
from penstock.spark.entities import ENTITIES
from penstock.spark.registry import check_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST_AT = datetime(2026, 1, 1, tzinfo=UTC)
"""When the first message was published, unless it says; the others follow by a second each."""
PAYLOADS = {"topic": "value", "queue": "payload"}
"""The column that a sink takes the payload from."""


class MessageRow(msgspec.Struct, frozen=True):
    """A message as a pipeline reads it. What is None is filled in."""

    payload: Any = None
    topic: str | None = None
    key: str | None = None
    type: str | None = None
    timestamp: datetime | None = None
    offset: int | None = None
    message_id: str | None = None
    value: bytes | None = None
    """The payload as it is stored, where it is no JSON, or broken."""


def rehearse(
    function: PipelineFunction,
    rows: Iterable[Any],
    *,
    spark: SparkSession | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """What the function makes of these rows, as one batch."""
    if not isinstance(function, PipelineFunction):
        raise InvalidInput(
            f"{function!r} is no pipeline.", hint="Decorate the function with @pipeline(…)."
        )
    if spark is None:
        from penstock.spark.sessions import session

        spark = session("penstock rehearsal", master="local[1]")
    given: dict[str, Any] = check_options(function.pipeline, options or {})
    if function.takes_batch_id:
        given[BATCH_ID] = 0
    result = function(_frame(function, rows, spark), **given)
    if result is None:
        return []
    return [_shown(function, row.asDict(recursive=True)) for row in result.collect()]


def _frame(function: PipelineFunction, rows: Iterable[Any], spark: SparkSession) -> DataFrame:
    entity = function.source.entity
    schema = ENTITIES[entity].schema()
    if entity == "messages":
        found = [_message(function, row, number) for number, row in enumerate(rows, 1)]
    else:
        found = [dict(row) for row in rows]
    names = schema.fieldNames()
    for row in found:
        for name in row:
            if name not in names:
                raise InvalidInput(
                    f"{entity} has no column {name!r}.", hint=f"There are {', '.join(names)}."
                )
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in found], schema)


def _message(function: PipelineFunction, given: Any, number: int) -> dict[str, Any]:
    row = given if isinstance(given, MessageRow) else MessageRow(given)
    topics = function.source.topics
    value = row.value
    if value is None:
        value = row.payload if isinstance(row.payload, bytes) else msgspec.json.encode(row.payload)
    return {
        "key": row.key,
        "value": value,
        "topic": row.topic or topics[0].replace("*", "x").replace("?", "x"),
        "partition": 0,
        "offset": row.offset or number,
        "timestamp": row.timestamp or FIRST_AT + timedelta(seconds=number - 1),
        "timestampType": 1,
        "type": row.type,
        "content_type": "application/json",
        "message_id": row.message_id,
        "producer": "rehearsal",
    }


def _shown(function: PipelineFunction, row: dict[str, Any]) -> dict[str, Any]:
    """As it will arrive: a sink takes text for JSON, unless it is told otherwise."""
    column = PAYLOADS.get(function.sink.kind, "") if function.sink is not None else ""
    is_json = function.sink_options.get("valueFormat", "json") == "json"
    text = row.get(column)
    if not isinstance(text, str) or not is_json or row.get("content_type") is not None:
        return row
    try:
        return {**row, column: msgspec.json.decode(text)}
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"The {column} {text!r} is not JSON: {error}.",
            hint="Make it with to_json(struct(…)), or say sink_options={'valueFormat': 'text'}.",
        ) from error
