"""Opening a box: what its files say, after whatever happened to them.

A write that was cut off is cut away. Bytes that are damaged though the box was told they are on
disk stop the box, until `repair` says what is to become of it. Files that are gone leave a gap,
which the recipient is told.
"""

from __future__ import annotations

from penstock.mailboxes.box import ACKED_MAX, PREFIX, SUFFIX, Box, Entry, Shelf, entry_of
from penstock.mailboxes.record import HEADER_SIZE, Damage, Header, Record, Type, encode_range, scan
from penstock.mailboxes.state import NAME, State
from penstock.mailboxes.state_log import read_state, read_whole, sync_path


def load(box: Box, shelf: Shelf) -> None:
    """Read the files of a box. Mends what a crash leaves; stops at what it cannot explain."""
    disk = shelf.disk
    box.is_loaded = True
    box.looked_at = box.state_looked_at = shelf.seen
    try:
        names = disk.list(box.folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    state, is_whole = read_state(disk, box.folder)
    box.log_mark = box.mark(shelf)
    files = sorted(
        int(name[len(PREFIX) : -len(SUFFIX)])
        for name in names
        if name.startswith(PREFIX) and name.endswith(SUFFIX)
    )
    if not is_whole:
        shelf.report("mailbox_damaged", mailbox=box.id, file=NAME, reason="a line is damaged")
    if state is not None:
        box.lines = state.n
        box.read_file, box.read_msg = state.read_file, state.read_msg
        box.read_byte, box.read_seq = state.read_byte, state.read_seq
        box.write_file, box.next_seq = state.write_file, max(state.write_seq, state.read_seq)
        for file in [file for file in files if file < state.read_file]:
            # It was read through; whoever wrote that down did not come to remove it.
            sync_path(disk, box.state_path)
            disk.unlink(box.path(file))
            files.remove(file)
    elif files:
        box.read_file = files[0]
    if files:
        _Reading(box, shelf, state, files).run()
    elif state is not None:
        _load_without_files(box, shelf, state)


def _load_without_files(box: Box, shelf: Shelf, state: State) -> None:
    box.write_byte = box.write_msg = 0
    lost = state.write_seq - state.read_seq
    if state.size and lost > 0 and not state.deleted:
        shelf.report(
            "mailbox_damaged", mailbox=box.id, file=PREFIX, reason=f"{lost} messages are gone"
        )
        box.next_seq = state.read_seq
        _begin_with_gap(box, shelf, state.read_seq, state.write_seq - 1)


def _begin_with_gap(box: Box, shelf: Shelf, first: int, last: int) -> None:
    """A file that says which messages are gone, in place of one that is not there."""
    now = shelf.now()
    header = box.begin_file(shelf, now, [])
    gap = encode_range(Type.GAP, first, last, now, box.salt, HEADER_SIZE)
    entry = Entry(first, box.write_file, HEADER_SIZE, len(gap), "", now, Type.GAP, last)
    box.flush(shelf, [header, gap], [entry], [])
    box.write_msg = 0
    box.next_seq = last + 1
    box.read_file, box.read_msg, box.read_byte = box.write_file, 0, HEADER_SIZE
    box.read_seq = first
    sync_path(shelf.disk, box.path(box.write_file))
    shelf.disk.sync_folder(box.folder)


class _Reading:
    """The message files of one box, oldest first."""

    def __init__(self, box: Box, shelf: Shelf, state: State | None, files: list[int]) -> None:
        self._box = box
        self._shelf = shelf
        self._state = state
        self._files = files
        self._headers: dict[int, Header] = {}
        self._pending: list[Entry] = []
        self._acked: list[str] = []
        self._read_msg: dict[int, int] = {}
        self._expected = 0
        self._end = 0
        self._count = 0

    def run(self) -> None:
        box, shelf, state = self._box, self._shelf, self._state
        contents: dict[int, bytes] = {}
        for file in list(self._files):
            content = read_whole(shelf.disk, box.path(file)) or b""
            header = Header.decode(content)
            if header is None and file == self._files[-1] and self._is_unfinished(file, content):
                self._set_aside(file, content)
                continue
            if header is None:
                self._halt(f"the header of file {file} is")
                return
            if header.id != box.id or header.file != file:
                self._halt(f"file {file} is another one's, and its messages are")
                return
            contents[file], self._headers[file] = content, header
        if not self._files:
            if state is not None:
                _load_without_files(box, shelf, state)
            return
        first = self._headers[self._files[0]]
        self._expected = first.first_seq
        lost = 0 if state is None else first.first_seq - state.read_seq
        if lost > 0:
            self._tell_lost(box.read_seq, first.first_seq - 1)
        for file, content in contents.items():
            if not self._read_file(file, content):
                return
        self._settle(max(lost, 0))

    def _is_unfinished(self, file: int, content: bytes) -> bool:
        """A file that was being made when everything stopped: nobody was told of its content."""
        state = self._state
        is_known = state is not None and file == state.write_file and state.durable > 0
        return not is_known and (len(content) <= HEADER_SIZE or not any(content))

    def _set_aside(self, file: int, content: bytes) -> None:
        disk, path = self._shelf.disk, self._box.path(file)
        if any(content):
            self._shelf.report(
                "mailbox_damaged", mailbox=self._box.id, file=path, reason="it was not finished"
            )
        disk.unlink(path)
        self._files.remove(file)

    def _tell_lost(self, first: int, last: int) -> None:
        self._shelf.report(
            "mailbox_damaged",
            mailbox=self._box.id,
            file=PREFIX,
            reason=f"{last - first + 1} messages are gone",
        )

    def _halt(self, what: str) -> None:
        self._box.halted = f"{what} damaged"
        self._shelf.report("mailbox_damaged", mailbox=self._box.id, file=PREFIX, reason=what)

    def _read_file(self, file: int, content: bytes) -> bool:
        header = self._headers[file]
        if header.first_seq != self._expected:
            self._halt(f"messages {self._expected} to {header.first_seq - 1} are missing, and")
            return False
        self._end, self._count = HEADER_SIZE, 0
        limit = self._shelf.limits.record_bytes_max
        for found in scan(content[HEADER_SIZE:], HEADER_SIZE, header.salt, limit):
            if isinstance(found, Damage):
                if found.end < len(content) or not self._can_cut(file, found.offset):
                    self._halt(f"file {file} is, from byte {found.offset} to {found.end},")
                    return False
                self._cut(file, found.offset)
                break
            if found.seq != self._expected:
                self._halt(f"messages {self._expected} to {found.seq - 1} are missing, and")
                return False
            if found.type == Type.END:
                if file == self._files[-1]:
                    # The next file did not come to be.
                    self._cut(file, found.offset)
                break
            self._take(file, found)
        return True

    def _take(self, file: int, record: Record) -> None:
        self._expected = record.last_seq + 1
        self._end = record.end
        if record.type in (Type.MESSAGE, Type.QUOTA):
            self._count += 1
        if record.type == Type.VOID:
            return
        if record.last_seq >= self._box.read_seq:
            self._pending.append(entry_of(record, file))
            return
        self._read_msg[file] = self._read_msg.get(file, 0) + 1
        if record.type == Type.MESSAGE:
            self._acked.append(record.id)

    def _can_cut(self, file: int, offset: int) -> bool:
        state = self._state
        if state is not None and file == state.write_file and offset < state.durable:
            return False
        later = [number for number in self._files if number > file]
        return not later or self._headers[later[0]].first_seq == self._expected

    def _cut(self, file: int, offset: int) -> None:
        path = self._box.path(file)
        self._shelf.files.drop(path)
        self._shelf.changing()
        self._shelf.disk.truncate(self._shelf.files.get(path), offset)

    def _settle(self, lost: int) -> None:
        box, shelf, state = self._box, self._shelf, self._state
        file = self._files[-1]
        header = self._headers[file]
        box.write_file, box.write_byte, box.write_msg = file, self._end, self._count
        box.salt, box.file_seq, box.created_at = header.salt, header.first_seq, header.at
        if state is not None and state.write_file == file:
            box.durable = min(state.durable, self._end)
        box.pending, box.acked = self._pending, dict.fromkeys(self._acked[-ACKED_MAX:])
        if lost:
            box.pending.insert(0, self._gap_before(header, lost))
        if box.next_seq > self._expected:
            # Of these messages nobody was told that they are on disk.
            self._fill(self._expected, box.next_seq - 1)
        box.next_seq = max(box.next_seq, self._expected)
        where = (box.pending[0].file, box.pending[0].offset) if box.pending else (file, self._end)
        box.read_file, box.read_byte = where
        box.read_msg = self._read_msg.get(box.read_file, 0)
        for older in self._files[:-1]:
            if older < box.read_file:
                box.save(shelf)
                shelf.discard(box, older)

    def _gap_before(self, header: Header, lost: int) -> Entry:
        """The file that was to be read is gone: the gap is told from memory, until it is acked."""
        first = self._headers[self._files[0]]
        seq = first.first_seq - lost
        return Entry(
            seq, self._files[0], HEADER_SIZE, 0, "", header.at, Type.GAP, first.first_seq - 1
        )

    def _fill(self, first: int, last: int) -> None:
        box, shelf = self._box, self._shelf
        data = encode_range(Type.VOID, first, last, shelf.now(), box.salt, box.write_byte)
        shelf.changing()
        shelf.disk.write(shelf.files.get(box.path(box.write_file)), data, box.write_byte)
        box.write_byte += len(data)
        self._end = box.write_byte
