"""A postman's round: what goes into boxes that this process holds the locks of.

Most is one message for a box that has room for it. That is done in few steps, because there are
many; whatever needs a closer look goes the long way, through `put`.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.clock import Micros
from penstock.errors import PenstockError
from penstock.mail import NewMail, Posted
from penstock.mailboxes.box import Box
from penstock.mailboxes.commit_log import Segment, Write
from penstock.mailboxes.disk import translated
from penstock.mailboxes.journal import Journal
from penstock.mailboxes.putting import put, undo
from penstock.mailboxes.record import Type, encode_record
from penstock.mailboxes.shelf import Entry, Shelf, Wipe
from penstock.mailboxes.state import Whole

Request = tuple[str, list[NewMail]]
"""What is to be put into one box."""
Answer = Posted | PenstockError
MESSAGE, QUOTA = Type.MESSAGE, Type.QUOTA


class Group(msgspec.Struct):
    """What was put together, and is not on disk yet."""

    segment: Segment | None
    boxes: list[Box] = []
    answers: list[list[Answer]] = []
    writes: list[Write] = []
    """For the log."""
    busy: list[int] = []
    """The requests whose box another process holds."""
    discards: list[str | Wipe] = []
    """What may go when this is on disk."""


class Street(Shelf, Protocol):
    """Where the boxes are."""

    journal: Journal

    @property
    def dirty(self) -> dict[bytes, tuple[Box, Whole]]: ...
    def box(self, id: str) -> Box: ...


def put_each(street: Street, requests: list[Request], now: Micros, group: Group) -> None:
    """Under the locks of all these boxes, by whoever has looked and said that it is `changing`."""
    find, seen, dirty = street.box, street.seen, street.dirty
    write, open_file, add_header = street.disk.write, street.files.get, street.journal.add_header
    messages_max, file_messages_max = street.limits[:2]
    is_logged, boxes, answers, writes = (
        group.segment is not None,
        group.boxes,
        group.answers,
        group.writes,
    )
    for id, mails in requests:
        box = find(id)
        pending, file, offset = box.pending, box.write_file, box.write_byte
        if (
            len(mails) != 1
            or box.looked_at != seen
            or not offset
            or box.halted
            or len(pending) >= messages_max
            or box.write_msg >= file_messages_max
            or (pending and pending[-1].type is QUOTA)
            or (not (mail := mails[0]).is_original and box.known(mail.id))
        ):
            answers.append(_put_slowly(street, box, mails, now, group))
            continue
        name, digest, seq, salt = mail.id, box.digest, box.next_seq, box.salt
        data = encode_record(
            MESSAGE,
            seq,
            now,
            salt,
            offset,
            name.encode(),
            mail.attributes,
            mail.body,
            mail.encoding,
        )
        try:
            write(open_file(box.write_path or box.find_write_path()), data, offset)
        except OSError as error:
            undo(box, street, [Write(digest, file, salt, offset, data)])
            answers.append([translated(error)])
            continue
        size = len(data)
        box.write_byte = offset + size
        box.next_seq = seq + 1
        box.write_msg += 1
        answers.append([Posted(name, seq, not pending)])
        pending.append(Entry(seq, file, offset, size, name, now, MESSAGE, seq))
        if box.ids is not None:
            box.ids[name] = seq
        boxes.append(box)
        if is_logged:
            if not box.hidden_from:
                box.hidden_from = seq
            add_header(street, box, file, salt, offset)
            writes.append(Write(digest, file, salt, offset, data))
            dirty[digest] = (box, (file, offset + size, seq + 1))


def _put_slowly(
    street: Street, box: Box, mails: list[NewMail], now: Micros, group: Group
) -> list[Answer]:
    try:
        answers, writes, first = put(box, street, mails, now)
    except OSError as error:
        return [translated(error) for _ in mails]
    except PenstockError as error:
        return [error for _ in mails]
    if writes:
        group.boxes.append(box)
        if group.segment is not None:
            if not box.hidden_from and box.next_seq > first:
                box.hidden_from = first
            for write in writes:
                street.journal.add_header(street, box, write.file, write.salt, write.offset)
            group.writes += writes
            street.dirty[box.digest] = (box, (box.write_file, box.write_byte, box.next_seq))
    return answers
