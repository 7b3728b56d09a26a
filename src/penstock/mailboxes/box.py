"""One box: what is in its files, and the changes to them.

Everything here happens under the box's lock, which excludes all processes. What another process
did meanwhile shows in the size of the message file and in the state log, which are looked at first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from penstock.errors import MailboxCorrupt, WrongAck
from penstock.mailboxes.disk import make_parents
from penstock.mailboxes.locking import number_of
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
from penstock.mailboxes.shelf import Entry, Shelf, entry_of, mail_id, path_of
from penstock.mailboxes.state import NAME, NOTHING, State
from penstock.mailboxes.state_log import compact, read_state

ACKED_MAX = 64
"""Ids of acknowledged messages that are remembered, so that one put again is not taken twice."""
FEW = 8
"""Up to so many messages are looked through one by one."""
COMPACT_BYTES = 64 * 1024


class Box:
    __slots__ = (
        "acked",
        "created_at",
        "digest",
        "file_seq",
        "folder",
        "halted",
        "hidden",
        "id",
        "ids",
        "is_loaded",
        "is_torn",
        "lines",
        "log_mark",
        "looked_at",
        "next_seq",
        "number",
        "pending",
        "read_byte",
        "read_file",
        "read_msg",
        "read_seq",
        "salt",
        "saved",
        "state_looked_at",
        "whole",
        "write_byte",
        "write_file",
        "write_msg",
        "write_path",
    )

    def __init__(self, id: str, digest: bytes, folder: str) -> None:
        self.id = id
        self.digest = digest
        self.number = number_of(digest)
        self.folder = folder
        self.hidden: tuple[Any, ...] = ()
        """Who puts what is not on disk yet, and shown to nobody: groups, each with the number of
        its first message, in the order of these."""
        self.forget()

    def forget(self) -> None:
        """What is known of the files: all of it is read again at the next use."""
        self.is_loaded = False
        self.halted = ""
        self.pending: list[Entry] = []
        self.acked: dict[str, None] = {}
        self.read_file, self.read_msg, self.read_byte, self.read_seq = 1, 0, 0, 1
        self.write_file, self.write_msg, self.write_byte, self.next_seq = 0, 0, 0, 1
        self.salt = self.created_at = self.file_seq = 0
        self.whole = self.saved = NOTHING
        self.lines = 0
        self.is_torn = False
        self.ids: dict[str, int] | None = None
        self.looked_at = self.state_looked_at = -1
        self.write_path = ""
        self.log_mark: tuple[int, int] | None = None

    # What others did

    def look(self, shelf: Shelf) -> None:
        """Know what is in the message files. Raises `MailboxCorrupt` if that cannot be told."""
        if self.halted:
            self._reload(shelf)  # It may have been mended by other means.
        elif not self.is_loaded:
            shelf.load(self)
        elif self.looked_at == shelf.seen:
            pass
        elif self.write_byte:
            self._look_at_file(shelf)
        elif self.mark(shelf) != self.log_mark or self._exists(shelf):
            self._reload(shelf)
        self.looked_at = shelf.seen
        if self.halted:
            raise MailboxCorrupt(f"The mailbox {self.id!r} is damaged: {self.halted}.")

    def _look_at_file(self, shelf: Shelf) -> None:
        try:
            file = shelf.files.get(self.find_write_path())
        except FileNotFoundError:
            self._reload(shelf)
            return
        found = shelf.disk.stat(file)
        if found.st_nlink == 0 or found.st_size < self.write_byte:
            self._reload(shelf)
        elif found.st_size > self.write_byte:
            self._roll_forward(shelf, file, found.st_size)

    def look_at_state(self, shelf: Shelf) -> None:
        """Know how far others have read."""
        if self.state_looked_at == shelf.seen:
            return
        self.state_looked_at = shelf.seen
        mark = self.mark(shelf)
        if mark == self.log_mark:
            return
        if mark is None or self.log_mark is None or mark[0] != self.log_mark[0]:
            # Another process has compacted it: a line in the old one would be read by nobody.
            shelf.files.drop(self.state_path)
        state, is_whole = read_state(shelf.disk, self.folder) if mark else (None, True)
        if state is None or state.deleted or state.read_file > max(self.write_file, 1):
            self._reload(shelf)
            return
        self.log_mark, self.is_torn = mark, not is_whole
        self.lines = max(self.lines, state.n)
        self.saved = state.whole
        self.whole = max(self.whole, self.saved)
        self._read_through(state.read_seq)
        self.read_file, self.read_msg = state.read_file, state.read_msg
        self.read_byte, self.read_seq = state.read_byte, state.read_seq

    def _reload(self, shelf: Shelf) -> None:
        for file in {self.read_file, self.write_file}:
            shelf.files.drop(self.path(file))
        shelf.files.drop(self.state_path)
        self.forget()
        shelf.load(self)

    def _roll_forward(self, shelf: Shelf, file: int, size: int) -> None:
        """Another process has put messages."""
        data = shelf.disk.read(file, size - self.write_byte, self.write_byte)
        for found in scan(data, self.write_byte, self.salt):
            if isinstance(found, Damage) or found.type == Type.END or found.seq != self.next_seq:
                self._reload(shelf)
                return
            self.take(found)

    def take(self, record: Record) -> None:
        """A record at the end of the write file."""
        self.next_seq = record.last_seq + 1
        self.write_byte = record.end
        if record.type in (Type.MESSAGE, Type.QUOTA):
            self.write_msg += 1
        if record.type in (Type.MESSAGE, Type.QUOTA, Type.GAP):
            self.pending.append(entry_of(record, self.write_file))
            if self.ids is not None and record.type == Type.MESSAGE:
                self.ids[record.id] = record.seq

    def _exists(self, shelf: Shelf) -> bool:
        """A box without a message file: whether another process has made one."""
        try:
            shelf.disk.stat_path(self.path(self.write_file + 1))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    # Putting: the rest is in `putting`

    @property
    def can_write(self) -> bool:
        return not (self.pending and self.pending[-1].type == Type.QUOTA)

    def known(self, id: str, entries: Sequence[Entry] = ()) -> int:
        """The number of a message with this id, if the box has it or had it a moment ago."""
        ids = self.ids
        if ids is None and len(self.pending) > FEW:
            ids = self.ids = {e.id: e.seq for e in self.pending if e.type == Type.MESSAGE}
        if ids is not None:
            if id in ids:
                return ids[id]
        else:
            for entry in self.pending:
                if entry.id == id and entry.type == Type.MESSAGE:
                    return entry.seq
        for entry in entries:
            if entry.id == id and entry.type == Type.MESSAGE:
                return entry.seq
        return self.read_seq - 1 if id in self.acked else 0

    def header(self) -> Header:
        return Header(self.id, self.write_file, self.salt, self.file_seq, self.created_at)

    def header_of(self, shelf: Shelf, file: int) -> bytes:
        if file == self.write_file:
            return self.header().encode()
        return shelf.disk.read(shelf.files.get(self.path(file)), HEADER_SIZE, 0)

    def make_folder(self, shelf: Shelf) -> None:
        try:
            shelf.disk.make_folder(self.folder)
        except FileExistsError:
            return
        except FileNotFoundError:
            make_parents(shelf.disk, self.folder)

    # Reading

    def read(self, shelf: Shelf, entry: Entry) -> Record:
        file = shelf.files.get(self.path(entry.file))
        data = shelf.disk.read(file, entry.size, entry.offset)
        found = decode_record(data, 0, entry.offset, self.salt_of(shelf, entry.file))
        if isinstance(found, Record) and found.seq == entry.seq:
            return found
        self.forget()
        reason = found if isinstance(found, str) else "another message is in its place"
        raise MailboxCorrupt(
            f"The message {entry.id!r} of the mailbox {self.id!r} is damaged: {reason}."
        )

    def salt_of(self, shelf: Shelf, file: int) -> int:
        if file == self.write_file:
            return self.salt
        header = Header.decode(shelf.disk.read(shelf.files.get(self.path(file)), HEADER_SIZE, 0))
        return header.salt if header is not None else 0

    @property
    def hidden_from(self) -> int:
        """Messages from this number on are not on disk yet. 0: none."""
        hidden = self.hidden  # Also for those who hold no lock.
        return hidden[1] if hidden else 0

    @property
    def visible(self) -> list[Entry]:
        first = self.hidden_from
        if not first:
            return self.pending
        return [entry for entry in self.pending if entry.seq < first]

    def hide(self, group: object, seq: int) -> None:
        """From this message on, until the group that it belongs to is shown."""
        if group not in self.hidden:
            self.hidden += (group, seq)

    def show(self, group: object) -> None:
        """What this group has put is on disk."""
        hidden = self.hidden
        if len(hidden) == 2 and hidden[0] is group:
            self.hidden = ()
        elif group in hidden:
            place = hidden.index(group)
            self.hidden = hidden[:place] + hidden[place + 2 :]

    # Acknowledging

    def ack(self, shelf: Shelf, id: str, *, is_through: bool) -> int:
        """Remove the first message, which must be this one; or all up to it. Returns how many."""
        visible = self.visible
        places = range(len(visible)) if is_through else range(min(1, len(visible)))
        place = next((n for n in places if mail_id(visible[n]) == id), None)
        if place is None:
            if id in self.acked:
                return 0
            raise WrongAck(
                f"{id!r} is not the first message of the mailbox {self.id!r}."
                if visible
                else f"The mailbox {self.id!r} has no message to acknowledge."
            )
        self.drop(shelf, place + 1)
        return place + 1

    def drop(self, shelf: Shelf, count: int) -> None:
        """Acknowledge the first so many."""
        gone = self.pending[:count]
        last = gone[-1]
        old_file = self.read_file
        self._read_through(last.last_seq + 1)
        # Numbers in between are nobody's: they must not be missed when their file is gone.
        self.read_seq = self.pending[0].seq if self.pending else self.next_seq
        if self.pending:
            self._read_from(self.pending[0].file, self.pending[0].offset)
        elif shelf.scrub == "drained":
            self._read_from(self.write_file + 1, 0)
        else:
            self._read_from(self.write_file, self.write_byte)
        if self.read_file == last.file:
            self.read_msg += sum(entry.file == last.file for entry in gone)
        written = self.write_file
        if self.read_file > self.write_file:
            # The last file goes, too; the next message begins another.
            self.write_byte = self.write_msg = 0
        self.save(shelf)
        for file in range(old_file, min(self.read_file, written + 1)):
            shelf.discard(self, file)
        if shelf.scrub == "ack":
            shelf.wipe(self, [entry for entry in gone if entry.file >= self.read_file])

    def _read_from(self, file: int, offset: int) -> None:
        if file != self.read_file:
            self.read_file, self.read_msg = file, 0
        self.read_byte = offset

    def _read_through(self, read_seq: int) -> None:
        pending = self.pending
        count = 0
        while count < len(pending) and pending[count].seq < read_seq:
            count += 1
        if count:
            ids = [entry.id for entry in pending[:count] if entry.type == Type.MESSAGE]
            self.acked.update(dict.fromkeys(ids))
            for old in list(self.acked)[: max(0, len(self.acked) - ACKED_MAX)]:
                del self.acked[old]
            del pending[:count]
            if self.ids is not None:
                if len(pending) <= FEW:
                    self.ids = None
                else:
                    for id in ids:
                        self.ids.pop(id, None)
        self.read_seq = max(self.read_seq, read_seq)

    def wipe(self, shelf: Shelf, entry: Entry) -> None:
        """Write over a message that was acknowledged. Its file may be gone, or another by now."""
        try:
            file = shelf.files.get(self.path(entry.file))
        except FileNotFoundError:
            return
        salt = self.salt_of(shelf, entry.file)
        data = shelf.disk.read(file, entry.size, entry.offset)
        found = decode_record(data, 0, entry.offset, salt)
        if isinstance(found, Record) and found.seq == entry.seq < self.read_seq:
            data = encode_range(
                Type.VOID, entry.seq, entry.last_seq, entry.at, salt, entry.offset, entry.size
            )
            shelf.changing()
            shelf.disk.write(file, data, entry.offset)

    def save(self, shelf: Shelf, *, is_deleted: bool = False, is_noted: bool = True) -> None:
        """Write a line of state. If noted, it is on disk soon."""
        self.lines += 1
        line = self.state(is_deleted=is_deleted).line()
        self.make_folder(shelf)
        shelf.changing()
        file = shelf.files.get(self.state_path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        # A line that was cut off must not spoil this one.
        text = b"\n" + line if self.is_torn else line
        try:
            shelf.disk.append(file, text)
        except OSError as error:
            shelf.disk.truncate(file, 0 if self.log_mark is None else self.log_mark[1])
            if not shelf.make_room(error):
                raise
            shelf.disk.append(file, text)
        found = shelf.disk.stat(file)
        self.log_mark = (found.st_ino, found.st_size)
        self.is_torn, self.saved = False, self.whole
        if is_noted:
            shelf.note(self, line)
        if found.st_size > COMPACT_BYTES:
            shelf.files.drop(self.state_path)
            self.log_mark = compact(
                shelf.disk,
                self.folder,
                line,
                shelf.now(),
                shelf.limits.history_min,
                shelf.limits.history_seconds,
            )

    def state(self, *, is_deleted: bool = False) -> State:
        return State(
            n=self.lines,
            read_file=self.read_file,
            read_msg=self.read_msg,
            read_byte=self.read_byte,
            read_seq=self.read_seq,
            write_file=self.write_file,
            write_msg=self.write_msg,
            write_byte=self.write_byte,
            write_seq=self.next_seq,
            size=len(self.pending),
            can_write=self.can_write,
            durable_file=self.whole[0],
            durable_byte=self.whole[1],
            durable_seq=self.whole[2],
            deleted=is_deleted,
        )

    # Names

    def path(self, file: int) -> str:
        return path_of(self.folder, file)

    def find_write_path(self) -> str:
        if not self.write_path:
            self.write_path = self.path(self.write_file)
        return self.write_path

    @property
    def state_path(self) -> str:
        return f"{self.folder}/{NAME}"

    def mark(self, shelf: Shelf) -> tuple[int, int] | None:
        try:
            found = shelf.disk.stat_path(self.state_path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_ino, found.st_size
