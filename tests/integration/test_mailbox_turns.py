"""What tasks put in one turn of their event loop: written by its thread, synced by another (M6,
M12, ADR 21)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.clock import Micros
from penstock.errors import HubClosed, OutcomeUnknown, QueueFull, StoreFull
from penstock.mail import NewMail
from penstock.mailboxes.box import Box
from penstock.mailboxes.coroutines import AsyncMailbox
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.postman import TURN_BYTES_MAX, TURN_MAX
from tests.crash.mailbox_world import new_mail
from tests.factories import hub_on
from tests.integration.mailbox_desk import Desk, Room
from tests.waiting import SOON, wait_until

OpenRoom = Callable[..., Room]
ROOMY = {"mailbox_messages_max": 1000, "mailbox_file_messages_max": 1001}


def open_box(room: Room, id: str) -> AsyncMailbox:
    return AsyncMailbox(lambda: room, id)  # type: ignore[arg-type, return-value]


class WatchedDisk(Disk):
    """Who writes and who syncs; a sync waits for as long as a test says."""

    def __init__(self) -> None:
        self.writers: set[int] = set()
        self.syncers: set[int] = set()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.is_syncing = threading.Event()

    def write(self, file: int, data: bytes, offset: int) -> None:
        self.writers.add(threading.get_ident())
        super().write(file, data, offset)

    def sync(self, file: int) -> None:
        self.syncers.add(threading.get_ident())
        self.is_syncing.set()
        assert self.may_sync.wait(SOON)
        super().sync(file)

    def kernel_sync(self) -> None:
        return None

    def watch(self) -> None:
        self.writers.clear()
        self.syncers.clear()


async def test_the_loop_writes_and_where_the_kernel_does_not_another_thread_syncs(
    open_room: OpenRoom,
) -> None:
    disk, me = WatchedDisk(), threading.get_ident()
    room = open_room(disk).stop_janitor()
    boxes = [open_box(room, f"box-{n}") for n in range(8)]
    await asyncio.gather(*(box.put("new") for box in boxes))
    for some in (boxes, boxes[:1], boxes[:1] * 5):
        disk.watch()
        await asyncio.gather(*(box.put("one more") for box in some))
        assert disk.writers == {me}
        assert len(disk.syncers) == 1
        assert me not in disk.syncers


@pytest.mark.parametrize("how", ["new box", "new file", "large"])
async def test_what_takes_longer_is_written_by_another_thread(
    open_room: OpenRoom, how: str
) -> None:
    """The loop's others do not wait for it."""
    disk, me = WatchedDisk(), threading.get_ident()
    room = open_room(
        disk,
        payload_bytes_max=2 * TURN_BYTES_MAX,
        mailbox_messages_max=8,
        mailbox_file_messages_max=9,
    ).stop_janitor()
    box = open_box(room, "box")
    await box.put_many(range(8))
    mails = await box.peek_many(8)
    await box.ack(mails[-1].id, through=True)
    await box.put("the last of this file")
    disk.watch()
    if how == "new box":
        await open_box(room, "another").put("x")
    elif how == "large":
        await box.put(os.urandom(TURN_BYTES_MAX + 1))
    else:
        await box.put("x")
    assert me not in disk.writers
    disk.watch()
    await box.put("y")
    assert (how == "new file") == (me in disk.writers)


async def test_more_than_a_turn_takes_is_put_in_order(open_room: OpenRoom) -> None:
    room = open_room(**ROOMY)
    box = open_box(room, "box")
    await box.put(0)
    count = TURN_MAX * 2
    posted = await asyncio.gather(*(box.put(n) for n in range(1, count)))
    assert [one.seq for one in posted] == list(range(2, count + 1))
    assert [mail.payload for mail in await box.peek_many(count)] == list(range(count))


async def test_tasks_are_served_in_the_order_of_their_calls(open_room: OpenRoom) -> None:
    """However each is put: at once, by another thread, one or many."""
    room = open_room()
    await open_box(room, "first").put(0)  # All is open from here on.
    tasks: list[asyncio.Task[object]] = []
    number = 0
    for turn in range(30):
        for _ in range(1 + turn % 4):
            # Every box is new at some time, and that takes longer.
            box = open_box(room, f"box-{turn // 6}")
            if number % 5 == 3:
                tasks.append(asyncio.create_task(box.put_many([number, number + 1])))
                number += 2
            elif number % 7 == 5:
                tasks.append(asyncio.create_task(box.put(number, timeout=SOON)))
                number += 1
            else:
                tasks.append(asyncio.create_task(box.put(number)))
                number += 1
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    found = [
        mail.payload
        for box in range(5)
        for mail in room.mailboxes.open(f"box-{box}").peek_many(1000)
    ]
    assert found == list(range(number))


