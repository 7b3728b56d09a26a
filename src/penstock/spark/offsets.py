"""How far a stream has read, as it stands in Spark's checkpoint.

An offset is a place in one database's history: everything up to and including `id` has been read.
Spark compares offsets as JSON text, so the same offset is always the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.clock import Micros
from penstock.errors import EpochChanged, InvalidInput

VERSION = 1


class Offset(msgspec.Struct, frozen=True):
    db: str
    """The epoch of the database: its id and its generation."""
    id: int
    at: Micros = 0
    """When the batch that ends here was planned: what had expired then is left out, whenever it is
    read, so that a batch read twice is the same."""
    told: Mapping[str, int] = {}
    """Removals that were known when it was planned: topics, and up to which id each. They are no
    loss to this stream, or an accepted one."""

    def as_json(self) -> dict[str, Any]:
        """For Spark, which writes it as text in this order."""
        value: dict[str, Any] = {"v": VERSION, "db": self.db, "id": self.id}
        if self.at:
            value["at"] = self.at
        if self.told:
            value["told"] = dict(sorted(self.told.items()))
        return value

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Offset:
        """From the checkpoint. Raises `InvalidInput`."""
        try:
            if value["v"] != VERSION:
                raise InvalidInput(
                    f"The checkpoint has offsets of version {value['v']}; this penstock knows "
                    f"{VERSION}.",
                    hint="Upgrade penstock here, or start with a new checkpoint.",
                )
            return msgspec.convert({k: v for k, v in value.items() if k != "v"}, cls)
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            raise InvalidInput(
                f"{value!r} is not an offset of penstock.",
                hint="Is the checkpoint another query's?",
            ) from error

    def check(self, epoch: str, last_id: int) -> None:
        """Raises `EpochChanged` if it is not of this database, or ahead of it."""
        if self.db != epoch:
            raise EpochChanged(
                f"The checkpoint belongs to the database {self.db}, and this one is {epoch}.",
                hint="The database was restored or replaced: start with a new checkpoint.",
            )
        if self.id > last_id:
            raise EpochChanged(
                f"The checkpoint is at {self.id}, ahead of the database ({last_id}).",
                hint="An older copy of the database is in its place: start with a new checkpoint.",
            )

    def news(self, trims: Mapping[str, int]) -> dict[str, int]:
        """Of these removals, those that were not known when the offset was planned."""
        return {
            topic: through for topic, through in trims.items() if through > self.told.get(topic, 0)
        }
