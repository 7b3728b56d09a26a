"""Two people move their mice; everybody sees where they are, and the log stays small.

python cursors.py --moves 2000
"""

import argparse
import math

import penstock


def main() -> None:
    parser = argparse.ArgumentParser(description="Conflated cursor positions.")
    parser.add_argument("--moves", type=int, default=2000)
    options = parser.parse_args()

    with (
        penstock.connect("memory:", profile="low-latency") as hub,
        hub.topics.subscribe("canvas") as canvas,
    ):
        for step in range(options.moves):
            turn = step / 100
            ann = {"x": round(math.cos(turn), 3), "y": round(math.sin(turn), 3)}
            hub.topics.publish("canvas", ann, key="ann", conflate=True)
            hub.topics.publish("canvas", {"x": step, "y": 0}, key="bob", conflate=True)
        # A normal message takes the latest positions along, in front of itself.
        hub.topics.publish("canvas", {"object": 7}, type="dropped")

        cursors: dict[str, dict[str, float]] = {}
        while (message := canvas.get(timeout=10)) and message.type != "dropped":
            for entry in message.conflated:
                cursors[entry.key] = entry.payload
        for name, cursor in sorted(cursors.items()):
            print(name, cursor)
        written = hub.topics.get("canvas").messages
        print(f"{2 * options.moves:,} moves, {written} messages in the log")


if __name__ == "__main__":
    main()