async def test_nobody_in_the_loop_waits_for_a_box_that_is_held(
    open_room: OpenRoom, tmp_path: Path
) -> None:
    room = open_room(lock_timeout_seconds=SOON)
    held, free = open_box(room, "held"), open_box(room, "free")
    await asyncio.gather(held.put(0), free.put(0))
    with Desk(tmp_path / "store") as other:
        with other.folder.locked("held"):
            waiting = [asyncio.create_task(held.put(n)) for n in (1, 2)]
            for n in range(1, 20):
                await free.put(n)
            assert not any(task.done() for task in waiting)
        await asyncio.gather(*waiting)
        assert len(other.mails("held")) == 3
    assert [mail.payload for mail in await held.peek_many(9)] == [0, 1, 2]
    assert [mail.payload for mail in await free.peek_many(30)] == list(range(20))


async def test_nobody_in_the_loop_waits_for_a_thread_that_uses_the_boxes(
    open_room: OpenRoom,
) -> None:
    room = open_room()
    box = open_box(room, "box")
    await box.put(0)
    has_it, may_go = threading.Event(), threading.Event()

    def use() -> None:
        with room.mail.folder.mutex:
            has_it.set()
            may_go.wait(SOON)

    user = threading.Thread(target=use)
    user.start()
    has_it.wait(SOON)
    task = asyncio.create_task(box.put(1))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    may_go.set()
    assert (await task).seq == 2
    user.join(SOON)


async def test_what_is_put_while_others_are_synced_shows_when_it_is_synced_itself(
    open_room: OpenRoom,
) -> None:
    disk = WatchedDisk()
    room = open_room(disk).stop_janitor()
    box = open_box(room, "box")
    await box.put(0)
    disk.is_syncing.clear()
    disk.may_sync.clear()
    first = asyncio.create_task(box.put(1))
    await asyncio.to_thread(disk.is_syncing.wait, SOON)
    second = asyncio.create_task(box.put(2))
    await asyncio.to_thread(wait_until, lambda: room.mail.postman.waiting)
    assert await box.size() == 1
    assert not first.done()
    disk.may_sync.set()
    await asyncio.gather(first, second)
    assert await box.size() == 3


@pytest.mark.parametrize("is_in_order", [True, False])
def test_each_group_shows_its_own_messages(tmp_path: Path, is_in_order: bool) -> None:
    """Those behind others that are not on disk yet wait for these."""
    with Desk(tmp_path / "store") as desk:
        desk.put("x", "m0")
        groups = [desk.folder.put([("x", [new_mail(f"m{n}")])], is_logged=True) for n in (1, 2, 3)]
        seen = [desk.ids("x")]
        for group in groups if is_in_order else reversed(groups):
            desk.folder.sync(group)
            desk.folder.show(group)
            seen.append(desk.ids("x"))
        everything = ["m0", "m1", "m2", "m3"]
        counts = (1, 2, 3, 4) if is_in_order else (1, 1, 1, 4)
        assert seen == [everything[:count] for count in counts]


async def test_a_disk_that_is_full_is_told_to_each(open_room: OpenRoom) -> None:
    class FullDisk(WatchedDisk):
        is_full = False

        def write(self, file: int, data: bytes, offset: int) -> None:
            if self.is_full:
                raise OSError(28, "No space left on device")
            super().write(file, data, offset)

    disk = FullDisk()
    room = open_room(disk)
    boxes = [open_box(room, f"box-{n}") for n in range(6)]
    await asyncio.gather(*(box.put(0) for box in boxes))
    disk.is_full = True
    found = await asyncio.gather(*(box.put(1) for box in boxes), return_exceptions=True)
    assert [type(one) for one in found] == [StoreFull] * len(boxes)
    disk.is_full = False
    assert [(await box.put(2)).seq for box in boxes] == [2] * len(boxes)


