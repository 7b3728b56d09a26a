"""What a box needs of the place it stands in, and what is known of its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from penstock.clock import Micros
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.files import Files
from penstock.mailboxes.record import Record, Type
from penstock.mailboxes.state import Whole

if TYPE_CHECKING:
    from penstock.mailboxes.box import Box

PREFIX, SUFFIX = "messages.", ".log"
Scrub = Literal["file", "drained", "ack"]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A message that is not acknowledged, and where it is."""

    seq: int
    file: int
    offset: int
    size: int
    id: str
    at: Micros
    type: Type
    last_seq: int


class Wipe(NamedTuple):
    """An acknowledged message that is to be written over."""

    id: str
    entry: Entry


class Gone(NamedTuple):
    """A file that was read through, and is to be removed."""

    number: int
    """The box's lock."""
    path: str
    generation: int


class Limits(NamedTuple):
    messages_max: int
    file_messages_max: int
    record_bytes_max: int
    history_min: int
    history_seconds: float


class Shelf(Protocol):
    """What a box needs of the place it stands in."""

    disk: Disk
    files: Files
    limits: Limits
    scrub: Scrub
    seen: int
    """Counts up when other processes have changed something."""
    booted_at: Micros
    """What was written before may have been lost in part with the power."""

    def changing(self) -> None:
        """This process is about to write to a box."""

    def load(self, box: Box) -> None:
        """Read the files of a box. Mends what a crash leaves; stops at what it cannot explain."""

    def now(self) -> Micros: ...
    def new_salt(self) -> int: ...
    def report(self, event: str, **details: object) -> None: ...
    def note(self, box: Box, line: bytes) -> None:
        """The box was read on: to be on disk soon."""

    def discard(self, box: Box, file: int) -> None:
        """Remove a file that was read through, once that is on disk."""

    def wipe(self, box: Box, entries: list[Entry]) -> None:
        """Write over what was acknowledged, once that is on disk."""

    def promised(self, digest: bytes) -> Whole:
        """What this process has written to a box and not synced: nothing of it can be missing."""

    def make_room(self, error: OSError) -> bool:
        """Whether a full disk has a little space now: reading a box must always be possible."""


def path_of(folder: str, file: int) -> str:
    return f"{folder}/{PREFIX}{file:016d}{SUFFIX}"


def mail_id(entry: Entry) -> str:
    """What it is acknowledged by. A marker has an id of its own: under that of the message that
    was refused, the message may be put again, and whoever has the marker would acknowledge it."""
    if entry.type == Type.QUOTA:
        return f"quota-{entry.seq}"
    return entry.id or f"gap-{entry.seq}"


def entry_of(record: Record, file: int) -> Entry:
    return Entry(
        record.seq,
        file,
        record.offset,
        record.size,
        record.id,
        record.at,
        record.type,
        record.last_seq,
    )
