"""What is in a box, as its recipient sees it. Under the box's lock."""

from __future__ import annotations

import msgspec

from penstock.clock import SECOND
from penstock.mail import Attributes, Mail, MailboxStats, MailKind
from penstock.mailboxes.box import Box
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.record import Type
from penstock.mailboxes.shelf import Entry, Shelf, mail_id

_attributes = msgspec.msgpack.Decoder(Attributes).decode


def look(box: Box, shelf: Shelf) -> None:
    box.look(shelf)
    box.look_at_state(shelf)


def mails_of(box: Box, shelf: Shelf, limit: int) -> list[Mail]:
    look(box, shelf)
    return [mail_of(box, shelf, entry) for entry in box.visible[:limit]]


def mail_of(box: Box, shelf: Shelf, entry: Entry) -> Mail:
    if entry.type == Type.GAP:
        return Mail(
            id=mail_id(entry),
            seq=entry.seq,
            at=entry.at,
            kind=MailKind.GAP,
            missing=entry.last_seq - entry.seq + 1,
        )
    if entry.type == Type.QUOTA:
        return Mail(
            id=mail_id(entry), seq=entry.seq, at=entry.at, kind=MailKind.QUOTA, key=entry.id
        )
    record = box.read(shelf, entry)
    if not record.attributes:
        return Mail(
            id=record.id,
            seq=record.seq,
            at=record.at,
            body=record.body,
            encoding=record.encoding,
        )
    attributes = _attributes(record.attributes)
    return Mail(
        id=record.id,
        seq=record.seq,
        at=record.at,
        body=record.body,
        encoding=record.encoding,
        kind=MailKind.GAP if attributes.is_gap else MailKind.MESSAGE,
        type=attributes.type,
        topic=attributes.topic,
        position=attributes.position,
        key=attributes.key,
        headers=attributes.headers or {},
    )


def expire(box: Box, shelf: Shelf, before: int) -> int:
    """Acknowledge what is older, up to the first marker."""
    count = 0
    for entry in box.visible:
        if entry.type == Type.QUOTA or entry.at >= before:
            break
        count += 1
    if count:
        box.drop(shelf, count)
    return count


def delete(box: Box, folder: Folder) -> bool:
    """Its numbers go on where they were, should it come to be again."""
    if not box.write_byte and not box.pending:
        return False
    files = range(box.read_file, box.write_file + 1)
    box.pending.clear()
    box.acked.clear()
    box.read_seq = box.next_seq
    box.read_file, box.read_msg, box.read_byte = box.write_file + 1, 0, 0
    box.write_byte = box.write_msg = 0
    box.save(folder, is_deleted=True)
    for file in files:
        folder.discard(box, file)
    return True


def stats_of(box: Box, folder: Folder) -> MailboxStats:
    oldest = box.visible[0].at if box.visible else None
    age = None if oldest is None else max(0.0, (folder.now() - oldest) / SECOND)
    size = 0
    for file in range(box.read_file, box.write_file + 1):
        try:
            size += folder.disk.stat_path(box.path(file)).st_size
        except FileNotFoundError:
            continue
    return MailboxStats(box.id, len(box.visible), box.can_write, age, size, box.next_seq)