async def test_too_many_are_refused(open_room: OpenRoom) -> None:
    room = open_room(write_queue_max=10)
    box = open_box(room, "box")
    await box.put("first")
    found = await asyncio.gather(*(box.put(n) for n in range(12)), return_exceptions=True)
    assert [type(one) for one in found[10:]] == [QueueFull, QueueFull]
    assert await box.size() == 11


async def test_who_puts_in_the_turn_in_which_the_hub_is_closed_is_told(tmp_path: Path) -> None:
    """On disk, or refused; nobody waits."""
    hub = hub_on(tmp_path / "hub.db")
    box = hub.aio.mailboxes.open("box")
    await box.put(-1)
    tasks = [asyncio.create_task(box.put(n)) for n in range(50)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(asyncio.to_thread(hub.close))
    late = [asyncio.create_task(box.put(n)) for n in range(50, 60)]
    async with asyncio.timeout(SOON):
        found = await asyncio.gather(*tasks, *late, return_exceptions=True)
    await closing
    refused = [n for n, one in enumerate(found) if isinstance(one, HubClosed | OutcomeUnknown)]
    assert all(isinstance(one, penstock.Posted) or n in refused for n, one in enumerate(found))
    with hub_on(tmp_path / "hub.db") as again:
        there = [mail.payload for mail in again.mailboxes.open("box").peek_many(1000)]
    assert [n for n in there if n not in refused and n >= 0] == [
        n for n in range(60) if n not in refused
    ]


def test_loops_of_several_threads_put_into_one_box(tmp_path: Path) -> None:
    with hub_on(tmp_path / "hub.db", **ROOMY) as hub:
        hub.mailboxes.put("first", 0)  # All is open from here on.
        errors: list[BaseException] = []

        async def put(thread: int) -> None:
            box = hub.aio.mailboxes.open("box")
            for n in range(30):
                await asyncio.gather(*(box.put((thread, n, k)) for k in range(3)))

        def run(thread: int) -> None:
            try:
                asyncio.run(put(thread))
            except BaseException as error:  # noqa: BLE001 - it is the test's thread that fails
                errors.append(error)

        threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        assert not errors
        found = [tuple(mail.payload) for mail in hub.mailboxes.open("box").peek_many(1000)]
        for thread_number in range(3):
            own = [one for one in found if one[0] == thread_number]
            assert own == [(thread_number, n, k) for n in range(30) for k in range(3)]
        assert hub.mailboxes.verify().is_clean


def test_a_loop_that_ends_in_the_middle_of_a_turn_keeps_nobody(tmp_path: Path) -> None:
    with hub_on(tmp_path / "hub.db") as hub:
        box = hub.aio.mailboxes.open("box")
        asyncio.run(box.put(0))

        async def leave() -> None:
            task = asyncio.ensure_future(box.put(1))
            await asyncio.sleep(0)
            assert not task.done()

        asyncio.run(leave())
        assert asyncio.run(box.put(2)).seq in (2, 3)
        hub.mailboxes.open("box").put(3, timeout=SOON)
        assert hub.mailboxes.open("box").peek_many(9)[-1].payload == 3


@pytest.mark.parametrize("is_logged", [True, False])
@pytest.mark.parametrize("boxes", [["x"], list("xyzuvw")])
def test_one_who_is_struck_behind_a_write_leaves_a_box_that_can_be_used(
    tmp_path: Path, boxes: list[str], is_logged: bool
) -> None:
    """What is put next is behind the message, not in its place."""

    class Struck(BaseException):
        pass

    with Desk(tmp_path / "store") as desk:
        requests = {box: [new_mail("first")] for box in boxes}
        desk.put_all(requests, is_logged=is_logged)
        write_one = desk.folder.write_one

        def strike(box: Box, mail: NewMail, now: Micros) -> None:
            write_one(box, mail, now)
            raise Struck

        desk.folder.write_one = strike
        requests = {box: [new_mail("struck", b"a long message")] for box in boxes}
        with pytest.raises(Struck):
            desk.put_all(requests, is_logged=is_logged)
        desk.folder.write_one = write_one
        desk.put_all({box: [new_mail("last", b"short")] for box in boxes}, is_logged=is_logged)
        assert desk.ids(boxes[0]) == ["first", "struck", "last"]
        assert [desk.ids(box) for box in boxes[1:]] == [["first", "last"]] * len(boxes[1:])
        assert desk.verify().is_clean
