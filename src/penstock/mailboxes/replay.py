"""The log of a process that died: what it has goes into the boxes it belongs to.

A process that was killed left everything in the boxes' files, and nothing new is written here.
After a loss of power, files may end earlier than they did, have holes, or not be there: then the
log writes them anew, each message at its own place. Between two of them there may be one whose own
log was not synced: nobody was told that it is on disk, and its place is filled. Only what the state
says was on disk is left as it is, however it looks: that is damage, and not ours to hide.
"""

from __future__ import annotations

import os

from penstock.mailboxes.commit_log import STATE, WRITTEN, LogEntry
from penstock.mailboxes.disk import make_parents
from penstock.mailboxes.record import (
    HEADER_SIZE,
    OVERHEAD,
    RANGE_SIZE,
    Header,
    Record,
    Type,
    decode_record,
    encode_range,
)
from penstock.mailboxes.shelf import Shelf, path_of
from penstock.mailboxes.state import NAME, NOTHING, State, Whole, parse_line
from penstock.mailboxes.state_log import read_state, read_whole


def replay(shelf: Shelf, folder: str, entries: list[LogEntry]) -> str | None:
    """Put the entries of one box into its files; under its lock. The name of the box, if known."""
    shelf.changing()
    found, _ = read_state(shelf.disk, folder)
    state = _latest(entries, found)
    if state is not None and state is not found:
        _append_state(shelf, folder, state)
    files: dict[int, list[LogEntry]] = {}
    for entry in entries:
        if entry.kind == WRITTEN and not _is_over(state, entry.file):
            files.setdefault(entry.file, []).append(entry)
    whole = NOTHING if state is None else state.whole
    id: str | None = None
    for file in sorted(files):
        id = _File(shelf, folder, file, whole).replay(files[file]) or id
    return id


def _latest(entries: list[LogEntry], found: State | None) -> State | None:
    latest = found
    for entry in entries:
        state = parse_line(entry.data) if entry.kind == STATE else None
        if state is not None and (latest is None or state.n > latest.n):
            latest = state
    return latest


def _is_over(state: State | None, file: int) -> bool:
    """Whether the box was read beyond this file, or emptied and removed."""
    if state is None:
        return False
    return file < state.read_file or (state.deleted and file <= state.write_file)


def _append_state(shelf: Shelf, folder: str, state: State) -> None:
    make_parents(shelf.disk, folder)
    path = f"{folder}/{NAME}"
    shelf.files.drop(path)
    file = shelf.files.get(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    # A line that was cut off must not spoil this one.
    shelf.disk.append(file, b"\n" + state.line())


class _File:
    """One message file, as it is and as the log says it was."""

    def __init__(self, shelf: Shelf, folder: str, number: int, whole: Whole) -> None:
        self._shelf = shelf
        self._folder = folder
        self._path = path_of(folder, number)
        self._content = bytearray(read_whole(shelf.disk, self._path) or b"")
        self._whole_to = whole[1] if number == whole[0] else 0
        if number < whole[0]:
            self._whole_to = len(self._content)
        self._salt = 0
        self._start = len(self._content)
        """From here on it is written."""
        self._end = 0
        """Up to here it is whole."""
        self._next_seq = 0

    def replay(self, entries: list[LogEntry]) -> str | None:
        entries = sorted(entries, key=lambda entry: entry.offset)
        header = Header.decode(self._content)
        if header is None:
            first = next((entry for entry in entries if entry.offset == 0), None)
            if first is None and not self._whole_to:
                return None  # It was read through, and removed.
            self._salt = (first or entries[0]).salt
        else:
            self._begin(header)
        for entry in entries:
            if entry.salt == self._salt:
                self._start = min(self._start, entry.offset)
                self._put(entry)
        if self._start < len(self._content):
            self._write()
        header = Header.decode(self._content)
        return None if header is None else header.id

    def _begin(self, header: Header) -> None:
        self._salt, self._next_seq, self._end = header.salt, header.first_seq, HEADER_SIZE
        self._go_on()

    def _go_on(self) -> None:
        """Over all records that are there."""
        while True:
            found = decode_record(self._content, self._end, 0, self._salt)
            if not isinstance(found, Record) or found.seq != self._next_seq:
                return
            self._end, self._next_seq = found.end, found.last_seq + 1

    def _put(self, entry: LogEntry) -> None:
        offset, end = entry.offset, entry.offset + len(entry.data)
        if end <= self._end:
            return  # It is there, or has been written over since.
        if offset > self._end >= max(self._whole_to, HEADER_SIZE):
            self._fill(entry)
        start = max(offset, min(self._end, end))
        if len(self._content) < start:
            self._content.extend(bytes(start - len(self._content)))
        self._content[start:end] = entry.data[start - offset :]
        if offset == 0:
            header = Header.decode(self._content)
            assert header is not None, "it was logged with its header"
            self._begin(header)
        elif offset > self._end:
            self._end = offset  # Before it is damage that stays.
            found = decode_record(self._content, offset, 0, self._salt)
            self._next_seq = found.seq if isinstance(found, Record) else 0
        self._go_on()

    def _fill(self, entry: LogEntry) -> None:
        """Nobody was told that what was here is on disk, or it would be in a log."""
        after = decode_record(entry.data, 0, entry.offset, self._salt)
        size, first = entry.offset - self._end, self._next_seq
        if not isinstance(after, Record) or after.seq <= first or size < OVERHEAD:
            return
        if size < RANGE_SIZE and after.seq - 1 > first:
            return
        now = self._shelf.now()
        data = encode_range(Type.VOID, first, after.seq - 1, now, self._salt, self._end, size)
        self._content[self._end : entry.offset] = data
        self._start = min(self._start, self._end)
        self._end, self._next_seq = entry.offset, after.seq

    def _write(self) -> None:
        """All of it, also what is there: a sync that failed may have left it in memory only."""
        make_parents(self._shelf.disk, self._folder)
        self._shelf.files.drop(self._path)
        file = self._shelf.files.get(self._path, os.O_RDWR | os.O_CREAT)
        self._shelf.disk.write(file, bytes(self._content[self._start :]), self._start)
