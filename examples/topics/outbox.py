"""The order and the message about it, in one transaction: both exist, or neither does.

python outbox.py 12.50
python outbox.py -- -3        # refused by the table: no row, and no message
"""

import argparse
import sys

import penstock

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    id INTEGER PRIMARY KEY,
    total REAL NOT NULL CHECK (total > 0)
)
"""


def place_order(hub: penstock.Hub, total: float) -> int:
    with hub.transaction() as tx:
        # The message first, to show that it goes with the row that fails after it.
        [(order_id,)] = tx.execute("SELECT coalesce(max(id), 0) + 1 FROM orders")
        tx.publish("orders", {"id": order_id, "total": total}, type="order-placed")
        tx.execute("INSERT INTO orders (id, total) VALUES (?, ?)", (order_id, total))
    return int(order_id)


def main() -> int:
    parser = argparse.ArgumentParser(description="Place an order and announce it, atomically.")
    parser.add_argument("total", type=float)
    parser.add_argument("--db", default="shop.db")
    options = parser.parse_args()

    with penstock.connect(f"sqlite:///{options.db}") as hub:
        with hub.transaction() as tx:
            tx.execute(SCHEMA)
        try:
            print("order", place_order(hub, options.total))
        except penstock.PenstockError as error:
            print(error, file=sys.stderr)
        with hub.connection() as connection:
            [(rows,)] = connection.execute("SELECT count(*) FROM orders")
        print(rows, "rows,", len(hub.topics.read("orders")), "messages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
