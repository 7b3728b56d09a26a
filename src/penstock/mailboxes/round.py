"""A postman's round: what goes into boxes that this process holds the locks of.

Most is one message for a box that has room for it. That is done in few steps, because there are
many; whatever needs a closer look goes the long way, through `put`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.clock import Micros
from penstock.errors import PenstockError, QuotaExceeded, StoreBusy
from penstock.mail import NewMail, Posted
from penstock.mailboxes.box import Box
from penstock.mailboxes.commit_log import WRITTEN, Segment, Write
from penstock.mailboxes.disk import translated
from penstock.mailboxes.journal import Journal
from penstock.mailboxes.locking import BUSY
from penstock.mailboxes.putting import put, undo
from penstock.mailboxes.record import Type, encode_record
from penstock.mailboxes.shelf import Entry, Gone, Shelf, Wipe
from penstock.mailboxes.state import Whole

Request = tuple[str, list[NewMail]]
"""What is to be put into one box."""
Answer = Posted | PenstockError
MESSAGE, QUOTA = Type.MESSAGE, Type.QUOTA


class Group(msgspec.Struct, eq=False):
    """What was put together, and is not on disk yet."""

    segment: Segment | None = None
    is_quick: bool = False
    """What takes more than a few steps is left to others."""
    boxes: list[Box] = []
    answers: list[Answer] = []
    """One for each message, in the order of the requests."""
    puts: int = 0
    refused: int = 0
    left: set[str] = set()
    """Boxes into which nothing was put: another process holds them, or they take more steps."""
    discards: list[Gone | Wipe] = []
    """What may go when this is on disk."""


PutOne = Callable[[Box, NewMail, Micros, Group | None], Posted | None]


class Street(Shelf, Protocol):
    """Where the boxes are."""

    journal: Journal
    dirty: dict[bytes, tuple[Box, Whole]]
    """Boxes that are not synced."""

    @property
    def put_one(self) -> PutOne: ...
    def box(self, id: str) -> Box: ...


def putting_into(street: Street) -> PutOne:
    """Made once for a street: what it does is done for each message, and what it needs for that
    is at hand."""
    write, open_file = street.disk.write, street.files.get
    journal, dirty = street.journal, street.dirty
    messages_max, file_messages_max = street.limits[:2]

    def put_one(box: Box, mail: NewMail, now: Micros, group: Group | None) -> Posted | None:
        """At the end of the box's file, and in the log of its group, if it has one. None if this
        message needs a closer look. Under the box's lock."""
        pending, offset = box.pending, box.write_byte
        if (
            box.looked_at != street.seen
            or not offset
            or box.halted
            or len(pending) >= messages_max
            or box.write_msg >= file_messages_max
            or (pending and pending[-1].type is QUOTA)
            or (not mail.is_original and box.known(mail.id))
        ):
            return None
        id, seq, file, salt = mail.id, box.next_seq, box.write_file, box.salt
        attributes, body, encoding = mail.attributes, mail.body, mail.encoding
        data = encode_record(
            MESSAGE, seq, now, salt, offset, id.encode(), attributes, body, encoding
        )
        end = offset + len(data)
        posted = Posted(id, seq, not pending)
        entry = Entry(seq, file, offset, len(data), id, now, MESSAGE, seq)
        try:
            write(open_file(box.write_path or box.find_write_path()), data, offset)
            box.write_byte = end
            box.next_seq = seq + 1
            box.write_msg += 1
            pending.append(entry)
            if box.ids is not None:
                box.ids[id] = seq
            if group is not None:
                # Before it is hidden: whoever shows the group finds it here.
                group.boxes.append(box)
                if (segment := group.segment) is not None:
                    digest = box.digest
                    if (digest, file) not in journal.headed:
                        journal.add_header(street, box, file, salt)
                    segment.added.append((WRITTEN, digest, file, salt, offset, data))
                    dirty[digest] = (box, (file, end, seq + 1))
                    if group not in box.hidden:
                        box.hidden += (group, seq)
        except OSError:
            undo(box, street, [Write(box.digest, file, salt, offset, data)])
            raise
        except BaseException:
            box.forget()  # The thread was struck, and others may have seen the message.
            raise
        return posted

    return put_one


def put_each(street: Street, requests: list[Request], now: Micros, group: Group) -> None:
    """Under the locks of all these boxes, by whoever has looked and said that it is `changing`."""
    find, put_one = street.box, street.put_one
    answers = group.answers
    for id, mails in requests:
        box = find(id)
        try:
            posted = put_one(box, mails[0], now, group) if len(mails) == 1 else None
        except OSError as error:
            answers.append(translated(error))
            continue
        if posted is not None:
            answers.append(posted)
            group.puts += 1
        elif group.is_quick and not _has_room(street, box, len(mails)):
            leave(id, mails, group)
        else:
            answers += _put_slowly(street, box, mails, now, group)


def _has_room(street: Street, box: Box, count: int) -> bool:
    """Whether so many fit into the file that it has, as far as is known without a look at it."""
    return bool(
        box.looked_at == street.seen
        and box.write_byte
        and not box.halted
        and box.can_write
        and len(box.pending) + count <= street.limits.messages_max
        and box.write_msg + count <= street.limits.file_messages_max
    )


def leave(id: str, mails: list[NewMail], group: Group) -> None:
    """Nothing is put into this box now."""
    group.left.add(id)
    group.answers += [StoreBusy(BUSY) for _ in mails]


def _put_slowly(
    street: Street, box: Box, mails: list[NewMail], now: Micros, group: Group
) -> list[Answer]:
    try:
        answers, writes, first = put(box, street, mails, now)
    except OSError as error:
        return [translated(error) for _ in mails]
    except PenstockError as error:
        return [error for _ in mails]
    except BaseException:
        box.forget()
        raise
    for answer in answers:
        group.puts += isinstance(answer, Posted) and answer.is_new
        group.refused += isinstance(answer, QuotaExceeded)
    if not writes:
        return answers
    group.boxes.append(box)
    if group.segment is not None:
        if box.next_seq > first:
            box.hide(group, first)
        for write in writes:
            if write.offset:
                street.journal.add_header(street, box, write.file, write.salt)
            else:
                street.journal.headed.add((box.digest, write.file))
            group.segment.added.append(
                (WRITTEN, write.digest, write.file, write.salt, write.offset, write.data)
            )
        street.dirty[box.digest] = (box, (box.write_file, box.write_byte, box.next_seq))
    return answers
