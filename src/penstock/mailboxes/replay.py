"""The log of a process that died: what it has goes into the boxes it belongs to.

A process that was killed left everything in the boxes' files, and nothing is written here. After a
loss of power, files may end earlier than they did, or not be there: then the log writes them anew,
each message at its own place. Between two of them there may be one whose own log was not synced:
nobody was told that it is on disk, and its place is filled.
"""

from __future__ import annotations

import os

from penstock.mailboxes.box import Shelf, make_parents, path_of
from penstock.mailboxes.commit_log import STATE, WRITTEN, LogEntry
from penstock.mailboxes.record import (
    HEADER_SIZE,
    Damage,
    Header,
    Record,
    Type,
    decode_record,
    encode_range,
    scan,
)
from penstock.mailboxes.state import NAME, State, parse_line
from penstock.mailboxes.state_log import read_state, read_whole


def replay(shelf: Shelf, folder: str, entries: list[LogEntry]) -> bool:
    """Put the entries of one box into its files; under its lock. Whether anything was written."""
    shelf.changing()
    state, _ = read_state(shelf.disk, folder)
    has_written = False
    files: dict[int, list[LogEntry]] = {}
    for entry in entries:
        if entry.kind == WRITTEN and not _is_over(state, entry.file):
            files.setdefault(entry.file, []).append(entry)
    for file in sorted(files):
        written = sorted(files[file], key=lambda entry: entry.offset)
        has_written |= _File(shelf, folder, file).replay(written)
    states = [parse_line(entry.data) for entry in entries if entry.kind == STATE]
    last = max((found for found in states if found is not None), key=lambda s: s.n, default=None)
    if last is not None and (state is None or last.n > state.n):
        _append_state(shelf, folder, last)
        has_written = True
    return has_written


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
    def __init__(self, shelf: Shelf, folder: str, number: int) -> None:
        self._shelf = shelf
        self._folder = folder
        self._path = path_of(folder, number)
        self._salt = 0
        self._end = 0
        self._next_seq = 0

    def replay(self, entries: list[LogEntry]) -> bool:
        content = read_whole(self._shelf.disk, self._path) or b""
        header = Header.decode(content)
        if header is None:
            entries = _from_the_beginning(entries)
            if not entries:
                return False
            make_parents(self._shelf.disk, self._folder)
        else:
            self._salt = header.salt
            entries = [entry for entry in entries if entry.salt == header.salt]
            self._find_end(content, header)
        has_written = False
        for entry in entries:
            has_written |= self._write(entry)
        return has_written

    def _find_end(self, content: bytes, header: Header) -> None:
        self._end, self._next_seq = HEADER_SIZE, header.first_seq
        limit = self._shelf.limits.record_bytes_max
        for found in scan(content[HEADER_SIZE:], HEADER_SIZE, header.salt, limit):
            if isinstance(found, Damage):
                return
            self._end, self._next_seq = found.end, found.last_seq + 1

    def _write(self, entry: LogEntry) -> bool:
        data, offset = entry.data, entry.offset
        if offset + len(data) <= self._end:
            return False  # It is there, or another is in its place that came later.
        if offset < self._end:
            # Its beginning is there: a header whose records are missing, or some of its records.
            data, offset = data[self._end - offset :], self._end
        file = self._shelf.files.get(self._path, os.O_RDWR | os.O_CREAT)
        if offset == 0:
            header = Header.decode(data)
            if header is None:
                return False
            self._salt, self._next_seq = header.salt, header.first_seq
        elif offset > self._end:
            self._fill(file, entry, offset)
        self._shelf.disk.write(file, data, offset)
        self._end = offset + len(data)
        start = HEADER_SIZE if offset == 0 else 0
        limit = self._shelf.limits.record_bytes_max
        for found in scan(data[start:], offset + start, self._salt, limit):
            if isinstance(found, Record):
                self._next_seq = found.last_seq + 1
        return True

    def _fill(self, file: int, entry: LogEntry, offset: int) -> None:
        """Nobody was told that what was here is on disk, or it would be in a log."""
        limit = self._shelf.limits.record_bytes_max
        after = decode_record(entry.data, 0, offset, self._salt, limit)
        last = after.seq - 1 if isinstance(after, Record) else self._next_seq
        size = offset - self._end
        data = encode_range(
            Type.VOID, self._next_seq, last, self._shelf.now(), self._salt, self._end, size
        )
        self._shelf.disk.write(file, data, self._end)
        self._end += len(data)


def _from_the_beginning(entries: list[LogEntry]) -> list[LogEntry]:
    """Those of the file whose header is among them."""
    first = next((entry for entry in entries if entry.offset == 0), None)
    if first is None:
        return []
    return [entry for entry in entries if entry.salt == first.salt]
