"""Bare files: what the cost of mailboxes is measured against, and the least that Python needs."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import struct
import threading
import time
from collections import deque
from typing import Any

from bench.process import Link, Meter
from penstock.mail import Posted, new_mail_id
from penstock.mailboxes.record import OVERHEAD, Type, encode_record
from penstock.mailboxes.shelf import Entry

FILES = 64
LOG_BYTES = 16 * 1024 * 1024
_pack_lock = struct.Struct("hhqqi4x").pack
_pack_count = struct.Struct("@Q").pack_into
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


def group_put(link: Link, *, body_bytes: int, writes: int) -> dict[str, Any]:
    """64 tasks awaiting one thread, which writes to a file for each and to one log, and syncs that.

    As little Python as that can be done with: no ids, no checksums, no locks, no quota.
    """
    files, data = open_files(), record_of(body_bytes)
    log = os.open("log", os.O_RDWR | os.O_CREAT)
    os.pwrite(log, bytes(LOG_BYTES), 0)
    os.fsync(log)
    queue: deque[tuple[asyncio.Future[None], int]] = deque()
    arrived = threading.Event()

    def resolve(group: list[tuple[asyncio.Future[None], int]]) -> None:
        for future, _ in group:
            future.set_result(None)

    def write(loop: asyncio.AbstractEventLoop) -> None:
        place, ends = 0, [0] * FILES
        while not loop.is_closed():
            arrived.wait()
            arrived.clear()
            while queue:
                group = [queue.popleft() for _ in range(len(queue))]
                for _, number in group:
                    os.pwrite(files[number], data, ends[number])
                    ends[number] += len(data)
                lines = b"".join([data] * len(group))
                if place + len(lines) > LOG_BYTES:
                    place = 0
                os.pwrite(log, lines, place)
                place += len(lines)
                os.fdatasync(log)
                loop.call_soon_threadsafe(resolve, group)

    async def run() -> dict[str, Any]:
        loop = asyncio.get_running_loop()

        async def produce(number: int, count: int) -> None:
            for _ in range(count):
                future: asyncio.Future[None] = loop.create_future()
                queue.append((future, number))
                if not arrived.is_set():
                    arrived.set()
                await future

        threading.Thread(target=write, args=(loop,), daemon=True).start()
        await asyncio.gather(*(produce(number, 10) for number in range(FILES)))
        link.ready()
        link.wait_go()
        each = max(1, writes // FILES)
        with Meter() as meter:
            await asyncio.gather(*(produce(number, each) for number in range(FILES)))
        return {"per_second": each * FILES / meter.seconds}

    return asyncio.run(run())
