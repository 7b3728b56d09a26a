"""Bare files: what the cost of mailboxes is measured against, and the least that Python needs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import threading
from collections import deque
from typing import Any

from bench.process import Link, Meter
from penstock.mail import new_mail_id
from penstock.mailboxes.record import OVERHEAD

FILES = 64
LOG_BYTES = 16 * 1024 * 1024
_LOCK = struct.Struct("hhqqi4x")
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
    """To 64 files in turn; and once more, with a lock for each write."""
    files, data = open_files(), record_of(body_bytes)
    locks = os.open("locks", os.O_RDWR | os.O_CREAT)
    link.ready()
    link.wait_go()
    with Meter() as meter:
        for number in range(writes):
            os.pwrite(files[number % FILES], data, (number // FILES) * len(data))
    base = (writes // FILES + 1) * len(data)
    with Meter() as locked:
        for number in range(writes):
            fcntl.fcntl(locks, _SET, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0))
            os.pwrite(files[number % FILES], data, base + (number // FILES) * len(data))
            fcntl.fcntl(locks, _SET, _LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, number, 1, 0))
    return {"per_second": writes / meter.seconds, "locked_per_second": writes / locked.seconds}


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
