"""Messages into the files of one box, under its lock."""

from __future__ import annotations

import os

from penstock.clock import Micros
from penstock.errors import PenstockError, QuotaExceeded
from penstock.mail import NewMail, Posted
from penstock.mailboxes.box import Box
from penstock.mailboxes.commit_log import Write
from penstock.mailboxes.record import HEADER_SIZE, Type, encode_record
from penstock.mailboxes.shelf import Entry, Shelf


def put(
    box: Box, shelf: Shelf, mails: list[NewMail], now: Micros
) -> tuple[list[Posted | PenstockError], list[Write], int]:
    """Into the page cache: what is durable is the commit log's business.

    Answers, what was written, and the number of the first message of it.
    """
    box.look(shelf)
    answers: list[Posted | PenstockError] = []
    writes: list[Write] = []
    again: list[Write] = []
    taken: list[bytes] = []
    entries: list[Entry] = []
    limits = shelf.limits
    if (not box.can_write or len(box.pending) + len(mails) > limits.messages_max) or (
        box.write_msg + len(mails) > limits.file_messages_max and box.read_file != box.write_file
    ):
        box.look_at_state(shelf)
    offset, first, count = box.write_byte, box.next_seq, box.write_msg
    seq = first
    try:
        for mail in mails:
            known = 0 if mail.is_original else box.known(mail.id, entries)
            if known:
                answers.append(Posted(mail.id, known, False, False))
                again += _written_by_others(box, shelf, known)
                continue
            if (entries and entries[-1].type == Type.QUOTA) or not box.can_write:
                answers.append(QuotaExceeded(mailbox=box.id))
                continue
            is_full = len(box.pending) + len(entries) >= limits.messages_max
            if is_full and not mail.leaves_marker:
                answers.append(QuotaExceeded(mailbox=box.id))
                continue
            if offset == 0 or (
                count >= limits.file_messages_max and box.read_file == box.write_file
            ):
                append(box, shelf, taken, entries, writes)
                taken, entries = [], []
                taken.append(begin_file(box, shelf, now, writes))
                offset, count = HEADER_SIZE, 0
            type = Type.QUOTA if is_full else Type.MESSAGE
            name = mail.id.encode()
            if is_full:
                data = encode_record(type, seq, now, box.salt, offset, name)
                answers.append(QuotaExceeded(mailbox=box.id))
            else:
                data = encode_record(
                    type,
                    seq,
                    now,
                    box.salt,
                    offset,
                    name,
                    mail.attributes,
                    mail.body,
                    mail.encoding,
                )
                answers.append(Posted(mail.id, seq, not (box.pending or entries)))
            entries.append(Entry(seq, box.write_file, offset, len(data), mail.id, now, type, seq))
            taken.append(data)
            offset += len(data)
            seq += 1
            count += 1
        append(box, shelf, taken, entries, writes)
    except OSError:
        undo(box, shelf, writes)
        raise
    return answers, [*again, *writes], first


def _written_by_others(box: Box, shelf: Shelf, seq: int) -> list[Write]:
    """A message that is here already, as far as it is not known to be on disk.

    Another process may have written it and not come to sync it: whoever puts it again is told
    that it is there, so it goes into our log, too.
    """
    entry = next((entry for entry in box.pending if entry.seq == seq), None)
    if entry is None or (entry.file, entry.offset + entry.size) <= box.whole[:2]:
        return []
    file = shelf.files.get(box.path(entry.file))
    data = shelf.disk.read(file, entry.size, entry.offset)
    salt = box.salt_of(shelf, entry.file)
    return [Write(box.digest, entry.file, salt, entry.offset, data)]


def append(
    box: Box, shelf: Shelf, taken: list[bytes], entries: list[Entry], writes: list[Write]
) -> None:
    if not taken:
        return
    data = b"".join(taken)
    path = box.find_write_path()
    flags = os.O_RDWR if box.write_byte else os.O_RDWR | os.O_CREAT | os.O_EXCL
    if not box.write_byte:
        box.make_folder(shelf)
    file = shelf.files.get(path, flags)
    writes.append(Write(box.digest, box.write_file, box.salt, box.write_byte, data))
    shelf.changing()
    shelf.disk.write(file, data, box.write_byte)
    box.write_byte += len(data)
    if entries:
        if box.ids is not None:
            box.ids.update({e.id: e.seq for e in entries if e.type == Type.MESSAGE})
        box.next_seq = entries[-1].seq + 1
        box.write_msg += len(entries)
        box.pending += entries


def begin_file(box: Box, shelf: Shelf, now: Micros, writes: list[Write]) -> bytes:
    """The header of the next file. The old one is told to have ended."""
    is_first = not box.write_byte
    if not is_first:
        end = encode_record(Type.END, box.next_seq, now, box.salt, box.write_byte)
        append(box, shelf, [end], [], writes)
    box.write_file += 1
    box.write_path = ""
    box.write_byte = box.write_msg = 0
    box.salt = shelf.new_salt()
    box.created_at, box.file_seq = now, box.next_seq
    if is_first:
        box.read_file, box.read_msg, box.read_byte = box.write_file, 0, HEADER_SIZE
    return box.header().encode()


def undo(box: Box, shelf: Shelf, writes: list[Write]) -> None:
    """Take back what was not acknowledged, if nobody has written behind it."""
    shelf.changing()
    for write in reversed(writes):
        path = box.path(write.file)
        try:
            if write.offset == 0:
                shelf.files.drop(path)
                shelf.disk.unlink(path)
                continue
            file = shelf.files.get(path)
            if shelf.disk.stat(file).st_size <= write.offset + len(write.data):
                shelf.disk.truncate(file, write.offset)
        except OSError:
            continue  # It stays, and shows as a message that nobody was told is there.
    box.forget()
