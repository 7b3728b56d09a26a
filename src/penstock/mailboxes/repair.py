"""Mending a damaged box: what can be read is kept, and the recipient is told what cannot.

All that waits and is whole goes into one new file, with gaps where messages are gone. That file is
on disk before the state says that it holds, under another name: interrupted before, nothing has
happened, and interrupted after, whoever opens the box gives it its name. The damaged files stay in
the box's quarantine, for people.
"""

from __future__ import annotations

import os

import msgspec

from penstock.mailboxes.box import Box
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.inspection import BoxFiles, Finding, read_box
from penstock.mailboxes.record import HEADER_SIZE, Header, Type, encode_range, encode_record
from penstock.mailboxes.recovery import QUARANTINE, keep, message_files
from penstock.mailboxes.shelf import path_of
from penstock.mailboxes.state import NAME, State
from penstock.mailboxes.state_log import read_whole


class Repaired(msgspec.Struct, frozen=True):
    """What became of a box."""

    mailbox: str
    findings: list[Finding]
    """What was wrong. Nothing: nothing was done."""
    kept: int = 0
    lost: int = 0
    """Messages that are gaps now."""
    quarantine: list[str] = []
    """The files as they were found, below the folder of all mailboxes."""


def repair(folder: Folder, id: str) -> Repaired:
    """Everybody goes on working, also with this box, when it is done."""
    with folder.locked(id) as box:
        found = read_box(folder, box.folder, box.digest)
        if not found.findings:
            return Repaired(id, [])
        repaired = _Repair(folder, box, found).run()
        box.forget()
    folder.arrivals.tell([box.number])
    folder.report("mailbox_repaired", mailbox=id, messages=repaired.kept, missing=repaired.lost)
    return repaired


class _Repair:
    def __init__(self, folder: Folder, box: Box, found: BoxFiles) -> None:
        self._folder = folder
        self._disk = folder.disk
        self._box = box
        self._found = found
        self._now = folder.now()
        self._old = State() if found.state is None else found.state
        names = self._disk.list(box.folder)
        self._numbers = message_files(names)
        self._number = max([0, self._old.write_file, *self._numbers]) + 1
        self._damaged = sorted({os.path.basename(finding.file) for finding in found.findings})
        self._kept = self._lost = 0

    def run(self) -> Repaired:
        folder, box, disk = self._folder, self._box, self._disk
        folder.changing()
        quarantine = self._quarantine()
        content, state = self._new_file()
        path = path_of(box.folder, self._number)
        write_new(disk, box.folder, path, content)
        write_new(disk, box.folder, box.state_path, state.line())
        disk.rename(f"{box.state_path}.new", box.state_path)
        disk.sync_folder(box.folder)
        disk.rename(f"{path}.new", path)
        for path in [path_of(box.folder, number) for number in self._numbers]:
            folder.files.drop(path)
            disk.unlink(path)
        for name in self._damaged:
            # Older state logs; and what an interrupted repair has left.
            if name.endswith(".new") or (name.startswith("queue.") and name != NAME):
                disk.unlink(f"{box.folder}/{name}")
        folder.files.drop(box.state_path)
        disk.sync_folder(box.folder)
        return Repaired(box.id, self._found.findings, self._kept, self._lost, quarantine)

    def _quarantine(self) -> list[str]:
        """The damaged files, as they were found."""
        box, kept = self._box, []
        for name in self._damaged:
            content = read_whole(self._disk, f"{box.folder}/{name}")
            if content is not None:
                copy = f"{name}.{self._now}"
                keep(self._disk, box.folder, copy, content)
                path = f"{box.folder}/{QUARANTINE}/{copy}"
                kept.append(path.removeprefix(f"{self._folder.root}/"))
        return kept

    def _new_file(self) -> tuple[bytes, State]:
        found, old = self._found, self._old
        spans = sorted((record.seq, record.last_seq) for _, record in found.records)
        first = found.read_seq
        end = max([first, old.write_seq, *[last + 1 for _, last in spans]])
        parts = {seq: record for seq, record in found.waiting.items() if seq >= first}
        gaps = dict(found.gaps)
        header = Header(self._box.id, self._number, self._folder.new_salt(), first, self._now)
        data = bytearray(header.encode())
        expected, count, has_quota = first, 0, False
        for seq in sorted({*parts, *gaps}):
            if seq < expected:
                continue
            if seq > expected:
                data += self._range(Type.VOID, expected, seq - 1, header, len(data))
            if seq in gaps:
                data += self._range(Type.GAP, seq, gaps[seq], header, len(data))
                self._lost += gaps[seq] - seq + 1
                expected = gaps[seq] + 1
                continue
            record = parts[seq]
            if record.type == Type.GAP:
                data += self._range(Type.GAP, seq, record.last_seq, header, len(data))
            else:
                data += encode_record(
                    record.type,
                    seq,
                    record.at,
                    header.salt,
                    len(data),
                    record.id.encode(),
                    record.attributes,
                    record.body,
                    record.encoding,
                )
                count += 1
                has_quota = record.type == Type.QUOTA
            self._kept += record.type == Type.MESSAGE
            expected = record.last_seq + 1
        if end > expected:
            data += self._range(Type.VOID, expected, end - 1, header, len(data))
        return bytes(data), self._state(first, end, len(data), count, not has_quota)

    def _range(self, type: Type, first: int, last: int, header: Header, offset: int) -> bytes:
        return encode_range(type, first, last, self._now, header.salt, offset)

    def _state(self, first: int, end: int, size: int, count: int, can_write: bool) -> State:
        return State(
            n=self._old.n + 1,
            read_file=self._number,
            read_byte=HEADER_SIZE,
            read_seq=first,
            write_file=self._number,
            write_msg=count,
            write_byte=size,
            write_seq=end,
            size=count,
            can_write=can_write,
            durable_file=self._number,
            durable_byte=size,
            durable_seq=end,
        )


def write_new(disk: Disk, folder: str, path: str, content: bytes) -> None:
    """All of it is on disk when it gets its name."""
    file = disk.open(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        disk.write(file, content, 0)
        disk.sync(file)
    finally:
        disk.close(file)
    disk.sync_folder(folder)
