"""A durable indexer: counts words of all topics `notes.*`. Kill it at any time; start it again.

penstock publish notes.today '{"text": "buy milk"}'
python indexer.py             # --once ends when there is nothing left to do
python indexer.py --top 5
"""

import argparse

import penstock

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, seen INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS indexed (position TEXT PRIMARY KEY)",
)
COUNT = """
INSERT INTO words VALUES (?, 1) ON CONFLICT (word) DO UPDATE SET seen = seen + 1
"""


def index(hub: penstock.Hub, batch: list[penstock.Message]) -> None:
    """A batch may come twice, after a crash; noting each position makes the repeat harmless."""
    with hub.transaction() as tx:
        for message in batch:
            note = "INSERT INTO indexed VALUES (?) ON CONFLICT DO NOTHING RETURNING 1"
            if tx.execute(note, (str(message.position),)):
                for word in message.payload["text"].lower().split():
                    tx.execute(COUNT, (word,))


def main() -> None:
    parser = argparse.ArgumentParser(description="Index the words of all notes.")
    parser.add_argument("--db", default="penstock.db")
    parser.add_argument("--once", action="store_true", help="end when all is indexed")
    parser.add_argument("--top", type=int, help="show the most frequent words and end")
    options = parser.parse_args()

    with penstock.connect(f"sqlite:///{options.db}") as hub:
        with hub.transaction() as tx:
            for statement in SCHEMA:
                tx.execute(statement)
        if options.top:
            with hub.connection() as connection:
                sql = "SELECT word, seen FROM words ORDER BY seen DESC, word LIMIT ?"
                for word, seen in connection.execute(sql, (options.top,)):
                    print(word, seen)
            return
        with hub.topics.follow("notes.*", consumer="indexer", start="earliest") as notes:
            while batch := notes.take(100, timeout=0.5 if options.once else None):
                index(hub, batch)
                print("indexed up to", batch[-1].id, flush=True)


if __name__ == "__main__":
    main()
