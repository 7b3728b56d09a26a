"""A pipeline over a shop's orders: what was earned in each hour, and with what."""

from typing import Annotated

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark import pipeline

ORDER = "item STRING, amount DOUBLE, placed_at TIMESTAMP"


@pipeline("revenue", source="orders", sink="topic:revenue", mode="update", trigger="5 seconds")
def revenue(
    messages: DataFrame, *, above: Annotated[float, "Leave out smaller orders."] = 0.0
) -> DataFrame:
    """What was earned in each hour, by item; told anew whenever it changes."""
    order = F.from_json(F.col("value").cast("string"), ORDER)
    return (
        messages.select(order.alias("order"))
        .select("order.*")
        .where(F.col("amount") > above)
        .groupBy(F.date_trunc("hour", "placed_at").alias("hour"), "item")
        .agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("amount"))
        .select(
            F.concat_ws(" ", F.date_format("hour", "HH:mm"), "item").alias("key"),
            F.to_json(F.struct("hour", "item", "orders", "amount")).alias("value"),
        )
    )
