"""Opening a box: what its files say, after whatever happened to them.

The state says up to where everything was on disk. What is damaged before that place stops the box,
until `repair` says what is to become of it; files that are gone leave a gap, which the recipient is
told. Behind that place, logs have brought back what anybody was promised: what is still not whole
there was never promised, and is cut away. A process that is killed leaves no more than an end that
is cut off; only a loss of power leaves holes: in a file written since then, a hole is damage.
"""

from __future__ import annotations

import os

from penstock.mailboxes.box import ACKED_MAX, Box
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.putting import append, begin_file
from penstock.mailboxes.record import (
    HEADER_SIZE,
    Damage,
    Header,
    Record,
    Type,
    encode_range,
    encode_record,
    scan,
)
from penstock.mailboxes.shelf import PREFIX, SUFFIX, Entry, Shelf, entry_of
from penstock.mailboxes.state import NAME, NOTHING, State
from penstock.mailboxes.state_log import read_state, read_whole, sync_path

QUARANTINE = "quarantine"


def load(box: Box, shelf: Shelf) -> None:
    """Read the files of a box. Mends what a crash leaves; stops at what it cannot explain."""
    disk = shelf.disk
    box.is_loaded = True
    box.looked_at = box.state_looked_at = shelf.seen
    try:
        names = disk.list(box.folder)
    except (FileNotFoundError, NotADirectoryError):
        _load_without_files(box, shelf)
        return
    # What is open may be another file by now.
    shelf.files.drop(box.state_path)
    state, is_whole = read_state(disk, box.folder)
    box.log_mark, box.is_torn = box.mark(shelf), not is_whole
    if state is not None and is_unnamed(names, state):
        shelf.changing()
        path = box.path(state.read_file)
        disk.rename(f"{path}.new", path)
        disk.sync_folder(box.folder)
        names = disk.list(box.folder)
    files = message_files(names)
    for file in files:
        shelf.files.drop(box.path(file))
    if not is_whole:
        shelf.report("mailbox_damaged", mailbox=box.id, file=NAME, reason="a line is damaged")
    if state is not None:
        box.lines = state.n
        box.read_file, box.read_msg = state.read_file, state.read_msg
        box.read_byte, box.read_seq = state.read_byte, state.read_seq
        box.write_file, box.next_seq = state.write_file, max(state.write_seq, state.read_seq)
        box.whole = box.saved = state.whole
    elif files:
        box.read_file = files[0]
    # Those were read through; whoever wrote that down did not come to remove them.
    over = [file for file in files if file < box.read_file]
    files = files[len(over) :]
    if files:
        _Reading(box, shelf, state, files).run()
    else:
        _load_without_files(box, shelf)
    if over and not box.halted:
        box.save(shelf)
        for file in over:
            shelf.discard(box, file)


def message_files(names: list[str]) -> list[int]:
    """The numbers of the message files among these, in their order."""
    found = [name[len(PREFIX) : -len(SUFFIX)] for name in names if name.endswith(SUFFIX)]
    return sorted(int(number) for number in found if len(number) == 16 and number.isdigit())


def is_unnamed(names: list[str], state: State) -> bool:
    """Whether a repair was interrupted before its file had got its name: the state is for it."""
    name = f"{PREFIX}{state.read_file:016d}{SUFFIX}"
    return name not in names and f"{name}.new" in names


def _load_without_files(box: Box, shelf: Shelf) -> None:
    box.write_byte = box.write_msg = 0
    promised = max(box.whole, shelf.promised(box.digest))
    box.write_file = max(box.write_file, promised[0])
    if promised[2] > box.read_seq:
        tell_lost(box, shelf, box.read_seq, promised[2] - 1)
        _begin_with_gap(box, shelf, box.read_seq, promised[2] - 1)
        box.read_file, box.read_msg, box.read_byte = box.write_file, 0, HEADER_SIZE
    else:
        box.read_seq = box.next_seq  # What is in between was never promised.


def tell_lost(box: Box, shelf: Shelf, first: int, last: int) -> None:
    reason = f"{last - first + 1} messages are gone"
    shelf.report("mailbox_damaged", mailbox=box.id, file=PREFIX, reason=reason)


def _begin_with_gap(box: Box, shelf: Shelf, first: int, last: int) -> None:
    """A file that says which messages are gone, in place of one that is not there."""
    now = shelf.now()
    next_seq = max(box.next_seq, last + 1)
    place = box.read_file, box.read_msg, box.read_byte
    box.write_byte, box.next_seq = 0, first
    header = begin_file(box, shelf, now, [])
    gap = encode_range(Type.GAP, first, last, now, box.salt, HEADER_SIZE)
    entry = Entry(first, box.write_file, HEADER_SIZE, len(gap), "", now, Type.GAP, last)
    append(box, shelf, [header, gap], [entry], [])
    box.write_msg, box.next_seq = 0, last + 1
    box.read_file, box.read_msg, box.read_byte = place
    if next_seq > box.next_seq:
        _fill(box, shelf, box.next_seq, next_seq - 1)
    sync_path(shelf.disk, box.path(box.write_file))
    shelf.disk.sync_folder(box.folder)


