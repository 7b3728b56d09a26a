"""Mailboxes as rows (S1, M11), without a JVM."""

from __future__ import annotations

from pathlib import Path

import penstock
from penstock.spark.entities import ENTITIES
from penstock.spark.mailbox_rows import MailboxReader
from penstock.spark.options import parse_source


def rows(path: Path, **options: str) -> list[dict[str, object]]:
    parsed = parse_source({"url": f"sqlite:///{path}", "entity": "mailboxes", **options}, ENTITIES)
    reader = MailboxReader(parsed, ENTITIES["mailboxes"].schema())
    return [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def test_what_waits_is_read_and_stays(hub: penstock.Hub, path: Path) -> None:
    """S1: beside the process that has the boxes open, which goes on."""
    for number in range(20):
        hub.mailboxes.open(f"box-{number}").put({"n": number}, id="a", type="note")
    box = hub.mailboxes.open("box-3")
    box.put(b"raw", id="b")
    box.ack("a")

    found = rows(path, minPartitions="3")

    assert sorted((row["mailbox"], row["message_id"]) for row in found) == sorted(
        (f"box-{n}", "b" if n == 3 else "a") for n in range(20)
    )
    by_box = {row["mailbox"]: row for row in found}
    assert by_box["box-7"]["value"] == b'{"n":7}'
    assert by_box["box-7"]["content_type"] == "application/json"
    assert (by_box["box-7"]["kind"], by_box["box-7"]["type"]) == ("message", "note")
    assert (by_box["box-3"]["seq"], by_box["box-3"]["value"]) == (2, b"raw")
    assert box.peek().id == "b"
    assert rows(path, minPartitions="1") != []


def test_a_marker_has_no_value_and_msgpack_becomes_json(path: Path, hub: penstock.Hub) -> None:
    box = hub.mailboxes.open("ann")
    box.put({"n": 1}, format="msgpack")
    for _ in range(128):
        try:
            box.put(0)
        except penstock.PenstockError:
            break

    found = rows(path, valueFormat="json", minPartitions="1")

    assert found[0]["value"] == b'{"n":1}'
    assert (found[-1]["kind"], found[-1]["value"]) == ("quota", None)


def test_no_mailboxes_are_no_rows_and_none_are_made(hub: penstock.Hub, path: Path) -> None:
    hub.topics.position()

    assert rows(path) == []
    assert not Path(f"{path}.mailboxes").exists()
