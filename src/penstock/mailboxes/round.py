"""A postman's round: what goes into boxes that this process holds the locks of.

Most is one message for a box that has room for it. That is done in few steps, because there are
many; whatever needs a closer look goes the long way, through `put`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

Request = tuple[str, list[NewMail], *tuple[object, ...]]
"""What is to be put into one box, and what is nobody's business here."""
Answer = Posted | PenstockError
MESSAGE, QUOTA = Type.MESSAGE, Type.QUOTA
Written = tuple[Box, str, int, int, int, bytes]
"""A message that is in its box's file: the box, its id and number, the file, where, its bytes."""
UNNOTED: Answer = StoreBusy(BUSY)
"""In place of the answer to it, until the box knows it."""


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
    unnoted: list[tuple[int, Written]] = []
    """What is in files and not in boxes yet, each with the place of its answer."""
    write: int = 0
    """Its number among the segment's writes."""
    left: set[str] = set()
    """Boxes into which nothing was put: another process holds them, or they take more steps."""
    discards: list[Gone | Wipe] = []
    """What may go when this is on disk."""

    @property
    def is_synced(self) -> bool:
        return self.segment is None or self.segment.synced_writes >= self.write


WriteOne = Callable[[Box, NewMail, Micros], Written | None]


class Street(Shelf, Protocol):
    """Where the boxes are."""

    journal: Journal
    dirty: dict[bytes, tuple[Box, Whole]]
    """Boxes that are not synced."""

    @property
    def write_one(self) -> WriteOne: ...
    def box(self, id: str) -> Box: ...


def writing_to(street: Street) -> WriteOne:
    """Made once for a street: what it does is done for each message, and what it needs for that
    is at hand."""
    write, open_file = street.disk.write, street.files.get
    messages_max, file_messages_max = street.limits[:2]

    def write_one(box: Box, mail: NewMail, now: Micros) -> Written | None:
        """At the end of the box's file. None if this message needs a closer look. Under the box's
        lock, and under the mutex until it is noted: a box whose message is not, because the thread
        was struck, must be forgotten."""
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
        id, seq, salt = mail.id, box.next_seq, box.salt
        data = encode_record(
            MESSAGE, seq, now, salt, offset, id.encode(), mail.attributes, mail.body, mail.encoding
        )
        try:
            write(open_file(box.write_path or box.find_write_path()), data, offset)
        except OSError:
            undo(box, street, [Write(box.digest, box.write_file, salt, offset, data)])
            raise
        return box, id, seq, box.write_file, offset, data

    return write_one


def note_one(written: Written, now: Micros) -> Posted:
    """The box has it from now on."""
    box, id, seq, file, offset, data = written
    size, pending = len(data), box.pending
    posted = Posted(id, seq, not pending)
    if not box.is_loaded:
        return posted  # All boxes were replaced meanwhile.
    box.write_byte = offset + size
    box.next_seq = seq + 1
    box.write_msg += 1
    pending.append(Entry(seq, file, offset, size, id, now, MESSAGE, seq))
    if box.ids is not None:
        box.ids[id] = seq
    return posted


def put_each(street: Street, requests: Sequence[Request], now: Micros, group: Group) -> None:
    """Under the locks of all these boxes, by whoever has looked and said that it is `changing`.

    Most of what goes into a log is only written, and noted later: `note_each`. So there must be no
    more than one request for each box.
    """
    find, write_one, headed = street.box, street.write_one, street.journal.headed
    answers, unnoted = group.answers, group.unnoted
    boxes, segment = group.boxes, group.segment
    for request in requests:
        id, mails = request[0], request[1]
        box = find(id)
        try:
            written = write_one(box, mails[0], now) if len(mails) == 1 else None
            if written is not None and segment is not None:
                unnoted.append((len(answers), written))
            elif written is not None:
                answers.append(note_one(written, now))
        except OSError as error:
            answers.append(translated(error))
            continue
        except BaseException:
            box.forget()
            raise
        if written is not None:
            # Before it is hidden: whoever shows the group finds it here.
            boxes.append(box)
            if segment is None:
                group.puts += 1
                continue
            answers.append(UNNOTED)
            _, _, seq, file, offset, data = written
            box.hide(group, seq)
            digest, salt = box.digest, box.salt
            if (digest, file) not in headed:
                street.journal.add_header(street, box, file, salt)
            segment.added.append((WRITTEN, digest, file, salt, offset, data))
        elif group.is_quick and not _has_room(street, box, len(mails)):
            leave(id, mails, group)
        else:
            answers += _put_slowly(street, box, mails, now, group)


def note_each(street: Street, now: Micros, group: Group) -> None:
    """The boxes have what was written to their files. Under the mutex under which that was done;
    the log may be on its way to the disk meanwhile."""
    dirty, answers = street.dirty, group.answers
    for place, written in group.unnoted:
        answers[place] = note_one(written, now)
        box, _, seq, file, offset, data = written
        dirty[box.digest] = (box, (file, offset + len(data), seq + 1))
    group.puts += len(group.unnoted)
    group.unnoted = []


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