def _fill(box: Box, shelf: Shelf, first: int, last: int) -> None:
    """Of these messages nobody was told that they are on disk."""
    data = encode_range(Type.VOID, first, last, shelf.now(), box.salt, box.write_byte)
    shelf.changing()
    shelf.disk.write(shelf.files.get(box.path(box.write_file)), data, box.write_byte)
    box.write_byte += len(data)
    box.next_seq = last + 1


class _Reading:
    """The message files of one box, oldest first."""

    def __init__(self, box: Box, shelf: Shelf, state: State | None, files: list[int]) -> None:
        self._box = box
        self._shelf = shelf
        self._whole = max(NOTHING if state is None else state.whole, shelf.promised(box.digest))
        self._has_state = state is not None
        self._files = files
        self._headers: dict[int, Header] = {}
        self._pending: list[Entry] = []
        self._acked: list[str] = []
        self._read_msg: dict[int, int] = {}
        self._wipes: list[Entry] = []
        self._expected = 0
        self._end = 0
        self._count = 0

    def run(self) -> None:
        contents = self._read_headers()
        if contents is None:
            return
        if not contents:
            _load_without_files(self._box, self._shelf)
            return
        first = self._headers[self._files[0]].first_seq
        self._expected = first
        previous = 0
        for file, content in contents.items():
            if not (self._follows(previous, file) and self._read_file(file, content)):
                return
            previous = file
        if self._expected < self._whole[2] and self._whole[0] <= previous:
            self._halt(f"messages {self._expected} to {self._whole[2] - 1} are missing, and")
            return
        self._settle(first)

    def _read_headers(self) -> dict[int, bytes] | None:
        box, contents = self._box, {}
        for file in list(self._files):
            content = read_whole(self._shelf.disk, box.path(file)) or b""
            header = Header.decode(content)
            if header is None and self._is_unfinished(file, content):
                # It was being made when everything stopped: nobody was told of its content.
                self._keep(file, 0, content)
                self._shelf.changing()
                self._shelf.disk.unlink(box.path(file))
                self._files.remove(file)
            elif header is None:
                self._halt(f"the header of file {file} is")
                return None
            elif header.id != box.id or header.file != file:
                self._halt(f"file {file} is another one's, and its messages are")
                return None
            else:
                contents[file], self._headers[file] = content, header
        return contents

    def _was_whole(self, file: int, offset: int) -> bool:
        return (file, offset) < self._whole[:2]

    def _is_unfinished(self, file: int, content: bytes) -> bool:
        """Whether a file without a header is what a crash leaves."""
        if self._was_whole(file, 0):
            return False
        is_empty = len(content) <= HEADER_SIZE or not any(content)
        return is_empty or self._is_from_before(file)

    def _is_from_before(self, file: int) -> bool:
        found = self._shelf.disk.stat_path(self._box.path(file))
        return found.st_mtime_ns // 1000 < self._shelf.booted_at

    def _follows(self, previous: int, file: int) -> bool:
        """Whether this file goes on where the one before it ended."""
        first = self._headers[file].first_seq
        if first > self._expected >= self._whole[2] and self._is_from_before(previous):
            self._bridge(previous, first)
        elif first != self._expected:
            self._halt(f"messages {self._expected} to {first - 1} are missing, and")
            return False
        return True

    def _bridge(self, file: int, first: int) -> None:
        """Messages before the next file were never promised, and are not there."""
        shelf, salt, now = self._shelf, self._headers[file].salt, self._shelf.now()
        data = encode_range(Type.VOID, self._expected, first - 1, now, salt, self._end)
        data += encode_record(Type.END, first, now, salt, self._end + len(data))
        shelf.changing()
        shelf.disk.write(shelf.files.get(self._box.path(file)), data, self._end)
        self._expected = first

    def _read_file(self, file: int, content: bytes) -> bool:
        salt = self._headers[file].salt
        # Damage among what was acknowledged takes nothing from anybody.
        done = self._box.read_byte if file == self._box.read_file else 0
        has_skipped = False
        self._end, self._count = HEADER_SIZE, 0
        for found in scan(content[HEADER_SIZE:], HEADER_SIZE, salt):
            if isinstance(found, Damage):
                self._end = min(found.end, max(found.offset, done))
                if found.end <= done:
                    has_skipped = True
                    continue
                is_hole = found.end < len(content) and not self._is_from_before(file)
                if is_hole or self._was_whole(file, self._end):
                    self._halt(f"file {file} is, from byte {found.offset} to {found.end},")
                    return False
                if has_skipped or found.offset < done:
                    self._expected = max(self._expected, self._box.read_seq)
                self._cut(file, self._end, content)
                break
            if has_skipped and self._expected < found.seq <= self._box.read_seq:
                self._expected = found.seq
            has_skipped = False
            if found.seq != self._expected:
                self._halt(f"messages {self._expected} to {found.seq - 1} are missing, and")
                return False
            if found.type == Type.END:
                if file == self._files[-1] and not self._was_whole(file, found.offset):
                    # The next file did not come to be.
                    self._cut(file, found.offset, b"")
                break
            self._take(file, found)
        if has_skipped:
            self._expected = max(self._expected, self._box.read_seq)
        return True

    def _take(self, file: int, record: Record) -> None:
        self._expected = record.last_seq + 1
        self._end = record.end
        if record.type in (Type.MESSAGE, Type.QUOTA):
            self._count += 1
        if record.type == Type.VOID:
            return
        entry = entry_of(record, file)
        if record.last_seq >= self._box.read_seq:
            self._pending.append(entry)
            return
        self._read_msg[file] = self._read_msg.get(file, 0) + 1
        self._wipes.append(entry)
        if record.type == Type.MESSAGE:
            self._acked.append(record.id)

    def _cut(self, file: int, offset: int, content: bytes) -> None:
        self._keep(file, offset, content)
        path = self._box.path(file)
        self._shelf.changing()
        self._shelf.disk.truncate(self._shelf.files.get(path), offset)

    def _keep(self, file: int, offset: int, content: bytes) -> None:
        """What is cut away though it looks like messages is kept for whoever wants to look."""
        header, box, disk = self._headers.get(file), self._box, self._shelf.disk
        data = content[offset:]
        if header is None:
            has_records = any(content[HEADER_SIZE:])
        else:
            has_records = any(isinstance(r, Record) for r in scan(data, offset, header.salt))
        if not has_records:
            return
        reason = f"cut off at byte {offset}, where it was never said to be on disk"
        self._shelf.report("mailbox_damaged", mailbox=box.id, file=box.path(file), reason=reason)
        keep(disk, box.folder, f"{PREFIX}{file:016d}.{offset}.{self._shelf.now()}", data)

    def _settle(self, first: int) -> None:
        box, shelf = self._box, self._shelf
        file = self._files[-1]
        header = self._headers[file]
        next_seq = box.next_seq
        box.write_file = file
        box.write_byte, box.write_msg, box.next_seq = self._end, self._count, self._expected
        box.salt, box.file_seq, box.created_at = header.salt, header.first_seq, header.at
        box.pending, box.acked = self._pending, dict.fromkeys(self._acked[-ACKED_MAX:])
        lost = min(first, self._whole[2]) - 1
        if self._has_state and lost >= box.read_seq:
            tell_lost(box, shelf, box.read_seq, lost)
            box.pending.insert(0, self._gap_before(header, lost))
        if self._expected < self._whole[2]:
            # The file with the last messages is gone.
            tell_lost(box, shelf, self._expected, self._whole[2] - 1)
            box.write_file, box.next_seq = self._whole[0], next_seq
            _begin_with_gap(box, shelf, self._expected, self._whole[2] - 1)
        elif next_seq > self._expected:
            _fill(box, shelf, self._expected, next_seq - 1)
        self._place()

    def _place(self) -> None:
        box, shelf = self._box, self._shelf
        where = (box.write_file, box.write_byte)
        if box.pending:
            where = (box.pending[0].file, box.pending[0].offset)
        box.read_file, box.read_byte = where
        box.read_msg = self._read_msg.get(box.read_file, 0)
        # Numbers in between are nobody's: they must not be missed when their file is gone.
        box.read_seq = box.pending[0].seq if box.pending else box.next_seq
        gone = [file for file in self._files if file < box.read_file]
        if gone:
            box.save(shelf)
            for file in gone:
                shelf.discard(box, file)
        if shelf.scrub == "ack":
            left = [entry for entry in self._wipes if entry.file == box.read_file]
            if left:
                box.save(shelf)
                shelf.wipe(box, left)

    def _gap_before(self, header: Header, last: int) -> Entry:
        """The file that was to be read is gone: the gap is told from memory, until it is acked."""
        file = self._files[0]
        return Entry(self._box.read_seq, file, HEADER_SIZE, 0, "", header.at, Type.GAP, last)

    def _halt(self, what: str) -> None:
        self._box.halted = f"{what} damaged"
        self._shelf.report("mailbox_damaged", mailbox=self._box.id, file=PREFIX, reason=what)


def keep(disk: Disk, folder: str, name: str, data: bytes) -> None:
    """A copy of damaged bytes, durable, for people."""
    try:
        disk.make_folder(f"{folder}/{QUARANTINE}")
    except FileExistsError:
        pass
    path = f"{folder}/{QUARANTINE}/{name}"
    file = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        disk.write(file, data, 0)
        disk.sync(file)
    finally:
        disk.close(file)
    disk.sync_folder(f"{folder}/{QUARANTINE}")
    disk.sync_folder(folder)
