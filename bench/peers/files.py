"""Bare files: what the cost of mailboxes is measured against, and the least that Python needs."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import mmap
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from crc32c import crc32c

from bench.process import Link, Meter
from penstock.mail import Posted, new_mail_id
from penstock.mailboxes.record import DIGEST_SIZE, OVERHEAD, Type, encode_record
from penstock.mailboxes.shelf import Entry

FILES = 64
LOG_BYTES = 16 * 1024 * 1024
_pack_lock = struct.Struct("hhqqi4x").pack
_pack_count = struct.Struct("@Q").pack_into
_pack_check = struct.Struct("<I").pack
_pack_entry = struct.Struct(f"<IB3x{DIGEST_SIZE}sQIQ").pack
_SET = getattr(fcntl, "F_OFD_SETLK", 37)


def record_of(body_bytes: int) -> bytes:
    """As many bytes as a record of such a body has."""
    return bytes(body_bytes + OVERHEAD + len(new_mail_id()))


def open_files() -> list[int]:
    return [os.open(f"file-{number}", os.O_RDWR | os.O_CREAT) for number in range(FILES)]


def sync_each(link: Link, *, body_bytes: int, writes: int) -> dict[str, Any]:
    """To 64 files in turn, `fdatasync` after each."""
    files, data = open_files(), record_of(body_bytes)
    link.ready()
    link.wait_go()
    with Meter() as meter:
        for number in range(writes):
            file = files[number % FILES]
            os.pwrite(file, data, (number // FILES) * len(data))
            os.fdatasync(file)
    return {"per_second": writes / meter.seconds}


def write_each(link: Link, *, body_bytes: int, writes: int) -> dict[str, Any]:
    """To 64 files in turn; and once more, with all that a shared box cannot do without."""
    files, data = open_files(), record_of(body_bytes)
    link.ready()
    link.wait_go()
    with Meter() as meter:
        for number in range(writes):
            os.pwrite(files[number % FILES], data, (number // FILES) * len(data))
    box = BareBox(files, (writes // FILES + 1) * len(data))
    body = bytes(body_bytes)
    with Meter() as bare_box:
        for number in range(writes):
            box.put(number % FILES, body)
    return {"per_second": writes / meter.seconds, "put_per_second": writes / bare_box.seconds}


class BareBox:
    """As little Python as a put into a shared box can be done with.

    A mutex for threads, a lock for processes, a look whether others have written, an id, a record
    with two checksums, a place to find it again, a receipt. No folders, rotation, quota, options,
    errors or counts.
    """

    def __init__(self, files: list[int], end: int) -> None:
        self._files = files
        self._ends = [end] * len(files)
        self._pending: list[list[Entry]] = [[] for _ in files]
        self._seqs = [1] * len(files)
        self._locks = os.open("locks", os.O_RDWR | os.O_CREAT)
        self._changes = mmap.mmap(-1, mmap.PAGESIZE)
        self._seen = self._changes[8:]
        self._mutex = threading.Lock()
        self._salt = 1

    def put(self, box: int, body: bytes) -> Posted:
        id = new_mail_id()
        with self._mutex:
            fcntl.fcntl(self._locks, _SET, _pack_lock(fcntl.F_WRLCK, os.SEEK_SET, box, 1, 0))
            try:
                if self._changes[8:] != self._seen:
                    raise RuntimeError("somebody else is here")
                _pack_count(self._changes, 0, box)
                seq, offset, now = self._seqs[box], self._ends[box], time.time_ns() // 1000
                name = id.encode()
                data = encode_record(Type.MESSAGE, seq, now, self._salt, offset, name, b"", body)
                if os.pwrite(self._files[box], data, offset) != len(data):
                    raise OSError
                entry = Entry(seq, 1, offset, len(data), id, now, Type.MESSAGE, seq)
                self._pending[box].append(entry)
                self._seqs[box], self._ends[box] = seq + 1, offset + len(data)
            finally:
                fcntl.fcntl(self._locks, _SET, _pack_lock(fcntl.F_UNLCK, os.SEEK_SET, box, 1, 0))
        return Posted(id, seq, False)


Put = tuple[asyncio.Future[Any], int, str]
"""Who waits for it, the number of its file, and its id."""
Write = Callable[[list[Put]], list[Any]]


def group_put(link: Link, *, body_bytes: int, writes: int) -> dict[str, Any]:
    """64 tasks awaiting one thread, which writes to a file for each and to one log, and syncs that.

    As little Python as that can be done with: no ids, no checksums, no locks, no quota. And once
    more, with all that a durable put into shared boxes cannot do without.
    """
    files, data = open_files(), record_of(body_bytes)
    each = max(1, writes // FILES)
    log = os.open("log", os.O_RDWR | os.O_CREAT)
    os.pwrite(log, bytes(LOG_BYTES), 0)
    os.fsync(log)
    place, ends = 0, [0] * FILES

    def write(group: list[Put]) -> list[Any]:
        nonlocal place
        for _, number, _ in group:
            os.pwrite(files[number], data, ends[number])
            ends[number] += len(data)
        lines = b"".join([data] * len(group))
        if place + len(lines) > LOG_BYTES:
            place = 0
        os.pwrite(log, lines, place)
        place += len(lines)
        os.fdatasync(log)
        return [None] * len(group)

    shared = BareBoxes(files, (each + 11) * len(data), log, bytes(body_bytes))
    link.ready()
    link.wait_go()
    bare = asyncio.run(put_in_groups(write, each, lambda: ""))
    durable = asyncio.run(put_in_groups(shared.put_group, each, new_mail_id))
    return {"per_second": bare, "durable_per_second": durable}


async def put_in_groups(write: Write, each: int, new_id: Callable[[], str]) -> float:
    """How many a second, by 64 tasks that put so many each."""
    loop = asyncio.get_running_loop()
    queue: deque[Put] = deque()
    arrived = threading.Event()

    def resolve(group: list[Put], answers: list[Any]) -> None:
        for (future, _, _), answer in zip(group, answers, strict=True):
            future.set_result(answer)

    def write_all() -> None:
        while not loop.is_closed():
            arrived.wait()
            arrived.clear()
            while queue:
                group = [queue.popleft() for _ in range(len(queue))]
                loop.call_soon_threadsafe(resolve, group, write(group))

    async def produce(number: int, count: int) -> None:
        for _ in range(count):
            future: asyncio.Future[Any] = loop.create_future()
            queue.append((future, number, new_id()))
            if not arrived.is_set():
                arrived.set()
            await future

    threading.Thread(target=write_all, daemon=True).start()
    await asyncio.gather(*(produce(number, 10) for number in range(FILES)))
    with Meter() as meter:
        await asyncio.gather(*(produce(number, each) for number in range(FILES)))
    return each * FILES / meter.seconds


class BareBoxes(BareBox):
    """A group, as `BareBox` puts one: one lock on all, and checksums of their own in the log."""

    def __init__(self, files: list[int], end: int, log: int, body: bytes) -> None:
        super().__init__(files, end)
        self._digests = [hashlib.sha256(bytes([number])).digest() for number in range(len(files))]
        self._log, self._place = log, 0
        self._body = body

    def put_group(self, group: list[Put]) -> list[Any]:
        answers, entries, start = [], [], self._place
        place, now = start, time.time_ns() // 1000
        with self._mutex:
            fcntl.fcntl(self._locks, _SET, _pack_lock(fcntl.F_WRLCK, os.SEEK_SET, 0, 1 << 62, 0))
            try:
                if self._changes[8:] != self._seen:
                    raise RuntimeError("somebody else is here")
                _pack_count(self._changes, 0, 1)
                for _, box, id in group:
                    seq, offset = self._seqs[box], self._ends[box]
                    name = id.encode()
                    data = encode_record(
                        Type.MESSAGE, seq, now, self._salt, offset, name, b"", self._body
                    )
                    if os.pwrite(self._files[box], data, offset) != len(data):
                        raise OSError
                    note = Entry(seq, 1, offset, len(data), id, now, Type.MESSAGE, seq)
                    self._pending[box].append(note)
                    self._seqs[box], self._ends[box] = seq + 1, offset + len(data)
                    entry = _pack_entry(len(data), 1, self._digests[box], 1, self._salt, offset)
                    entry += data
                    entries += (_pack_check(crc32c(entry, self._salt ^ place)), entry)
                    place += 4 + len(entry)
                    answers.append(Posted(id, seq, False))
            finally:
                unlock = _pack_lock(fcntl.F_UNLCK, os.SEEK_SET, 0, 1 << 62, 0)
                fcntl.fcntl(self._locks, _SET, unlock)
        os.pwrite(self._log, b"".join(entries), start)
        self._place = place
        os.fdatasync(self._log)
        return answers
