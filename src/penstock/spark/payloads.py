"""Payloads as columns: JSON by a schema that may know more fields than old messages have.

Nothing is dropped: what cannot be parsed stays, with the reason beside it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as fn
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from penstock import codec
from penstock.errors import InvalidOption
from penstock.spark.entities import payloads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JSON = codec.CONTENT_TYPES[codec.JSON]
MSGPACK = codec.CONTENT_TYPES[codec.MSGPACK]
_UNPARSED = "_unparsed"


def parse_payloads(rows: DataFrame, schema: str | StructType) -> DataFrame:
    """The rows with `payload`, parsed from the JSON in `value`, and `_error`.

    A field that a message does not have is null, and so is one whose value is of another type:
    that, and what is no JSON object at all, is told in `_error`.
    """
    wanted = schema if isinstance(schema, StructType) else struct_of(schema)
    whole = StructType([*wanted.fields, StructField(_UNPARSED, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNPARSED}
    text = fn.col("value").cast("string")
    is_json = fn.col("content_type") == fn.lit(JSON)
    is_object = is_json & text.rlike(r"^\s*\{")
    parsed = fn.when(is_object, fn.from_json(text, whole, options))
    error = (
        fn.when(~is_json, fn.concat(fn.lit("not JSON but "), fn.col("content_type")))
        .when(fn.col("value").isNull(), fn.lit("no payload"))
        .when(~is_object, fn.lit("not a JSON object"))
        .when(fn.col("payload").isNull(), fn.lit("not JSON"))
        .when(fn.col(f"payload.{_UNPARSED}").isNotNull(), fn.lit("not JSON of this schema"))
    )
    fields = [fn.col(f"payload.`{name.replace('`', '``')}`").alias(name) for name in wanted.names]
    return (
        rows.withColumn("payload", parsed)
        .withColumn("_error", error)
        .withColumn("payload", fn.when(fn.col("payload").isNotNull(), fn.struct(*fields)))
    )


def struct_of(ddl: str) -> StructType:
    """A schema from text such as 'id BIGINT, name STRING'. Raises `InvalidOption`."""
    try:
        found = StructType.fromDDL(ddl)
    except (PySparkException, ValueError) as error:
        raise InvalidOption(
            f"The schema {ddl!r} is not understood.", hint="Such as 'id BIGINT, name STRING'."
        ) from error
    assert isinstance(found, StructType)
    return found


def unpack_values(rows: DataFrame, formats: Collection[str]) -> DataFrame:
    """The rows with MessagePack as JSON, if there is any: others cost nothing."""
    if MSGPACK not in formats:
        return rows
    convert = arrow_udf(_as_json, BinaryType())  # type: ignore[call-overload]
    is_packed = fn.col("content_type") == fn.lit(MSGPACK)
    return rows.withColumns(
        {
            "value": convert(fn.col("value"), fn.col("content_type")),
            "content_type": fn.when(is_packed, fn.lit(JSON)).otherwise(fn.col("content_type")),
        }
    )


def _as_json(values: pa.Array, types: pa.Array) -> pa.Array:
    encodings = [codec.MSGPACK if type == MSGPACK else codec.BYTES for type in types.to_pylist()]
    return pa.array(payloads(values.to_pylist(), encodings, as_json=True), type=pa.binary())
