"""Mailboxes as lines of JSON, out and in again, byte for byte.

A line is one message with all that is known of it. Read into a place where its box is not, a
message keeps its number and its time; a box that is there gets what it does not have yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from penstock import codec
from penstock.errors import InvalidInput, PenstockError
from penstock.mail import MailKind, NewMail, check_mail_id, check_mailbox
from penstock.mailboxes.box import Box
from penstock.mailboxes.commit_log import Write
from penstock.mailboxes.contents import look
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.listing import names_in
from penstock.mailboxes.putting import append, begin_file
from penstock.mailboxes.record import HEADER_SIZE, Type, encode_range, encode_record
from penstock.mailboxes.shelf import Entry, mail_id

VERSION = 1
TYPES = {MailKind.MESSAGE: Type.MESSAGE, MailKind.QUOTA: Type.QUOTA, MailKind.GAP: Type.GAP}
KINDS = {type: kind for kind, type in TYPES.items()}

Progress = Callable[[int, int], None]


class Heading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line."""

    penstock_mailboxes: int


class Line(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One message; `body` in Base64, as it is stored."""

    mailbox: str
    id: str
    seq: int
    at: int
    kind: MailKind = MailKind.MESSAGE
    body: bytes = b""
    encoding: int = codec.BYTES
    attributes: bytes = b""
    """Type, topic and the like, as they are stored."""
    missing: int = 0


class Imported(msgspec.Struct, frozen=True):
    mailboxes: int
    messages: int
    known: int
    """Those that were there already."""


def export(folder: Folder, ids: Iterable[str] | None, progress: Progress) -> Iterator[bytes]:
    """Lines, each with its end. Boxes in the order of their names."""
    names = sorted(names_in(folder) if ids is None else ids)
    yield msgspec.json.encode(Heading(VERSION)) + b"\n"
    for number, name in enumerate(names):
        with folder.locked(name) as box:
            look(box, folder)
            lines = list(_lines(box, folder))
        for line in lines:
            yield msgspec.json.encode(line) + b"\n"
        progress(number + 1, len(names))


def _lines(box: Box, folder: Folder) -> Iterator[Line]:
    for entry in box.visible:
        kind = KINDS[entry.type]
        if kind == MailKind.MESSAGE:
            record = box.read(folder, entry)
            yield Line(
                box.id,
                entry.id,
                entry.seq,
                entry.at,
                kind,
                record.body,
                record.encoding,
                record.attributes,
            )
        else:
            missing = entry.last_seq - entry.seq + 1 if kind == MailKind.GAP else 0
            yield Line(
                box.id, entry.id or mail_id(entry), entry.seq, entry.at, kind, missing=missing
            )


def read_lines(
    lines: Iterable[bytes], on_bad: Callable[[int, str], None] | None = None
) -> Iterator[Line]:
    """Refuses what is no export, and a line that is no message unless somebody is told."""
    decoder = msgspec.json.Decoder(Line)
    for number, text in enumerate(lines, 1):
        if number == 1:
            _check_heading(text)
            continue
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
            check_mailbox(line.mailbox)
            check_mail_id(line.id)
        except (msgspec.MsgspecError, PenstockError) as error:
            if on_bad is None:
                raise InvalidInput(
                    f"Line {number} is no message: {error}.",
                    hint="What stands before it is put in. --skip-bad goes on without such lines.",
                ) from error
            on_bad(number, str(error))
            continue
        yield line


def _check_heading(text: bytes) -> None:
    try:
        heading = msgspec.json.decode(text, type=Heading)
    except msgspec.MsgspecError:
        raise InvalidInput(
            "This is no export of mailboxes.", hint="'penstock mailboxes export' makes one."
        ) from None
    if heading.penstock_mailboxes != VERSION:
        raise InvalidInput(
            f"This export is of version {heading.penstock_mailboxes}, not {VERSION}."
        )


def import_lines(folder: Folder, lines: Iterable[Line], progress: Progress) -> Imported:
    """Box by box; on disk when it returns. Lines of one box stand together, as in an export."""
    boxes = messages = known = 0
    for name, group in _by_box(lines):
        added = _import_box(folder, name, group)
        boxes += 1
        messages += added
        known += len(group) - added
        progress(boxes, 0)
    folder.checkpoint()
    return Imported(boxes, messages, known)


def _by_box(lines: Iterable[Line]) -> Iterator[tuple[str, list[Line]]]:
    group: list[Line] = []
    for line in lines:
        if group and group[0].mailbox != line.mailbox:
            yield group[0].mailbox, group
            group = []
        group.append(line)
    if group:
        yield group[0].mailbox, group


def _import_box(folder: Folder, name: str, lines: list[Line]) -> int:
    with folder.locked(name) as box:
        look(box, folder)
        if not box.write_byte and not box.pending and box.next_seq == 1:
            _adopt(box, folder, lines)
            return len(lines)
        have = {entry.id for entry in box.pending} | set(box.acked)
    mails = [
        _new_mail(line) for line in lines if line.kind == MailKind.MESSAGE and line.id not in have
    ]
    if not mails:
        return 0
    group = folder.put([(name, mails)], is_logged=True)
    folder.sync(group)
    folder.show(group)
    for answer in group.answers:
        if isinstance(answer, PenstockError):
            raise answer
    return len(mails)


def _new_mail(line: Line) -> NewMail:
    return NewMail(line.id, line.body, line.encoding, line.attributes)


def _adopt(box: Box, folder: Folder, lines: list[Line]) -> None:
    """A box that was not here, with the numbers and times that its messages had."""
    box.next_seq = box.read_seq = lines[0].seq
    writes: list[Write] = []
    parts = [begin_file(box, folder, folder.now(), writes)]
    offset, entries = HEADER_SIZE, []
    expected = lines[0].seq
    for line in lines:
        if line.seq != expected:
            raise InvalidInput(
                f"Message {line.seq} of the mailbox {line.mailbox!r} is where {expected} belongs."
            )
        kind, last = TYPES[line.kind], line.seq + max(0, line.missing - 1)
        if kind == Type.GAP:
            data = encode_range(kind, line.seq, last, line.at, box.salt, offset)
        else:
            data = encode_record(
                kind,
                line.seq,
                line.at,
                box.salt,
                offset,
                line.id.encode(),
                line.attributes,
                line.body,
                line.encoding,
            )
        id = "" if kind == Type.GAP else line.id
        entries.append(Entry(line.seq, box.write_file, offset, len(data), id, line.at, kind, last))
        parts.append(data)
        offset += len(data)
        expected = last + 1
    append(box, folder, parts, entries, writes)
    box.next_seq = expected
    box.save(folder)
