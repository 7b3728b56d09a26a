"""Processes that put into mailboxes and read from them, until they are told to stop or are killed.

They say what they know, a line each, at once: `ok box id` after a put was answered, `got box id`
before an acknowledgement, `acked box id` after it, `busy` when a box was held for too long.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import penstock
from penstock.errors import QuotaExceeded, StoreBusy, WrongAck

stopping = threading.Event()


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def produce(hub: penstock.Hub, name: str, thread: int, boxes: list[str], count: int) -> None:
    n = 0
    while not stopping.is_set() and n < count:
        box = boxes[(thread + n) % len(boxes)]
        try:
            hub.mailboxes.put(box, [name, thread, n], message_id=f"{name}.{thread}.{n}")
        except QuotaExceeded:
            time.sleep(0.002)
            continue
        except StoreBusy:
            say("busy")
            continue
        say("ok", box, f"{name}.{thread}.{n}")
        n += 1


def consume(hub: penstock.Hub, boxes: list[str]) -> None:
    while not stopping.is_set():
        for name in boxes:
            box = hub.mailboxes.open(name)
            try:
                mail = box.wait(0.01)
                while mail is not None and not stopping.is_set():
                    say("got", name, mail.id, mail.kind, threading.get_ident())
                    following = box.ack_and_peek(mail.id)
                    say("acked", name, mail.id)
                    mail = following
            except WrongAck:
                continue  # Another one was faster.
            except StoreBusy:
                say("busy")


def main(role: str, url: str, options: dict[str, Any]) -> None:
    threads: int = options.get("threads", 8)
    boxes: list[str] = options["boxes"]
    with penstock.connect(url, **options.get("settings", {})) as hub:
        hub.mailboxes.open("warm").size()
        workers = []
        for thread in range(threads):
            if role == "produce":
                count = options.get("count", 1_000_000)
                arguments = (hub, options["name"], thread, boxes, count)
                workers.append(threading.Thread(target=produce, args=arguments, daemon=True))
            else:
                own = boxes[thread % len(boxes) :] + boxes[: thread % len(boxes)]
                workers.append(threading.Thread(target=consume, args=(hub, own), daemon=True))
        say("ready")
        for worker in workers:
            worker.start()
        if options.get("is_counted"):
            for worker in workers:
                worker.join()
        else:
            sys.stdin.readline()
            stopping.set()
            for worker in workers:
                worker.join()
        say("done")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
