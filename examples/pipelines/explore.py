"""A day of orders, from publishing to a plot. A notebook in a script: run it whole, or by cells."""

# %% A day's orders, published to a topic
import random
from datetime import UTC, datetime, timedelta

import altair as alt
from pyspark.sql import functions as F  # noqa: N812
from shop import ORDER, revenue

import penstock
from penstock.spark import run, session

URL = "sqlite:///penstock.db"
MENU = {"tea": 3.5, "coffee": 4.0, "cake": 6.0}
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)

random.seed(7)
hub = penstock.connect(URL)
orders = []
for _ in range(2_000):
    # Most people come around noon.
    at = MIDNIGHT + timedelta(hours=min(23.9, max(0.0, random.gauss(13, 3))))
    item = random.choice(list(MENU))
    amount = MENU[item] * random.randint(1, 4)
    orders.append({"item": item, "amount": amount, "placed_at": at.isoformat()})
hub.topics.publish_many("orders", orders, type="placed")
print(f"{hub.topics.stats('orders').messages:,} orders in the log")

# %% The same topic, as a DataFrame
spark = session()
log = spark.read.format("penstock").option("url", URL).option("subscribe", "orders").load()
log.select("offset", "timestamp", F.col("value").cast("string").alias("value")).show(3, truncate=60)

# %% A question, asked once
order = F.from_json(F.col("value").cast("string"), ORDER)
best = (
    log.select(order.alias("order"))
    .groupBy("order.item")
    .agg(F.count("*").alias("orders"), F.sum("order.amount").alias("amount"))
    .orderBy(F.desc("amount"))
)
best.show()

# %% The same question all day long: a pipeline, which writes its answers back to a topic
status = run(revenue, URL)
print(f"{status.name}: {status.state}, {status.rows:,} rows in {status.batches} batch")

# %% Run again, it has nothing to do: it goes on where it was
status = run(revenue, URL)
print(f"{status.name}: {status.state}, {status.rows:,} rows")

# %% Its answers are messages, which any program can read. The last of each key counts
latest = {message.key: message.payload for message in hub.topics.read("revenue", limit=10_000)}
print(f"{len(latest)} hours and items, {sum(row['amount'] for row in latest.values()):,.2f} earned")

# %% A plot
chart = (
    alt.Chart(alt.Data(values=list(latest.values())))
    .mark_bar()
    .encode(
        x=alt.X("hours(hour):O", title="hour"),
        y=alt.Y("sum(amount):Q", title="earned"),
        color=alt.Color("item:N", title=None),
        tooltip=["item:N", "orders:Q", "amount:Q"],
    )
    .properties(title="A day in the shop", width=600, height=300)
)
chart.save("revenue.html")
print("The plot is in revenue.html")

# %% The end
hub.close()
spark.stop()
