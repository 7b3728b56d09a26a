"""Where a read begins or ends, from what the user said to an id of this database."""

from __future__ import annotations

from penstock.errors import EpochChanged
from penstock.ports.scan import LogEnd, Scanner
from penstock.spark.entities import ENTITIES
from penstock.spark.offsets import Offset
from penstock.spark.options import SourceOptions, Start


def find_place(scanner: Scanner, options: SourceOptions, start: Start, end: LogEnd) -> Offset:
    """The offset that is meant: everything up to it is before the read, or in it."""
    source = ENTITIES[options.entity].source
    if start.word == "latest":
        return Offset(end.epoch, end.last_id)
    if start.word == "earliest":
        first = scanner.first_id(source)
        after = end.last_id if first is None else first - 1
        # What is gone already is no loss to one who begins with what there is.
        told = scanner.trims(source, options.topics, after=after)  # type: ignore[arg-type]
        return Offset(end.epoch, after, told=told)
    if start.at is not None:
        after = scanner.id_at(source, start.at)  # type: ignore[arg-type]
        told = scanner.trims(source, options.topics, after=after)  # type: ignore[arg-type]
        return Offset(end.epoch, after, told=told)
    assert start.after is not None
    if start.epoch is not None and start.epoch != end.epoch:
        raise EpochChanged(
            f"The position belongs to the database {start.epoch}, and this one is {end.epoch}."
        )
    if start.after > end.last_id:
        raise EpochChanged(
            f"The offset {start.after + 1} is ahead of the database, which ends at {end.last_id}."
        )
    return Offset(end.epoch, start.after)
