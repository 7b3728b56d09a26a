"""Registers `format("penstock")` with Spark, which imports every module named `pyspark_*`.

Nothing of penstock is imported before the source is used: Spark looks here whenever any Python
data source is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Topics, jobs and the ledger as DataFrames. `docs/reference/spark.md` has the options."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        from penstock.spark import source

        return source.schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark import source

        return source.reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from penstock.spark import source

        return source.stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark import sink

        return sink.writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from penstock.spark import sink

        return sink.stream_writer(self.options, schema, overwrite=overwrite)
