"""Reading mailboxes as a batch: what waits in each box, from one moment of that box.

The boxes are divided among tasks by the beginning of their folders' names, which are hashes. Each
box is read under its lock, as every process does; nothing is acknowledged.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.clock import SystemClock
from penstock.mail import Mail, MailKind
from penstock.mailboxes.contents import look, mail_of
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.listing import box_folders, name_of
from penstock.settings import Settings
from penstock.spark.entities import ENTITIES
from penstock.spark.options import SourceOptions
from penstock.spark.ranges import make_batch
from penstock.stores import check_url
from penstock.telemetry import Telemetry

ROWS = 5_000
PARTITIONS = 2


@dataclasses.dataclass
class Share(InputPartition):
    """The boxes of one task."""

    number: int
    of: int


class MailboxReader(DataSourceReader):
    """Picklable; the folder is opened where it is needed."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        ENTITIES[options.entity].choose(schema)

    def partitions(self) -> Sequence[InputPartition]:
        count = self._options.partitions_min or PARTITIONS
        return [Share(number, count) for number in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        root = root_of(self._options.settings)
        if not isinstance(partition, Share) or not os.path.exists(f"{root}/store.json"):
            return
        folder = Folder(root, self._options.settings, SystemClock(), Telemetry())
        try:
            rows = _rows(folder, partition)
            while some := list(itertools.islice(rows, ROWS)):
                yield self._batch(some)
        finally:
            folder.close()

    def _batch(self, rows: list[tuple[str, Mail]]) -> pa.RecordBatch:
        columns: dict[str, list[Any]] = {
            "mailbox": [name for name, _ in rows],
            "id": [mail.id for _, mail in rows],
            "seq": [mail.seq for _, mail in rows],
            "at": [mail.at for _, mail in rows],
            "kind": [mail.kind.value for _, mail in rows],
            "type": [mail.type for _, mail in rows],
            "topic": [mail.topic for _, mail in rows],
            "body": [mail.body if mail.kind == MailKind.MESSAGE else None for _, mail in rows],
            "encoding": [
                mail.encoding if mail.kind == MailKind.MESSAGE else None for _, mail in rows
            ],
            "missing": [mail.missing for _, mail in rows],
        }
        fields = ENTITIES[self._options.entity].choose(self._schema)
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        return make_batch(columns, fields, arrow, as_json=self._options.as_json)


def root_of(settings: Settings) -> str:
    """Where the mailboxes of a hub are."""
    if settings.mailboxes:
        return os.path.abspath(settings.mailboxes)
    _, path = check_url(settings.url)
    return os.path.abspath(f"{path}.mailboxes")


def _rows(folder: Folder, share: Share) -> Iterator[tuple[str, Mail]]:
    for number, path in enumerate(box_folders(f"{folder.root}/boxes", folder.depth)):
        if number % share.of != share.number:
            continue
        name = name_of(folder, path)
        if name is None:
            continue
        with folder.locked(name) as box:
            look(box, folder)
            mails = [mail_of(box, folder, entry) for entry in box.visible]
        yield from ((name, mail) for mail in mails)
