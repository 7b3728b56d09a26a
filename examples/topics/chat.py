"""A chat over one file: start it in several terminals, each with a name.

python chat.py ann
python chat.py bob --db /tmp/chat.db
"""

import argparse
import contextlib
import sys
import threading
from collections.abc import Iterator

import penstock


def show(live: Iterator[penstock.Message], name: str) -> None:
    with contextlib.suppress(penstock.HubClosed):  # The main thread has ended.
        for message in live:
            if message.key != name:
                print(f"{message.key}: {message.payload}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A chat over one file.")
    parser.add_argument("name")
    parser.add_argument("--db", default="chat.db")
    options = parser.parse_args()

    with penstock.connect(f"sqlite:///{options.db}", retention_seconds=3600) as hub:
        # Newcomers see the last lines; nothing else about them is kept.
        live = hub.topics.subscribe("chat", last=10)
        threading.Thread(target=show, args=(live, options.name), daemon=True).start()
        print(f"You are {options.name}. Ctrl-D ends.", flush=True)
        for line in sys.stdin:
            hub.topics.publish("chat", line.strip(), key=options.name)


if __name__ == "__main__":
    main()
